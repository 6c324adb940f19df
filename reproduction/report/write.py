"""The report of a reproduction: ``report.md``, and ``report.html`` that needs nothing beside it.

It shows the results of a folder in tables and figures, beside the paper's numbers, by the template ``report.md.j2``. A
folder with some of the results gives a report that says what was not run. What the numbers mean, people write in
``remarks.toml``.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from re import sub
from typing import Any

from fedgs import __version__
from fedgs.files import write_text
from fedgs.settings import Settings
from reproduction.experiments.bearings import PREFIX as BEARINGS
from reproduction.experiments.best import PREFIX as BEST
from reproduction.experiments.beyond import PREFIX as BEYOND
from reproduction.experiments.fedopt_rates import PREFIX as RATES
from reproduction.experiments.gaps import PREFIX as GAPS
from reproduction.experiments.jobs import Result
from reproduction.experiments.reproduction import PAPER
from reproduction.experiments.runs import collapse, network_of
from reproduction.experiments.selection_study import PREFIX as CELLS
from reproduction.experiments.study_results import title_of_run
from reproduction.experiments.surfaces import PREFIX as SURFACES
from reproduction.experiments.table2 import PREFIX as TABLE
from reproduction.report.html import TEMPLATES, page
from reproduction.report.markdown import DIVERGED, percent, plural, table
from reproduction.report.report_inputs import FIGURES, ReportInputs, gather
from reproduction.report.sections import beyond, claims, fedopt_rates, gaps, selection, study, surfaces, table2, tuned

SECTIONS: dict[str, tuple[str, Callable[[ReportInputs], dict[str, Any]]]] = {
    "table2": ("Table II", table2.table_section),
    "gaps": ("What could explain the gaps", gaps.section),
    "claims": ("The paper's claims", claims.section),
    "curves": ("The curves", table2.curves_section),
    "surfaces": ("The surfaces over T, n, M and L", surfaces.section),
    "rates": ("The learning rates of FedOpt", fedopt_rates.section),
    "initialisers": ("The initialisers of GBP-CS", selection.initialisers_section),
    "samplers": ("The samplers", selection.samplers_section),
    "beyond": ("Beyond the paper", beyond.section),
    "study": ("The selection study", study.section),
    "best": ("Our best recipe", tuned.best_section),
    "bearings": ("Bearings", tuned.bearings_section),
}
"""By the name they have in the template, in its order: title, and the function that makes its tables and figures."""
EXPERIMENTS_OF = {"initialisers": "initialisers-", "samplers": "samplers-", "table2": TABLE, "surfaces": SURFACES,
                  "fedopt-rates": RATES, "beyond": BEYOND, "selection-study": CELLS,
                  "gaps": GAPS, "best": BEST, "bearings": BEARINGS}  # fmt: skip
"""By how the names of their jobs begin."""
BESIDES = ("gaps", "best", "bearings")
"""The sections of experiments that are no part of ``all``: they are not missed."""
MARKDOWN, HTML = "report.md", "report.html"


def write_report(folder: Path, further: Sequence[Path] = ()) -> tuple[list[Path], list[str]]:
    """Write the report of a folder; return its files, and the remarks that are not in it.

    ``further``: folders whose results are reported with it.
    """
    inputs = gather(folder, further)
    text = compose(inputs)
    paths = [write_text(folder / MARKDOWN, text), write_text(folder / HTML, page(text, folder))]
    return paths, inputs.unused()


def compose(inputs: ReportInputs) -> str:
    """Return the report as Markdown."""
    sections = {key: section(inputs) for key, (_, section) in SECTIONS.items()}
    missing = [title for key, (title, _) in SECTIONS.items() if not sections[key] and key not in BESIDES]
    found = [key for key, section in sections.items() if section]
    alone = SECTIONS[found[0]][0] if found in (["study"], ["bearings"]) else ""
    text = TEMPLATES.get_template("report.md.j2").render(
        sections,
        remark=inputs.remark,
        quick=inputs.quick,
        papers_size=inputs.papers_size,
        sizes=_sizes(inputs),
        facts=table(["", ""], _facts(inputs, [] if alone else missing), left=2),
        alone=alone,
        failures=_failures(inputs),
        commands=_how_to_repeat(inputs),
        figures=FIGURES,
        version=__version__,
    )
    return sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _sizes(inputs: ReportInputs) -> list[str]:
    """Return the sizes of the runs on the paper's federation, in words."""
    runs = [run for run in inputs.like_the_papers.values() if run["federation"] == PAPER and "devices" in run]
    return sorted({
        f"{plural(run['devices'], 'device')} in {plural(run['factories'], 'factory', 'factories')}, "
        f"{run['train_samples']:,} train and {run['test_samples']:,} test samples, "
        f"{network_of(run['settings'])} network"
        for run in runs
    })  # fmt: skip


