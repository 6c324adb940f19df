"""The times of ``fedgs plan``, of a step and of a selection: given, measured here, of the run, or not counted."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fedgs.cli.plan_run import RunFacts

GIVEN, MEASURED, OF_THE_RUN, NOT_COUNTED = "given", "measured here", "of the run", "not counted"


class Time(NamedTuple):
    """Seconds, and where they come from."""

    seconds: float = 0.0
    source: str = NOT_COUNTED


class Size(NamedTuple):
    """What a step and a selection depend on where there is no run."""

    model: str | None
    """None: known by its size only"""
    factories: int
    devices: int
    pick: int


def step_time(text: str | None, measure: bool, known: "RunFacts | None", size: Size) -> Time:
    """Return the time of one local step; that of a run is measured with its own batches, classes and images."""
    from fedgs.errors import ConfigError
    from fedgs.simulation.step_time import fastest, step_seconds

    if text is not None:
        from fedgs.cli.quantities import seconds

        return Time(seconds("--step-time", text), GIVEN)
    if known is not None:
        if not measure:
            return Time(known.step_seconds, OF_THE_RUN)
        return Time(fastest(known.step), MEASURED)
    if not measure:
        return Time()
    if size.model is None:
        raise ConfigError("--measure needs a model by name to time a step of; give --model or --step-time")
    return Time(step_seconds(size.model), MEASURED)


def select_time(text: str | None, measure: bool, known: "RunFacts | None", size: Size) -> Time:
    """Return the time of one selection; that of a run is measured with its own solver, classes and batches."""
    from fedgs.simulation.step_time import selection_seconds

    if text is not None:
        from fedgs.cli.quantities import seconds

        return Time(seconds("--select-time", text), GIVEN)
    if known is not None and not measure:
        return Time(known.select_seconds, OF_THE_RUN)
    available = size.devices // size.factories if size.factories > 0 else 0
    if not measure or not 0 < size.pick <= available:  # a park that cannot be is refused by itself
        return Time()
    if known is None:
        return Time(selection_seconds(available, size.pick), MEASURED)
    selection, batch_size = known.settings.selection, known.settings.training.batch_size
    drawn = min(selection.presample, size.pick - 1)
    measured = selection_seconds(
        available - drawn, size.pick - drawn, selection.solver, classes=known.classes, batch_size=batch_size
    )
    return Time(measured, MEASURED)
