"""What a report is made of: the results of a folder, remarks written by people, and the figures drawn for it.

The report itself shows tables and figures. What they mean, people write in ``remarks.toml`` in the folder of results:

    [table2]
    section = ["All rows were run twice.", "CGAU is the one row far from the paper."]
    fedprox = "With μ = 0.05 it ends at 82.3 %."     # on one row of the table
"""

import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgs.errors import InputFileError
from reproduction.experiments import paper
from reproduction.experiments.best import PREFIX as BEST
from reproduction.experiments.gaps import PREFIX as GAPS
from reproduction.experiments.jobs import Result, Results, read_all
from reproduction.experiments.reproduction import PAPER
from reproduction.experiments.runs import network_of
from reproduction.experiments.surfaces import PREFIX as SURFACES
from reproduction.experiments.table2 import PREFIX as TABLE
from reproduction.figures import canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REMARKS = "remarks.toml"
FIGURES = "figures"
SECTIONS = ("report", "initialisers", "samplers", "table2", "gaps", "curves", "claims", "surfaces", "fedopt-rates",
            "beyond", "study", "best", "bearings")  # fmt: skip
"""The sections that remarks can belong to."""

Remarks = Mapping[str, Mapping[str, Sequence[str]]]
"""By section and key: one sentence or several."""


@dataclass
class ReportInputs:
    """The inputs of the report of one folder."""

    folder: Path
    results: Results
    remarks: Remarks = field(default_factory=dict)
    further: Mapping[str, Path] = field(default_factory=dict)
    """The results that came from other folders, by name."""
    used: set[tuple[str, str]] = field(default_factory=set)
    """The remarks that are in the report."""

    @property
    def quick(self) -> bool:
        """Whether these are results at the small size, which are not to be compared with the paper's."""
        sources = [run["comparison"]["source"] for run in self.results.values() if "comparison" in run]
        return any(run["settings"]["data"]["name"] == "glyphs" for run in self.trainings.values()) or any(
            "femnist-like" in source for source in sources
        )

    @property
    def papers_size(self) -> bool:
        """Whether runs are as large as the paper's; only then are they compared with its numbers."""
        size = paper.facts()["setup"]
        runs = self.like_the_papers.values()
        rounds = Counter(
            run["settings"]["training"]["rounds"]
            for name, run in self.trainings.items()
            if name.startswith((TABLE, SURFACES))
        )
        return (
            not self.quick
            and all(run.get("devices", size["K"]) == size["K"] for run in runs)
            and all(network_of(run["settings"]) == "paper" for run in runs)
            and all(number == size["R"] for number, _ in rounds.most_common(1))
        )

    @property
    def trainings(self) -> Results:
        """The results of training runs."""
        return {name: result for name, result in self.results.items() if "curve" in result}

    @property
    def like_the_papers(self) -> Results:
        """The training runs on the paper's federation with the paper's choices: not our recipe, nothing changed."""
        return {
            name: run
            for name, run in self.trainings.items()
            if run["federation"].startswith(PAPER) and not name.startswith((BEST, GAPS))
        }

    def starting_with(self, prefix: str) -> Results:
        """Return the results of one experiment."""
        return {name: result for name, result in self.results.items() if name.startswith(prefix)}

    def first(self, prefix: str) -> Result | None:
        """Return the first of these results."""
        return next(iter(self.starting_with(prefix).values()), None)

    def remark(self, section: str, titles: Mapping[str, str]) -> str:
        """Return the remarks under these keys as a Markdown list, each after the title of its key (if it has one)."""
        found = []
        for key, sentences in self.remarks.get(section, {}).items():
            if key in titles:
                self.used.add((section, key))
                title = f"**{titles[key]}:** " if titles[key] else ""
                found += [f"- {title}{sentence.strip()}" for sentence in sentences]
        return "\n".join(found)

    def figure(self, name: str, caption: str, size: tuple[float, float], paint: "Callable[[Figure], None]") -> str:
        """Draw a figure and return the line of Markdown that shows it."""
        canvas.draw(self.folder / FIGURES, name, size, paint)
        return f"![{caption}]({FIGURES}/{name}.png)"

    def unused(self) -> list[str]:
        """Return the remarks on what is not in the report: their section and key."""
        return [
            f"[{section}] {key}"
            for section, entries in self.remarks.items()
            for key in entries
            if (section, key) not in self.used
        ]


def gather(folder: Path, further: Sequence[Path] = ()) -> ReportInputs:
    """Read the results and remarks of a folder, and those of ``further`` folders that it does not have itself."""
    results: Results = {}
    borrowed: dict[str, Path] = {}
    remarks: dict[str, Mapping[str, Sequence[str]]] = {}
    for option, place in [("--out", folder), *(("--with", other) for other in further)]:
        found = read_folder(place, option)
        known, new = ({result["data"] for result in some.values() if "data" in result} for some in (results, found))
        if known and new - known:
            raise InputFileError(f"{place}: holds results of another data set than {folder}; a report is of one")
        if place != folder:
            borrowed |= {name: place for name in found if name not in results}
        results = found | results
        for section, entries in read_remarks(place / REMARKS).items():
            remarks[section] = {**entries, **remarks.get(section, {})}
    return ReportInputs(folder, results, remarks, borrowed)


def read_folder(folder: Path, option: str) -> Results:
    """Return the results of a folder that an option has named; there must be some."""
    if not folder.is_dir():
        raise InputFileError(f"{folder}: there is no such folder of results; name it with {option}")
    found = read_all(folder)
    if not found:
        raise InputFileError(f"{folder}: holds no results yet; run an experiment into it first")
    return found


def read_remarks(path: Path) -> Remarks:
    """Read a file of remarks; none is no remarks."""
    if not path.exists():
        return {}
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputFileError(f"{path}: cannot be read as TOML ({error}); correct it") from None
    remarks: dict[str, dict[str, Sequence[str]]] = {}
    for section, entries in values.items():
        if section not in SECTIONS or not isinstance(entries, dict):
            raise InputFileError(f"{path}: [{section}] is no section of the report; there are {', '.join(SECTIONS)}")
        for key, text in entries.items():
            sentences = text if isinstance(text, list) else [text]
            if not all(isinstance(sentence, str) and sentence.strip() for sentence in sentences):
                raise InputFileError(f'{path}: [{section}] {key} is no text; write it as {key} = "…"')
            remarks.setdefault(section, {})[key] = sentences
    return remarks
