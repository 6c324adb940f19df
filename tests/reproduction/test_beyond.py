"""Both sides tuned alike."""

from reproduction.experiments.beyond import SIDES, TRIALS, choose, final_jobs, finals, rejected, trial_jobs, tried
from reproduction.experiments.jobs import Job
from tests.reproduction.made_up import diverged, full_size, results_of, run


def test_both_sides_try_the_same() -> None:
    jobs = trial_jobs(full_size())
    assert len(jobs) == 2 * len(TRIALS)
    by_side = {side: [job for job in jobs if job.name.startswith(f"beyond-{side}-")] for side in SIDES}
    for ours, theirs in zip(*by_side.values(), strict=True):
        assert ours.settings.training == theirs.settings.training
        assert (ours.settings.algorithm.name, theirs.settings.algorithm.is_baseline) == ("fedgs", True)


def test_the_best_late_tests_are_chosen_and_what_went_astray_is_not() -> None:
    jobs = trial_jobs(full_size())
    results = {job.name: run(job, 0.5 + 0.01 * place) for place, job in enumerate(jobs)}
    assert choose("fedgs", results, 0) == "fedadam"
    last = next(job for job in jobs if job.name == "beyond-fedgs-fedadam-seed-0")
    results[last.name] = diverged(last)
    assert tried("fedgs", results)["fedadam"].score is None
    assert choose("fedgs", results, 0) == "fedavgm"
    del results["beyond-fedgs-rate-0.1-seed-0"]
    assert choose("fedgs", results, 0) is None
    assert final_jobs(full_size(), results) == []


def test_the_classifier_goes_class_by_class_only_where_the_server_takes_the_mean() -> None:
    results = results_of("beyond", lambda job: 0.9 if "-fedavgm-" in job.name else 0.8)
    chosen = {job.name: job.settings.server for job in final_jobs(full_size(), results)}
    server = chosen["beyond-coverage-tuned-fedavgm-seed-0"]
    assert (server.rule, server.class_wise) == ("fedavgm", False)


def test_the_chosen_ones_run_in_full_with_every_seed() -> None:
    best = {"beyond-fedgs-rate-0.1-seed-0": 0.9, "beyond-fedavg-momentum-0.03-seed-0": 0.9}
    results = results_of("beyond", lambda job: best.get(job.name, 0.8))
    jobs = {job.name: job for job in final_jobs(full_size(), results)}
    assert list(jobs) == [
        f"beyond-{key}-seed-{seed}"
        for seed in (0, 1)
        for key in ("fedgs-tuned-rate-0.1", "fedavg-tuned-momentum-0.03", "coverage-tuned-rate-0.1")
    ]
    fedgs, fedavg, coverage = (job.settings for job in jobs.values() if job.settings.seed == 1)
    assert (fedgs.training.rounds, fedgs.training.learning_rate, fedgs.selection.solver) == (500, 0.1, "gbp-cs")
    assert (fedavg.training.momentum, fedavg.training.learning_rate, fedavg.algorithm.name) == (0.9, 0.03, "fedavg")
    assert (coverage.selection.solver, coverage.selection.presample) == ("auto", 0)
    assert coverage.training == fedgs.training.model_copy(update={"calibration": 1.0})
    assert (coverage.server.class_wise, fedgs.server.class_wise) == (True, False)
    assert {key: outcome.seeds for key, outcome in finals(results).items()} == {
        "fedgs": (0, 1), "fedavg": (0, 1), "coverage": (0, 1),
    }  # fmt: skip


def test_what_does_not_hold_in_full_makes_room_for_the_next() -> None:
    """FedAvg's best goes diverged with the second seed, its second best falls, FedGS's coverage has no say."""
    ends = {"beyond-fedavg-rate-0.1-seed-0": 0.9, "beyond-fedavg-rate-0.03-seed-0": 0.85,
            "beyond-fedavg-rate-0.01-seed-0": 0.84, "beyond-fedgs-rate-0.1-seed-0": 0.9}  # fmt: skip
    results = results_of("beyond", lambda job: ends.get(job.name, 0.8))

    def in_full(side: str) -> dict[str, Job]:
        return {job.name: job for job in final_jobs(full_size(), results) if f"-{side}-tuned-" in job.name}

    first = in_full("fedavg")
    assert set(first) == {f"beyond-fedavg-tuned-rate-0.1-seed-{seed}" for seed in (0, 1)}
    results["beyond-fedavg-tuned-rate-0.1-seed-1"] = diverged(first["beyond-fedavg-tuned-rate-0.1-seed-1"])
    ours = "beyond-coverage-tuned-rate-0.1-seed-0"
    results[ours] = diverged(in_full("coverage")[ours])
    second = in_full("fedavg")
    assert set(second) == {f"beyond-fedavg-tuned-rate-0.03-seed-{seed}" for seed in (0, 1)}
    fallen = run(second["beyond-fedavg-tuned-rate-0.03-seed-0"], 0.85)
    fallen["curve"]["accuracy"][-1] = 0.06
    results["beyond-fedavg-tuned-rate-0.03-seed-0"] = fallen
    assert choose("fedavg", results) == "rate-0.01"
    assert list(rejected("fedavg", results)) == ["rate-0.1", "rate-0.03"]
    assert (choose("fedgs", results), rejected("fedgs", results)) == ("rate-0.1", {})
    assert "fedavg" not in finals(results)


def test_with_nothing_left_the_other_side_goes_on() -> None:
    results = results_of("beyond", lambda job: 0.8)
    for job in trial_jobs(full_size()):
        if "fedavg" in job.name.split("-")[1]:
            results[job.name] = diverged(job)
    assert choose("fedavg", results) is None
    assert {job.name.split("-")[1] for job in final_jobs(full_size(), results)} == {"fedgs", "coverage"}
