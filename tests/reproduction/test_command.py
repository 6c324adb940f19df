"""``python -m reproduction`` from end to end at a tiny size, and what is wrong with its arguments."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from reproduction.display import JobsDisplay
from reproduction.experiments.catalogue import EXPERIMENTS
from reproduction.experiments.jobs import source_digest
from reproduction.experiments.table2 import ROWS, make_jobs
from tests.conftest import Here, error_of
from tests.reproduction.made_up import full_size

TINY = ["--rounds", "1", "--device", "cpu", *(
    word
    for option in ("federation.devices=8", "federation.factories=2", "selection.pick=2", "training.iterations=2",
                   "data.samples_per_device=40", "training.batch_size=4", "algorithm.local_epochs=1",
                   "clock.step_seconds=0.01")
    for word in ("--set", option)
)]  # fmt: skip


def all_jobs_are_told(err: str, *stages: int) -> bool:
    """Return whether a log has one line a job, in order, and nothing else."""
    told = [re.fullmatch(r"fedgs: (\d+) of (\d+): .+, \d+\.\d s", line) for line in err.splitlines()]
    expected = [(str(number), str(of)) for of in stages for number in range(1, of + 1)]
    return [line.groups() if line else None for line in told] == expected


def test_the_help_names_every_experiment(here: Here) -> None:
    code, out, _ = here("--help")
    assert code == 0
    for name in (*EXPERIMENTS, "all", "report"):
        assert f"{name}: " in out


@pytest.mark.usefixtures("unpainted")
def test_table_and_curves_of_the_same_runs(tmp_path: Path, here: Here) -> None:
    code, said, err = here("table2", "--out", "a", "--seeds", "0", *TINY, "--stop-after", "0")
    assert (code, err) == (0, "")
    assert said == f"a: 0 of {len(ROWS)} jobs; the same command goes on with the others\n"
    assert list(tmp_path.iterdir()) == []  # no empty folder stays behind

    code, said, err = here("table2", "--out", "a", "--seeds", "0", *TINY, "--no-report")
    assert code == 0
    assert all_jobs_are_told(err, len(ROWS))
    assert said == f"a: {len(ROWS)} of {len(ROWS)} jobs\n"
    assert not (tmp_path / "a/report.md").exists()
    result = json.loads((tmp_path / "a/parts/table2-cgau-seed-0.json").read_text())
    assert result["summary"]["pretraining"]["rounds"] == 4
    assert result["settings"]["data"]["name"] == "glyphs"
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "a/parts").iterdir()}

    code, said, _ = here("curves", "--preset", "quick", "--out", "a", "--seeds", "0", *TINY)
    assert code == 0
    assert said.startswith(f"a: {len(ROWS)} of {len(ROWS)} jobs\nreport: a/report.md, a/report.html")
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "a/parts").iterdir()} == before
    report = (tmp_path / "a/report.md").read_text()
    assert "This is the quick reproduction" in report.splitlines()[2]
    assert "8 devices in 2 factories" in report
    # What made these jobs, by the words of the report; it finds all of them done.
    (command,) = [line.split() for line in report.splitlines() if line.startswith("    python -m reproduction table2 ")]
    assert "--rounds 1 --seeds 0 --set federation.devices=8" in " ".join(command)
    code, said, _ = here(*command[3:], "--no-report", "--stop-after", "0")
    assert (code, said) == (0, f"a: {len(ROWS)} of {len(ROWS)} jobs\n")
    assert (tmp_path / "a/figures/curves-accuracy.svg").exists()


def test_stages_follow_each_other_and_a_rejected_choice_makes_room_for_the_next(tmp_path: Path, here: Here) -> None:
    code, said, err = here("beyond", "--out", "a", *TINY, "--seeds", "0", "--no-report")
    assert (code, said) == (0, "a: 25 of 25 jobs\n")
    assert all_jobs_are_told(err, 22, 3)
    assert len(list((tmp_path / "a/parts").glob("beyond-coverage-tuned-*-seed-0.json"))) == 1
    (chosen,) = (tmp_path / "a/parts").glob("beyond-fedavg-tuned-*.json")
    result = json.loads(chosen.read_text())
    chosen.write_text(json.dumps(result | {"failed": "round 2: the loss is no finite number", "summary": None}))
    code, said, _ = here("beyond", "--out", "a", *TINY, "--seeds", "0", "--no-report")
    assert (code, said) == (0, "a: 26 of 26 jobs, 1 of them diverged\n")
    assert len(list((tmp_path / "a/parts").glob("beyond-fedavg-tuned-*.json"))) == 2


@pytest.mark.usefixtures("unpainted")
def test_surfaces_side_by_side_have_federations_of_their_own(tmp_path: Path, here: Here) -> None:
    """As a real process, which starts two others."""
    command = [sys.executable, "-m", "reproduction", "surfaces", "--jobs", "2", "--out", "a", "--seeds", "1"]
    options = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 300, "check": False}
    done = subprocess.run([*command, *TINY, "--no-report"], **options)
    # Four over T and n; two over M and L, for factories of four and of two devices have nobody to choose among.
    assert (done.returncode, done.stdout) == (0, "a: 6 of 6 jobs\n"), done.stderr
    assert all_jobs_are_told(done.stderr, 6)
    factories = {}
    for path in (tmp_path / "a/parts").iterdir():
        result = json.loads(path.read_text())
        assert (result["jobs"], result["source"]) == (2, source_digest())
        factories[path.stem] = result["factories"], result["settings"]["federation"]["factories"], result["federation"]
    assert factories == {
        **{f"surfaces-T{t}-n{n}-seed-1": (2, 2, "paper") for t in (10, 20) for n in (4, 8)},
        "surfaces-M2-L5-seed-1": (2, 2, "paper"),
        "surfaces-M4-L5-seed-1": (4, 4, "paper-M4"),
    }
    assert here("report", "--out", "a").out.startswith("report: a/report.md, a/report.html")
    assert "not run" not in (tmp_path / "a/report.md").read_text()
    assert (tmp_path / "a/figures/surfaces.svg").exists()


def test_jobs_on_labels(tmp_path: Path, here: Here) -> None:
    options = ["--preset", "quick", "--seeds", "3", "--out", "a", "--no-report", "--set", "federation.factories=5"]
    code, said, err = here("initialisers", *options)
    assert (code, said) == (0, "a: 1 of 1 jobs\n")
    assert re.fullmatch(r"fedgs: 1 of 1: GBP-CS from its three initialisers, seed 3, \d+\.\d s\n", err)
    result = json.loads((tmp_path / "a/parts/initialisers-seed-3.json").read_text())
    assert (result["jobs"], result["factories"], result["settings"]["federation"]["factories"]) == (1, 5, 5)
    assert [row["solver"] for row in result["comparison"]["rows"]] == ["exact"]
    assert "resolved" not in result  # nothing is trained
    assert result["asked"] == "--preset quick --seeds 3 --set federation.factories=5"


def test_a_damaged_job_is_one_line(tmp_path: Path, here: Here) -> None:
    (tmp_path / "a/parts").mkdir(parents=True)
    (tmp_path / "a/parts/x.json").write_text('{"format": 1, "settings": {}}')
    for what in ("report", "samplers"):
        assert "a/parts/x.json: is not the result of a job; take it out of" in error_of(here(what, "--out", "a"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tabel2"], "reproduce tabel2: there is no such experiment; did you mean 'table2'?"),
        (["x"], "table2, curves, surfaces, fedopt-rates, beyond, best, gaps, bearings, selection-study, all, report"),
        (["table2", "--seeds", "0,x"], "--seeds 0,x: give different whole numbers"),
        (["table2", "--preset", "paper"], "--preset paper: reproduce knows quick alone"),
        (["table2", "--preset", "quick", "--femnist", "f.npz"], "leave --femnist or --preset out"),
        (["table2", "--femnist", "nowhere.npz"], "nowhere.npz"),
        (["table2", "--set", "seed=3"], "--set seed=3: in a reproduction --seeds says that"),
        (["table2", "--set", "training.rouds=3"], "did you mean 'rounds'?"),
        (["table2", "--set", "selection.pick=20"], "--set selection.pick=20: selection.pick=20 is more than the 15"),
        (["table2", "--rounds", "0"], "0 is not in the range x>=1"),
        (["table2", "--device", "tpu"], "device='tpu' is not possible; choose auto, cpu or cuda"),
        (["initialisers", "--seeds", "0,1,2"], "--seeds 0,1,2: initialisers has one seed; give one, as in --seeds 0"),
        (["surfaces", "--seeds", "0,1"], "--seeds 0,1: surfaces has one seed; give one, as in --seeds 0"),
        (["samplers", "--rounds", "9"], "--rounds 9: samplers trains nothing; leave --rounds out"),
        (["report", "--seeds", "3"], "--seeds 3: report runs nothing, it shows what is there; leave --seeds out"),
        (["report", "--set", "foo=bar"], "--set foo=bar: report runs nothing"),
        (["report", "--jobs", "1"], "--jobs 1: report runs nothing"),
        (["report", "--again"], "--again: report runs nothing, it shows what is there; leave --again out"),
        (["report", "--device", "cpu"], "--device cpu: report runs nothing"),
        (["report", "--stop-after", "0"], "--stop-after 0.0: report runs nothing"),
        (["report", "--no-report"], "--no-report: nothing would come of it; leave --no-report out"),
        (["table2", "--with", "a", "--no-report"], "--no-report: nothing would come of --with; leave --with or"),
        (["report", "--out", "nowhere"], "nowhere: there is no such folder of results"),
    ],
)
def test_wrong_arguments_are_one_line(tmp_path: Path, here: Here, arguments: list[str], said: str) -> None:
    assert said in error_of(here(*arguments))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("width", "bar"), [(60, 0), (80, 10), (120, 24)])
def test_the_display_is_one_line_on_a_terminal(width: int, bar: int) -> None:
    file = io.StringIO()
    display = JobsDisplay(Console(width=width, file=file, force_terminal=True))
    jobs = make_jobs(full_size())
    display.begin(jobs, 10)
    display.job(jobs[11])
    display.share(0.5)
    display._bar.refresh()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue()).replace("\r", "\n")
    display.close()
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    assert all(len(line) <= width for line in lines)
    assert re.match(r" *40% 0:00:0\d .*left \d:\d\d:\d\d 11/26 Table II: ", lines[-1])
    assert len(re.findall("[━╸╺]", lines[-1])) == bar


def test_a_line_a_job_without_a_terminal() -> None:
    file = io.StringIO()
    display = JobsDisplay(Console(width=80, file=file, force_terminal=False))
    jobs = make_jobs(full_size())
    display.begin(jobs, 4)
    for job, result in zip(jobs, ({"seconds": 71.26}, {"seconds": 3.0, "failed": "no [number]"}), strict=False):
        display.job(job)
        display.share(1.0)
        display.end(job, result)
    display.close()
    assert file.getvalue().splitlines() == [
        f"fedgs: 5 of 26: {jobs[0].title}, 71.3 s",
        f"fedgs: 6 of 26: {jobs[1].title}, 3.0 s",
        f"fedgs: note: {jobs[1].title} diverged: no [number]",
    ]
