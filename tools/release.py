"""The parts of `make release` that are more than a command: is everything ready, and what is in `dist/`.

    python tools/release.py check     a clean tree, one version everywhere, a section in the changelog, no such tag yet
    python tools/release.py finish    SHA-256 checksums into dist/, and the commands that publish the release

It changes nothing in git. It needs the standard library alone.
"""

import hashlib
import re
import subprocess
import sys
from pathlib import Path


def git(root: Path, *arguments: str) -> str:
    """What a git command prints."""
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.rstrip()


def version_of(root: Path) -> str:
    """The version the package gives itself."""
    return found(root / "src/fedgs/__init__.py", r'^__version__ = "(.+)"$') or "unknown"


def found(file: Path, pattern: str) -> str | None:
    """The first group of a pattern in a file."""
    match = re.search(pattern, file.read_text(encoding="utf-8"), re.MULTILINE)
    return match[1].strip() if match else None


def problems(root: Path) -> list[str]:
    """What stands in the way of a release, a line each."""
    version = version_of(root)
    name = re.escape(version)
    lines = []
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        lines.append(f"src/fedgs/__init__.py: {version} is no version like 1.2.3 or 1.2.3rc1")
    if changed := [line[3:] for line in git(root, "status", "--porcelain").splitlines()]:
        lines.append(f"the working tree is not clean; commit or remove first: {', '.join(changed[:5])}")
    if git(root, "tag", "--list", f"v{version}"):
        lines.append(f"the tag v{version} exists; raise __version__ in src/fedgs/__init__.py")
    if not found(root / "CHANGELOG.md", rf"^## \[{name}\] - (\d{{4}}-\d\d-\d\d)$"):
        lines.append(f"CHANGELOG.md: there is no section '## [{version}] - YYYY-MM-DD'")
    elif not found(root / "CHANGELOG.md", rf"^## \[{name}\][^\n]*\n+(?!## )(\S)"):
        lines.append(f"CHANGELOG.md: the section [{version}] is empty")
    if (cited := found(root / "CITATION.cff", r'^version: "?([^"\n]+)"?$')) != version:
        lines.append(f"CITATION.cff: the version is {cited}, not {version}")
    return lines


def finish(root: Path) -> str:
    """Write `dist/SHA256SUMS` (as sha256sum reads it); the commands that publish what is in `dist/`."""
    version = version_of(root)
    built = sorted(file for file in (root / "dist").iterdir() if file.suffix in {".whl", ".gz"})
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in built]
    (root / "dist/SHA256SUMS").write_text("".join(sums), encoding="utf-8")
    return f"""{"".join(sums)}
fedgs {version} is built and tested. No tag was created and nothing was uploaded. To publish it:

    git tag --annotate v{version} --message "fedgs {version}" {git(root, "rev-parse", "--short", "HEAD")}
    git push origin v{version}
    gh release create v{version} dist/* --verify-tag --title "fedgs {version}" --notes "See CHANGELOG.md"
    python -m twine upload dist/*.whl dist/*.tar.gz
"""


def main() -> None:
    """Run the part that is named on the command line, in the repository of this file."""
    root = Path(__file__).resolve().parents[1]
    match sys.argv[1:]:
        case ["check"]:
            if lines := problems(root):
                sys.exit("\n".join(f"not ready: {line}" for line in lines))
            print(f"fedgs {version_of(root)}: clean tree, one version, changelog section, tag still free")
        case ["finish"]:
            print(finish(root), end="")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
