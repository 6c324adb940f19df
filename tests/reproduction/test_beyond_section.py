"""What the report says of both sides tuned."""

import pytest

from reproduction.experiments.beyond import FINALS, TRIALS
from reproduction.experiments.parts import Result
from reproduction.report.sections.beyond import first_runs
from tests.reproduction.made_up import results_of
from tests.reproduction.words import text_of


def test_both_tuned() -> None:
    best = {"beyond-fedgs-rate-0.3-seed-0": 0.9, "beyond-fedavg-rate-0.1-seed-0": 0.85}
    ends = {"fedgs": 0.88, "fedavg": 0.86, "coverage": 0.885}
    results = results_of(
        "beyond", lambda p: best.get(p.name) or next((e for k, e in ends.items() if f"-{k}-tuned" in p.name), 0.5)
    )
    text = text_of(results)
    assert "FedGS chose 0.3. It is the highest rate tried: a higher one might be better still." in text
    assert "FedAvg chose 0.1.\n" in text
    # Late tests are those of rounds 80 to 100 of a trial, on a straight line: nine tenths of what it ends at.
    assert "By the late tests of the trials, what FedGS chose is 4.5 points above what FedAvg chose." in text
    with_momentum = results_of("beyond", lambda part: 0.9 if "fedavg-momentum-0.1" in part.name else 0.5)
    assert "FedAvg chose 0.1, momentum 0.9. It is the highest rate tried with momentum 0.9:" in text_of(with_momentum)
    assert "Tuned alike, FedGS ends 2.0 points above FedAvg (2.0 above in the best test of each)." in text
    assert "calibration and averaging in the tuned FedGS: +0.50 points" in text
    # Untuned with both seeds, tuned with the first alone: compared on that.
    untuned = results_of("table2", lambda part: 0.8 + 0.05 * part.settings.seed)
    first = {name: result for name, result in results.items() if "tuned" not in name or "seed-0" in name}
    for name, result in first.items():
        if "fedgs-tuned" in name:
            result["summary"]["accuracy"]["best"] += 0.01
    text = text_of(first | untuned)
    assert "Tuning gives FedGS +8.0 points in the last round, +9.0 in the best test." in text
    assert (
        "Tuned alike, FedGS ends 2.0 points above FedAvg (3.0 above in the best test of each); untuned it is level."
        in text
    )
    del results["beyond-fedavg-rate-0.1-seed-0"]
    for name in [name for name in results if "tuned" in name]:
        del results[name]
    text = text_of(results)
    assert f"FedAvg: 1 of {len(TRIALS)} trials not run yet, so nothing is chosen." in text
    assert "Not run in full yet: what FedGS chose." in text


def test_what_does_not_hold_in_full_is_set_aside_and_told() -> None:
    results = results_of("beyond", lambda part: 0.9 if "fedavg-rate-0.1" in part.name else 0.5)
    failed = results["beyond-fedavg-tuned-rate-0.1-seed-0"]
    failed["failed"] = "round 85: the loss is no finite number"
    curve = results["beyond-fedavg-tuned-rate-0.1-seed-1"]["curve"]
    curve["accuracy"][len(curve["accuracy"]) // 2 :] = [0.06] * (len(curve["accuracy"]) - len(curve["accuracy"]) // 2)
    text = text_of(results)
    assert "Set aside: FedAvg at 0.1, which did not hold in full: with seed 0 round 85: the loss is no finite" in text
    assert "; with seed 1 from 2" in text
    assert "Not run in full yet: what FedAvg chose." in text
    assert "| FedAvg tuned |" not in text
    assert "%, set aside |" in text
    assert "of what other trials had chosen" not in text
    failed.pop("failed")  # what held of a configuration that was set aside is of no other choice
    assert "of what other trials had chosen" not in text_of(results)


def test_what_did_not_hold_of_ours_is_told_and_so_is_that_nothing_is_left() -> None:
    results = results_of("beyond", lambda part: 0.5)
    (ours,) = [run for name, run in results.items() if "coverage-tuned" in name and "seed-1" in name]
    ours["failed"], ours["summary"] = "round 2: the loss is no finite number", None
    text = text_of(results)
    assert (
        "- FedGS tuned, coverage-aware at 0.01 (the paper's), which did not hold in full: with seed 1 round 2" in text
    )
    for name, run in results.items():
        if name.startswith("beyond-fedavg-") and "tuned" not in name:
            run["failed"], run["summary"] = "round 1: the loss is no finite number", None
    assert "FedAvg: no trial is left that held in full." in text_of(results)


@pytest.mark.parametrize(
    ("trial", "said"),
    [
        ("rate-0.03", "FedAvg chose 0.03.\n"),
        ("rate-0.3", "FedAvg chose 0.3. It is the highest rate tried: a higher one might be better still.\n"),
        ("momentum-0.03", "FedAvg chose 0.03, momentum 0.9.\n"),
        ("clip-0.1", "FedAvg chose 0.1, clipped. It is the only rate tried clipped.\n"),
        ("clip-momentum-0.03", "clipped. It is the only rate tried with momentum 0.9, clipped.\n"),
        ("fedavgm", "FedAvg chose 0.03, server FedAvgM. It is the only rate tried with server FedAvgM.\n"),
    ],
)
def test_what_was_not_tried_beside_the_chosen(trial: str, said: str) -> None:
    assert said in text_of(results_of("beyond", lambda part: 0.9 if f"fedavg-{trial}-" in part.name else 0.5))


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (0.88, "FedGS ends 2.0 points above FedAvg (2.0 above in the best test of each)."),
        (0.81, "FedGS ends 5.0 points below FedAvg (5.0 below in the best test of each)."),
        (0.8604, "FedGS ends level with FedAvg (level in the best test of each)."),
    ],
)
def test_above_below_and_level(end: float, said: str) -> None:
    results = results_of("beyond", lambda part: end if "-fedgs-tuned-" in part.name else 0.86)
    text = text_of(results)
    assert f"Tuned alike, {said}" in text
    assert "what FedGS chose is level with what FedAvg chose." in text
    del results["beyond-fedgs-tuned-rate-0.01-seed-0"], results["beyond-fedavg-tuned-rate-0.01-seed-1"]
    assert "FedGS tuned and FedAvg tuned have no seed in common." in text_of(results)


