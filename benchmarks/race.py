"""FedAvg in fedgs and in other frameworks, side by side on this machine: seconds a round, accuracy, memory.

    python benchmarks/race.py                       # two CPU cores: 50 devices × 2 epochs of the compact network
    python benchmarks/race.py --device cuda         # 100 devices × 5 epochs of the paper's CNN
    python benchmarks/race.py --json FILE --plot FILE.png
    python benchmarks/race.py --python pfl=/envs/pfl/bin/python --python flower=/envs/flower/bin/python

The race installs nothing. It looks for pfl-research, Flower's simulation, fluke and APPFL, runs those that can be
imported, and says how the others are installed. Every run is a process of its own, three runs each, in turn: first
run of all, second run of all, third run of all. ``pip install 'fedgs[race]'`` brings the frameworks that fit into one
environment with fedgs: pfl (up to Python 3.12), Flower and fluke. APPFL 1.12.0 needs an environment of its own, and so
may the others: name its interpreter with ``--python``. It needs the framework, torch and numpy alone; its torch should
have the same version. ``--keep FOLDER`` keeps what the frameworks wrote, for one that failed.

Equal for all: the samples of each device (the embedded glyphs, 28×28, bright on black, unequal devices), the network
and its first weights, the number of devices (all of them take part in each round), local epochs, batch size (the last
batch of an epoch may be short, so the local steps are equal too), SGD without momentum, its learning rate, the mean
weighted by samples, TF32 for matrix products on a GPU, and the test after the last round. Start-up, reading data and
testing are not counted, nor is the first round of a run.

Not equal: each framework runs its clients in the way its own guide recommends (``benchmarks/racers/run_*.py``). fedgs
trains the built-in network for all devices at once; the second row of fedgs has the network as a file of the user's,
as the others have it. pfl runs in one process and in several (``--processes``, which share the GPU), with the samples
on the device, and does not shuffle between epochs. Flower starts Ray workers, one core each, or ``--processes`` of
them on a GPU. fluke and APPFL run one client after the other, with torch's own threads; APPFL without its repeated
garbage collection (``optimize_memory``). Random numbers differ, hence accuracies differ a little.

Seconds a round: the median of the rounds after the first, then the median of the runs. Memory: the highest sum over
all processes of a run (proportional set size, Linux), and on a GPU what was taken there.
"""

import argparse
import json
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from command import at_least, in_one_line
from fedgs.data import build_federation
from fedgs.data.glyphs import load_glyphs
from fedgs.errors import ConfigError
from fedgs.simulation.simulator import pick_device
from fedgs.tasks.cnn import build_model

RACERS = Path(__file__).resolve().parent / "racers"
SIZES = {
    "cpu": {"network": "compact", "devices": 50, "epochs": 2, "batch": 32, "samples": 230, "learning_rate": 0.3},
    "cuda": {"network": "paper", "devices": 100, "epochs": 5, "batch": 32, "samples": 230, "learning_rate": 0.1},
}


@dataclass(frozen=True)
class Framework:
    """What can race: its script, and how it is found and installed."""

    title: str
    script: str
    modules: tuple[str, ...]
    install: str


FRAMEWORKS = {
    "fedgs": Framework("fedgs", "run_fedgs.py", ("fedgs",), "pip install fedgs"),
    "pfl": Framework("pfl-research", "run_pfl.py", ("pfl", "torch"), "pip install 'pfl[pytorch]==0.6.0'"),
    "flower": Framework("Flower", "run_flower.py", ("flwr", "ray"), "pip install 'flwr[simulation]==1.41.0'"),
    "fluke": Framework("fluke", "run_fluke.py", ("fluke",), "pip install fluke-fl==0.8.1"),
    "appfl": Framework("APPFL", "run_appfl.py", ("appfl",), "pip install appfl==1.12.0"),
}


@dataclass
class Entry:
    """One row: a framework in one of its ways, and what it did."""

    name: str
    framework: str
    processes: int = 1
    own_network: bool = False
    how: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    runs: list[list[float]] = field(default_factory=list)
    """Seconds of each round, a list a run."""
    accuracies: list[float] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)
    gpu_megabytes: list[float] = field(default_factory=list)
    problem: str = ""
    """Why there is no time: not installed, or what went wrong."""

    @property
    def seconds(self) -> float:
        """Seconds a round."""
        return statistics.median(statistics.median(run[1:]) for run in self.runs)


