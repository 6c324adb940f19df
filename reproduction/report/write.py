"""The report of a reproduction: ``report.md``, and ``report.html`` that needs nothing beside it.

It is made of the results in a folder and nothing else, so a folder that is half done gives a report that says what is
missing, and results that came from another machine are reported as they are.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from fedgs import __version__
from fedgs.files import write_text
from fedgs.settings import Settings
from reproduction.experiments.beyond import PREFIX as BEYOND
from reproduction.experiments.comparable_runs import network_of
from reproduction.experiments.fedopt_rates import PREFIX as RATES
from reproduction.experiments.parts import Result
from reproduction.experiments.reproduction import PAPER
from reproduction.experiments.selection_study import PREFIX as CELLS
from reproduction.experiments.surfaces import PREFIX as SURFACES
from reproduction.experiments.table2 import PREFIX as TABLE
from reproduction.experiments.table2 import ROWS
from reproduction.report.html import page
from reproduction.report.markdown import bullets, listing, plural
from reproduction.report.report_inputs import FIGURES, Material, gather
from reproduction.report.sections import beyond, claims, fedopt_rates, selection, study, surfaces, table2

STUDY = "Does selection earn its keep?"
SECTIONS: dict[str, Callable[[Material], list[str]]] = {
    "Table II": table2.write,
    "What the paper's claims come to here": claims.write,
    "The curves": table2.write_curves,
    "The surfaces over T, n, M and L": surfaces.write,
    "The learning rates of FedOpt": fedopt_rates.write,
    "The three starts of GBP-CS": selection.write_initialisers,
    "The samplers": selection.write_samplers,
    "Beyond the paper": beyond.write,
    STUDY: study.write,
}
EXPERIMENTS_OF = {"initialisers": "initialisers-", "samplers": "samplers-", "table2": TABLE, "surfaces": SURFACES,
                  "fedopt-rates": RATES, "beyond": BEYOND, "selection-study": CELLS}  # fmt: skip
"""By how the names of their parts begin."""
MARKDOWN, HTML = "report.md", "report.html"


def write_report(folder: Path, further: Sequence[Path] = ()) -> tuple[list[Path], list[str]]:
    """Write the report of a folder; return its files, and remarks that found no place in it.

    ``further``: folders whose results are reported with it.
    """
    material = gather(folder, further)
    text = compose(material)
    paths = [write_text(folder / MARKDOWN, text), write_text(folder / HTML, page(text, folder))]
    return paths, material.unused()


def compose(material: Material) -> str:
    """Return the report as Markdown."""
    sections = {title: section(material) for title, section in SECTIONS.items()}
    missing = [title for title, found in sections.items() if not found]
    blocks = [*_top(material, missing), *(block for found in sections.values() for block in found), *_foot(material)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _size(material: Material) -> str:
    papers = [run for run in material.trainings.values() if run["federation"] == PAPER and "devices" in run]
    if material.quick:
        sizes = sorted({_devices(run) for run in papers})
        shown = f" {listing(sizes)}," if sizes else ""
        return (
            f"**This is the quick reproduction: embedded glyphs in the place of FEMNIST, a compact network,{shown} a "
            "few rounds. It shows that every experiment runs from end to end. Its accuracies say nothing about the "
            "paper's, and are not compared with them.** Samplers and starts of GBP-CS are shown beside the paper's: "
            "their instances are of its size, with made-up labels like FEMNIST's. With FEMNIST the same commands "
            "reproduce the paper: `python -m reproduction all --femnist FILE`."
        )
    if not material.papers_size:
        sizes = sorted({
            f"{_devices(run)}, "
            f"{plural(run['settings']['training']['rounds'], 'round')}, {network_of(run['settings'])} network"
            for run in papers
        })  # fmt: skip
        return f"**FEMNIST, not at the paper's size ({listing(sizes)}): nothing is compared with its accuracies.**"
    shown = ""
    if papers:
        devices, train, test = (papers[0][key] for key in ("devices", "train_samples", "test_samples"))
        shown = f": {devices} devices, {train:,} samples to train and {test:,} to test on"
    return (
        f"FEMNIST at the paper's size{shown}. The paper does not say which 350 writers it used; these need not be the "
        "same."
    )


def _devices(run: Result) -> str:
    return f"{plural(run['devices'], 'device')} in {plural(run['factories'], 'factory', 'factories')}"


def _top(material: Material, missing: list[str]) -> list[str]:
    everything = list(material.results.values())
    machines = sorted({_machine(run) for run in everything})
    versions = sorted({run["fedgs"] for run in everything})
    on_gpu = [run for run in material.trainings.values() if run["hardware"].get("kind", "cuda") == "cuda"]
    precisions = sorted({run["settings"]["training"]["precision"] for run in on_gpu})
    seconds = sum(run["seconds"] / run.get("jobs", 1) for run in everything)
    facts = [
        f"{plural(len(everything), 'part')}, one JSON file each with settings, seed, version and "
        f"hardware; {plural(max(1, round(seconds / 60)), 'minute')} of one machine's time in all.",
        f"fedgs {listing(versions)}{_states(everything)}; {listing(machines)}"
        + (f"; matrix products on a GPU in {listing(precisions)}." if precisions else "."),
    ]  # fmt: skip
    study_alone = set(SECTIONS) - set(missing) == {STUDY}
    if missing and not study_alone:  # the study is a question of its own, not a part of the paper
        facts.append(f"Not in these results: {listing([title.rstrip('?') for title in missing])}.")
    rows = [key for key in ROWS if material.starting_with(f"{TABLE}{key}-seed-")]
    if rows and len(rows) < len(ROWS):
        facts.append(f"Table II is not complete: {len(rows)} of {len(ROWS)} rows have been run.")
    head = ["# The selection study" if study_alone else "# FedGS reproduced", _size(material), bullets(facts)]
    remark = material.remark("report").strip()
    return [*head, *([remark] if remark else [])]


def _states(results: Sequence[Result]) -> str:
    """Say with how many states of the source files results were made, if it was not one for all."""
    known = [run["source"] for run in results if "source" in run]
    states, before = len(set(known)), len(results) - len(known)
    if states == 1 and not before:
        return ""
    if not states:
        return ", the state of its source files not noted"
    earlier = f" ({plural(before, 'part')} before these were noted)" if before else ""
    return f", {plural(states, 'state')} of its source files{earlier}"


def _machine(run: dict[str, dict[str, object]]) -> str:
    hardware = run["hardware"]
    return f"{hardware['device']}, {hardware['cores']} cores, torch {hardware['torch']}"


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


def _foot(material: Material) -> list[str]:
    name = _place(material.folder)
    further = "".join(f" --with {_place(other)}" for other in dict.fromkeys(material.further.values()))
    own = {part: run for part, run in material.results.items() if part not in material.further}
    lines = [
        f"    python -m reproduction {what} {options} --out {name}"
        for what, prefix in EXPERIMENTS_OF.items()
        for options in _commands([run for part, run in own.items() if part.startswith(prefix)], material.quick)
    ]
    return [
        "## How to make this again",
        "\n".join([*lines, f"    python -m reproduction report --out {name}{further}      # from what is there"]),
        f"Pictures lie in `{FIGURES}/` as PNG and SVG. Written by fedgs {__version__}.",
    ]
