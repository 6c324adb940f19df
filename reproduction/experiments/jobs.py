"""The jobs of a reproduction: one piece of work each, its result one JSON file; what is there is not done again.

    parts/table2-fedavg-seed-0.json     settings, federation, data, versions, hardware, seconds, and what came out

Most jobs are a training run; its file also names the rates and options it really used (``resolved``). A file counts
only if it was made with the same settings, federation and data set. One with other settings is not replaced:
it is refused, unless ``again`` is given. One whose settings are the same, but left to defaults that have changed since
then, is done anew. Files are written whole or not at all, so a reproduction can be stopped at any moment; a training
goes on from where it had got to (:mod:`training`). A run that diverges (a loss that is no number) is a result
too: the file says why, under ``failed``, with the curve up to there.
"""

import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

import fedgs
from fedgs.config import settings_from
from fedgs.data import Federation
from fedgs.errors import ConfigError, InputFileError, OutputError
from fedgs.files import finite, make_folder, write_text
from fedgs.settings import Settings
from fedgs.simulation.folder import run_identity
from reproduction.experiments.resolved import CLASSES, resolved_of
from reproduction.experiments.training import FOLDER as UNFINISHED
from reproduction.experiments.training import Unfinished, discard, train
from reproduction.experiments.workers import side_by_side

FORMAT = 1
FOLDER = "parts"
RELIED_ON: dict[str, Any] = {
    "part": str,
    "title": str,
    "federation": str,
    "settings": {"seed": int, "training": dict},
    "fedgs": str,
    "hardware": {"device": str, "cores": int | None, "torch": str},
    "seconds": int | float,
}
"""What everybody finds in every result, with its type."""

SUMMARY: dict[str, Any] = {
    "accuracy": {"final": float, "best": float},
    "loss": {"final": float},
    "target": {"accuracy": float | None, "round": int | None},
    "selection": dict,
}
"""… and in that of every training run that came to its end."""

Result = dict[str, Any]
Results = dict[str, Result]
"""By job name."""
Federations = Callable[[str, int], Federation]
"""From the key of a federation and a seed to the federation."""
Share = Callable[[float], None]
"""Is told that so much more of a job is done."""


def all_of_them(settings: Settings) -> Settings:
    """Return the settings: any of them can change what comes out of a training."""
    return settings


@dataclass(frozen=True)
class Job:
    """One piece of work."""

    name: str
    """Of its file, without the ending."""
    title: str
    """For people."""
    settings: Settings
    federation: str
    """The key of its federation, for :class:`reproduction.experiments.reproduction.Reproduction`."""
    work: Callable[[Settings, Federation, torch.device, Share, Unfinished], Result] = train
    counts: Callable[[Settings], Any] = all_of_them
    """What of the settings makes it another job."""
    asked: str = ""
    """The options that ask for it; for the report, they do not make it another job."""


class Progress:
    """What happens, as it happens; a display overrides what it shows."""

    def begin(self, jobs: Sequence[Job], done: int) -> None:
        """So many jobs, so many of them there already."""

    def job(self, job: Job) -> None:
        """A job begins."""

    def share(self, share: float) -> None:
        """So much more of the job is done."""

    def end(self, job: Job, result: Result) -> None:
        """A job is done."""

    def note(self, job: Job, text: str) -> None:
        """There is something to know about a job."""

    def close(self) -> None:
        """Nothing more will come."""


