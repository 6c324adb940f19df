"""Settings that come with the package, as TOML files."""
