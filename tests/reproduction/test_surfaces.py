"""The cells of the surfaces: which, in which order, on which federation, and what they come to."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedgs.config import load_settings
from fedgs.errors import ConfigError
from reproduction.experiments import paper
from reproduction.experiments.jobs import Job, Result, Results, run_jobs
from reproduction.experiments.reproduction import PAPER, Reproduction, paper_with
from reproduction.experiments.runs import comparable
from reproduction.experiments.surfaces import (
    AXES,
    SURFACES,
    changes,
    largest,
    make_jobs,
    numbers,
    papers,
    read,
    values_of,
)
from tests.reproduction.made_up import diverged, full_size, run

COMMON = "surfaces-T50-n32-M10-L10-seed-0"
CPU = torch.device("cpu")


def made(job: Job, end: float) -> Result:
    """Return a made-up result with the factories its settings say."""
    return run(job, end) | {"factories": job.settings.federation.factories}


def every(end: float = 0.8) -> Results:
    return {job.name: made(job, end) for job in make_jobs(full_size((0,)))}


def test_the_grids_are_the_papers() -> None:
    for key, symbols in SURFACES.items():
        facts = paper.facts()[f"surface_{key}"]
        for symbol in symbols:
            assert sorted(facts[symbol]) == list(values_of(symbol, quick=False))
    assert papers("T_n")[50, 32] == papers("M_L")[10, 10] == 0.86
    assert papers("T_n")[10, 64] == 0.791
    assert papers("M_L")[20, 40] == 0.867


def test_the_runs_and_their_order() -> None:
    jobs = make_jobs(full_size((3, 4)))
    names = [job.name.removeprefix("surfaces-").removesuffix("-seed-3") for job in jobs]
    assert len(names) == len(set(names)) == 22  # of 24 cells: one is common, and L = 40 of M = 20 is its L = 20
    assert names[0] == "T50-n32-M10-L10"
    one_thing_changed = {"T10-n32", "T30-n32", "T50-n8", "T50-n16", "T50-n64", "M5-L10", "M20-L10", "M10-L5",
                         "M10-L20", "M10-L40"}  # fmt: skip
    assert set(names[1:11]) == one_thing_changed
    assert set(names[11:17]) == {"T10-n8", "T10-n64", "M5-L5", "M5-L40", "M20-L5", "M20-L20"}  # the corners
    assert {job.settings.seed for job in jobs} == {3}  # the first seed alone


def test_the_common_cell_is_table_twos_fedgs() -> None:
    jobs = {job.name: job for job in make_jobs(full_size((0,)))}
    assert jobs[COMMON].settings == load_settings(preset="paper")
    assert jobs[COMMON].federation == PAPER
    found, _ = read(every(), quick=False)
    assert found["T_n"][50, 32].run is found["M_L"][10, 10].run


@pytest.mark.parametrize(
    ("name", "factories", "pick", "presample", "key"),
    [
        ("M5-L5", 5, 5, 1, "paper-M5"),
        ("M5-L40", 5, 40, 8, "paper-M5"),
        ("M10-L20", 10, 20, 4, "paper"),
        ("M10-L40", 10, 40, 8, "paper"),
        ("M20-L20", 20, 20, 4, "paper-M20"),
    ],
)
def test_settings_of_groups_and_devices(name: str, factories: int, pick: int, presample: int, key: str) -> None:
    job = next(job for job in make_jobs(full_size((0,))) if job.name == f"surfaces-{name}-seed-0")
    selection = job.settings.selection
    assert (job.settings.federation.factories, selection.pick, selection.presample) == (factories, pick, presample)
    assert (selection.cap, job.federation) == (True, key)
    assert (job.settings.training.iterations, job.settings.training.batch_size) == (50, 32)


def test_federations_of_other_numbers_of_factories() -> None:
    reproduction = Reproduction(None, overrides=["federation.devices=30", "federation.factories=4"])
    usual = reproduction.federation(PAPER, 0)
    assert usual.factories == 4
    for factories in (2, 7):
        other = reproduction.federation(paper_with(factories), 0)
        assert other.factories == factories
        assert sorted(set(other.factory_sizes.tolist())) == sorted({30 // factories, largest(30, factories)})
        assert set(other.device_names) == set(usual.device_names)
        tests = dict(zip(other.device_names, (other.test[i].tolist() for i in range(30)), strict=True))
        assert tests == dict(zip(usual.device_names, (usual.test[i].tolist() for i in range(30)), strict=True))
    # The usual number under the key of its own is the very federation of Table II.
    assert reproduction.federation(paper_with(4), 0).fingerprint() == usual.fingerprint()


def test_whoever_takes_all_devices_has_one_run_for_any_larger_number(tmp_path: Path) -> None:
    """That is why L = 20 and L = 40 of M = 20 are not both run: what comes out is the same to the bit."""
    small = ["federation.devices=8", "selection.pick=2", "training.iterations=2"]
    reproduction = Reproduction(None, rounds=1, overrides=small)
    cell = next(job for job in make_jobs(reproduction) if job.name == "surfaces-M4-L5-seed-0")
    selection = cell.settings.selection
    assert (selection.pick, selection.cap) == (5, True)
    larger = cell.settings.model_copy(update={"selection": selection.model_copy(update={"pick": 20, "presample": 4})})
    both = run_jobs([cell, replace(cell, name="larger", settings=larger)], tmp_path, reproduction.federation, "d", CPU)
    one, other = both.values()
    assert one["curve"]["accuracy"] == other["curve"]["accuracy"]
    assert one["curve"]["train_loss"] == other["curve"]["train_loss"]
    assert one["factories"] == 4


def test_overrides_hold_for_what_a_surface_does_not_vary() -> None:
    reproduction = Reproduction(Path("nowhere.npz"), overrides=["selection.pick=8", "training.batch_size=24"])
    jobs = make_jobs(reproduction)
    assert len(jobs) == 12 + 11  # no cell is common any more
    picks = {job.settings.selection.pick for job in jobs if "-T" in job.name}
    sizes = {job.settings.training.batch_size for job in jobs if "-M" in job.name}
    assert (picks, sizes) == ({8}, {24})
    # Sizes of factories that are not known beforehand: every L is run.
    assert len(make_jobs(Reproduction(Path("nowhere.npz"), overrides=["data.partition=random"]))) == 23
    few = Reproduction(Path("nowhere.npz"), overrides=["federation.devices=15", "selection.pick=1"])
    with pytest.raises(ConfigError, match=r"federation\.factories=20 .* more than devices=15"):
        make_jobs(few)


def test_the_small_size_has_few_cells_and_a_capped_one() -> None:
    jobs = make_jobs(Reproduction(None))
    assert len(jobs) == 7
    base = jobs[0].settings
    assert [axis.of(base) for axis in AXES.values()] == [20, 8, 4, 5]
    capped = next(job for job in jobs if job.name == "surfaces-M4-L20-seed-0").settings
    assert capped.selection.pick > capped.federation.devices_per_factory


def test_cells_that_take_everybody_fill_all_larger_numbers() -> None:
    found, left_out = read(every(), quick=False)
    assert left_out == 0
    assert {key: len(cells) for key, cells in found.items()} == {"T_n": 12, "M_L": 12}
    assert found["M_L"][20, 40].run is found["M_L"][20, 20].run
    assert {place for place, cell in found["M_L"].items() if cell.everybody} == {(10, 40), (20, 20), (20, 40)}
    assert not any(cell.everybody for cell in found["T_n"].values())
    odd = every()
    odd["surfaces-M20-L20-seed-0"]["settings"]["data"]["partition"] = "random"
    assert (20, 40) not in read(odd, quick=False)[0]["M_L"]


def test_cells_that_are_missing_astray_or_of_another_kind() -> None:
    results = every()
    jobs = {job.name: job for job in make_jobs(full_size((0,)))}
    wild = "surfaces-T10-n8-seed-0"
    results[wild] = diverged(jobs[wild])
    del results["surfaces-T30-n16-seed-0"]
    other = next(job for job in make_jobs(full_size((1,))) if job.name == "surfaces-T30-n16-seed-1")
    results[other.name] = made(other, 0.9)
    found, left_out = read(results, quick=False)
    assert left_out == 1
    assert found["T_n"][10, 8].accuracy is None
    assert (30, 16) not in found["T_n"]
    assert len(numbers(found["T_n"])) == 10
    assert read({}, quick=False) == ({"T_n": {}, "M_L": {}}, 0)
    assert comparable({}, "surfaces-") == ({}, 0)


def test_changes_by_hand() -> None:
    accuracy = {(10, 8): 0.70, (10, 16): 0.72, (50, 8): 0.80, (50, 16): 0.79, (30, 8): 0.75}
    assert changes(accuracy, True, 10, 50) == [pytest.approx(0.10), pytest.approx(0.07)]
    assert changes(accuracy, True, 10, 30) == [pytest.approx(0.05)]
    assert changes(accuracy, False, 8, 16) == [pytest.approx(0.02), pytest.approx(-0.01)]
    assert changes(accuracy, False, 8, 16, without={50}) == [pytest.approx(0.02)]
    assert changes(accuracy, True, 10, 70) == []
