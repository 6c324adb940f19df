"""Writing files so that nobody ever sees half of one: to a temporary name first, then renamed."""

import math
import os
from pathlib import Path
from typing import Any

from fedgs.errors import OutputError


def make_folder(path: Path) -> None:
    """Create a folder (and those above it), or say why that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{path}: cannot make this folder ({error.strerror}); choose another") from None
    if not os.access(path, os.W_OK):
        raise OutputError(f"{path}: no permission to write there; choose another folder")


def write_text(path: Path, text: str) -> Path:
    """Write a text file in one step."""
    return write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes, durable: bool = False) -> Path:
    """Write a file in one step; ``durable``: its content and then its name are on the disk, whatever the power does."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if durable:
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OutputError(f"{path}: cannot be written ({error.strerror})") from None
    return path


def finite(value: Any) -> Any:
    """Return plain data in which every number is finite: JSON has no NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
