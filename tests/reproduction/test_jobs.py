"""Jobs: what is there is not run again, what is wrong is said, nothing is mixed."""

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedgs.data import Federation
from fedgs.errors import DataError, DeviceError, InputFileError, OutputError
from fedgs.settings import Settings
from reproduction.experiments.jobs import Job, Progress, Result, Results, read_all, read_job, run_jobs
from reproduction.experiments.resolved import resolved_of
from tests.reproduction.made_up import run as made_up_run
from tests.simulation.small import small_federation, small_settings

CPU = torch.device("cpu")


def jobs(*names: str) -> list[Job]:
    return [Job(name, name, small_settings(f"selection.solver={name}"), "bars") for name in names]


def dealt(key: str, seed: int) -> Federation:
    if key != "bars":
        raise DataError(f"no {key}")
    return small_federation(seed=seed)


class Told(Progress):
    def __init__(self) -> None:
        self.said: list[object] = []
        self.done = 0.0

    def begin(self, jobs: object, done: int) -> None:
        self.said.append(done)

    def share(self, share: float) -> None:
        self.done += share

    def end(self, job: Job, result: Result) -> None:
        self.said.append(job.name)

    def close(self) -> None:
        self.said.append("closed")


def run(out: Path, wanted: list[Job], data: str = "d", again: bool = False) -> tuple[Results, Told]:
    told = Told()
    return run_jobs(wanted, out, dealt, data, CPU, told, again=again), told


def test_finished_jobs_are_not_run_again(tmp_path: Path) -> None:
    results, told = run(tmp_path, jobs("random"))
    assert told.said == [0, "random", "closed"]
    assert told.done == pytest.approx(1.0)
    file = tmp_path / "parts/random.json"
    before = file.read_bytes()
    assert json.loads(before) == json.loads(json.dumps(results["random"]))
    both, told = run(tmp_path, jobs("random", "gbp-cs"))
    assert told.said == [1, "gbp-cs", "closed"]
    assert list(both) == ["random", "gbp-cs"]
    assert file.read_bytes() == before
    assert list(read_all(tmp_path)) == ["gbp-cs", "random"]


def test_a_result_says_what_it_was_made_with(tmp_path: Path) -> None:
    result = run(tmp_path, jobs("random"))[0]["random"]
    assert result["settings"]["selection"]["solver"] == "random"
    assert (result["devices"], result["factories"], result["data"]) == (12, 3, "d")
    assert {"fedgs", "hardware", "seconds", "fingerprint"} <= set(result)
    assert result["curve"]["round"] == [0, 1, 2, 3]
    assert result["curve"]["accuracy"][-1] == pytest.approx(result["summary"]["accuracy"]["final"], rel=1e-5)


def test_what_was_asked_is_noted_and_makes_no_other_job(tmp_path: Path) -> None:
    (job,) = jobs("random")
    assert "asked" not in run(tmp_path / "unasked", [job])[0]["random"]
    first = run(tmp_path, [replace(job, asked="--rounds 2")])[0]["random"]
    assert first["asked"] == "--rounds 2"
    for other in ("--seeds 0", ""):
        assert run(tmp_path, [replace(job, asked=other)])[0]["random"] == first
    file = tmp_path / "parts/random.json"
    file.write_text(json.dumps(first | {"asked": None}))
    assert run(tmp_path, [job])[1].said == [1, "closed"]


def test_other_settings_are_refused_and_new_settings_are_not(tmp_path: Path) -> None:
    run(tmp_path, jobs("random"))
    file = tmp_path / "parts/random.json"
    content = json.loads(file.read_text())
    del content["settings"]["eval"]["ema"]  # as if this setting had come into being since
    file.write_text(json.dumps(content))
    assert run(tmp_path, jobs("random"))[1].said == [1, "closed"]
    content["settings"]["training"]["learning_rate"] = 0.2
    file.write_text(json.dumps(content))
    other = r"random\.json: was made with other settings \(training\.learning_rate = 0\.2, not 0\.1\); choose another"
    with pytest.raises(OutputError, match=other):
        run(tmp_path, jobs("gbp-cs", "random"))
    assert json.loads(file.read_text()) == content  # neither replaced …
    assert not (tmp_path / "parts/gbp-cs.json").exists()  # … nor anything begun
    assert run(tmp_path, jobs("random"), again=True)[1].said == [0, "random", "closed"]
    assert run(tmp_path, jobs("random"))[1].said == [1, "closed"]
    content |= {"federation": "others", "settings": json.loads(file.read_text())["settings"]}
    file.write_text(json.dumps(content))
    with pytest.raises(OutputError, match=r"other settings \(federation others, not bars\)"):
        run(tmp_path, jobs("random"))
    content["settings"]["unheard"] = 1
    file.write_text(json.dumps(content))
    with pytest.raises(OutputError, match=r"other settings \(some of which this version does not know\)"):
        run(tmp_path, jobs("random"))


