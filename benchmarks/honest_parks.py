"""Parks in which nobody attacks: how many updates are rejected, how many rounds discarded. Both should be 0.

    python benchmarks/honest_parks.py                      # all of them, half an hour
    python benchmarks/honest_parks.py --only "high rate"   # those whose name has these words

Each is a real park (``fedgs park up``): processes, certificates, network. The settings are those that made earlier
bounds fail: weights that begin at zero, high learning rates, devices that see one class, vanishing and steep gradients,
long runs (once the data are learnt, a hard batch has hundreds of times the usual gradient), and teams of one or two.
``shortened`` counts updates that went into the mean with the longest norm there is, ``slow`` iterations in which a
device was not waited for, ``lost`` iterations without any update, ``late`` answers that missed a deadline, as they do
on a busy machine.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from torch import nn

from command import in_one_line

COUNTED = ("rejected", "shortened", "discarded", "slow", "lost", "late")
GLYPHS = ("data.name=glyphs", "task.model=compact", "training.rounds=6", "training.iterations=20")
BEARINGS = ("data.name=bearings", "task.model=vibration", "training.iterations=20", "training.learning_rate=0.3")
LONG = ("training.rounds=120", "training.iterations=25", "training.batch_size=32", "training.learning_rate=0.2")
ALONE = ("selection.pick=1", "selection.presample=0")
SKEW = ('data.split={kind="dirichlet", alpha=0.02, devices=16}',)
ZERO = ("task.model=honest_parks:zero_start", "task.options.classes=62", "training.learning_rate=0.05")
PARKS: dict[str, tuple[str, ...]] = {
    "as it comes": GLYPHS,
    "zero start": (*GLYPHS, *ZERO),
    "high rate": (*GLYPHS, "training.learning_rate=0.8"),
    "alpha 0.02": (*GLYPHS, *SKEW),
    "alpha 0.02, high rate": (*GLYPHS, *SKEW, "training.learning_rate=0.8"),
    "alpha 0.02, zero start": (*GLYPHS, *SKEW, *ZERO),
    "Adam at the stations": (*GLYPHS, "training.optimizer=adam", "training.learning_rate=0.002"),
    "batch normalisation": (*BEARINGS, "training.rounds=6"),
    "learnt by heart": (*GLYPHS, "data.samples_per_device=20", "training.rounds=80", "training.learning_rate=0.3"),
    "linear, high rate": (*GLYPHS, "task.model=linear", "training.learning_rate=0.2", "training.batch_size=16"),
    "long": (*GLYPHS, *LONG),
    "long, teams of two": (*GLYPHS, *LONG, "selection.pick=2", "selection.presample=1"),
    "long, 60 iterations": (*GLYPHS, *LONG, "training.iterations=60", "training.rounds=200", "selection.pick=2"),
    "long, teams of one": (*GLYPHS, *LONG, *ALONE),
    "long, alpha 0.02, teams of one": (*GLYPHS, *LONG, *SKEW, *ALONE),
    "long, high rate, teams of two": (*GLYPHS, *LONG, "training.learning_rate=0.5", "selection.pick=2"),
    "long, zero start, teams of one": (*GLYPHS, *LONG, *ZERO, *ALONE),
    "by heart, teams of one": (*GLYPHS, *LONG, *ALONE, "data.samples_per_device=40"),
    "normalised, teams of one": (*BEARINGS, *ALONE, "training.rounds=40"),
}  # fmt: skip


def zero_start(classes: int) -> nn.Module:
    """Return softmax regression whose weights are all zero, so that nothing can be measured against their norm."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, classes))
    for weight in network.parameters():
        nn.init.zeros_(weight)
    return network


def run(name: str, stations: int, devices: int) -> str:
    """Run one park and return its line."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "park"
        options = [word for setting in PARKS[name] for word in ("--set", setting)]
        sizes = ["--stations", str(stations), "--devices", str(devices)]
        command = [sys.executable, "-m", "fedgs", "park", "up", *sizes, "--out", str(out), *options]
        done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent, check=False)
        lines, size = [], 1
        if (out / "top/metrics.jsonl").exists():
            size = json.loads((out / "config.json").read_text())["training"]["batch_size"]
            lines = [json.loads(line) for line in (out / "top/metrics.jsonl").read_text().splitlines()]
    if done.returncode:
        return f"{name:30} ended with code {done.returncode}: {done.stderr.splitlines()[-1]}"
    events = sum((Counter(line.get("events", {})) for line in lines), Counter())
    updates = sum(line.get("samples", 0) for line in lines) / size
    shown = "  ".join(f"{events[key]:9d}" for key in COUNTED)
    return f"{name:30} {lines[-1]['accuracy']:8.1%}  {updates:8.0f}  {shown}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Count what parks without an attacker reject.")
    parser.add_argument("--only", default="", help="part of a name")
    parser.add_argument("--stations", type=int, default=2)
    parser.add_argument("--devices", type=int, default=8, help="of each station")
    given = parser.parse_args()
    heads = "  ".join(f"{head:>9}" for head in COUNTED)
    print(f"{'park':30} {'accuracy':>8}  {'updates':>8}  {heads}")
    for name in PARKS:
        if given.only in name:
            print(run(name, given.stations, given.devices), flush=True)


if __name__ == "__main__":
    in_one_line(main)