def test_trials_that_learnt_nothing_are_told_with_those_that_went_astray() -> None:
    # Late tests are nine tenths of the end: 9.9 % and 10.8 %.
    ends = {"beyond-fedavg-rate-0.3-seed-0": 0.11, "beyond-fedavg-momentum-0.1-seed-0": 0.11,
            "beyond-fedgs-rate-0.3-seed-0": 0.12}  # fmt: skip
    results = results_of("beyond", lambda part: ends.get(part.name, 0.5))
    assert "- FedAvg learnt nothing (under 10 %) at 0.3 and 0.1, momentum 0.9.\n" in text_of(results)
    results["beyond-fedavg-rate-0.1-seed-0"] |= {"failed": "round 49: the loss is no finite number", "summary": None}
    text = text_of(results)
    assert "- FedAvg went astray at 0.1 and learnt nothing (under 10 %) at 0.3 and 0.1, momentum 0.9.\n" in text
    assert "FedGS went" not in text
    assert "FedGS learnt" not in text


def test_a_run_that_fell_and_came_back_is_told_with_its_end() -> None:
    results = results_of("beyond", lambda part: 0.9 if "fedavg-rate-0.1" in part.name else 0.5)
    for seed, late in enumerate(([0.836, 0.058, 0.748], [0.8, 0.06, 0.06])):
        accuracy = results[f"beyond-fedavg-tuned-rate-0.1-seed-{seed}"]["curve"]["accuracy"]
        accuracy[:] = [0.0] * (len(accuracy) - 3) + late
    told = "with seed 0 from 83.6 % down to 5.8 %, 74.8 % at the end; with seed 1 from 80.0 % down to 6.0 %."
    assert told in text_of(results)
    results["beyond-fedavg-tuned-rate-0.1-seed-0"]["curve"]["accuracy"][-1] = 0.84  # better than where it fell from
    assert "from 83.6 % down to 5.8 %, 84.0 % at the end, at best 84.0 %; with seed 1" in text_of(results)


def past_its_best(run: Result, lost: float, train_loss: tuple[float, float] | None, loss: float = 0.774) -> None:
    """Have a run be at its best, 0.8677, in round 120, where its loss is 0.436, and end ``lost`` below."""
    curve = run["curve"]
    best, size = curve["round"].index(120), len(curve["round"])
    curve["accuracy"] = [0.8] * best + [0.8677] + [0.8677 - lost] * (size - best - 1)
    curve["loss"] = [0.5] * best + [0.436] + [loss] * (size - best - 1)
    if train_loss is not None:
        curve["train_loss"] = [None] * best + [train_loss[0]] + [train_loss[1]] * (size - best - 1)


def test_who_is_past_its_best_at_the_end_is_told() -> None:
    results = results_of("beyond", lambda part: 0.5)
    fedgs, fedavg, coverage = (results[f"beyond-{key}-tuned-rate-0.01-seed-0"] for key in FINALS)
    assert "at its best" not in text_of(results)
    past_its_best(fedgs, 0.011, (0.194, 0.044))
    past_its_best(coverage, 0.02, (0.194, 0.044), 0.8)
    text = text_of(results)
    assert (
        "- FedGS tuned is at its best in round 120 (86.8 %, first seed) and loses 1.1 points until the end, while its "
        "train loss falls from 0.194 to 0.044 and its test loss rises from 0.436 to 0.774: it learns the train images "
        "by heart.\n- So does FedGS tuned, coverage-aware, at its best in round 120 (86.8 %): it loses 2.0 points, its "
        "test loss rises from 0.436 to 0.800." in text
    )
    assert "FedAvg tuned is at its best" not in text
    past_its_best(fedgs, 0.004, (0.194, 0.044))  # too little
    past_its_best(fedavg, 0.011, (0.194, 0.2))  # nothing is learnt by heart there
    past_its_best(coverage, 0.02, (0.194, 0.044), 0.4)  # its loss is lower at the end
    text = text_of(results)
    told = "FedAvg tuned is at its best in round 120 (86.8 %, first seed) and loses 1.1 points until the end, while its"
    assert f"- {told} test loss rises from 0.436 to 0.774." in text
    assert text.count("at its best") == 1
    del fedavg["curve"]["train_loss"]  # not everybody measures it
    assert told in text_of(results)
    past_its_best(results["beyond-fedgs-tuned-rate-0.01-seed-1"], 0.1, None)  # the first seed speaks for all
    assert text_of(results).count("at its best") == 1


def test_the_first_of_several_runs_is_that_of_the_least_seed() -> None:
    results = results_of("table2", lambda part: 0.5)
    runs = {"fedgs": [results["table2-fedgs-seed-1"], results["table2-fedgs-seed-0"]], "ida": []}
    found = first_runs(runs, ("fedgs", "ida", "fedavg"))
    assert {key: run["part"] for key, run in found.items()} == {"fedgs": "table2-fedgs-seed-0"}
