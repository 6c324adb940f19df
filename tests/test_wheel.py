"""A built wheel, unpacked somewhere else, works without the repository, package data included."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]


def test_the_wheel_works_elsewhere(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=REPOSITORY, check=True, timeout=120)
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
    environment |= {"PYTHONPATH": str(site), "NUMBA_DISABLE_JIT": "1"}  # to compile it again would prove nothing here
    smoke = [sys.executable, str(REPOSITORY / "tools/smoke.py"), str(site), "--no-run"]
    subprocess.run(smoke, cwd=tmp_path, env=environment, check=True, timeout=300)
