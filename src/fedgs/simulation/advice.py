"""Which selection pays for a run: what our results say (docs/explanation/when-matching-pays.md), as rules.

The first question is how far from P_real the team of an iteration is if it is drawn at random, as a multiple of what
independent samples have (:func:`fedgs.data.statistics.team_divergence`). Near 1 there is nothing to match.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from fedgs.settings import COVERAGE_WEIGHT, Settings

ALIKE = 1.5
"""Up to this multiple no selection has gained anything in our results."""
EVEN = 0.95
"""Jain's index of epochs below which a selection uses the same devices too often."""
QUEUES = ("selection.solver=auto", f"selection.coverage.weight={COVERAGE_WEIGHT:g}")
ADDITIONS = ("training.calibration=1", "server.class_wise=true")
"""What the preset ``coverage`` has beside its queues; they know classes only."""


class Advice(NamedTuple):
    """A selection, the settings that switch it on, and why."""

    selection: str
    settings: tuple[str, ...]
    reasons: tuple[str, ...]


def advise(summary: Mapping[str, Any], settings: Settings, batch_norm: bool, classifies: bool) -> Advice | None:
    """Return which selection the summary of a run of FedGS speaks for; None if it does not say how devices differ."""
    facts = summary.get("selection", {})
    if "random_divergence" not in facts or not facts["independent_divergence"]:
        return None
    least, random, factory = (facts[f"{name}_divergence"] for name in ("independent", "random", "factory"))
    times = random / least
    reasons = [
        f"A team at random would be {times:.1f} times as far from P_real as independent samples; "
        f"this run's teams are {summary['divergence'] / least:.1f} times as far."
    ]
    if times <= ALIKE:
        reasons.append("That is nearly as good as no skew: it is enough that all data are used equally often.")
        return Advice("random-by-data", ("selection.solver=random-by-data",), tuple(reasons))
    if batch_norm:
        reasons.append("With batch normalisation a close match alone has gained nothing; even use of the devices has.")
    elif settings.training.clip is None:
        reasons.append(
            "Gradients are not clipped: the higher the learning rate, the more selection gains. "
            "Clipping (training.clip=2) with a higher rate gained more, and little is left for selection then."
        )
    else:
        reasons.append("Gradients are clipped: selection gains little over even use of the data.")
    if factory > least and classifies:
        reasons.append(
            f"Whole factories are {factory / least:.1f} times as far as independent samples: no selection mends that, "
            "but logit adjustment and class-wise averaging help."
        )
    if facts["jain_of_epochs"] < EVEN:
        reasons.append(
            f"This run used its data unevenly (Jain's index of epochs: {facts['jain_of_epochs']:.2f}); queues mend it."
        )
    return Advice("coverage", (*QUEUES, *(ADDITIONS if classifies else ())), tuple(reasons))