class OneLineParser(argparse.ArgumentParser):
    """Refuses arguments in one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def arguments() -> argparse.Namespace:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=sorted(SIZES))
    parser.add_argument("--only", nargs="+", choices=list(FRAMEWORKS), help="these frameworks alone, and fedgs")
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PATH",
                        help="the interpreter of the environment of a framework; repeatable")  # fmt: skip
    parser.add_argument("--devices", type=at_least(1), help="that take part in each round")
    parser.add_argument("--samples", type=at_least(10), help="mean number of samples of a device")
    parser.add_argument("--epochs", type=at_least(1), help="local epochs of a round")
    parser.add_argument("--batch", type=at_least(1), help="samples of a mini-batch")
    parser.add_argument("--rounds", type=at_least(2), default=12, help="of a run; the first is not counted")
    parser.add_argument("--repeats", type=at_least(1), default=3, help="runs of each")
    parser.add_argument("--processes", type=at_least(1), help="of pfl, and clients of Flower side by side on a GPU")
    parser.add_argument("--limit", type=at_least(1), default=1800, help="seconds a run may take")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep jobs and logs in this new folder")
    parser.add_argument("--json", type=Path, help="write all numbers and versions here")
    parser.add_argument("--plot", type=Path, help="write a picture here")
    return parser.parse_args()


def interpreters(given: Sequence[str]) -> dict[str, str]:
    """Return the interpreter of each framework; this one where none is given."""
    found = dict.fromkeys(FRAMEWORKS, sys.executable)
    for text in given:
        name, equals, path = text.partition("=")
        if name not in FRAMEWORKS or not equals:
            raise ConfigError(f"--python {text}: give NAME=PATH, where NAME is one of {', '.join(FRAMEWORKS)}")
        if not os.access(path, os.X_OK) or not Path(path).is_file():
            raise ConfigError(f"--python {text}: {path} is no interpreter")
        found[name] = os.path.abspath(path)  # a link stays a link: it tells Python its environment
    return found


def check_writable(path: Path | None) -> None:
    if path is not None and not path.resolve().parent.is_dir():
        raise ConfigError(f"{path}: the folder {path.resolve().parent} does not exist")


def prepare(folder: Path, sizes: dict[str, Any]) -> None:
    """Write the samples and the first weights, the same for all."""
    data = load_glyphs(devices=sizes["devices"], samples_per_device=sizes["samples"])
    federation = build_federation(data, 1, min_samples=0)
    train = [federation.train_indices(device) for device in range(len(federation))]
    test = [federation.test_indices(device) for device in range(len(federation))]
    images = 255 - np.asarray(federation.inputs)  # bright ink on black: FedAvg learns from the first rounds on
    labels = federation.labels
    model = build_model(sizes["network"], len(federation.classes), images.shape[1:], seed=0)
    np.savez(
        folder / "data.npz",
        inputs=images[np.concatenate(train)],
        labels=labels[np.concatenate(train)],
        clients=np.repeat(np.arange(len(train)), [len(own) for own in train]),
        test_inputs=images[np.concatenate(test)],
        test_labels=labels[np.concatenate(test)],
        test_clients=np.repeat(np.arange(len(test)), [len(own) for own in test]),
        **{f"weights/{name}": value.numpy() for name, value in model.state_dict().items()},
    )
    sizes["classes"] = len(federation.classes)
    sizes["training_samples"] = sum(len(own) for own in train)
    sizes["test_samples"] = sum(len(own) for own in test)
    sizes["local_steps"] = sizes["epochs"] * sum(math.ceil(len(own) / sizes["batch"]) for own in train)


def entries(only: Sequence[str] | None, processes: int) -> list[Entry]:
    """Return the rows of the race."""
    rows = [Entry("fedgs", "fedgs"), Entry("fedgs, own network", "fedgs", own_network=True)]
    for name, framework in FRAMEWORKS.items():
        if name == "fedgs" or (only and name not in only):
            continue
        rows.append(Entry(framework.title, name, processes=processes if name == "flower" else 1))
        if name == "pfl" and processes > 1:
            rows.append(Entry(f"{framework.title} × {processes}", name, processes=processes))
    return rows


def environment(python: str) -> dict[str, str]:
    """Return the variables of a run: with this interpreter also where this process finds its modules."""
    folders = [str(RACERS)]
    if python == sys.executable:
        folders += [os.path.abspath(folder) for folder in sys.path if folder]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "PYTHONDONTWRITEBYTECODE": "1"}


def is_importable(framework: Framework, python: str) -> bool:
    look = "import importlib.util as u, sys; sys.exit(any(u.find_spec(name) is None for name in sys.argv[1:]))"
    done = subprocess.run([python, "-c", look, *framework.modules], env=environment(python), capture_output=True)
    return done.returncode == 0


class Watch(threading.Thread):
    """Notes the highest memory of a process with all its descendants, and of the GPU."""

    def __init__(self, process: int, on_gpu: bool) -> None:
        super().__init__(daemon=True)
        self.process, self.on_gpu = process, on_gpu
        self.megabytes = self.gpu_megabytes = 0.0
        self.seen: set[int] = {process}
        self.ended = threading.Event()
        self.before = gpu_used() if on_gpu else 0.0

    def run(self) -> None:
        pause = 0.0
        while not self.ended.wait(pause):
            began = time.perf_counter()
            family = descendants(self.process)
            self.seen |= family
            self.megabytes = max(self.megabytes, sum(map(proportional_megabytes, family)))
            if self.on_gpu:
                self.gpu_megabytes = max(self.gpu_megabytes, gpu_used() - self.before)
            pause = max(0.5, 20 * (time.perf_counter() - began))  # at most a twentieth of a core


def gpu_used() -> float:
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 1e6


def descendants(process: int) -> set[int]:
    """Return a process and all it started, directly or not; the process alone where /proc does not tell."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue  # it has ended
        children.setdefault(parent, []).append(int(path.parent.name))
    found, new = {process}, [process]
    while new:
        new = [child for one in new for child in children.get(one, []) if child not in found]
        found.update(new)
    return found


