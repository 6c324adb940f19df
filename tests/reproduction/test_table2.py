"""The rows of Table II: which, in which order, with which settings."""

import pytest

from fedgs.config import load_settings
from reproduction.experiments import paper
from reproduction.experiments.table2 import MAIN, OTHERS, ROWS, make_jobs, outcomes, papers_row
from tests.reproduction.made_up import diverged, full_size, results_of, run


def test_all_of_the_papers_rows_and_ours_beside_them() -> None:
    assert {key for key, row in ROWS.items() if row.paper} == set(paper.facts()["table2"])
    assert sorted((*MAIN, *OTHERS)) == sorted(ROWS)
    assert papers_row("ida") == (0.81, 0.628, None)
    assert papers_row("coverage") is None


def test_what_matters_most_comes_first() -> None:
    names = [job.name for job in make_jobs(full_size((0, 1, 2)))]
    assert names[:8] == [f"table2-{row}-seed-{seed}" for seed in (0, 1) for row in MAIN]
    assert names[8:26] == [f"table2-{row}-seed-0" for row in OTHERS]
    assert names[26:] == [f"table2-{row}-seed-2" for row in MAIN]
    assert len(make_jobs(full_size((5,)))) == len(ROWS)


def test_the_runs_are_those_of_the_papers_preset() -> None:
    jobs = {job.name: job for job in make_jobs(full_size())}
    assert jobs["table2-fedgs-seed-0"].settings == load_settings(preset="paper")
    assert jobs["table2-coverage-seed-1"].settings == load_settings(None, ["seed=1"], preset="coverage")
    assert jobs["table2-fedavg-seed-0"].settings == load_settings(None, ["algorithm.name=fedavg"], preset="paper")


def test_outcomes_go_over_seeds() -> None:
    results = results_of("table2", lambda job: 0.9 if job.settings.seed else 0.8)
    found = outcomes(results)
    assert list(found) == list(ROWS)
    assert found["fedgs"].seeds == (0, 1)
    assert found["fedgs"].mean == pytest.approx(0.85)
    assert found["fedgs"].rounds == (None, 460)  # 0.9·460/500 = 0.828
    assert found["fedgs"].mean_rounds is None
    assert found["fedprox"].final == (0.8,)
    jobs = {job.name: job for job in make_jobs(full_size())}
    job = jobs["table2-fedavg-seed-1"]
    gone = outcomes({**results, job.name: diverged(job)})["fedavg"]
    assert gone.seeds == (0,)
    assert "no finite number" in gone.failed[0]
    assert not outcomes({job.name: diverged(job)})["fedavg"].ran
    assert run(job, 0.5)["summary"]["target"]["round"] is None


def test_runs_of_another_length_have_no_place_in_the_table() -> None:
    results = results_of("table2", lambda job: 0.8)
    odd = results["table2-fedavg-seed-0"]
    odd["settings"] = {**odd["settings"], "training": {**odd["settings"]["training"], "rounds": 300}}
    assert outcomes(results)["fedavg"].seeds == (1,)
    assert outcomes({"table2-fedavg-seed-0": odd})["fedavg"].seeds == (0,)
    assert outcomes({}) == {}


def test_an_outcome_on_some_seeds() -> None:
    row = outcomes(results_of("table2", lambda job: 0.8 + 0.01 * job.settings.seed))["fedgs"]
    assert (row.seeds, row.final) == ((0, 1), (0.8, 0.81))
    assert (row.on({1}).final, row.on({1}).mean, row.on({1}).seeds) == ((0.81,), 0.81, (1,))
    assert not row.on({7}).ran
