"""A built wheel, unpacked somewhere else, works without the repository, package data included."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]

CODE = """
import fedgs, json, sys
assert fedgs.__file__.startswith(sys.argv[1]), fedgs.__file__
from fedgs.network import load_profile
assert load_profile("5g").network().ratio > 10
from fedgs.selection import SelectionProblem, solve
assert solve(SelectionProblem([[4, 0], [0, 4], [3, 1]], [0.5, 0.5], 2)).chosen.tolist() == [0, 1]
"""


def test_the_wheel_works_elsewhere(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", str(tmp_path), str(REPOSITORY)], check=True, timeout=120)
    (wheel,) = tmp_path.glob("fedgs-*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
        names = archive.namelist()
    assert "fedgs/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith(("tests/", "reproduction/")) for name in names)
    # Not measured by coverage: it would count the unpacked copy as a second package.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("COVERAGE")}
    environment["PYTHONPATH"] = str(site)
    run = {"cwd": tmp_path, "env": environment, "check": True, "timeout": 120}
    subprocess.run([sys.executable, "-c", CODE, str(site)], **run)  # type: ignore[call-overload]
    shown = subprocess.run([sys.executable, "-m", "fedgs", "--version"], capture_output=True, text=True, **run)  # type: ignore[call-overload]
    assert shown.stdout.startswith("fedgs ")
