"""What the live page costs: scripting of the browser with 600 devices, its memory over many events, the run's time.

    python benchmarks/page.py                    # needs Chromium and playwright
    python benchmarks/page.py --devices 600 --seconds 20

A made-up run with 600 devices in 20 factories writes two rounds a second. Printed are the milliseconds of scripting,
style and layout that the browser needs a second; the memory of the browser's window and of the server after each sixth
of an hour's rounds (7,200, written quickly); the processor seconds of the server while a real run is looked at, as a
share of the run's own; and the seconds of real runs with and without a page that looks at them: pairs in alternating
order, and the ratio of each. Of the runs without a page the spread is printed, too: a ratio within it says nothing.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import fedgs
from fedgs.config import load_settings

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--js-flags=--expose-gc"]
CLASSES = 62


class MadeUp:
    """The folder of a run that writes rounds as fast as it is told to."""

    def __init__(self, folder: Path, devices: int, factories: int) -> None:
        self.folder, self.devices, self.factories, self.round = folder, devices, factories, 0
        self.draws = np.random.default_rng(0)
        folder.mkdir()
        settings = load_settings(None, ["training.rounds=100000"], "quick").model_dump()
        (folder / "config.json").write_text(json.dumps(settings))
        facts = {
            "factories": [f"factory-{number}" for number in range(factories)],
            "devices": [[f"camera-{number}", number % factories] for number in range(devices)],
            "classes": [str(number) for number in range(CLASSES)],
            "target": [1 / CLASSES] * CLASSES,
        }
        (folder / "federation.json").write_text(json.dumps(facts))

    def write(self, rounds: int = 1) -> None:
        """Add rounds, each with an event."""
        lines: dict[str, list[dict[str, Any]]] = {"teams": [], "metrics": [], "clock": [], "timings": []}
        for _ in range(rounds):
            self.round += 1
            turns = self.draws.integers(0, 6, self.devices)
            team = self.draws.integers(0, self.devices, (self.factories, 6)).tolist()
            mix = self.draws.integers(0, 50, (self.factories, CLASSES)).tolist()
            far = self.draws.random(self.factories).tolist()
            score = {"round": self.round, "accuracy": float(self.draws.random()), "loss": 1.0, "train_loss": 1.0}
            lines["teams"].append(
                {"round": self.round, "turns": turns.tolist(), "team": team, "mix": mix, "divergence": far}
            )
            lines["metrics"].append(score | {"divergence": 0.1, "events": {"offline": 3}})
            lines["clock"].append({"round": self.round, "elapsed": self.round * 2.0, "bytes": {"station_top_up": 1000}})
            lines["timings"].append({"round": self.round, "seconds": 0.5})
        for name, rows in lines.items():
            with (self.folder / f"{name}.jsonl").open("a") as file:
                file.write("".join(json.dumps(row) + "\n" for row in rows))


def window() -> int:
    """Return the process that draws the page: of the browser's renderers the one with the most memory."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"--type=renderer" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return max(found, key=resident)


