"""Outside handwriting: FedGS and its rivals on the vibration of 200 machines in 8 plants whose faults differ.

The embedded data set ``bearings`` with its 1-D CNN. Selections differ in nothing but whom they select (``coverage`` has
the additions of our preset too); the baselines train as many samples a round. Every row tries four learning rates with
a third of the rounds (:mod:`reproduction.experiments.tuned`), tested on validation samples that are split off each
machine's training samples of the first seed. Another seed makes other machines.

The network is there twice: with batch normalisation, whose statistics a selected team shares, and with group
normalisation, which knows no other sample. So the rows tell whether a matched team pays by its statistics.

Some selections also run with machines whose faults change (``drift``) and with machines that leave, return and fail
(``churn``), each with the learning rate it has chosen without them.

Trials are short, so rows that are as good may choose rates that are not. All selections also run at the same two rates
in full: there they differ in whom they select and in nothing else. The policies of other papers (but Fed-CBS) run at
one of these rates only. Some selections also run with shorter and longer rounds.
"""

from collections.abc import Mapping, Sequence

from fedgs.config import load_settings
from fedgs.data import Federation
from fedgs.settings import COVERAGE_WEIGHT, Settings
from fedgs.simulation.federations import load_federation
from reproduction.experiments.jobs import Job, Results
from reproduction.experiments.reproduction import Reproduction
from reproduction.experiments.runs import RunGroup
from reproduction.experiments.tuned import Row, Tuning

PREFIX = "bearings-"
FEDERATION = "bearings"
ROUNDS, SHARE = 30, 3
"""Rounds of a run, and how many times fewer a trial has."""
SEEDS = (0, 1, 2)
NETWORKS = {"batch": "batch normalisation", "group": "group normalisation"}
SELECTIONS = {
    "gbp-cs": ("FedGS (GBP-CS)", ("selection.solver=gbp-cs",)),
    "fed-cbs": ("FedGS, Fed-CBS", ("selection.solver=fed-cbs", "selection.presample=0")),
    "random": ("FedGS, devices at random", ("selection.solver=random",)),
    "coverage": (
        "FedGS, coverage",
        ("selection.solver=auto", f"selection.coverage.weight={COVERAGE_WEIGHT}", "training.calibration=1",
         "server.class_wise=true"),
    ),
}  # fmt: skip


RIVALS = {
    name: (f"FedGS, {title}", (f"selection.solver={name}", "selection.presample=0"))
    for name, title in (("power-of-choice", "Power-of-Choice"), ("oort", "Oort"), ("fedcgd", "FedCGD"),
                        ("divfl", "DivFL"), ("hics-fl", "HiCS-FL"), ("group-fel", "Group-FEL"))
}  # fmt: skip
"""Policies of other papers; all machines are equally fast, so the system part of Oort's utility does nothing."""
RATE_OF_RIVALS = {"batch": "0.3", "group": "0.03"}
"""They run without trials, at one of ``SAME_RATES``: the one with which most selections are better."""


def _rates(key: str, *rates: float) -> dict[str, tuple[str]]:
    return {f"{rate:g}": (f"{key}={rate:g}",) for rate in rates}


def _station_rows(
    selections: Mapping[str, tuple[str, tuple[str, ...]]], rates: Mapping[str, Sequence[float]]
) -> dict[str, Row]:
    """Return a row for each selection and network, with learning rates by network."""
    return {
        f"{name}-{network}": Row(
            f"{title}, {words}",
            _rates("training.learning_rate", *rates[network]),
            (*own, f"task.options.norm={network}"),
        )
        for network, words in NETWORKS.items()
        for name, (title, own) in selections.items()
    }


def _rows() -> dict[str, Row]:
    rows = _station_rows(SELECTIONS, {"batch": (0.03, 0.1, 0.3, 1.0), "group": (0.01, 0.03, 0.1, 0.3)})
    device = _rates("algorithm.learning_rate", 0.005, 0.01, 0.02, 0.05)
    server = _rates("algorithm.options.server_lr", 0.003, 0.01, 0.03, 0.1)
    rows |= {f"{name.lower()}-batch": Row(f"{name}, {NETWORKS['batch']}", device, (f"algorithm.name={name.lower()}",))
             for name in ("FedAvg", "FedProx", "SCAFFOLD", "FedDyn", "MOON", "FedBN")}  # fmt: skip
    adam = ("algorithm.name=fedadam", "algorithm.options.client_lr=0.02")
    return rows | {"fedadam-batch": Row(f"FedAdam, {NETWORKS['batch']}", server, adam)}


UNDER_CONDITIONS = ("gbp-cs-batch", "random-batch", "coverage-batch")
CONDITIONS = {
    # Each machine draws from another class distribution, from its 25th to 73rd mini-batch on; it has about 96 of them.
    "drift": ("streams.drift.kind=sudden", "streams.drift.start=24", "streams.drift.spread=48",
              "streams.drift.alpha=0.1"),
    # A sixth of the machines is offline, and one selected machine of twenty is lost.
    "churn": ("dynamics.leave=0.02", "dynamics.come_back=0.1", "dynamics.drop_out=0.05"),
}  # fmt: skip
"""What happens to the machines, as settings."""
SAME_RATES = {"batch": ("0.1", "0.3"), "group": ("0.01", "0.03")}
"""The learning rates at which every selection runs in full, by network."""
LENGTHS = (4, 64)
"""Further T, with as many iterations in all …"""
OF_LENGTHS, RATE_OF_LENGTHS = ("gbp-cs-group", "random-group", "coverage-group"), "0.03"
"""… and the rows that run with them, at one learning rate."""

