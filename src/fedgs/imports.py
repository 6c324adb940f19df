"""Objects by name: ``package.module:name``, as settings and the wire write them.

The folder a command is started in counts as a place to import from, as it does for ``python -m``.
"""

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from fedgs.errors import AlgorithmError, ConfigError


def is_import_path(text: Any) -> bool:
    """Tell whether a text is of the form ``package.module:name``."""
    return isinstance(text, str) and ":" in text


def load_object(path: str, setting: str) -> Any:
    """Return the object that ``package.module:name`` stands for; ``setting`` is what an error names."""
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise ConfigError(f"{setting}={path!r}: expected package.module:name")
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) and error.name != module_name else None
        reason = f"it needs {missing!r}, which is not installed" if missing else str(error)
        raise ConfigError(
            f"{setting}={path!r}: module {module_name!r} cannot be imported ({reason}); install it, or start fedgs in "
            "the folder that holds it"
        ) from None
    except (Exception, SystemExit) as error:  # whatever the user's own module raises while it is imported
        raise ConfigError(
            f"{setting}={path!r}: module {module_name!r} fails while it is imported ({type(error).__name__}: {error})"
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{setting}={path!r}: module {module_name!r} has no {name!r}")
        found = getattr(found, part)
    return found


def make_object(found: Any, options: Mapping[str, Any], setting: str, ready: Callable[[Any], bool]) -> Any:
    """Return what a class or function makes with options; an object that is ``ready`` is returned and takes none."""
    if not isinstance(found, type) and ready(found):
        if options:
            raise ConfigError(f"{setting}: is an object that is made already and takes no options")
        return found
    try:
        return found(**options)
    except (TypeError, AlgorithmError) as error:
        raise ConfigError(f"{setting}: cannot be made with these options ({error})") from None


def path_of(thing: Any) -> str:
    """Return ``package.module:name`` of a function, a class or an instance of one."""
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__module__}:{named.__qualname__}"
