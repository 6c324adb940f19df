"""The schema of the wire and the stubs generated from it."""
