"""The report: its tables, what it says of missing runs, its commands, and the remarks people write."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fedgs.errors import InputFileError
from reproduction.experiments import best, paper
from reproduction.experiments.jobs import Job, Result, Results
from reproduction.experiments.table2 import make_jobs
from reproduction.report.report_inputs import gather, read_remarks
from reproduction.report.write import compose, write_report
from tests.reproduction.made_up import diverged, full_size, results_of, write
from tests.reproduction.made_up import run as result_of
from tests.reproduction.words import Words, text_of


def as_in_the_paper(job: Job) -> float:
    """The paper's accuracy, FedAvg three points below it, and 0.85 for rows that it has not."""
    row = job.name.removeprefix("table2-").rpartition("-seed-")[0]
    if row == "fedavg":
        return 0.791
    known = paper.facts()["table2"].get(row)
    return float(known[0]) if known else 0.85


def test_a_whole_table(tmp_path: Path) -> None:
    write_report(write(tmp_path, results_of("table2", as_in_the_paper, divergence=0.05)))
    text = (tmp_path / "report.md").read_text(encoding="utf-8").replace("\u00a0", " ")
    for line in (
        "350 devices in 10 factories, 71,000 train and 8,000 test samples, paper network",
        "| FedAvg (baseline) | 79.1 % (79.1–79.1) | 82.1 % | −3.0 |",
        "| not in these results | The surfaces over T, n, M and L; The learning rates of FedOpt; ",
        "| FedGS over FedAvg, points | +3.9 | +6.9 | 0, 1 |",
        # 14 rows: the paper's mean of 82.507 % less 3/14 of a point.
        "| FedGS over the mean of the other 14 rows, points | +3.5 | +3.7 | 0 |",
        # FedAvg is 3 points lower than the paper's, the others are not.
        "| FedOpt over FedAvg, points | +1.7 to +2.9 | +4.7 to +5.9 | 0 |",
        "| CGAU over FedAvg, points | +1.2 | +4.2 | 0 |",
        # A straight line to 0.86 is at 0.82 in round 477, tested at 480.
        "| > 1.04 × (FedAvg: never in 500) | 0, 1 |",
        "| rank by accuracy | 1 of 15 (first: FedGS) | 1 of 15 (first: FedGS) | 0 |",
        "| FedGS with random selection over FedAvg, points |  | +5.9 | 0, 1 |",
        # Last ten tests: rounds 455 to 500 of a straight line, 0.955 of where it ends, one point apart.
        "| random selection | 85.00 % (85.00–85.00) | 81.17 % | −0.95 | −0.95, −0.95 | 1.025 |",
    ):
        assert line in text
    for name in ("table2", "curves-accuracy", "curves-loss"):
        assert (tmp_path / f"figures/{name}.png").stat().st_size > 5000
        assert (tmp_path / f"figures/{name}.svg").stat().st_size > 5000
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert html.count("<figure") == 3
    assert "<svg" in html


def commands_of(text: str) -> list[str]:
    start = "    python -m reproduction "
    return [line.removeprefix(start) for line in text.splitlines() if line.startswith(start)]


def test_how_to_repeat_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, study = tmp_path / "table", tmp_path / "study"
    write(table, results_of("table2", as_in_the_paper))
    cells = {name: run for name, run in results_of("selection-study", lambda job: 0.8).items() if "-natural-" in name}
    for result in cells.values():
        result["settings"]["training"]["precision"] = "bfloat16"
        result["hardware"]["kind"] = "cuda"
    write(study, cells)
    both = gather(table, [study])
    words = Words(both.folder, both.results, further=both.further)
    assert commands_of(compose(words)) == ["table2 --femnist FILE --out table", "report --out table --with study"]
    options = "--femnist FILE --device cuda --set training.precision=bfloat16"
    assert commands_of(compose(Words(study, cells)))[0] == f"selection-study {options} --out study"
    monkeypatch.chdir(tmp_path.parent)
    inside = tmp_path.name
    assert commands_of(compose(words))[-1] == f"report --out {inside}/table --with {inside}/study"


def test_the_commands_are_those_that_were_given() -> None:
    results = results_of("table2", as_in_the_paper)
    first, second, third, *others = results.values()
    for run in (first, *others):
        run["asked"] = "--femnist FILE --rounds 2 --set 'a.b=c d'"
        run["settings"]["training"]["precision"] = "bfloat16"  # what was asked says it all
    second["asked"] = "--femnist FILE --seeds 0,1"
    second["hardware"]["kind"] = "cuda"
    third["asked"] = 3  # no words
    third["settings"]["training"]["clip"] = 0.5
    assert commands_of(text_of(results))[:-1] == [
        "table2 --femnist FILE --rounds 2 --set 'a.b=c d' --out results",
        "table2 --femnist FILE --seeds 0,1 --device cuda --out results",
        "table2 --femnist FILE --set training.clip=0.5 --out results",
    ]