def resident(process: int) -> float:
    """Return the memory of a process in MB."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def processor_seconds(process: int) -> float:
    """Return the processor seconds that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def browse(folder: Path, run: MadeUp, seconds: float, hour: int) -> tuple[dict[str, float], list[tuple[float, ...]]]:
    """Look at a run for some seconds while it goes on; return what that cost the browser."""
    from playwright.sync_api import sync_playwright

    command = [sys.executable, "-m", "fedgs", "ui", str(folder), "--listen", "127.0.0.1:0"]
    with sync_playwright() as playwright, subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split()[0]
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            page = browser.new_page()
            page.goto(address)
            page.wait_for_selector("#factories .tile")
            session = page.context.new_cdp_session(page)
            session.send("Performance.enable")

            def measured() -> dict[str, float]:
                return {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}

            time.sleep(2)
            before, began = measured(), time.monotonic()
            while time.monotonic() - began < seconds:
                run.write()
                time.sleep(0.5)
            after = measured()
            cost = {
                name: (after[name] - before[name]) / (time.monotonic() - began) * 1000
                for name in ("ScriptDuration", "RecalcStyleDuration", "LayoutDuration")
            }
            memory = []
            for part in range(7):
                if part:
                    for _ in range(10):
                        run.write(hour // 60)
                        time.sleep(0.7)
                page.wait_for_function(f"document.getElementById('shown').innerText.startsWith('{run.round} ')")
                time.sleep(2)
                page.evaluate("gc()")
                rows = page.evaluate("Number(document.getElementById('round').max) + 1")
                heap = measured()["JSHeapUsedSize"] / 1e6
                memory.append((run.round, rows, heap, resident(window()), resident(server.pid)))
            return cost, memory
        finally:
            server.terminate()


def run_seconds(folder: Path, looked_at: bool) -> tuple[float, float, float]:
    """Return the seconds of a real run, its processor seconds, and those of the page's server.

    ``looked_at``: a reader of the stream is connected from the first round on.
    """
    settings = load_settings(None, ["training.rounds=25", "baseline=[]"], "quick")
    reader: list[subprocess.Popen[bytes]] = []

    class Look(fedgs.Callback):
        def on_begin(self, run: Any) -> None:
            code = "import sys,urllib.request as u\nfor _ in u.urlopen(sys.argv[1]+'/stream'): pass"
            command = [sys.executable, "-m", "fedgs", "ui", str(folder), "--listen", "127.0.0.1:0"]
            server = subprocess.Popen(command, stdout=subprocess.PIPE)
            assert server.stdout is not None
            address = server.stdout.readline().decode().split()[0]
            reader.extend([server, subprocess.Popen([sys.executable, "-c", code, address], stderr=subprocess.DEVNULL)])
            time.sleep(1)
            self.server = processor_seconds(server.pid)
            self.began, self.used = time.perf_counter(), time.process_time()

    class Begin(fedgs.Callback):
        def on_begin(self, run: Any) -> None:
            self.began, self.used = time.perf_counter(), time.process_time()

    callback: Any = Look() if looked_at else Begin()
    fedgs.run(settings=settings, out=folder, callbacks=[callback], device="cpu")
    seconds, used = time.perf_counter() - callback.began, time.process_time() - callback.used
    server = processor_seconds(reader[0].pid) - callback.server if reader else 0.0
    for process in reader:
        process.kill()
    return float(seconds), float(used), float(server)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=600)
    parser.add_argument("--factories", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=7200, help="rounds of an hour")
    parser.add_argument("--repeats", type=int, default=6, help="pairs of runs, with and without a page")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = MadeUp(folder / "made-up", arguments.devices, arguments.factories)
        run.write(20)
        cost, memory = browse(folder / "made-up", run, arguments.seconds, arguments.rounds)
        times: dict[bool, list[tuple[float, float, float]]] = {True: [], False: []}
        for number in range(arguments.repeats):
            for looked_at in (False, True) if number % 2 == 0 else (True, False):
                times[looked_at].append(run_seconds(folder / f"run-{number}-{looked_at}", looked_at))
    print(f"{arguments.devices} devices, two rounds a second; of each second the browser spends")
    for key in ("ScriptDuration", "RecalcStyleDuration", "LayoutDuration"):
        print(f"  {key.removesuffix('Duration'):<12}{cost[key]:8.1f} ms")
    print("  rounds    kept   heap MB   window MB   server MB")
    for rounds, rows, heap, browser, server in memory:
        print(f"{rounds:8.0f}{rows:8.0f}{heap:10.1f}{browser:12.1f}{server:12.1f}")
    shares = [server / used for _, used, server in times[True]]
    print(f"processor seconds of the page's server, of the run's: {' '.join(f'{one:.2%}' for one in shares)}")
    ratios = [looked[0] / alone[0] for alone, looked in zip(times[False], times[True], strict=True)]
    alone, looked = (statistics.median(one for one, _, _ in times[key]) for key in (False, True))
    print(f"a run: {alone:.2f} s alone, {looked:.2f} s looked at (medians of {len(ratios)})")
    print(f"  ratios {' '.join(f'{one:.3f}' for one in ratios)}; median {statistics.median(ratios):.3f}×")
    print(f"  alone, longest to shortest: {max(times[False])[0] / min(times[False])[0]:.3f}×")


if __name__ == "__main__":
    main()
