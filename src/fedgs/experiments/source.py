"""The code a result was made with, as a few digits: versions are few, and code changes between them."""

from functools import cache
from hashlib import sha256
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
DIGITS = 12


@cache
def source_digest() -> str:
    """Return 12 hexadecimal digits that stand for the Python files of this package: their names and contents."""
    return digest_of(PACKAGE)


def digest_of(folder: Path) -> str:
    """Return 12 hexadecimal digits that stand for the Python files below a folder."""
    digest = sha256()
    for name, path in sorted((path.relative_to(folder).as_posix(), path) for path in folder.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{name}\x00{len(content)}\x00".encode() + content)
    return digest.hexdigest()[:DIGITS]
