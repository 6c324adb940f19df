"""The cells of the study and its targets, by hand."""

from collections import Counter

import pytest

from reproduction.experiments.jobs import Job
from reproduction.experiments.selection_study import (
    DEALS,
    MILD_TO_SKEWED,
    POLICIES,
    VARIANTS,
    WEIGHED,
    WEIGHTS,
    make_jobs,
    title_of,
    variant_of,
)
from reproduction.experiments.study_results import (
    in_variant,
    met,
    read_study,
    read_unskewed,
    read_weights,
    verdicts,
    with_all_seeds,
)
from reproduction.report.sections.study import gains_by_rate, pays_table, team_skew
from tests.reproduction.made_up import diverged, full_size, results_of


def test_every_federation_meets_every_policy() -> None:
    jobs = make_jobs(full_size((0, 1)))
    for name, variant in reversed(VARIANTS.items()):
        longer = [job for job in jobs if variant_of(job.name) == name]
        assert {(job.settings.training.learning_rate, job.settings.training.clip) for job in longer} == {
            (0.2, variant.clip)
        }
        assert len(longer) == 2 * (len(DEALS) + 1) * (len(variant.policies) + variant.unskewed)
        assert jobs[-len(longer) :] == longer  # what the targets are about comes first
        assert [job.settings.seed for job in longer] == sorted(job.settings.seed for job in longer)
        jobs = jobs[: -len(longer)]
    assert len(jobs) == 2 * (len(DEALS) + 1) * (len(POLICIES) + 1) + len(WEIGHED) * len(WEIGHTS)
    assert [job.settings.seed for job in jobs] == sorted(job.settings.seed for job in jobs)
    assert sorted(MILD_TO_SKEWED) == sorted(DEALS)
    without = full_size((0,))
    object.__setattr__(without.dataset, "attributes", {})
    assert not any(job.federation == "by-form" for job in make_jobs(without))


def accuracy(job: Job) -> float:
    """Coverage 0.800; random by data 0.801 in one place, 0.802 in another; GBP-CS 0.795, 0.796 with long rounds."""
    if job.name.startswith("study-natural-random-by-data"):
        return 0.801
    if job.name.startswith("study-two-classes-random-by-data"):
        return 0.802
    if "-gbp-cs-" in job.name:
        return 0.796 if "-T200-" in job.name else 0.795
    return 0.8 if "-coverage-" in job.name else 0.79


def test_names_lead_back_to_cells() -> None:
    results = results_of("selection-study", accuracy)
    jobs = {job.name: job for job in make_jobs(full_size())}
    name = "study-by-form-exact-seed-1"
    study, gone = read_study({**results, name: diverged(jobs[name]), "table2-fedgs-seed-0": {}})
    assert len(study) == len(DEALS) + 1
    assert all(list(cells) == list(POLICIES) for cells in study.values())
    assert study["natural"]["random-by-data"].seeds == (0, 1)
    assert study["by-form"]["exact"].seeds == (0,)
    assert gone == 0
    assert title_of("alpha-0.1-differ-T200") == "α = 0.1, different factories, T = 200"
    cell = study["natural"]["coverage"]
    assert cell.final == (0.8, 0.8)
    assert cell.at(30) == pytest.approx(0.4)  # a straight line
    assert cell.at(31) is None
    assert (cell.fact("divergence"), cell.fact("longest_wait")) == (0.04, 47)


def test_weights_lead_back_to_their_runs() -> None:
    results = results_of("selection-study", accuracy)
    found = read_weights(results)
    assert {key: list(by_weight) for key, by_weight in found.items()} == {
        key: [0.0, 0.003, 0.03, 0.3, 3.0] for key in WEIGHED
    }
    assert {run["settings"]["seed"] for by_weight in found.values() for run in by_weight.values()} == {0}
    assert found["alpha-0.02"][3.0]["part"] == "study-alpha-0.02-queues-V3-seed-0"
    assert found["alpha-0.1-differ"][0.3]["part"] == "study-alpha-0.1-differ-queues-seed-0"
    assert read_weights({name: run for name, run in results.items() if "-V" not in name}) == {}


def test_a_length_that_was_asked_for_counts_with_longer_steps_too() -> None:
    asked = full_size((0,))
    asked.overrides = ["training.clip=1.0"]
    jobs = make_jobs(asked)
    assert {(variant_of(job.name), job.settings.training.clip) for job in jobs} == {
        ("", 1.0), ("longer", 1.0), ("clipped", 2.0),
    }  # fmt: skip


def test_runs_with_longer_steps_are_a_study_of_their_own() -> None:
    ends = {"longer": 0.5, "clipped": 0.6, "": 0.8}
    results = results_of("selection-study", lambda job: ends[variant_of(job.name)])
    short, _ = read_study(results)
    assert {cell.final for cells in short.values() for cell in cells.values()} == {(0.8, 0.8)}
    for name, variant in VARIANTS.items():
        longer, gone = read_study(in_variant(results, name))
        assert {cell.final for cells in longer.values() for cell in cells.values()} == {(ends[name], ends[name])}
        assert list(longer) == list(short)
        assert all(set(cells) == set(variant.policies) for cells in longer.values())
        assert gone == 0
        others = {job: run for job, run in results.items() if variant_of(job) != name}
        assert read_study(in_variant(others, name)) == ({}, 0)


