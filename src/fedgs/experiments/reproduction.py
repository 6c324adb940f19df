"""What ``fedgs reproduce`` runs: the settings of each experiment, at full size or a small one, and their parts.

Full size is the paper's: FEMNIST, 350 devices in ten factories, its network and hyper-parameters. The small size
(``quick``) runs the same commands on the embedded glyphs with the compact network, on two cores within minutes; its
numbers say nothing about the paper, only that everything works.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedgs.config import Settings, load_settings
from fedgs.data import DataSet, Federation, build_federation
from fedgs.experiments import selection_study
from fedgs.experiments.parts import Part

SMALL = ["data.name=glyphs", "data.samples_per_device=80", "federation.devices=60", "federation.factories=4",
         "selection.pick=5", "training.model=compact", "training.batch_size=16", "training.iterations=10",
         "algorithm.local_epochs=2"]  # fmt: skip


@dataclass
class Reproduction:
    """The data set and size of a reproduction, and the parts of its experiments."""

    femnist: Path | None
    """FEMNIST in any of its forms; None: glyphs at a small size."""
    seeds: Sequence[int] = (0, 1)
    rounds: int | None = None
    """Of every run; None: each experiment's own number."""
    overrides: Sequence[str] = ()
    _dataset: DataSet | None = field(default=None, init=False)
    _dealt: tuple[tuple[str, int], Federation] | None = field(default=None, init=False)

    @property
    def quick(self) -> bool:
        """Whether this is the small size."""
        return self.femnist is None

    def settings(self, *overrides: str, rounds: int, quick_rounds: int, rate: float, quick_rate: float) -> Settings:
        """Return settings of an experiment at the size of this reproduction."""
        number = self.rounds if self.rounds is not None else (quick_rounds if self.quick else rounds)
        common = [*SMALL, f"training.learning_rate={quick_rate}"] if self.quick else [f"training.learning_rate={rate}"]
        return load_settings(overrides=[*common, f"training.rounds={number}", *overrides, *self.overrides])

    def study_parts(self) -> list[Part]:
        """Return the cells of the selection study."""
        base = self.settings(
            "eval.every=2", "selection.cap=true", rounds=80, quick_rounds=12, rate=0.05, quick_rate=0.2
        )
        return selection_study.make_parts(base, self.seeds, tuple(self.dataset.attributes))

    @property
    def dataset(self) -> DataSet:
        """The images all federations are made of; loaded once."""
        if self._dataset is None:
            if self.femnist is not None:
                from fedgs.data.femnist import load_femnist

                self._dataset = load_femnist(self.femnist)
            else:
                from fedgs.data.glyphs import load_glyphs

                size = self.settings(rounds=1, quick_rounds=1, rate=0.1, quick_rate=0.1)
                self._dataset = load_glyphs(size.federation.devices, size.data.samples_per_device, 0)
        return self._dataset

    def federation(self, key: str, seed: int) -> Federation:
        """Return a federation by its key: ``paper``, or one of the selection study's; the last one is kept."""
        if self._dealt is None or self._dealt[0] != (key, seed):
            self._dealt = None
            size = self.settings(rounds=1, quick_rounds=1, rate=0.1, quick_rate=0.1)
            devices, factories = size.federation.devices, size.federation.factories
            if key == "paper":
                least: Any = 0 if self.quick else size.data.min_samples
                made = build_federation(
                    self.dataset, factories, seed=seed, devices=devices, min_samples=least, split="draw"
                )
            else:
                made = selection_study.deal_out(self.dataset, key, seed, devices, factories)
            self._dealt = (key, seed), made
        return self._dealt[1]
