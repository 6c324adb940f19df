"""docs/how-to/reproduce.md counts right and names everything."""

import re
from pathlib import Path

from reproduction.experiments.beyond import final_jobs, trial_jobs
from reproduction.experiments.catalogue import EXPERIMENTS
from reproduction.experiments.fedopt_rates import make_jobs as rates_jobs
from reproduction.experiments.gaps import make_jobs as gap_jobs
from reproduction.experiments.selection_study import VARIANTS, variant_of
from reproduction.experiments.selection_study import make_jobs as study_jobs
from reproduction.experiments.surfaces import make_jobs as surface_jobs
from reproduction.experiments.table2 import make_jobs as table_jobs
from reproduction.report.report_inputs import SECTIONS
from tests.reproduction.made_up import full_size, results_of

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "reproduce.md").read_text(encoding="utf-8")


def row(name: str) -> str:
    return next(line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |"))


def test_every_experiment_has_a_row_and_every_section_a_name() -> None:
    assert set(re.findall(r"^\| `([a-z0-9-]+)` \|", PAGE, flags=re.MULTILINE)) == set(EXPERIMENTS)
    assert all(f"`{section}`" in PAGE for section in SECTIONS)


def test_the_numbers_of_runs() -> None:
    one, two = full_size((0,)), full_size((0, 1))
    first = len(table_jobs(one))
    assert f"| {first}, and {len(table_jobs(two)) - first} for every further seed" in row("table2")
    finals = len(final_jobs(one, results_of("beyond", lambda job: 0.5, one)))
    assert f"| {len(trial_jobs(one))} of 100 rounds, and {finals} of 500 rounds for each seed |" in row("beyond")
    every = len(study_jobs(two)) - len(study_jobs(one))
    longer, clipped = (sum(variant_of(job.name) == name for job in study_jobs(one)) for name in VARIANTS)
    weights = len(study_jobs(one)) - every
    assert (
        f"| for each seed (default: 0, 1 and 2) {every - longer - clipped} of 60 rounds, "
        f"{longer} with a 4× learning rate, and {clipped} with a 4× learning rate and clipped gradients; "
        f"in addition {weights} with other weights"
    ) in row("selection-study")
    assert f"| {len(surface_jobs(one))} of 500 rounds (24 cells; one seed)" in row("surfaces")
    assert f"| {len(rates_jobs(one))} of 60 rounds (one seed)" in row("fedopt-rates")
    assert f"| {len(gap_jobs(one))} of 150 rounds (one seed) |" in row("gaps")


def test_the_work_of_the_surfaces() -> None:
    """Samples trained on, in those of one run of Table II's FedGS."""
    work = 0.0
    for job in surface_jobs(full_size((0,))):
        training, federation = job.settings.training, job.settings.federation
        devices = min(federation.devices, federation.factories * job.settings.selection.pick)
        work += training.iterations * training.batch_size * devices / (50 * 32 * 100)
    assert f"about {work:.0f} times the work of one FedGS run" in row("surfaces")
