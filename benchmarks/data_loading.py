"""How long a set of FEMNIST's full size takes to load, and how much memory.

    python benchmarks/data_loading.py [--writers 3597] [--images 817851]

Makes random images of that size, stores them in a cache of its own, and measures in a fresh process: loading; reading
a batch of each writer; reading every image. Nothing is kept.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from fedgs.data import DataSet
from fedgs.data.cache import store
from fedgs.data.femnist import CLASSES
from fedgs.rng import stream

_LIMIT_SECONDS, _LIMIT_GIGABYTES = 5.0, 1.5

_MEASURED = """
import resource, time

def megabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

import numpy
print(f"numpy imported            {'':8} {megabytes():8.0f} MB")
start = time.perf_counter()
from fedgs.data.femnist import load_femnist
dataset = load_femnist()
print(f"loaded                    {time.perf_counter() - start:8.3f} s {megabytes():6.0f} MB")
start = time.perf_counter()
firsts = numpy.searchsorted(dataset.owners, numpy.arange(len(dataset.owner_names)))
batches = dataset.images[(firsts[:, None] + numpy.arange(32)).ravel().clip(max=len(dataset) - 1)]
print(f"32 images of each writer  {time.perf_counter() - start:8.3f} s {megabytes():6.0f} MB")
start = time.perf_counter()
mean = sum(int(dataset.images[at:at + 4096].sum()) for at in range(0, len(dataset), 4096)) / dataset.images.size
print(f"every image read          {time.perf_counter() - start:8.3f} s {megabytes():6.0f} MB")
print(megabytes())
"""


def random_set(writers: int, images: int) -> DataSet:
    draw = stream(0, "benchmark")
    owners = np.sort(draw.integers(0, writers, images)).astype(np.int32)
    labels = draw.integers(0, len(CLASSES), images).astype(np.uint8)
    pixels = draw.integers(0, 256, (images, 28, 28), np.uint8)
    names = tuple(f"f{number:04d}_00" for number in range(writers))
    return DataSet("femnist", pixels, labels, owners, names, CLASSES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--writers", type=int, default=3597)
    parser.add_argument("--images", type=int, default=817_851)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FEDGS_DATA"] = folder
        dataset = random_set(wanted.writers, wanted.images)
        start = time.perf_counter()
        stored = store(dataset, "femnist", {"path": "random"})
        size = sum(file.stat().st_size for file in Path(stored).iterdir()) / 2**20
        print(f"{wanted.images:,} random images of {wanted.writers:,} writers")
        print(f"stored with checksums     {time.perf_counter() - start:8.3f} s {size:6.0f} MB on disk")
        del dataset
        begin = time.perf_counter()
        found = subprocess.run([sys.executable, "-c", _MEASURED], check=True, capture_output=True, text=True).stdout
        *lines, peak = found.splitlines()
        print("\n".join(lines))
        seconds, gigabytes = time.perf_counter() - begin, float(peak) / 1024
        print(
            f"whole process: {seconds:.1f} s, peak {gigabytes:.2f} GB "
            f"(limits: seconds to load {_LIMIT_SECONDS:g}, {_LIMIT_GIGABYTES:g} GB)"
        )
        if gigabytes > _LIMIT_GIGABYTES:
            sys.exit("over the limit")


if __name__ == "__main__":
    main()
