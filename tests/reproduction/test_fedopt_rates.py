"""The cells of FedOpt's learning rates: which, in which order, and what they come to."""

from collections import Counter
from pathlib import Path

import pytest

from reproduction.experiments.fedopt_rates import (
    GRIDS,
    make_jobs,
    on_edge,
    place_of,
    rates_of,
    read,
    scores,
    table_rates,
)
from reproduction.experiments.reproduction import Reproduction
from reproduction.experiments.resolved import resolved_of
from tests.reproduction.made_up import diverged, full_size, run


def test_the_runs_and_their_order() -> None:
    jobs = make_jobs(full_size((2, 3)))
    assert len({job.name for job in jobs}) == len(jobs) == 9 + 3 * 12
    assert [job.settings.algorithm.name for job in jobs[:8]] == [*GRIDS, *GRIDS]  # rules in turn
    assert [job.name for job in jobs[:4]] == [
        "fedopt-rates-fedavgm-0.0316-0.316-seed-2",
        "fedopt-rates-fedadagrad-0.0316-0.01-seed-2",
        "fedopt-rates-fedadam-0.0316-0.00316-seed-2",
        "fedopt-rates-fedyogi-0.0316-0.00316-seed-2",
    ]
    corners = {(client, server) for client in (0.01, 0.1) for server in (0.001, 0.0316)}
    last = [rates_of(run(job, 0.5)) for job in jobs if job.settings.algorithm.name == "fedadam"][-4:]
    assert set(last) == corners
    assert len(make_jobs(Reproduction(None))) == 16


def test_a_job_trains_with_its_rates() -> None:
    for job in make_jobs(full_size((0,))):
        used = resolved_of(job.settings)
        assert job.name.split("-")[3:5] == [f"{used['learning_rate']:g}", f"{used['options']['server_lr']:g}"]


def test_table_twos_rates_and_the_grid() -> None:
    assert table_rates("fedadam", {}) == (pytest.approx(10**-1.5), 0.00316)
    inside = {rule: place_of(grid, *table_rates(rule, {})) for rule, grid in GRIDS.items()}
    assert inside == {
        "fedavgm": (0.0316, 0.316), "fedadagrad": (0.0316, 0.01), "fedadam": (0.0316, 0.00316),
        "fedyogi": (0.0316, 0.00316),
    }  # fmt: skip
    # A row that has been run has the rates it was run with, whatever the defaults are by now.
    older = {"resolved": {"learning_rate": 0.0316, "options": {"server_lr": 0.2}}}
    table = {"table2-fedadam-seed-0": older}
    assert table_rates("fedadam", table) == (0.0316, 0.2)
    assert table_rates("fedyogi", table) == table_rates("fedyogi", {})
    assert place_of(GRIDS["fedadam"], 0.0316, 0.2) is None
    assert place_of(GRIDS["fedadam"], 0.0316, 0.0032) is None
    assert [on_edge(GRIDS["fedadam"], place) for place in ((0.0316, 0.01), (0.0316, 0.001), (0.1, 0.01))] == [
        False, True, True,
    ]  # fmt: skip


def test_scores_are_the_late_tests_and_cells_may_be_astray_or_missing() -> None:
    jobs = make_jobs(full_size((0,)))
    results = {job.name: run(job, 0.6) for job in jobs}
    wild = jobs[2]
    results[wild.name] = diverged(wild)
    del results[jobs[0].name]
    found, left_out = read(results, quick=False)
    assert left_out == 0
    assert Counter({rule: len(cells) for rule, cells in found.items()}) == {
        "fedavgm": 8, "fedadagrad": 12, "fedadam": 12, "fedyogi": 12,
    }  # fmt: skip
    assert found["fedadam"][0.0316, 0.00316].score is None
    assert len(scores(found["fedadam"])) == 11
    # A straight line to 0.6 in round 60: the mean of rounds 50, 55 and 60.
    assert found["fedyogi"][0.1, 0.01].score == pytest.approx(0.6 * 55 / 60)
    assert read({}, quick=False) == ({}, 0)


def test_runs_of_another_seed_or_length_are_left_out() -> None:
    results = {job.name: run(job, 0.6) for job in make_jobs(full_size((0,)))}
    shorter = Reproduction(Path("nowhere.npz"), (1,), 20)
    results |= {job.name: run(job, 0.9) for job in make_jobs(shorter)[:3]}
    found, left_out = read(results, quick=False)
    assert left_out == 3
    assert max(scores(found["fedadam"]).values()) < 0.6
