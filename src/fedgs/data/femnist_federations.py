"""The two ways to make the paper's devices from FEMNIST.

``paper``: exactly what the text says (Sec. VII-A). Writers with at least 100 samples in the order of their names,
a seeded shuffle, the first 350 of it; 90 % of each writer's samples to train; ten factories of exactly 35.

``leaf``: what LEAF's scripts (Caldas et al., 2018) do for ``-s niid --sf 0.1 -k 100 -t sample --smplseed 0
--spltseed 0``, with Python's own generator as there. Writers lie in JSON files of 100, in name order here
(the scripts take whatever order the file system gives, so the authors' very devices cannot be had from the
seeds). Per file, writers in a shuffled order are taken until a tenth of the file's samples is used up, the
last of them cut short; writers with fewer than 100 samples left are dropped; each of the rest is split 90/10.
"""

import random
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedgs.data.dataset import DataSet, IndexLists, clients_of
from fedgs.data.federation import Federation, assemble_federation, build_federation, fields_of, train_size
from fedgs.data.partition import assign_factories
from fedgs.errors import DataError

WRITERS_PER_FILE = 100


def paper_federation(
    dataset: DataSet,
    seed: int = 0,
    *,
    devices: int = 350,
    factories: int = 10,
    min_samples: int = 100,
    split: Literal["auto", "own", "draw"] = "draw",
) -> Federation:
    """Return the paper's federation: 350 devices in ten factories of 35, split 90/10."""
    return build_federation(
        dataset, factories, "balanced", 0.9, seed, devices=devices, min_samples=min_samples, split=split
    )


def leaf_federation(
    dataset: DataSet,
    *,
    fraction: float = 0.1,
    min_samples: int = 100,
    train_fraction: float = 0.9,
    sample_seed: int = 0,
    split_seed: int = 0,
    partial_file: bool = True,
    factories: int = 10,
    partition: str = "balanced",
    seed: int = 0,
) -> Federation:
    """Return the federation LEAF's scripts make; ``seed`` and ``partition`` assign its devices to factories.

    ``partial_file=False`` leaves out the last file when it has fewer than 100 writers, as the authors' older
    copy of the scripts did.
    """
    if not 0 < fraction <= 1 or not 0 < train_fraction < 1:
        raise DataError(f"fraction {fraction} and train_fraction {train_fraction} must lie between 0 and 1")
    clients = clients_of(dataset).sorted()
    # No stream of the package: the point is LEAF's own sequence of draws.
    sampling, splitting = random.Random(sample_seed), random.Random(split_seed)
    rows: list[int] = []
    train: list[NDArray[np.int64]] = []
    test: list[NDArray[np.int64]] = []
    for first in range(0, len(clients), WRITERS_PER_FILE):
        file = list(range(first, min(first + WRITERS_PER_FILE, len(clients))))
        if len(file) < WRITERS_PER_FILE and not partial_file:
            break
        for row, samples in _sample_file(file, clients.samples, fraction, sampling):
            if len(samples) < max(min_samples, 2):
                continue
            chosen = splitting.sample(range(len(samples)), train_size(len(samples), train_fraction))
            is_train = np.zeros(len(samples), bool)
            is_train[chosen] = True
            rows.append(row)
            train.append(samples[is_train])
            test.append(samples[~is_train])
    if not rows:
        raise DataError(
            f"{dataset.name}: LEAF's sampling finds no device with at least {min_samples} samples in a sample of "
            f"{fraction:g}; lower min_samples or raise fraction"
        )
    picked = clients.pick(np.array(rows, dtype=np.int64))
    assigned = assign_factories(picked.names, factories, partition, seed, picked.attributes)
    return assemble_federation(fields_of(dataset), picked, IndexLists.of(train), IndexLists.of(test), assigned)


def _sample_file(
    file: list[int], samples: IndexLists, fraction: float, generator: random.Random
) -> list[tuple[int, NDArray[np.int64]]]:
    """Take writers of one file, in a shuffled order, until the budget is used; the last one is cut short."""
    left = int(fraction * sum(len(samples[row]) for row in file))
    shuffled = list(file)
    generator.shuffle(shuffled)
    taken = []
    for row in shuffled:
        if left <= 0:
            break
        mine = samples[row]
        if len(mine) > left:
            mine = mine[generator.sample(range(left), left)]
        taken.append((row, mine))
        left -= len(mine)
    return taken
