"""Does an installed fedgs work? Run it with the interpreter of that installation, outside the repository.

    python tools/smoke.py FOLDER [--no-run]    FOLDER: where the package must come from, e.g. the virtual environment

It checks the package data, a selection, the command and one short run, with the dependencies every installation has.
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory


def main() -> None:
    """Fail at the first thing that does not work."""
    import fedgs
    from fedgs.network import load_profile

    origin = Path(fedgs.__file__)
    assert origin.is_relative_to(Path(sys.argv[1]).resolve()), f"fedgs comes from {origin}"
    assert load_profile("5g").network().ratio > 10
    problem = fedgs.SelectionProblem([[4, 0], [0, 4], [3, 1]], [0.5, 0.5], 2)
    assert fedgs.solve(problem).chosen.tolist() == [0, 1]

    command = [sys.executable, "-m", "fedgs"]
    shown = subprocess.run([*command, "--version"], check=True, capture_output=True, text=True).stdout
    assert shown.split() == ["fedgs", fedgs.__version__], shown
    if "--no-run" not in sys.argv:
        with TemporaryDirectory() as folder:
            short = ["--set", "training.rounds=1", "--set", "training.iterations=1", "--out", f"{folder}/run"]
            subprocess.run([*command, "run", *short], check=True, capture_output=True)
            assert (Path(folder) / "run/summary.json").is_file()
    print(f"fedgs {fedgs.__version__} in {origin.parent} works")


if __name__ == "__main__":
    main()
