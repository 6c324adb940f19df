"""`make release` refuses what is not ready, and writes checksums; a small repository in a temporary folder shows it."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "tools/release.py"
CHANGELOG = """# Changelog

## [Unreleased]

## [1.2.0] - 2026-11-18

A first release.

## [1.1.0] - 2026-01-01
"""
FILES = {
    "src/fedgs/__init__.py": '__version__ = "1.2.0"\n',
    "CHANGELOG.md": CHANGELOG,
    "CITATION.cff": "cff-version: 1.2.0\nversion: 1.2.0\n",
    ".gitignore": "dist/\n",
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "tools").mkdir()
    shutil.copy(SCRIPT, tmp_path / "tools")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def git(root: Path, *arguments: str) -> None:
    someone = ["-c", "user.name=someone", "-c", "user.email=someone@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *someone, *arguments], cwd=root, check=True, capture_output=True)


def commit(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "a state")


def release(root: Path, part: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, root / "tools/release.py", part], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_a_repository_that_is_ready(repository: Path) -> None:
    assert release(repository, "check")[0] == 0


@pytest.mark.parametrize(
    ("file", "text", "named"),
    [
        ("CHANGELOG.md", "## [1.1.0] - 2026-01-01\n\nOld.\n", "1.2.0"),
        ("CHANGELOG.md", "## [1.2.0]\n\nNo date.\n", "1.2.0"),
        ("CHANGELOG.md", "## [1.2.0] - 2026-11-18\n\n## [1.1.0] - 2026-01-01\n\nOld.\n", "empty"),
        ("CITATION.cff", "version: 1.1.0\n", "1.1.0"),
        ("src/fedgs/__init__.py", '__version__ = "next"\n', "next"),
    ],
)
def test_what_is_not_ready_is_named(repository: Path, file: str, text: str, named: str) -> None:
    (repository / file).write_text(text)
    commit(repository)
    code, _, said = release(repository, "check")
    assert code == 1
    assert any(file in line and named in line for line in said.splitlines())


def test_a_changed_file_a_new_file_and_a_used_tag_are_refused(repository: Path) -> None:
    git(repository, "tag", "v1.2.0")
    (repository / "CITATION.cff").write_text(FILES["CITATION.cff"] + "\n")
    (repository / "new file").touch()
    code, _, said = release(repository, "check")
    assert code == 1
    clean, tag = said.splitlines()
    assert "CITATION.cff" in clean
    assert "new file" in clean
    assert "v1.2.0" in tag


def test_the_end_writes_checksums_and_creates_no_tag(repository: Path) -> None:
    built = {"fedgs-1.2.0.tar.gz": b"sources", "fedgs-1.2.0-py3-none-any.whl": b"wheel"}
    (repository / "dist").mkdir()
    for name, content in built.items():
        (repository / "dist" / name).write_bytes(content)
    code, said, _ = release(repository, "finish")
    assert code == 0
    assert "git tag --annotate v1.2.0" in said
    lines = (repository / "dist/SHA256SUMS").read_text().splitlines()
    assert sorted(lines) == sorted(f"{hashlib.sha256(content).hexdigest()}  {name}" for name, content in built.items())
    tags = subprocess.run(["git", "tag"], cwd=repository, check=True, capture_output=True, text=True).stdout
    assert tags == ""