def _facts(inputs: ReportInputs, missing: Sequence[str]) -> list[list[str]]:
    """Return what all results were made with."""
    everything = list(inputs.results.values())
    on_gpu = [run for run in inputs.trainings.values() if run["hardware"].get("kind", "cuda") == "cuda"]
    seconds = sum(run["seconds"] / run.get("jobs", 1) for run in everything)
    machines = {
        f"{run['hardware']['device']}, {run['hardware']['cores']} cores, torch {run['hardware']['torch']}"
        for run in everything
    }
    return [
        ["results", f"{len(everything)}, one JSON file each with settings, seed, version and hardware"],
        ["time", f"{plural(max(1, round(seconds / 60)), 'minute')} of one machine"],
        ["software", f"fedgs {', '.join(sorted({run['fedgs'] for run in everything}))}; {_states(everything)}"],
        ["hardware", "; ".join(sorted(machines))],
        *([["precision on the GPU", ", ".join(sorted({run["settings"]["training"]["precision"] for run in on_gpu}))]]
          if on_gpu else []),
        *([["not in these results", "; ".join(missing)]] if missing else []),
    ]  # fmt: skip


def _states(results: Sequence[Result]) -> str:
    """Return with how many states of the source files results were made."""
    known = [run["source"] for run in results if "source" in run]
    states, before = len(set(known)), len(results) - len(known)
    if not states:
        return "state of the source files not recorded"
    return f"{plural(states, 'state')} of the source files" + (f", {before} results without a record" if before else "")


def _failures(inputs: ReportInputs) -> str:
    """Return the runs that diverged (a loss that is no number) or collapsed (lost half of their accuracy)."""
    lines = []
    for name, run in inputs.trainings.items():
        accuracy, drop = run["curve"]["accuracy"], collapse(run)
        best, last = (percent(max(accuracy)), percent(accuracy[-1])) if accuracy else ("", "")
        if run.get("failed"):
            lines.append([title_of_run(name, run), DIVERGED, run["failed"].partition("; ")[0], best, "", ""])
        elif drop is not None:
            fall = f"{percent(drop[0])} → {percent(drop[1])}"
            lines.append([title_of_run(name, run), "collapsed", "", best, fall, last])
    return table(["run", "outcome", "reason", "best", "collapse", "last"], lines, left=3) if lines else ""


def _commands(runs: Sequence[Result], quick: bool) -> list[str]:
    """Return the options of the commands that made these results of one experiment, each once."""
    by_command: dict[str, list[Result]] = {}
    for run in runs:
        asked = run.get("asked")
        by_command.setdefault(asked if isinstance(asked, str) else "", []).append(run)
    found = []
    for asked, made in by_command.items():
        on_gpu = any(run["hardware"].get("kind") == "cuda" for run in made)
        found.append(f"{asked}{' --device cuda' if on_gpu else ''}" if asked else _options(made, quick))
    return list(dict.fromkeys(found))


def _options(runs: Sequence[Result], quick: bool) -> str:
    """Return what results that do not say so were made with beside the defaults."""
    if quick:
        return "--preset quick"
    options = ["--femnist FILE"]
    if any(run["hardware"].get("kind") == "cuda" for run in runs):
        options.append("--device cuda")
    precisions = {run["settings"]["training"]["precision"] for run in runs}
    options += [f"--set training.precision={one}" for one in precisions if one != Settings().training.precision]
    clips = {run["settings"]["training"].get("clip") for run in runs}  # several of them are the experiment's own
    options += [f"--set training.clip={clip:g}" for clip in clips if clip is not None and len(clips) == 1]
    return " ".join(options)


def _place(folder: Path) -> str:
    """Return a folder as it is called from here; one that lies elsewhere by its name alone, not its machine's path."""
    here, there = Path.cwd(), folder.resolve()
    return there.relative_to(here).as_posix() if there.is_relative_to(here) and there != here else there.name


def _how_to_repeat(inputs: ReportInputs) -> str:
    """Return the commands that make these results, and this report of them."""
    name = _place(inputs.folder)
    further = "".join(f" --with {_place(other)}" for other in dict.fromkeys(inputs.further.values()))
    own = {key: run for key, run in inputs.results.items() if key not in inputs.further}
    lines = [
        f"    python -m reproduction {what} {options} --out {name}"
        for what, prefix in EXPERIMENTS_OF.items()
        for options in _commands([run for key, run in own.items() if key.startswith(prefix)], inputs.quick)
    ]
    return "\n".join([*lines, f"    python -m reproduction report --out {name}{further}"])
