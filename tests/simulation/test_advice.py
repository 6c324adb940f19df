"""Which selection pays, by hand: one fact at a time."""

from typing import Any

import pytest

from fedgs.config import settings_from
from fedgs.simulation.advice import advise


def facts(random: float = 0.3, factory: float = 0.05, jain: float = 0.99) -> dict[str, Any]:
    """Return what a summary says; independent samples have a divergence of 0.1, the run's teams 0.15."""
    return {
        "divergence": 0.15,
        "selection": {
            "random_divergence": random,
            "factory_divergence": factory,
            "independent_divergence": 0.1,
            "jain_of_epochs": jain,
        },
    }


def advised(batch_norm: bool = False, classifies: bool = True, clip: float | None = None, **others: float) -> str:
    """Return the advice as one text."""
    settings = settings_from({"training": {"clip": clip}})
    found = advise(facts(**others), settings, batch_norm, classifies)
    assert found is not None
    return " ".join([found.selection, *found.settings, *found.reasons])


def test_near_independent_samples_nothing_is_to_be_matched() -> None:
    text = advised(random=0.15)
    assert text.startswith("random-by-data selection.solver=random-by-data A team at random would be 1.5 times")
    assert "this run's teams are 1.5 times" in text
    assert advised(random=0.16).startswith("coverage selection.solver=auto selection.coverage.weight=0.3 training.cal")


@pytest.mark.parametrize(
    ("options", "said", "unsaid"),
    [
        ({}, "not clipped", "are clipped"),
        ({"clip": 2.0}, "are clipped", "not clipped"),
        ({"batch_norm": True}, "batch normalisation", "clipped"),
        ({"factory": 0.2}, "Whole factories are 2.0 times", "unevenly"),
        ({"factory": 0.2, "classifies": False}, "coverage.weight=0.3", "calibration"),
        ({"jain": 0.8}, "unevenly (Jain's index of epochs: 0.80)", "Whole factories"),
    ],
)
def test_what_speaks_for_it(options: dict[str, Any], said: str, unsaid: str) -> None:
    text = advised(**options)
    assert said in text
    assert unsaid not in text


def test_no_advice_without_facts() -> None:
    """An older run, one of a baseline, or one whose samples have no classes."""
    assert advise({"divergence": 0.1, "selection": {}}, settings_from({}), False, True) is None
    assert advise({}, settings_from({}), False, True) is None
