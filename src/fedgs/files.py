"""Writing files so that nobody ever sees half of one: to a temporary name first, then renamed."""

import os
from pathlib import Path

from fedgs.errors import OutputError


def make_folder(path: Path) -> None:
    """Create a folder (and those above it), or say why that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{path}: cannot be made a folder ({error.strerror}); choose another with --out") from None
    if not os.access(path, os.W_OK):
        raise OutputError(f"{path}: no permission to write there; choose another folder with --out")


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OutputError(f"{path}: cannot be written ({error.strerror})") from None