def test_the_reference_without_skew_is_no_policy() -> None:
    jobs = [job for job in make_jobs(full_size((0, 1))) if "-unskewed-" in job.name]
    plain = {job.name: job.settings for job in make_jobs(full_size((0, 1)))}
    for job in jobs:
        assert job.federation.endswith("-unskewed")
        assert job.settings == plain[job.name.replace("-unskewed-", "-random-by-data-")]
    assert Counter(variant_of(job.name) for job in jobs) == {"": 20, "clipped": 20}
    results = results_of("selection-study", lambda job: 0.9 if "-unskewed-" in job.name else 0.8)
    study, gone = read_study(results)
    assert gone == 0
    assert all(set(cells) == set(POLICIES) for cells in study.values())
    found = read_unskewed(results)
    assert list(found) == list(study)
    assert {(cell.seeds, cell.final) for cell in found.values()} == {((0, 1), (0.9, 0.9))}
    assert len(read_unskewed(in_variant(results, "clipped"))) == 10
    assert read_unskewed(in_variant(results, "longer")) == {}
    alone = {name: run for name, run in results.items() if "-unskewed-" in name}
    assert read_study(alone) == ({}, 0)


def test_how_far_random_teams_are_and_what_selection_gains() -> None:
    def end(job: Job) -> float:
        return 0.85 if "gbp-cs-seed" in job.name and variant_of(job.name) == "longer" else 0.8

    results = results_of("selection-study", end)
    for name, run in results.items():
        run["summary"]["divergence"] = 0.15 if "two-classes-random-seed" in name else 0.05
    study, _ = read_study(results)
    far = team_skew(study, read_unskewed(results))
    assert far == pytest.approx(dict.fromkeys(study, 1.0) | {"two-classes": 3.0})
    *_, last = pays_table(far, gains_by_rate(study, results)).splitlines()
    cells = [cell.strip() for cell in last.strip("|").split("|")]
    assert cells[:2] == ["2 classes per device", "3.0×"]
    # Curves are straight: the tests of the last quarter have a mean of about 7/8 of their ends, 5 points apart.
    assert [float(cell) for cell in cells[2:]] == pytest.approx([0, 4.4, 0, 0, 0, 0], abs=0.15)


@pytest.mark.parametrize("other", [{"learning_rate": 0.1}, {"clip": 2.0}])
def test_runs_with_other_settings_are_left_out_and_told(other: dict[str, float]) -> None:
    results = results_of("selection-study", accuracy)
    name = "study-natural-exact-seed-1"
    results[name] = {**results[name], "settings": {**results[name]["settings"], "training": {
        **results[name]["settings"]["training"], **other}}}  # fmt: skip
    study, gone = read_study(results)
    assert study["natural"]["exact"].seeds == (0,)
    assert gone == 1
    assert "exact" not in with_all_seeds(study["natural"])
    assert study["natural"]["coverage"].on({1}).facts("longest_wait") == [47]


def test_the_targets() -> None:
    study, _ = read_study(results_of("selection-study", accuracy))
    found = verdicts(study, final=True)
    near = found["natural"]
    assert (near.best, near.to_best) == ("random-by-data", pytest.approx(-0.001))
    assert near.near_the_best
    assert near.beats_published is None  # not asked where devices are not skewed
    far = found["two-classes"]
    assert (far.best, far.near_the_best) == ("random-by-data", False)
    assert far.to_best == pytest.approx(-0.002)
    enough, short = found["alpha-0.1-differ"], found["alpha-0.1-differ-T200"]
    assert enough.to_published == pytest.approx(0.005)
    assert (enough.beats_published, short.beats_published) == (True, False)
    assert met(list(found.values())) == (False, False)
    assert met([near, enough]) == (True, True)


def test_the_targets_compare_seeds_that_both_have() -> None:
    results = results_of("selection-study", lambda job: accuracy(job) - 0.1 * job.settings.seed)
    for policy in POLICIES:
        if policy != "coverage":
            del results[f"study-natural-{policy}-seed-1"]
    study, _ = read_study(results)
    assert verdicts(study, final=True)["natural"].to_best == pytest.approx(-0.001)  # seed 0 alone
    del results["study-natural-coverage-seed-0"]
    study, _ = read_study(results)
    assert "natural" not in verdicts(study)


def test_rounds_that_are_no_multiple_of_four_leave_nothing_out() -> None:
    shorter = full_size((0,))
    shorter.rounds = 70
    results = results_of("selection-study", lambda job: 0.8, shorter)
    study, left_out = read_study(results)
    assert not left_out
    assert "alpha-0.1-differ-T200" in study
    odd = results["study-natural-random-seed-0"]
    odd["settings"] = {**odd["settings"], "training": {**odd["settings"]["training"], "rounds": 30}}
    study, left_out = read_study(results)
    assert "random" not in study["natural"]
    assert left_out == 1
