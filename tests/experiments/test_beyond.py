"""Both sides tuned alike."""

from fedgs.experiments.beyond import SIDES, TRIALS, choose, final_parts, finals, trial_parts, tried
from tests.experiments.made_up import astray, full_size, results_of, run


def test_both_sides_try_the_same() -> None:
    parts = trial_parts(full_size())
    assert len(parts) == 2 * len(TRIALS)
    assert {part.settings.training.rounds for part in parts} == {100}
    by_side = {side: [part for part in parts if part.name.startswith(f"beyond-{side}-")] for side in SIDES}
    for ours, theirs in zip(*by_side.values(), strict=True):
        assert ours.settings.training == theirs.settings.training
        assert (ours.settings.algorithm.name, theirs.settings.algorithm.flat) == ("fedgs", True)
    rules = {part.settings.server.rule for part in by_side["fedgs"]}
    assert rules == {"mean", "fedavgm", "fedadam"}
    own = {part.settings.algorithm.name: part.settings.algorithm.options for part in by_side["fedavg"]}
    assert own == {"fedavg": {}, "fedavgm": {"client_lr": 0.03}, "fedadam": {"client_lr": 0.03}}


def test_the_best_late_tests_are_chosen_and_what_went_astray_is_not() -> None:
    parts = trial_parts(full_size())
    results = {part.name: run(part, 0.5 + 0.01 * place) for place, part in enumerate(parts)}
    assert choose("fedgs", results, 0) == "fedadam"
    last = next(part for part in parts if part.name == "beyond-fedgs-fedadam-seed-0")
    results[last.name] = astray(last)
    assert tried("fedgs", results)["fedadam"].score is None
    assert choose("fedgs", results, 0) == "fedavgm"
    del results["beyond-fedgs-rate-0.1-seed-0"]
    assert choose("fedgs", results, 0) is None
    assert final_parts(full_size(), results) == []


def test_the_classifier_goes_class_by_class_only_where_the_server_takes_the_mean() -> None:
    results = results_of("beyond", lambda part: 0.9 if "-fedavgm-" in part.name else 0.8)
    chosen = {part.name: part.settings.server for part in final_parts(full_size(), results)}
    server = chosen["beyond-coverage-tuned-seed-0"]
    assert (server.rule, server.by_class) == ("fedavgm", False)


def test_the_chosen_ones_run_in_full_with_every_seed() -> None:
    best = {"beyond-fedgs-rate-0.1-seed-0": 0.9, "beyond-fedavg-momentum-0.03-seed-0": 0.9}
    results = results_of("beyond", lambda part: best.get(part.name, 0.8))
    parts = {part.name: part for part in final_parts(full_size(), results)}
    assert list(parts) == [
        f"beyond-{key}-tuned-seed-{seed}" for seed in (0, 1) for key in ("fedgs", "fedavg", "coverage")
    ]
    fedgs, fedavg, coverage = (parts[f"beyond-{key}-tuned-seed-1"].settings for key in ("fedgs", "fedavg", "coverage"))
    assert (fedgs.training.rounds, fedgs.training.learning_rate, fedgs.selection.solver) == (500, 0.1, "gbp-cs")
    assert (fedavg.training.momentum, fedavg.training.learning_rate, fedavg.algorithm.name) == (0.9, 0.03, "fedavg")
    assert (coverage.selection.solver, coverage.selection.presample) == ("auto", 0)
    assert coverage.training == fedgs.training.model_copy(update={"calibration": 1.0})
    assert (coverage.server.by_class, fedgs.server.by_class) == (True, False)
    assert {key: outcome.seeds for key, outcome in finals(results).items()} == {
        "fedgs": (0, 1), "fedavg": (0, 1), "coverage": (0, 1),
    }  # fmt: skip
