"""The code a result was made with, as a few digits: versions are few, and code changes between them."""

from functools import cache
from hashlib import sha256
from pathlib import Path

import fedgs

FOLDERS = (Path(fedgs.__file__).parent, Path(__file__).parent)
"""The package, and the experiments."""
DIGITS = 12


@cache
def source_digest() -> str:
    """Return 12 hexadecimal digits that stand for the Python files of package and experiments: names and contents."""
    return digest_of(*FOLDERS)


def digest_of(*folders: Path) -> str:
    """Return 12 hexadecimal digits that stand for the Python files below some folders."""
    digest = sha256()
    for folder in folders:
        for name, path in sorted((path.relative_to(folder).as_posix(), path) for path in folder.rglob("*.py")):
            content = path.read_bytes()
            digest.update(f"{name}\x00{len(content)}\x00".encode() + content)
    return digest.hexdigest()[:DIGITS]
