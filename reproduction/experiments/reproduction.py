"""What all experiments of ``python -m reproduction`` share: the data set, the size, the settings they begin with.

Full size is the paper's: FEMNIST, 350 devices in ten factories, its network and hyper-parameters. The small size
(``quick``) runs the same experiments on the embedded glyphs with the compact network, on two cores within minutes; its
numbers say nothing about the paper, only that everything works.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedgs.config import load_settings
from fedgs.data import DataSet, Federation, build_federation
from fedgs.data.dataset import IndexLists
from fedgs.errors import ConfigError
from fedgs.settings import Settings
from reproduction.experiments import selection_study

SMALL = ("data.name=glyphs", "data.samples_per_device=80", "federation.devices=60", "federation.factories=4",
         "selection.pick=5", "task.model=compact", "training.batch_size=8", "training.iterations=20",
         "algorithm.learning_rate=0.05")  # fmt: skip
PAPER = "paper"
"""The key of the paper's federation."""
OTHER_FACTORIES = f"{PAPER}-M"
"""… of the same devices in another number of factories, which stands behind it."""
FILE = "FILE"
"""What a file of somebody's machine is called where others read it."""
TRACE = "dynamics.trace"
"""The one setting that names such a file."""
CENTRAL = f"{PAPER}-central"
"""… of the same samples in one place."""
LABELS = "labels"
"""… of the one whose next mini-batches the samplers select from: it needs no images."""
LABEL_SECTIONS = ("federation", "data", "selection")
"""Overrides of these, and of the batch size, make another job on labels. L_rnd follows from the solver."""


def paper_with(factories: int) -> str:
    """Return the key of the paper's federation with its devices in so many factories."""
    return f"{OTHER_FACTORIES}{factories}"


@dataclass(frozen=True)
class Scale:
    """What differs between full size and small size."""

    rounds: int
    rate: float
    """Of learning."""
    every: int
    """Rounds between two tests."""
    target: float = 0.82


