"""How long a first use takes: from the start of a command to its first finished round, or to its answer.

    python benchmarks/cold_start.py [--preset quick] [--device cpu] [--repeat 1]

Cold: no cache of kernels, data sets or fonts, as on a machine that never ran it. Warm: the same once more, with
the kernels compiled. ``own`` is what is left when the import of torch, in a process of its own, is taken off.
``processor`` is the user time of the process, which a busy machine changes less.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from command import at_least, in_one_line
from fedgs.errors import FedgsError

COMPILE = Path(__file__).parent.parent / "tools" / "compile_kernels.py"
CACHES = (
    "XDG_CACHE_HOME",
    "FEDGS_DATA",
    "NUMBA_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "MPLCONFIGDIR",
)


def timed(command: list[str], env: dict[str, str], until: Path | None = None) -> tuple[float, float]:
    """Run a command to its end, or until the first round is in ``until``; return seconds and those of processors."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime, time.perf_counter()
    with subprocess.Popen(
        [sys.executable, *command], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as child:
        while until is not None and child.poll() is None:
            if until.is_file() and len(until.read_text().splitlines()) > 1:
                child.terminate()
                break
            time.sleep(0.01)
        seconds = time.perf_counter() - began
        said = child.communicate()[0].decode()
        seconds = seconds if until is not None else time.perf_counter() - began
    if (until is None and child.returncode) or (until is not None and not until.is_file()):
        raise FedgsError(f"{' '.join(command)} failed: {said.strip()[-300:]}")
    return seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def show(what: str, took: tuple[float, float], torch: tuple[float, float]) -> None:
    cells = "".join(f"{all_of_it:12.2f}{all_of_it - off:8.2f}" for all_of_it, off in zip(took, torch, strict=True))
    print(f"{what:30}{cells}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="quick", help="of fedgs run")
    parser.add_argument("--device", default="cpu", help="of fedgs run")
    parser.add_argument("--repeat", type=at_least(1), default=1, help="so often")
    options = parser.parse_args()
    print(f"{'':30}{'seconds':>12}{'own':>8}{'processor':>12}{'own':>8}")
    for _ in range(options.repeat):
        with tempfile.TemporaryDirectory() as folder:
            measure(Path(folder), options)


def measure(folder: Path, options: argparse.Namespace) -> None:
    env = os.environ | {name: str(folder / name) for name in CACHES}
    counts = np.random.default_rng(0).multinomial(32, np.full(62, 1 / 62), size=33)
    np.savez(folder / "problem.npz", counts=counts, target=np.full(62, 1 / 62))
    torch = timed(["-c", "import torch"], env)
    show("import torch", torch, (0.0, 0.0))
    select = ["-m", "fedgs", "select", str(folder / "problem.npz"), "--pick", "8"]
    for cache in ("cold", "warm"):
        out = folder / cache
        run = ["-m", "fedgs", "run", "--preset", options.preset, "--device", options.device, "--out", str(out)]
        took = timed(select, env)
        print(f"{f'fedgs select, {cache}':34}{took[0]:10.2f}{took[0]:8.2f}{took[1]:12.2f}{took[1]:8.2f}", flush=True)
        took = timed(run, env, out / "metrics.jsonl")
        own = took[0] - torch[0], took[1] - torch[1]
        print(
            f"{f'fedgs run, first round, {cache}':34}{took[0]:10.2f}{own[0]:8.2f}{took[1]:12.2f}{own[1]:8.2f}",
            flush=True,
        )
        if cache == "cold":
            timed([str(COMPILE)], env)


if __name__ == "__main__":
    in_one_line(main)
