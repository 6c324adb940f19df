"""What the report says of both sides tuned."""

from tests.experiments.made_up import results_of
from tests.report.words import text_of

from fedgs.experiments.beyond import TRIALS
from fedgs.report.sections.beyond import first_runs


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
    assert "By the late tests of the trials, what FedGS chose is +4.5 points from what FedAvg chose." in text
    with_momentum = results_of("beyond", lambda part: 0.9 if "fedavg-momentum-0.1" in part.name else 0.5)
    assert "FedAvg chose 0.1, momentum 0.9. It is the highest rate tried with momentum 0.9:" in text_of(with_momentum)
    assert "Tuned alike, FedGS ends +2.0 points from FedAvg (+2.0 in the best test of each)." in text
    assert "calibration and averaging in the tuned FedGS: +0.50 points" in text
    # Untuned with both seeds, tuned with the first alone: compared on that.
    untuned = results_of("table2", lambda part: 0.8 + 0.05 * part.settings.seed)
    first = {name: result for name, result in results.items() if "tuned" not in name or "seed-0" in name}
    for name, result in first.items():
        if "fedgs-tuned" in name:
            result["summary"]["accuracy"]["best"] += 0.01
    text = text_of(first | untuned)
    assert "Tuning gives FedGS +8.0 points in the last round, +9.0 in the best test." in text
    assert "Tuned alike, FedGS ends +2.0 points from FedAvg (+3.0 in the best test of each), untuned 0.0." in text
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


def test_the_first_of_several_runs_is_that_of_the_least_seed() -> None:
    results = results_of("table2", lambda part: 0.5)
    runs = {"fedgs": [results["table2-fedgs-seed-1"], results["table2-fedgs-seed-0"]], "ida": []}
    found = first_runs(runs, ("fedgs", "ida", "fedavg"))
    assert {key: run["part"] for key, run in found.items()} == {"fedgs": "table2-fedgs-seed-0"}