def test_how_many_states_of_the_source_files_there_are() -> None:
    results = results_of("table2", as_in_the_paper)
    assert "| software | fedgs 0.1.0; state of the source files not recorded |" in text_of(results)
    for run in results.values():
        run["source"] = "a" * 12
    assert "| time | 26 minutes of one machine |" in text_of(results)  # 26 runs, a minute each
    first, second, *_ = results.values()
    first["source"], first["jobs"], second["jobs"] = "b" * 12, 2, 2
    text = text_of(results)
    assert "| software | fedgs 0.1.0; 2 states of the source files |" in text
    assert "| time | 25 minutes of one machine |" in text  # two of them were half a minute of it each
    del first["source"], second["source"]
    assert "1 state of the source files, 2 results without a record |" in text_of(results)


def test_rows_without_a_result() -> None:
    every = results_of("table2", as_in_the_paper)
    few = {name: every[name] for name in ("table2-fedgs-seed-0", "table2-fedavg-seed-0")}
    jobs = {job.name: job for job in make_jobs(full_size())}
    wild = "table2-fedadam-seed-0"
    text = text_of(few | {wild: diverged(jobs[wild])})
    assert "| FedProx | not run | 82.0 % |" in text
    assert "| FedAdam | diverged | 85.0 % |" in text
    assert "| Table II: FedAdam, seed 0 | diverged | round 1: the loss is no finite number | 0.0 % |" in text
    assert "mean of the other 1 row, points" in text
    assert "FedProx (no result), IDA (no result)" in text


def test_a_row_that_learnt_nothing_is_in_no_mean() -> None:
    lost = results_of("table2", lambda job: 0.06 if "fedadagrad" in job.name else as_in_the_paper(job))
    text = text_of(lost)
    # 13 rows: (14 × 82.507 − 83.8) / 13 = 82.408 in the paper, here three points of FedAvg less, 82.177.
    assert "mean of the other 13 rows, points | +3.6 | +3.8 |" in text
    assert "FedAdagrad (more than 30 points below the paper)." in text
    assert "| rank by accuracy | 1 of 14 (first: FedGS) | 1 of 14 (first: FedGS) |" in text
    assert "Below the pictures: FedAdagrad." in text


def of_an_older_version(run: Result) -> None:
    del run["settings"]["task"]
    run["settings"]["training"].update(model="linear")


@pytest.mark.parametrize(
    ("change", "size"),
    [
        (lambda run: run.update(devices=40, factories=2), "40 devices in 2 factories"),
        (lambda run: run["settings"]["training"].update(rounds=3), "3 rounds each."),
        (lambda run: run["settings"]["task"].update(model="linear"), "linear network"),
        (of_an_older_version, "linear network"),
        (lambda run: run["settings"]["data"].update(name="glyphs"), "This is the quick reproduction"),
    ],
)
def test_another_size_is_not_compared_with_the_paper(change: Callable[[Result], object], size: str) -> None:
    results = results_of("table2", lambda job: 0.5)
    for result in results.values():
        change(result)
    text = text_of(results)
    assert size in text
    assert "FEMNIST at the paper's size." not in text
    assert "| Δ |" not in text
    assert "| claim |" not in text


def test_our_best_recipe_with_its_own_network_leaves_the_comparison_with_the_paper() -> None:
    results = results_of("table2", lambda job: 0.5)
    jobs = best.trial_jobs(full_size((0,)))[:2]
    text = text_of(results | {job.name: result_of(job, 0.8) for job in jobs})
    assert "FEMNIST at the paper's size." in text
    assert "regularised network" not in text
    assert "no row has made its choice" in text


def test_comparisons_are_of_the_seeds_both_have() -> None:
    text = text_of(results_of("table2", lambda job: 0.8 - 0.1 * job.settings.seed))
    assert "| CGAU over FedAvg, points | +1.2 | 0.0 | 0 |" in text  # one seed; FedAvg is 0.8 and 0.7
    assert "| FedGS over the mean of the other 14 rows, points | +3.5 | 0.0 | 0 |" in text
    results = results_of("table2", as_in_the_paper)
    results["table2-fedadam-seed-1"] = results_of("table2", as_in_the_paper, full_size((1,)))["table2-fedadam-seed-1"]
    assert "| FedOpt over FedAvg, points | +1.7 to +2.9 | +4.7 to +5.9 | each row's own |" in text_of(results)
    alone = {name: run for name, run in results.items() if name in ("table2-fedgs-seed-0", "table2-fedavg-seed-1")}
    assert "| FedGS over FedAvg, points | +3.9 | +6.9 | each row's own |" in text_of(alone)


