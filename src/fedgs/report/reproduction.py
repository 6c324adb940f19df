"""The report of a reproduction: ``report.md``, and ``report.html`` that needs nothing beside it.

It is made of the results in a folder and nothing else, so a folder that is half done gives a report that says what is
missing, and results that came from another machine are reported as they are.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from fedgs import __version__
from fedgs.experiments.parts import Result
from fedgs.experiments.reproduction import PAPER
from fedgs.experiments.table2 import PREFIX as TABLE
from fedgs.experiments.table2 import ROWS
from fedgs.files import write_text
from fedgs.report.html import page
from fedgs.report.markdown import bullets, listing, plural
from fedgs.report.material import FIGURES, Material, gather
from fedgs.report.sections import beyond, claims, fedopt_rates, selection, study, surfaces, table2
from fedgs.settings import Settings

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
EXPERIMENTS_OF = {"initialisers": "initialisers-", "samplers": "samplers-", "table2": "table2-",
                  "surfaces": "surfaces-", "fedopt-rates": "fedopt-rates-", "beyond": "beyond-",
                  "selection-study": "study-"}  # fmt: skip
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
    runs = list(material.trainings.values())
    if material.quick:
        return (
            "**This is the quick reproduction: embedded glyphs in the place of FEMNIST, a compact network, 60 "
            "devices in 4 "
            "factories, a few rounds. It shows that every experiment runs from end to end. Its accuracies say nothing "
            "about the paper's, and are not compared with them.** Samplers and starts of GBP-CS are shown beside the "
            "paper's: their instances are of its size, with made-up labels like FEMNIST's. With FEMNIST the same "
            "commands reproduce the paper: `fedgs reproduce all --femnist FILE`."
        )
    papers = [run for run in runs if run["federation"] == PAPER and "devices" in run]
    if not material.papers_size:
        sizes = sorted({
            f"{plural(run['devices'], 'device')} in {plural(run['factories'], 'factory', 'factories')}, "
            f"{plural(run['settings']['training']['rounds'], 'round')}, {run['settings']['training']['model']} network"
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


def _top(material: Material, missing: list[str]) -> list[str]:
    everything = list(material.results.values())
    machines = sorted({_machine(run) for run in everything})
    versions = sorted({run["fedgs"] for run in everything})
    on_gpu = [run for run in material.trainings.values() if run["hardware"].get("kind", "cuda") == "cuda"]
    precisions = sorted({run["settings"]["training"]["precision"] for run in on_gpu})
    seconds = sum(run["seconds"] / run.get("jobs", 1) for run in everything)
    facts = [
        f"{plural(len(everything), 'part')}, one JSON file each with settings, seed, version and "
        f"hardware; {plural(max(1, round(seconds / 60)), 'minute')} of computing in all.",
        f"fedgs {listing(versions)}; {listing(machines)}"
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


def _machine(run: dict[str, dict[str, object]]) -> str:
    hardware = run["hardware"]
    return f"{hardware['device']}, {hardware['cores']} cores, torch {hardware['torch']}"


def _options(runs: Sequence[Result], quick: bool) -> str:
    """Return what these results were made with beside the defaults."""
    if quick:
        return "--preset quick"
    options = ["--femnist FILE"]
    if any(run["hardware"].get("kind") == "cuda" for run in runs):
        options.append("--device cuda")
    precisions = {run["settings"]["training"]["precision"] for run in runs}
    options += [f"--set training.precision={one}" for one in precisions if one != Settings().training.precision]
    clips = {
        run["settings"]["training"].get("clip") for run in runs
    }  # with several of them they are the experiment's own
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
        f"    fedgs reproduce {what} {_options(runs, material.quick)} --out {name}"
        for what, prefix in EXPERIMENTS_OF.items()
        if (runs := [run for part, run in own.items() if part.startswith(prefix)])
    ]
    return [
        "## How to make this again",
        "\n".join([*lines, f"    fedgs reproduce report --out {name}{further}      # from the parts that are there"]),
        f"Pictures lie in `{FIGURES}/` as PNG and SVG. Written by fedgs {__version__}.",
    ]