TUNING = Tuning(PREFIX, _rows(), lambda _: FEDERATION, trial=("data.validation=0.1",))
AT_ONE_RATE = Tuning(
    PREFIX,
    _station_rows(RIVALS, {network: (float(rate),) for network, rate in RATE_OF_RIVALS.items()}),
    lambda _: FEDERATION,
)
"""The runs of the rivals."""


class Bearings(Reproduction):
    """The embedded bearings in the place of FEMNIST."""

    def asked(self, trains: bool = True, one_seed: bool = False) -> str:
        """Return the options that ask for this."""
        options = super().asked(trains, one_seed).removeprefix("--preset quick").strip()
        return options or f"--seeds {','.join(map(str, SEEDS))}"

    def digest(self) -> str:
        """Return what stands for the data set: it is generated, from the seed of a run."""
        return FEDERATION

    def federation(self, key: str, seed: int) -> Federation:
        """Return the machines of a seed; the last ones are kept."""
        if self._dealt is None or self._dealt[0] != (key, seed):
            self._dealt = (key, seed), load_federation(self.made(f"seed={seed}"))
        return self._dealt[1]

    def made(self, *overrides: str, share: int = 1) -> Settings:
        """Return the settings of a run: those of the preset under the user's under a row's."""
        rounds = max(1, (self.rounds or ROUNDS) // share)
        base = [f"training.rounds={rounds}", "eval.every=2", "baseline=[]"]
        return load_settings(preset="bearings", overrides=[*base, *self.overrides, *overrides], given=self.overrides)


def trial_jobs(reproduction: Bearings) -> list[Job]:
    """Return the trials of every row, with the first seed."""
    seed = reproduction.seeds_or(SEEDS, SEEDS)[0]
    return TUNING.trial_jobs(lambda *overrides: reproduction.made(*overrides, share=SHARE), seed)


def final_jobs(reproduction: Bearings, results: Results) -> list[Job]:
    """Return the runs of what every row chose."""
    return TUNING.final_jobs(reproduction.made, reproduction.seeds_or(SEEDS, SEEDS), results)


def condition_jobs(reproduction: Bearings, results: Results) -> list[Job]:
    """Return the runs with drift and with churn, one seed of all before the second."""
    choices = {key: TUNING.chosen(key, results) for key in UNDER_CONDITIONS}
    return [
        TUNING.job(reproduction.made, key, name, seed, condition, overrides)
        for seed in reproduction.seeds_or(SEEDS, SEEDS)
        for condition, overrides in CONDITIONS.items()
        for key, name in choices.items()
        if name is not None
    ]


def same_rate_jobs(reproduction: Bearings, results: Results) -> list[Job]:
    """Return the runs of every selection at the same learning rates, but those that are there as what a row chose."""
    rivals = [
        AT_ONE_RATE.job(reproduction.made, key, name, seed, f"rate-{name}")
        for seed in reproduction.seeds_or(SEEDS, SEEDS)
        for key, row in AT_ONE_RATE.rows.items()
        for name in row.trials
    ]
    return rivals + [
        TUNING.job(reproduction.made, key, rate, seed, f"rate-{rate}")
        for seed in reproduction.seeds_or(SEEDS, SEEDS)
        for network, rates in SAME_RATES.items()
        for rate in rates
        for name in SELECTIONS
        if (key := f"{name}-{network}") in TUNING.rows and TUNING.chosen(key, results) not in (None, rate)
    ]


def length_jobs(reproduction: Bearings, results: Results) -> list[Job]:
    """Return the runs with other T, one seed of all before the second."""
    usual = reproduction.made()
    total = usual.training.rounds * usual.training.iterations
    jobs = []
    for seed in reproduction.seeds_or(SEEDS, SEEDS):
        for length in LENGTHS:
            rounds = max(1, total // length)
            each = (f"training.iterations={length}", f"training.rounds={rounds}", f"eval.every={max(1, rounds // 15)}")
            jobs += [TUNING.job(reproduction.made, key, RATE_OF_LENGTHS, seed, f"T{length}", each)
                     for key in OF_LENGTHS if key in TUNING.rows]  # fmt: skip
    return jobs


def at_lengths(results: Results) -> dict[int, dict[str, RunGroup]]:
    """Return the runs of these rows by T, with those at the usual T."""
    found = {length: TUNING.outcomes(results, f"T{length}") for length in LENGTHS}
    usual = {f"{name}-group": row for name, row in at_same_rates(results).get(("group", RATE_OF_LENGTHS), {}).items()}
    if usual:
        length = next(iter(usual.values())).runs[0]["settings"]["training"]["iterations"]
        found[length] = {key: row for key, row in usual.items() if key in OF_LENGTHS}
    return {length: rows for length, rows in sorted(found.items()) if rows}


def at_same_rates(results: Results) -> dict[tuple[str, str], dict[str, RunGroup]]:
    """Return the runs of every selection by network and learning rate, among them what rows chose."""
    chosen = TUNING.outcomes(results)
    found: dict[tuple[str, str], dict[str, RunGroup]] = {}
    for network, rates in SAME_RATES.items():
        for rate in rates:
            made = TUNING.outcomes(results, f"rate-{rate}")
            keys = {name: f"{name}-{network}" for name in SELECTIONS}
            there = {name: chosen if TUNING.chosen(key, results) == rate else made for name, key in keys.items()
                     if key in TUNING.rows}  # fmt: skip
            groups = {name: where[keys[name]] for name, where in there.items() if keys[name] in where}
            rivals = AT_ONE_RATE.outcomes(results, f"rate-{rate}")
            groups |= {name: rivals[key] for name in RIVALS if (key := f"{name}-{network}") in rivals}
            if "random" in groups and len(groups) > 1:
                found[network, rate] = groups
    return found