def run_jobs(
    jobs: Sequence[Job],
    out: Path,
    federations: Federations,
    data: str,
    device: torch.device,
    progress: Progress | None = None,
    stop_after: float | None = None,
    workers: int = 1,
    again: bool = False,
) -> Results:
    """Do the jobs that are not there yet, in their order, and return all results.

    ``data`` stands for the data set (a digest). ``stop_after``: no job begins later than so many seconds from now;
    those not begun are missing in the results. ``workers``: how many are at work at a time, each in its own process.
    ``again``: results of these jobs that were made with other settings are replaced.
    """
    progress = progress or Progress()
    began = time.perf_counter()
    folder = out / FOLDER
    check_folder(out, data)
    results: Results = {}
    missing = []
    for job in jobs:
        found = read_job(folder, job, data)
        if found is not None:
            results[job.name] = found
            discard(out / UNFINISHED / job.name)  # by one who was killed after the result was written
            continue
        missing.append(job)
        if not again and (other := _made_otherwise(folder, job)):
            raise OutputError(
                f"{folder / job.name}.json: was made with other settings ({other}); choose another folder with "
                "--out, or --again to replace it"
            )
    if missing:  # what cannot be dealt out is told before anything is written
        federations(missing[0].federation, missing[0].settings.seed)
    make_folder(folder)
    progress.begin(jobs, len(results))

    def begin(job: Job) -> bool:
        if stop_after is not None and time.perf_counter() - began > stop_after:
            return False
        progress.job(job)
        return True

    work = partial(_do, federations, data, device, workers, out / UNFINISHED)
    try:
        if workers > 1:
            done = side_by_side(missing, workers, work, begin)
        else:
            done = ((job, work(job, progress.share)) for job in missing if begin(job))
        for job, result in done:
            if note := result.pop("note"):
                progress.note(job, note)
            write_text(folder / f"{job.name}.json", as_text(result))
            discard(out / UNFINISHED / job.name)
            results[job.name] = result
            progress.end(job, result)
    finally:
        progress.close()
    return {job.name: results[job.name] for job in jobs if job.name in results}


def _do(
    federations: Federations,
    data: str,
    device: torch.device,
    workers: int,
    place: Path,
    job: Job,
    share: Share = lambda share: None,
) -> Result:
    federation = federations(job.federation, job.settings.seed)
    began = time.perf_counter()
    settings, machine = json.loads(job.settings.model_dump_json()), hardware(device)
    made_with = [run_identity(job.settings, federation), data, source_digest(), machine]
    unfinished = Unfinished(place / job.name, json.dumps(made_with))
    came_out = job.work(job.settings, federation, device, share, unfinished)
    return {
        "format": FORMAT,
        "part": job.name,
        "title": job.title,
        "federation": job.federation,
        "fingerprint": federation.fingerprint(),
        "data": data,
        "devices": len(federation),
        "factories": federation.factories,
        "train_samples": int(federation.train.sizes.sum()),
        "test_samples": int(federation.test.sizes.sum()),
        "settings": settings,
        "fedgs": fedgs.__version__,
        "source": source_digest(),
        "hardware": machine,
        "seconds": round(unfinished.earlier + time.perf_counter() - began, 1),
        "jobs": workers,
        **({"asked": job.asked} if job.asked else {}),
        **came_out,
        "note": unfinished.note,
    }


def read_job(folder: Path, job: Job, data: str) -> Result | None:
    """Return a job's result if there is one for these very settings, federation and data."""
    path = folder / f"{job.name}.json"
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not _is_result(result) or result["federation"] != job.federation or result.get("data", data) != data:
        return None
    try:  # settings that came into being since then have their defaults
        same = job.counts(_settings_of(result)) == job.counts(job.settings)
    except ConfigError:
        return None
    return result if same and _with_todays_defaults(result, job.settings) else None


def _settings_of(result: Result) -> Settings:
    """Return the settings of a result; what only generated data sets read does not count with a file of FEMNIST."""
    values = result["settings"]
    if isinstance(data := values.get("data"), dict) and data.get("name") == "femnist":
        values = values | {"data": {key: value for key, value in data.items() if key != "samples_per_device"}}
    return settings_from(values)


def _made_otherwise(folder: Path, job: Job) -> str:
    """Return in what a whole result in a job's place differs from it; empty: in nothing, or there is none."""
    try:
        result = json.loads((folder / f"{job.name}.json").read_text(encoding="utf-8"))
        if not _is_result(result):
            return ""
        made = json.loads(_settings_of(result).model_dump_json())
    except ConfigError:
        return "some of which this version does not know"
    except (OSError, ValueError):
        return ""
    if result["federation"] != job.federation:
        return f"federation {result['federation']}, not {job.federation}"
    wanted = json.loads(job.settings.model_dump_json())
    paths = (path for path, value in _entries(wanted) if dict(_entries(made)).get(path) != value)
    first = next(paths, None)
    return "" if first is None else f"{first} = {dict(_entries(made)).get(first)}, not {dict(_entries(wanted))[first]}"


