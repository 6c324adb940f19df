"""How long a set of FEMNIST's full size takes to load, and how much memory.

    python benchmarks/data_loading.py [--writers 3597] [--images 817851]

Makes random images of that size, stores them in a cache of its own, and measures in a fresh process: loading; reading
a batch of each writer; reading every image. Nothing is kept.
"""

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from command import at_least, in_one_line
from fedgs.data import DataSet
from fedgs.data.cache import store
from fedgs.data.femnist import CLASSES
from fedgs.rng import stream

_LIMIT_SECONDS, _LIMIT_MEGABYTES = 5.0, 1500.0

_MEASURED = """
import resource, time

def megabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

import numpy
print(f"numpy imported            {'':8}   {megabytes():6.0f} MB")
start = time.perf_counter()
from fedgs.data.femnist import load_femnist
dataset = load_femnist()
loading = time.perf_counter() - start
print(f"loaded                    {loading:8.3f} s {megabytes():6.0f} MB")
start = time.perf_counter()
firsts = numpy.searchsorted(dataset.clients, numpy.arange(len(dataset.client_names)))
batches = dataset.inputs[(firsts[:, None] + numpy.arange(32)).ravel().clip(max=len(dataset) - 1)]
print(f"32 images of each writer  {time.perf_counter() - start:8.3f} s {megabytes():6.0f} MB")
start = time.perf_counter()
mean = sum(int(dataset.inputs[at:at + 4096].sum()) for at in range(0, len(dataset), 4096)) / dataset.inputs.size
print(f"every image read          {time.perf_counter() - start:8.3f} s {megabytes():6.0f} MB")
print(loading, megabytes())
"""


def random_set(writers: int, images: int) -> DataSet:
    draw = stream(0, "benchmark")
    clients = np.sort(draw.integers(0, writers, images)).astype(np.int32)
    labels = draw.integers(0, len(CLASSES), images).astype(np.uint8)
    pixels = draw.integers(0, 256, (images, 28, 28), np.uint8)
    names = tuple(f"f{number:04d}_00" for number in range(writers))
    return DataSet("femnist", pixels, labels, clients, names, CLASSES)


def make(writers: int, images: int) -> None:
    dataset = random_set(writers, images)
    start = time.perf_counter()
    stored = store(dataset, "femnist", {"path": "random"})
    size = sum(file.stat().st_size for file in Path(stored).iterdir()) / 2**20
    print(f"{images:,} random images of {writers:,} writers")
    print(f"stored with checksums     {time.perf_counter() - start:8.3f} s {size:6.0f} MB on disk", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--writers", type=at_least(1), default=3597)
    parser.add_argument("--images", type=at_least(1), default=817_851)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FEDGS_DATA"] = folder
        # In a process of its own: a child's peak memory would start from what its parent holds.
        maker = multiprocessing.get_context("spawn").Process(target=make, args=(wanted.writers, wanted.images))
        maker.start()
        maker.join()
        found = subprocess.run([sys.executable, "-c", _MEASURED], check=True, capture_output=True, text=True).stdout
        *lines, summary = found.splitlines()
        print("\n".join(lines))
        seconds, megabytes = map(float, summary.split())
        print(f"share of the limits: time {seconds / _LIMIT_SECONDS:.1%}, memory {megabytes / _LIMIT_MEGABYTES:.1%}")
        if seconds > _LIMIT_SECONDS or megabytes > _LIMIT_MEGABYTES:
            sys.exit(f"over the limits: {_LIMIT_SECONDS:g} s to load, {_LIMIT_MEGABYTES:g} MB at the peak")


if __name__ == "__main__":
    in_one_line(main)