def proportional_megabytes(process: int) -> float:
    """Return the memory of a process in MB, where pages shared by several processes count in parts."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1e6


def run_once(entry: Entry, python: str, folder: Path, sizes: dict[str, Any], limit: int) -> None:
    """Run an entry once and note what it did, or why it did not."""
    folder.mkdir()
    job = {**sizes, "processes": entry.processes, "own_network": entry.own_network}
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    script = str(RACERS / FRAMEWORKS[entry.framework].script)
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [python, script, str(folder)], cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True, env=environment(python),
        )  # fmt: skip
        watch = Watch(process.pid, sizes["device"] == "cuda")
        watch.start()
        late = False
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            watch.ended.set()
            watch.join()
            end(process, watch.seen if process.poll() is None else set())
    result = folder / "result.json"
    if late:
        entry.problem = f"did not end within {limit} s"
    elif process.returncode != 0 or not result.exists():
        entry.problem = failure(folder, process.returncode)
    else:
        found = json.loads(result.read_text(encoding="utf-8"))
        entry.how, entry.versions = found["how"], found["versions"]
        entry.runs.append(found["seconds"])
        entry.accuracies.append(found["accuracy"])
        entry.megabytes.append(watch.megabytes)
        entry.gpu_megabytes.append(watch.gpu_megabytes)


def end(process: subprocess.Popen[bytes], others: set[int]) -> None:
    """End a run that did not end by itself, with everything it started."""
    for one in others:
        try:
            os.kill(one, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()


def failure(folder: Path, code: int) -> str:
    """Return one line that says what went wrong."""
    said = folder / "failure.txt"
    lines = (said if said.exists() else folder / "log.txt").read_text(encoding="utf-8", errors="replace").splitlines()
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    reason = " ".join(last.split()) or "it said nothing"
    return f"failed with exit code {code}: {reason[:200]}"


def rows_of(table: Sequence[Entry], on_gpu: bool) -> list[str]:
    base = table[0].seconds if table[0].runs else math.nan
    lines = [f"{'':24} {'s a round':>10} {'× fedgs':>8} {'accuracy':>9} {'MB':>7}" + (" GPU MB" if on_gpu else "")]
    for entry in table:
        if not entry.runs:
            lines.append(f"{entry.name:24} {entry.problem}")
            continue
        memory = f"{max(entry.megabytes):7.0f}" if max(entry.megabytes) else f"{'–':>7}"
        memory += f" {max(entry.gpu_megabytes):6.0f}" if on_gpu else ""
        accuracy = statistics.median(entry.accuracies)
        version = entry.versions.get(next(iter(entry.versions.keys() - {"python", "torch", "numpy", "ray"}), ""), "")
        lines.append(f"{entry.name:24} {entry.seconds:10.3f} {entry.seconds / base:7.2f}× {accuracy:8.1%} {memory}"
                     f"   {version} {entry.how}")  # fmt: skip
    return lines


def plot(table: Sequence[Entry], title: str, path: Path) -> None:
    """Draw a bar a row, its length the seconds a round, on a scale of powers where they differ much."""
    from matplotlib.figure import Figure

    ran = [entry for entry in table if entry.runs][::-1]
    figure = Figure(figsize=(8, 1.2 + 0.5 * len(ran)), dpi=120, layout="constrained")
    axes = figure.subplots()
    colours = ["#1b6ca8" if entry.framework == "fedgs" else "#9aa5b1" for entry in ran]
    bars = axes.barh([entry.name for entry in ran], [entry.seconds for entry in ran], color=colours)
    base = table[0].seconds if table[0].runs else math.nan
    axes.bar_label(bars, [f"{entry.seconds:.2f} s, {entry.seconds / base:.1f}×" for entry in ran], padding=4)
    if max(entry.seconds for entry in ran) > 20 * min(entry.seconds for entry in ran):
        axes.set_xscale("log")
    axes.margins(x=0.25)
    axes.set_xlabel("seconds a round of FedAvg")
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(path)
    except ValueError as error:
        raise ConfigError(f"--plot {path}: cannot be written as a picture ({error})") from None


def machine(device: str) -> dict[str, Any]:
    names = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    about: dict[str, Any] = {
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "load_before": os.getloadavg()[0],
    }
    if device == "cuda":
        about["gpu"] = torch.cuda.get_device_name()
    return about


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def race(table: list[Entry], pythons: dict[str, str], sizes: dict[str, Any], options: argparse.Namespace,
         tell: Callable[[str], None]) -> None:  # fmt: skip
    """Run all entries in turn, several times."""
    for name in dict.fromkeys(entry.framework for entry in table):
        if not is_importable(FRAMEWORKS[name], pythons[name]):
            for entry in table:
                if entry.framework == name:
                    entry.problem = f"not installed: {FRAMEWORKS[name].install}"
    with (
        tempfile.TemporaryDirectory(prefix="fedgs-race-")
        if options.keep is None
        else nullcontext(options.keep.resolve()) as place
    ):
        Path(place).mkdir(exist_ok=options.keep is None)
        prepare(Path(place), sizes)
        tell(f"{sizes['network']} network, {sizes['devices']} devices with {sizes['training_samples']} samples, "
             f"{sizes['epochs']} epochs, batches of {sizes['batch']}, {sizes['local_steps']} local steps a round, "
             f"{options.rounds} rounds, {options.repeats} runs")  # fmt: skip
        for repeat in range(options.repeats):
            for number, entry in enumerate(table):
                if entry.problem:
                    continue
                folder = Path(place) / f"{repeat}-{number}"
                run_once(entry, pythons[entry.framework], folder, sizes, options.limit)
                took = entry.problem or f"{statistics.median(entry.runs[-1][1:]):.3f} s a round"
                tell(f"run {repeat + 1}, {entry.name}: {took}")


def main() -> None:
    options = arguments()
    pythons = interpreters(options.python)
    check_writable(options.json)
    check_writable(options.plot)
    device = pick_device(options.device).type
    sizes: dict[str, Any] = {**SIZES[device], "device": device, "rounds": options.rounds}
    for key in ("devices", "samples", "epochs", "batch"):
        if (wanted := getattr(options, key)) is not None:
            sizes[key] = wanted
    cores = os.cpu_count() or 1
    processes = options.processes or (cores if device == "cpu" else min(5, cores))
    table = entries(options.only, processes)
    about = machine(device)
    where = about.get("gpu") or f"{about['cores']} cores of {about['processor']}"
    print(where, flush=True)
    race(table, pythons, sizes, options, lambda line: print(line, file=sys.stderr, flush=True))
    print("\n".join(rows_of(table, device == "cuda")))
    if options.json:
        found = [
            asdict(entry)
            | ({"seconds": entry.seconds, "ratio": entry.seconds / table[0].seconds} if entry.runs else {})
            for entry in table
        ]
        text = json.dumps({"machine": about, "sizes": sizes, "entries": found}, indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")
    if options.plot and any(entry.runs for entry in table):
        title = f"{sizes['network']} network, {sizes['devices']} devices × {sizes['epochs']} epochs, {where}"
        plot(table, title, options.plot)
    if not table[0].runs:
        raise ConfigError(f"fedgs itself {table[0].problem}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a run under way is ended, too
    in_one_line(main)