def test_torn_files_are_told_or_run_again(tmp_path: Path) -> None:
    run(tmp_path, jobs("random"))
    file = tmp_path / "parts/random.json"
    file.write_text(file.read_text()[:100])
    with pytest.raises(InputFileError, match=r"random\.json: cannot be read"):
        read_all(tmp_path)
    file.write_text("[]")
    with pytest.raises(InputFileError, match="is not the result of a job"):
        run(tmp_path, jobs("random"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda result: result.update(format=2),
        lambda result: result.update(settings={}),
        lambda result: result["settings"].pop("seed"),
        lambda result: result["settings"].update(training=None),
        lambda result: result["hardware"].pop("torch"),
        lambda result: result.update(hardware="a GPU"),
        lambda result: result.update(seconds="long"),
        lambda result: result.update(curve={}),
        lambda result: result["curve"].update(accuracy=[]),
        lambda result: result["curve"].pop("loss"),
        lambda result: result.update(curve={key: [] for key in result["curve"]}),
        lambda result: result.update(summary=None),
        lambda result: result["summary"].pop("target"),
        lambda result: result["summary"].update(accuracy={"final": None, "best": 0.5}),
        lambda result: result["settings"].pop("eval"),
        lambda result: result.update(resolved={}),
        lambda result: result.pop("curve"),
        lambda result: result.pop("summary"),
        *(
            lambda result, key=key: result.pop(key)
            for key in ("part", "title", "federation", "settings", "fedgs", "hardware", "seconds")
        ),
    ],
)
def test_damaged_results_are_told(tmp_path: Path, damage: Callable[[Result], object]) -> None:
    (wanted,) = jobs("random")
    whole = json.loads(json.dumps({**made_up_run(wanted, 0.8), "resolved": resolved_of(wanted.settings)}))
    (tmp_path / "parts").mkdir()
    file = tmp_path / "parts/random.json"
    file.write_text(json.dumps(whole))
    assert read_all(tmp_path) == {"random": whole}
    assert read_job(file.parent, wanted, whole["data"]) == whole
    damage(whole)
    file.write_text(json.dumps(whole))
    with pytest.raises(InputFileError, match=r"random\.json: is not the result of a job; take it out"):
        read_all(tmp_path)
    assert read_job(file.parent, wanted, whole.get("data", "d")) is None