def test_times_faster() -> None:
    results = results_of("table2", lambda job: 0.85)
    rounds = {("fedgs", 0): 150, ("fedgs", 1): 170, ("fedavg", 0): 300, ("fedavg", 1): 340}
    for (row, seed), number in rounds.items():
        results[f"table2-{row}-seed-{seed}"]["summary"]["target"]["round"] = number
    assert "than FedAvg | 3.25 × | 2.00 × | 0, 1 |" in text_of(results)  # 320 / 160
    for run, said in (
        ("fedavg-seed-1", "> 2.50 × (FedAvg: not with every seed in 500)"),  # (300 + 500) / 2 / 160
        ("fedgs-seed-1", "FedGS: not with every seed"),
        ("fedgs-seed-0", "FedGS: never"),
    ):
        results[f"table2-{run}"]["summary"]["target"]["round"] = None
        assert f"| {said} | 0, 1 |" in text_of(results)


@pytest.mark.parametrize("other", [{"learning_rate": 0.0001}, {"clip": 0.5}])
def test_runs_with_other_settings_are_left_out_and_counted(other: dict[str, float]) -> None:
    results = results_of("table2", lambda job: 0.8)
    odd = results["table2-fedgs-seed-1"]
    odd["settings"]["training"].update(other)
    odd["summary"]["accuracy"]["final"] = 0.1
    text = text_of(results)
    assert "| FedGS | 80.0 % |" in text
    assert "than most: 1." in text


def test_remarks_are_in_their_section(tmp_path: Path) -> None:
    file = tmp_path / "remarks.toml"
    file.write_text(
        '[report]\nconclusions = "Short."\n[table2]\nfedavg = "A higher rate."\nsection = ["One GPU.", "Twice."]\n'
        '[study]\nnatural = "Lost."\n'
    )
    inputs = Words(tmp_path, results_of("table2", as_in_the_paper), read_remarks(file))
    text = compose(inputs)
    assert "\n\n- Short.\n\n## What was run" in text
    assert "- **FedAvg (baseline):** A higher rate.\n- One GPU.\n- Twice.\n" in text.partition("## Table II")[2]
    assert inputs.unused() == ["[study] natural"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[tabel2]\na = 'b'", r"\[tabel2\] is no section .* report, initialisers"),
        ("table2 = 'b'", r"\[table2\] is no section"),
        ("[table2]\nfedavg = 3", r"\[table2\] fedavg is no text"),
        ("[table2]\nfedavg = ['a', ' ']", r"\[table2\] fedavg is no text"),
        ("[table2", "cannot be read as TOML"),
    ],
)
def test_wrong_remarks_are_refused_before_anything_is_written(tmp_path: Path, content: str, said: str) -> None:
    write(tmp_path, results_of("table2", as_in_the_paper))
    (tmp_path / "remarks.toml").write_text(content)
    with pytest.raises(InputFileError, match=said):
        write_report(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts", "remarks.toml"]


def test_no_folder_and_no_results(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="no such folder of results"):
        write_report(tmp_path / "nowhere")
    with pytest.raises(InputFileError, match="holds no results yet"):
        write_report(tmp_path)


def with_data(results: Results, data: str) -> Results:
    return {name: {**run, "data": data} for name, run in results.items()}


def test_results_of_further_folders(tmp_path: Path) -> None:
    table = {name: run for name, run in results_of("table2", as_in_the_paper).items() if "-fed" in name}
    cells = {name: run for name, run in results_of("selection-study", lambda job: 0.8).items() if "-natural-" in name}
    own, study = write(tmp_path / "table", table), write(tmp_path / "study", cells)
    (study / "remarks.toml").write_text('[study]\nsection = "One machine."\n')
    both = gather(own, [study])
    text = compose(Words(own, both.results, both.remarks, both.further))
    assert "## Table II" in text
    assert "## The selection study" in text
    assert "- One machine." in text
    write(study, with_data(cells, "another"))
    with pytest.raises(InputFileError, match="of another data set"):
        gather(own, [study])
    with pytest.raises(InputFileError, match="name it with --with"):
        gather(own, [tmp_path / "nowhere"])


def test_the_committed_report_is_that_of_the_committed_results() -> None:
    """Figures apart: the Markdown is made again from the files of results."""
    root = Path(__file__).parents[2] / "results"
    for folder, further in (("femnist-350", ["selection-study"]), ("selection-study", [])):
        found = gather(root / folder, [root / other for other in further])
        inputs = Words(found.folder, found.results, found.remarks, found.further)
        text = compose(inputs)
        written = (root / folder / "report.md").read_text(encoding="utf-8")
        assert text.partition("## How to repeat")[0] == written.partition("## How to repeat")[0]
        assert inputs.unused() == []
