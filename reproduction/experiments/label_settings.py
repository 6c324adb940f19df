"""The settings of a job on labels alone (samplers, initialisers), and what of them makes it another job.

It deals devices out, draws their next mini-batches and has solvers pick among them. Nothing is trained, so precision,
learning rates and the like may differ from those in a file that was made before: its numbers are the same.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from fedgs.config import load_settings
from fedgs.settings import Settings

SECTIONS = ("federation", "data", "selection")
"""Overrides of these make another job. L_rnd follows from the solver, so selection is among them as a whole."""
BATCH_SIZE = "training.batch_size"
"""… and so does this one, alone in its section."""


def label_settings(overrides: Sequence[str], size: Iterable[str], seed: int) -> Settings:
    """Return the settings of a job on labels; where overrides size the federation, ``size`` lies beneath them."""
    beneath = []
    if any(section(override) == "federation" for override in overrides):
        beneath = [override for override in size if section(override) in ("federation", "selection")]
    load_settings(overrides=[*beneath, *overrides], given=overrides)  # what it leaves out must be possible, too
    own = [override for override in overrides if section(override) in SECTIONS or key(override) == BATCH_SIZE]
    return load_settings(overrides=[*beneath, *own, f"seed={seed}"], given=own)


def key(override: str) -> str:
    """Return the path of a setting that an override names."""
    return override.partition("=")[0].strip()


def section(override: str) -> str:
    """Return the first word of it."""
    return key(override).partition(".")[0]


def read_by_a_label_job(settings: Settings) -> tuple[Any, ...]:
    """Return all that such a job reads of its settings."""
    data, selection = settings.data, settings.selection
    return (settings.seed, settings.federation, data.min_samples, data.train_fraction, data.partition, data.attribute,
            selection.pick, selection.presample, settings.training.batch_size)  # fmt: skip