def test_a_folder_of_jobs_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    assert read_all(tmp_path) == {}
    place = tmp_path / "parts"
    place.write_text("a file")
    with pytest.raises(InputFileError, match=r"parts: cannot be read \(Not a directory\)"):
        read_all(tmp_path)
    place.unlink()
    place.symlink_to(place)
    with pytest.raises(InputFileError, match=r"parts: cannot be read \(Too many levels"):
        run(tmp_path, jobs("random"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_of_jobs_without_permission_is_told(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir(mode=0)
    with pytest.raises(InputFileError, match=r"parts: cannot be read \(Permission denied\)"):
        read_all(tmp_path)


@pytest.mark.parametrize("workers", [1, 2])
def test_no_job_begins_after_the_time_is_up(tmp_path: Path, workers: int) -> None:
    assert run_jobs(jobs("random", "gbp-cs"), tmp_path, dealt, "d", CPU, stop_after=0.0, workers=workers) == {}


def test_data_sets_are_not_mixed(tmp_path: Path) -> None:
    run(tmp_path, jobs("random"))
    with pytest.raises(OutputError, match=r"holds results of another data set \(random\); choose another folder"):
        run(tmp_path, jobs("gbp-cs"), data="other")


def test_nothing_is_written_where_nothing_can_be_dealt_out(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        run(tmp_path / "out", [Job("a", "a", small_settings(), "unknown")])
    assert not (tmp_path / "out").exists()


def test_a_run_that_diverges_is_a_result(tmp_path: Path) -> None:
    wild = Job("wild", "wild", small_settings("training.learning_rate=1e30"), "bars")
    result = run(tmp_path, [wild])[0]["wild"]
    assert "round 1" in result["failed"]
    assert result["summary"] is None
    assert result["curve"]["round"] == [0]
    assert run(tmp_path, [wild])[1].said == [1, "closed"]


def test_side_by_side_gives_the_same_results_and_leaves_other_children_alone(tmp_path: Path) -> None:
    wanted = jobs("random", "gbp-cs", "exact")
    one, _ = run(tmp_path / "one", wanted)
    other = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
    other.start()
    told = Told()
    both = run_jobs(wanted, tmp_path / "both", dealt, "d", CPU, told, workers=2)
    assert other.is_alive()
    other.kill()
    other.join()
    assert list(both) == list(one)
    assert [both[name]["curve"] for name in both] == [one[name]["curve"] for name in one]
    assert both["exact"]["jobs"] == 2
    assert told.said[0] == 0
    assert sorted(told.said[1:-1], key=str) == ["exact", "gbp-cs", "random"]
    assert json.loads((tmp_path / "both/parts/exact.json").read_text())["curve"] == one["exact"]["curve"]


def test_an_error_in_a_process_is_told_as_it_is_and_ends_the_others(tmp_path: Path) -> None:
    wrong = Job("odd", "odd", small_settings(), "stripes")
    with pytest.raises(DataError, match="no stripes"):
        run_jobs([*jobs("random"), wrong], tmp_path, dealt, "d", CPU, workers=2)
    until(lambda: not multiprocessing.active_children())  # the pool's own thread may be the one that reaps them


def wait_long(settings: Settings, federation: Federation, device: torch.device, *_: object) -> Result:
    Path(os.environ["FEDGS_TEST_PIDS"], str(os.getpid())).touch()
    time.sleep(60)
    return {}


def test_nobody_works_on_when_the_program_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    monkeypatch.setenv("FEDGS_TEST_PIDS", str(pids))
    arguments = (
        [Job("first", "first", small_settings(), "bars", wait_long)],
        tmp_path / "out",
        dealt,
        "d",
        CPU,
        None,
        None,
        2,
    )
    program = multiprocessing.get_context("spawn").Process(target=run_jobs, args=arguments)
    program.start()
    until(lambda: len(list(pids.iterdir())) == 1)
    assert program.pid is not None
    os.kill(program.pid, signal.SIGKILL)
    until(lambda: not any(_lives(int(path.name)) for path in pids.iterdir()))
    program.join()


def until(true: Callable[[], bool]) -> None:
    """Wait for something to become true, for three minutes: processes begin slowly beside other tests."""
    for _ in range(1800):
        if true():
            return
        time.sleep(0.1)
    raise AssertionError("it did not happen")


def _lives(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def die(settings: Settings, federation: Federation, device: torch.device, *_: object) -> Result:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def test_a_process_that_is_killed_ends_in_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="fewer than --jobs 2"):
        run_jobs([Job("first", "first", small_settings(), "bars", die)], tmp_path, dealt, "d", CPU, workers=2)
    assert not list((tmp_path / "parts").iterdir())


def test_a_setting_of_generated_data_does_not_count_with_a_file(tmp_path: Path) -> None:
    """The first results on FEMNIST name a number of samples a device, which only generated data sets read."""
    (wanted,) = jobs("random")
    whole = json.loads(json.dumps({**made_up_run(wanted, 0.8), "resolved": resolved_of(wanted.settings)}))
    file = tmp_path / "random.json"
    for name, counts in (("femnist", False), ("glyphs", True)):
        job = replace(wanted, settings=small_settings("selection.solver=random", f"data.name={name}"))
        whole["settings"]["data"] |= {"name": name, "samples_per_device": 230}
        file.write_text(json.dumps(whole))
        assert (read_job(tmp_path, job, whole["data"]) is None) == counts
