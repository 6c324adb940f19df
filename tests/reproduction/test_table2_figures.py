"""The curves of Table II: legends name what is to be seen, rounds stand below the lowest panels."""

import pytest
from matplotlib.figure import Figure

from reproduction.experiments.jobs import Job, Result
from reproduction.experiments.table2 import PREFIX, ROWS
from reproduction.figures.table2 import FAMILIES, paint_curves
from tests.reproduction.made_up import full_size, results_of


def end(job: Job) -> float:
    return 0.06 if "fedadagrad" in job.name else 0.8


@pytest.fixture(scope="module")
def runs() -> dict[str, Result]:
    results = results_of("table2", end, full_size((0,)))
    return {key: results[f"{PREFIX}{key}-seed-0"] for key in ROWS if f"{PREFIX}{key}-seed-0" in results}


def painted(runs: dict[str, Result], compare: bool = True) -> Figure:
    figure = Figure(figsize=(12, 5.5), layout="constrained")
    paint_curves(figure, runs, "accuracy", compare)
    return figure


def test_a_row_out_of_sight_is_in_no_legend_but_named(runs: dict[str, Result]) -> None:
    (panel,) = [axes for axes in painted(runs).axes if axes.get_title() == "FedGS and FedOpt"]
    assert panel.get_legend_handles_labels()[1] == ["FedGS", "FedAvg", "FedAvgM", "FedAdam", "FedYogi"]
    assert panel.get_xlabel() == "round\nFedAdagrad: out of sight, ends at 0.06"


def test_the_target_and_the_papers_points_are_explained(runs: dict[str, Result]) -> None:
    def said(compare: bool) -> list[str]:
        return [text.get_text() for legend in painted(runs, compare).legends for text in legend.get_texts()]

    assert said(True) == ["82 %, the target", "the paper's last round"]
    assert said(False) == ["82 %, the target"]


@pytest.mark.parametrize("count", range(1, len(FAMILIES) + 1))
def test_rounds_stand_below_the_panels_with_none_below_them(runs: dict[str, Result], count: int) -> None:
    some = {key: run for key, run in runs.items() if ROWS[key].family in ("", *FAMILIES[:count]) or key == "fedgs"}
    panels = [axes for axes in painted(some).axes if axes.axison]
    assert len(panels) == count
    labelled = [axes.get_xlabel().startswith("round") for axes in panels]
    assert labelled == [place + 4 >= count for place in range(count)]


def test_the_papers_points_are_in_the_picture_however_little_was_learnt() -> None:
    """Outside of it they would take the room of all panels."""
    few = {key: run for key, run in results_at(0.4).items() if key in ("fedgs", "fedavg")}
    figure = painted(few)
    figure.draw_without_rendering()
    (panel,) = figure.axes
    bottom, top = panel.get_ylim()
    assert bottom < 0.4 < 0.86 < top
    assert panel.get_title() == "FedGS and FedAvg"
    assert panel.get_position().height > 0.5


def results_at(accuracy: float) -> dict[str, Result]:
    results = results_of("table2", lambda job: accuracy, full_size((0,)))
    return {name.removeprefix(PREFIX).removesuffix("-seed-0"): run for name, run in results.items()}
