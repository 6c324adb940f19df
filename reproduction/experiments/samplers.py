"""The paper's comparison of samplers (section VII-B, figures dist-divergence-comparison, execution-time-comparison,
dist-optim-curve) and of GBP-CS's initialisers (figure dist-optim-init-curve), on the same instances for all.

Every solver is warmed up on the first instance, so that compiling is not timed. The gap of a solver is its divergence
over that of the proven optimum of the same instance, minus one.

``bench-selection`` runs it alone; in a reproduction it is one job, and the initialisers are another.
"""

import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from math import comb
from os import cpu_count
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedgs import __version__
from fedgs.compiled import COMPILED
from fedgs.data import DeviceStreams, Federation
from fedgs.errors import ConfigError, MissingDependencyError, SolverError
from fedgs.rng import key, stream
from fedgs.selection import SOLVERS, SelectionProblem, SelectionResult, solve
from fedgs.selection.solve import RIVALS, warm_up
from fedgs.settings import Settings
from reproduction.experiments import paper

if TYPE_CHECKING:
    from reproduction.experiments.jobs import Job, Result, Share
    from reproduction.experiments.reproduction import Reproduction
    from reproduction.experiments.training import Unfinished

INSTANCES, FEW_INSTANCES = 100, 20
"""Of a reproduction at full and at small size; the paper shows ten, one a factory."""
SLOW = {"bayesian": 10, "brute": 10, "genetic": 30}
"""The solvers that take long, and on how many instances they run at most."""
SLOWEST, FEWEST, SHARE = "bayesian", 2, 10
"""It takes longest, a second an instance: of few instances it has a tenth, two at least."""
BRUTE_CHOICES = 1_000_000_000
"""How many choices brute may try in all."""
STARTS = ("mpinv", "zero", "random")
SAMPLERS = tuple(name for name in SOLVERS if name not in RIVALS)
"""Those that solve this problem; policies of other papers aim at something else."""


@dataclass(frozen=True)
class Row:
    """One solver over all its instances."""

    solver: str
    instances: int
    mean: float
    median: float
    std: float
    max: float
    min: float
    gap: float
    """Mean of divergence/optimum − 1 over the instances whose optimum is proven."""
    optimal: float
    """Share of these instances on which it found the optimum."""
    proven: float
    """Share of the instances on which it proved its answer."""
    seconds: float
    """Median time of a solve() call."""
    divergences: tuple[float, ...]
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """All that the figures and tables show."""

    source: str
    seed: int
    instances: int
    rows: tuple[Row, ...]
    traces: dict[str, list[tuple[float, float]]]
    """Divergence over time of each solver on the first instance."""
    initialisers: dict[str, list[float]]
    """Mean divergence after each step of GBP-CS from its three initialisers."""
    software: str
    hardware: str

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain data, the paper's numbers beside it."""
        plain = asdict(self)
        for row in plain["rows"]:
            row["paper"] = paper.sampler(row["solver"])
        plain["paper_initialisers"] = paper.facts()["initialiser_curves"]
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Comparison":
        """Return the comparison that ``as_dict`` made this of; what could not be measured may be None there."""
        rows = []
        for row in plain["rows"]:
            known = {field.name: row[field.name] for field in fields(Row)}
            measured: dict[str, Any] = {key: math.nan if value is None else value for key, value in known.items()}
            rows.append(Row(**measured | {"divergences": tuple(row["divergences"])}))
        own = {field.name: plain[field.name] for field in fields(cls)}
        return cls(**{**own, "rows": tuple(rows)})


def draw_instances(federation: Federation, settings: Settings, count: int) -> list[SelectionProblem]:
    """Return ``count`` selection problems as base stations meet them, factory by factory and iteration by iteration.

    Each is one factory at one iteration (Algorithm 2, line 1): L_rnd devices are pre-sampled at random and make up the
    base b; of the others L − L_rnd are to be picked. All devices move on to a new batch between iterations, so that
    instances are not copies of each other.
    """
    target = federation.p_real()
    streams = DeviceStreams(federation, settings.training.batch_size, settings.seed, mode="fresh")
    problems: list[SelectionProblem] = []
    while True:
        for factory in range(federation.factories):
            if len(problems) == count:
                return problems
            devices = federation.devices_of(factory)
            order = stream(settings.seed, "presample", streams.iteration, factory).permutation(devices)
            if len(devices) <= settings.selection.presample:
                raise ConfigError(
                    f"selection.presample={settings.selection.presample} leaves nobody to select in a factory of "
                    f"{len(devices)} devices; lower it or use fewer factories"
                )
            presampled, candidates = order[: settings.selection.presample], order[settings.selection.presample :]
            counts = streams.counts
            problems.append(
                SelectionProblem(
                    counts[candidates],
                    target,
                    min(settings.selection.pick, len(devices)) - len(presampled),
                    base=counts[presampled].sum(axis=0),
                )
            )
        streams.advance([])


