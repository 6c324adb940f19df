"""Parks that come with the package, as TOML files with the sources of their numbers; or a file of your own.

title = "one line"
[internal.up]          # device to station; also internal.down, external.up/down, direct.up/down (optional)
bandwidth = 100e6      # Hz
snr_db = 20.0          # or, in place of both: rate = 500e6 (bit/s)
latency = 0.007        # seconds, optional
"""

import tomllib
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path

from pydantic import Field, ValidationError

from fedgs.errors import ConfigError, NetworkError
from fedgs.network.settings import LinksSettings

PROFILES = ("5g", "wifi6", "wired")


class Profile(LinksSettings):
    """The links of a kind of park."""

    title: str = Field("", description="one line")


def load_profile(name: str) -> Profile:
    """Return a profile of the package, or that of a TOML file."""
    if name in PROFILES:
        return _parsed(files("fedgs.network.profiles").joinpath(f"{name}.toml").read_text(encoding="utf-8"), name)
    path = Path(name)
    if path.suffix != ".toml":
        raise ConfigError(f"no profile is called {name!r}; {profile_hint(name)}")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; give a profile's name ({', '.join(PROFILES)}) or file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as UTF-8 text ({error})") from None
    return _parsed(text, str(path))


def profile_hint(name: str) -> str:
    """Return what to write instead of a name that is none."""
    near = get_close_matches(name, PROFILES, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(PROFILES)}, or give a .toml file"


def _parsed(text: str, source: str) -> Profile:
    try:
        profile = Profile.model_validate(tomllib.loads(text))
        profile.network()  # says what is missing
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: not valid TOML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{source}: {key}: {first['msg']}") from None
    except NetworkError as error:
        raise ConfigError(f"{source}: {error}") from None
    return profile