@dataclass
class Reproduction:
    """The data set and size of a reproduction."""

    femnist: Path | None
    """FEMNIST in any of its forms; None: glyphs at a small size."""
    seeds: Sequence[int] | None = None
    """None: each experiment's own."""
    rounds: int | None = None
    """Of every run; None: each experiment's own number."""
    overrides: Sequence[str] = ()
    """Of the settings of every run; what makes a row or a cell what it is lies above them.

    Whether they are possible turns out when settings are made of them, before anything is loaded: jobs differ in size.
    """
    _dataset: DataSet | None = field(default=None, init=False)
    _dealt: tuple[tuple[str, int], Federation] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        for override in self.overrides:
            options = {"seed": "--seeds", "data.name": "--femnist", "training.rounds": "--rounds"}
            instead = options.get(_key(override))
            if instead is not None:
                raise ConfigError(f"--set {override}: in a reproduction {instead} says that; use it instead")

    def __getstate__(self) -> dict[str, Any]:
        """Leave the data set behind on the way to another process: to load it there is faster than to send it."""
        return {**vars(self), "_dataset": None, "_dealt": None}

    @property
    def quick(self) -> bool:
        """Whether this is the small size."""
        return self.femnist is None

    def asked(self, trains: bool = True, one_seed: bool = False) -> str:
        """Return the options that ask for this of one experiment, for a shell; files are called FILE.

        ``trains``, ``one_seed``: whether the experiment does, and has one seed alone.
        """
        options = ["--preset", "quick"] if self.quick else ["--femnist", FILE]
        if self.rounds is not None and trains:
            options += ["--rounds", str(self.rounds)]
        if self.seeds is not None:
            options += ["--seeds", ",".join(str(seed) for seed in self.seeds[: 1 if one_seed else None])]
        for override in self.overrides:
            options += ["--set", f"{TRACE}={FILE}" if _key(override) == TRACE else override]
        return shlex.join(options)

    def settings(self, full: Scale, quick: Scale, *overrides: str) -> Settings:
        """Return the settings of an experiment at the size of this reproduction."""
        scale = quick if self.quick else full
        base = [
            *(SMALL if self.quick else ()),
            f"training.rounds={self.rounds or scale.rounds}",
            f"training.learning_rate={scale.rate}",
            f"eval.every={scale.every}",
            f"eval.target={scale.target}",
        ]
        # What an experiment's own settings hide must be possible, too; what it may cap, it caps itself.
        load_settings(overrides=[*base, "selection.cap=true", *self.overrides], given=self.overrides)
        return load_settings(overrides=[*base, *self.overrides, *overrides], given=self.overrides)

    def label_settings(self, seed: int) -> Settings:
        """Return the settings of a job on labels alone: the paper's size, even where runs are small.

        Whoever sets the size of the federation gets it here as in the runs. Overrides that such a job knows nothing
        of (how the model is trained and tested, …) make no other job of it.
        """
        beneath: list[str] = []
        if self.quick and any(_section(override) == "federation" for override in self.overrides):
            beneath = [override for override in SMALL if _section(override) in ("federation", "selection")]
        # What it leaves out must be possible, too.
        load_settings(overrides=[*beneath, *self.overrides], given=self.overrides)
        own = [one for one in self.overrides if _section(one) in LABEL_SECTIONS or _key(one) == "training.batch_size"]
        return load_settings(overrides=[*beneath, *own, f"seed={seed}"], given=own)

    def seeds_or(self, full: Sequence[int], quick: Sequence[int] = (0,)) -> Sequence[int]:
        """Return the seeds asked for, else an experiment's own."""
        return self.seeds if self.seeds is not None else (quick if self.quick else full)

    @property
    def dataset(self) -> DataSet:
        """The images all federations are made of; loaded once."""
        if self._dataset is None:
            if self.femnist is not None:
                from fedgs.data.femnist import load_femnist

                self._dataset = load_femnist(self.femnist)
            else:
                from fedgs.data.glyphs import load_glyphs

                size = self._size()
                self._dataset = load_glyphs(size.federation.devices, size.data.samples_per_device or 230, 0)
        return self._dataset

    def digest(self) -> str:
        """Return 32 hexadecimal digits that stand for the data set: images, labels and clients."""
        digest = blake2b("\x1f".join((*self.dataset.client_names, *self.dataset.classes)).encode(), digest_size=16)
        digest.update(self.dataset.labels.tobytes() + self.dataset.clients.astype("<i4").tobytes())
        digest.update(np.ascontiguousarray(self.dataset.inputs).data)
        return digest.hexdigest()

    def federation(self, key: str, seed: int) -> Federation:
        """Return a federation by its key; the last one is kept.

        There are the paper's, its devices in another number of factories, and those of the selection study.
        """
        if self._dealt is None or self._dealt[0] != (key, seed):
            self._dealt = None
            self._dealt = (key, seed), self._deal_out(key, seed)
        return self._dealt[1]

    def _deal_out(self, key: str, seed: int) -> Federation:
        if key == CENTRAL:
            return in_one_place(self._deal_out(PAPER, seed))
        size = self._size()
        if key.startswith(OTHER_FACTORIES):
            dealt = size.federation.model_copy(update={"factories": int(key.removeprefix(OTHER_FACTORIES))})
            key, size = PAPER, size.model_copy(update={"federation": dealt})
        if key not in (PAPER, LABELS):
            wanted = size.federation
            return selection_study.deal_out(
                self.dataset, key, seed, wanted.devices, wanted.factories, size.data.train_fraction
            )
        split: Literal["auto", "draw"] = "draw"
        if key == LABELS and self.quick:  # the paper's size all the same, for labels cost nothing
            from reproduction.experiments.femnist_like import femnist_like_labels

            size, split = self.label_settings(seed), "auto"
            dataset = femnist_like_labels(size.federation.devices, seed)
        else:
            dataset = self.dataset
        return build_federation(
            dataset,
            size.federation.factories,
            size.data.partition,
            size.data.train_fraction,
            seed,
            size.federation.devices,
            0 if self.quick else size.data.min_samples,
            attribute=size.data.attribute,
            split=split,
        )

    def _size(self) -> Settings:
        """Return the settings of the data set and of who takes part; what else is set, the jobs have looked at."""
        own = [override for override in self.overrides if _section(override) in ("federation", "data")]
        beneath = SMALL if self.quick else ()
        return load_settings(overrides=[*beneath, *own, "selection.cap=true"], given=own)


def in_one_place(federation: Federation) -> Federation:
    """Return the federation as one device that has all samples."""

    def joined(lists: IndexLists) -> IndexLists:
        return IndexLists(lists.flat, np.array([0, len(lists.flat)]))

    return replace(
        federation, device_names=("all",), factory_names=("all",), factory_of=np.zeros(1, np.int32),
        train=joined(federation.train), test=joined(federation.test), attributes={},
    )  # fmt: skip


def read_by_a_label_job(settings: Settings) -> tuple[Any, ...]:
    """Return all that a job on labels (samplers, initialisers) reads of its settings, and so what makes it another job.

    Nothing is trained, so precision, learning rates and the like may differ from those in a file that was made before.
    """
    data, selection = settings.data, settings.selection
    return (settings.seed, settings.federation, data.min_samples, data.train_fraction, data.partition, data.attribute,
            selection.pick, selection.presample, settings.training.batch_size)  # fmt: skip


def _key(override: str) -> str:
    """Return the path of the setting that an override names."""
    return override.partition("=")[0].strip()


def _section(override: str) -> str:
    return _key(override).partition(".")[0]