def _entries(settings: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Go through the settings by their paths, as in training.rounds."""
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            yield from _entries(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _with_todays_defaults(result: Result, settings: Settings) -> bool:
    """Return whether the rates and options that settings leave open are still those of the result.

    Options that came into being since then do not count, as with settings.
    """
    if "resolved" not in result:
        return True
    made = result["resolved"]
    now = resolved_of(settings, made["options"].get("classes", CLASSES))
    return bool(made["learning_rate"] == now["learning_rate"]) and all(
        value == now["options"].get(name, value) for name, value in made["options"].items()
    )


def check_folder(out: Path, data: str) -> None:
    """Refuse a folder with results of another data set: a report must not mix them."""
    for result in read_all(out).values():
        if result.get("data", data) != data:
            raise OutputError(
                f"{out}: holds results of another data set ({result['part']}); choose another folder with --out"
            )


def read_all(out: Path) -> Results:
    """Return every result of a folder by its name, whatever it was made with."""
    results: Results = {}
    folder = out / FOLDER
    try:  # glob would take a folder that cannot be read for an empty one
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return results
    except OSError as error:
        raise InputFileError(f"{folder}: cannot be read ({error.strerror}); there should be a folder of jobs") from None
    for path in (folder / name for name in names if name.endswith(".json")):
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputFileError(f"{path}: cannot be read ({error}); remove it, and the job is run again") from None
        if not _is_result(result):
            raise InputFileError(f"{path}: is not the result of a job; take it out of this folder")
        results[path.stem] = result
    return results


def _is_result(result: Any) -> bool:
    return (
        isinstance(result, dict)
        and result.get("format") == FORMAT
        and _has(result, RELIED_ON)
        and ("resolved" not in result or _has(result["resolved"], {"learning_rate": int | float, "options": dict}))
        and (not {"curve", "summary"} & set(result) or _is_training(result))
    )


def _is_training(result: dict[str, Any]) -> bool:
    """Return whether the curve and the summary of a run are whole; a run that diverged has no summary."""
    curve = result.get("curve")
    if not isinstance(curve, dict) or not all(
        isinstance(curve.get(key), list) for key in ("round", "accuracy", "loss")
    ):
        return False
    if len({len(values) for values in curve.values()}) != 1 or not _has(result["settings"], {"eval": dict}):
        return False
    if "failed" in result:
        return True
    return len(curve["round"]) > 0 and _has(result.get("summary"), SUMMARY)


def _has(found: Any, wanted: Any) -> bool:
    if not isinstance(wanted, dict):
        return isinstance(found, wanted)
    return isinstance(found, dict) and all(key in found and _has(found[key], wanted[key]) for key in wanted)


def as_text(result: Result) -> str:
    """Return a result as JSON, one line an entry; what could not be measured (NaN) is null."""
    lines = []
    for key, value in finite(result).items():
        if isinstance(value, dict):
            inner = ",\n".join(f"  {json.dumps(name)}: {json.dumps(item)}" for name, item in value.items())
            lines.append(f" {json.dumps(key)}: {{\n{inner}\n }}")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def hardware(device: torch.device) -> dict[str, Any]:
    """Return what the numbers were computed on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "device": name,
        "kind": device.type,
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


@cache
def source_digest() -> str:
    """Return 12 hexadecimal digits for the code a result was made with: versions are few, and code changes between."""
    return digest_of(Path(fedgs.__file__).parent, Path(__file__).parent)


def digest_of(*folders: Path) -> str:
    """Return 12 hexadecimal digits that stand for the Python files below some folders: names and contents."""
    digest = sha256()
    for folder in folders:
        for name, path in sorted((path.relative_to(folder).as_posix(), path) for path in folder.rglob("*.py")):
            content = path.read_bytes()
            digest.update(f"{name}\x00{len(content)}\x00".encode() + content)
    return digest.hexdigest()[:12]