def compare_samplers(
    problems: Sequence[SelectionProblem],
    source: str,
    seed: int = 0,
    solvers: Sequence[str] = SAMPLERS,
    starts: Sequence[str] = STARTS,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Comparison:
    """Run every solver, and GBP-CS from every start, on the same instances.

    ``progress(what, done, total)`` is told how far it is.
    """
    sizes = {name: min(len(problems), SLOW.get(name, len(problems))) for name in solvers}
    if SLOWEST in sizes:
        sizes[SLOWEST] = min(sizes[SLOWEST], max(FEWEST, len(problems) // SHARE))
    if "brute" in sizes:
        choices = comb(len(problems[0].counts), problems[0].pick)
        sizes["brute"] = max(1, min(sizes["brute"], BRUTE_CHOICES // choices))
    total = sum(sizes.values()) + len(problems) * (1 + len(starts))
    done = 0

    def step(what: str) -> None:
        nonlocal done
        done += 1
        progress(what, done, total)

    optima = []
    for index, problem in enumerate(problems):
        best = solve(problem, "exact", _seed(seed, index))
        optima.append(best.divergence if best.proven else np.nan)
        step("optimum")
    rows, traces = [], {}
    for name in solvers:
        try:
            warm_up(name, problems[0])
            if name == "bayesian":  # loading its library takes longer than its first trials
                solve(problems[0], name, iterations=0)
            traces[name] = solve(problems[0], name, _seed(seed, 0), trace=True).trace or []
        except (MissingDependencyError, SolverError) as error:
            for _ in range(sizes[name]):
                step(name)
            rows.append(_left_out(name, str(error)))
            continue
        results = []
        for index, problem in enumerate(problems[: sizes[name]]):
            results.append(solve(problem, name, _seed(seed, index)))
            step(name)
        rows.append(_row(name, results, np.array(optima[: sizes[name]]), len(problems)))
    curves = {}
    for start in starts:
        runs = []
        for index, problem in enumerate(problems):
            runs.append(
                [d for _, d in solve(problem, "gbp-cs", _seed(seed, index), trace=True, start=start).trace or []]
            )
            step(f"gbp-cs from {start}")
        curves[start] = _mean_curve(runs)
    return Comparison(
        source=source,
        seed=seed,
        instances=len(problems),
        rows=tuple(rows),
        traces=traces,
        initialisers=curves,
        software=f"fedgs {__version__}, numpy {np.__version__}, " + ("numba kernels" if COMPILED else "plain numpy"),
        hardware=f"{platform.machine()}, {cpu_count()} cores, Python {platform.python_version()}",
    )


def initialiser_jobs(reproduction: "Reproduction") -> "list[Job]":
    """Return the one job of the paper's figure of initialisers (dist-optim-init-curve), for the first seed.

    The paper shows one instance: zero and MPInv end near the optimum, random in a poor local one. Here it is the mean
    over many instances, with the proven optimum of the same instances.
    """
    return [comparison_job(reproduction, "initialisers", "GBP-CS from its three initialisers", ("exact",), STARTS)]


def make_jobs(reproduction: "Reproduction") -> "list[Job]":
    """Return the one job of the comparison of samplers, for the first seed."""
    return [comparison_job(reproduction, "samplers", "samplers on the same instances", SAMPLERS, ())]


def comparison_job(
    reproduction: "Reproduction", name: str, title: str, solvers: Sequence[str], starts: Sequence[str]
) -> "Job":
    """Return the job that compares these on a factory's next mini-batches at the paper's size."""
    from reproduction.experiments.jobs import Job
    from reproduction.experiments.reproduction import LABELS, read_by_a_label_job

    settings = reproduction.label_settings(reproduction.seeds_or((0,))[0])
    work = partial(
        _compare, count=FEW_INSTANCES if reproduction.quick else INSTANCES, solvers=tuple(solvers), starts=tuple(starts)
    )
    title = f"{title}, seed {settings.seed}"
    return Job(f"{name}-seed-{settings.seed}", title, settings, LABELS, work, read_by_a_label_job)


def _compare(
    settings: Settings,
    federation: Federation,
    device: torch.device,
    share: "Share",
    unfinished: "Unfinished",  # nothing of it is worth keeping
    *,
    count: int,
    solvers: Sequence[str],
    starts: Sequence[str],
) -> "Result":
    """Do the work of a job; a function of the module, since it runs in other processes."""

    def progress(what: str, done: int, total: int) -> None:
        share(1 / total)

    return {"comparison": compare_on(federation, settings, count, solvers, starts, progress).as_dict()}


def compare_on(
    federation: Federation,
    settings: Settings,
    count: int,
    solvers: Sequence[str] = SAMPLERS,
    starts: Sequence[str] = STARTS,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Comparison:
    """Compare solvers and initialisers on so many instances of a federation."""
    problems = draw_instances(federation, settings, count)
    source = f"{count} instances of {federation.name}, {len(problems[0].counts)} candidates, pick {problems[0].pick}"
    return compare_samplers(problems, source, settings.seed, solvers, starts, progress)


def _seed(seed: int, index: int) -> int:
    return key(seed, "instance", index)


def _row(
    name: str, results: list[SelectionResult], optima: np.ndarray[tuple[int], np.dtype[np.float64]], of: int
) -> Row:
    found = np.array([result.divergence for result in results])
    known = np.isfinite(optima) & (optima > 0)
    gaps = found[known] / optima[known] - 1.0
    return Row(
        solver=name,
        instances=len(results),
        mean=float(found.mean()),
        median=float(np.median(found)),
        std=float(found.std()),
        max=float(found.max()),
        min=float(found.min()),
        gap=float(gaps.mean()) if len(gaps) else float("nan"),
        optimal=float((gaps < 1e-9).mean()) if len(gaps) else float("nan"),
        proven=float(np.mean([result.proven for result in results])),
        seconds=float(np.median([result.seconds for result in results])),
        divergences=tuple(found.tolist()),
        note=f"first {len(results)} of {of} instances" if len(results) < of else "",
    )


def _left_out(name: str, why: str) -> Row:
    nan = float("nan")
    return Row(name, 0, nan, nan, nan, nan, nan, nan, nan, nan, nan, (), why)


def _mean_curve(runs: list[list[float]]) -> list[float]:
    """Average the curves; one that has ended stays at its last value."""
    longest = max(map(len, runs))
    return np.mean([run + run[-1:] * (longest - len(run)) for run in runs], axis=0).tolist()  # type: ignore[no-any-return]
