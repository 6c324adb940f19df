"""What a step of the device streams costs: 350 devices, 62 classes, batches of 32.

    python benchmarks/streams.py [--devices 350] [--samples 205] [--iterations 2000]

Prints, per mode, what one ``advance`` (including the new (devices, classes) count matrix) costs in microseconds: mean
processor time, then median and 99th percentile of the time on the clock, which other programs disturb.
``sticky`` selects 100 devices a step as the paper does; the others move all.
"""

import argparse
from time import perf_counter, process_time

import numpy as np

from command import at_least, in_one_line
from fedgs.data import DeviceStreams, Drift, build_federation, from_arrays
from fedgs.rng import stream


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=at_least(1), default=350)
    parser.add_argument("--samples", type=at_least(4), default=205, help="mean train samples per device")
    parser.add_argument("--classes", type=at_least(1), default=62)
    parser.add_argument("--batch-size", type=at_least(1), default=32)
    parser.add_argument("--iterations", type=at_least(1), default=2000)
    options = parser.parse_args()

    generator = stream(0, "benchmark")
    sizes = generator.integers(options.samples // 2, 2 * options.samples, options.devices)
    clients = np.repeat(np.arange(options.devices), sizes)
    labels = generator.integers(0, options.classes, len(clients))
    dataset = from_arrays(np.zeros((len(clients), 1, 1), np.uint8), labels, clients)
    federation = build_federation(dataset, factories=min(10, options.devices))

    chosen = min(100, options.devices)
    selections = [generator.permutation(options.devices)[:chosen] for _ in range(options.iterations)]
    print(f"{options.devices} devices, {chosen} selected a step; microseconds per step")
    print(f"{'mode':<18}{'start':>10}{'cpu':>8}{'median':>8}{'p99':>8}")
    for title, mode, drift in [
        ("sticky", "sticky", None),
        ("fresh", "fresh", None),
        ("buffer", "buffer", None),
        ("fresh + gradual", "fresh", Drift("gradual")),
    ]:
        begun = perf_counter()
        streams = DeviceStreams(federation, options.batch_size, 0, mode, drift=drift)
        start = perf_counter() - begun
        times, cpu = [], process_time()
        for selected in selections:
            begun = perf_counter()
            streams.advance(selected)
            _ = streams.counts
            times.append(perf_counter() - begun)
        cpu = (process_time() - cpu) / len(selections)
        micro = np.array(times) * 1e6
        row = (start * 1e6, cpu * 1e6, np.median(micro), np.quantile(micro, 0.99))
        print(f"{title:<18}{row[0]:>10.0f}" + "".join(f"{number:>8.0f}" for number in row[1:]))


if __name__ == "__main__":
    in_one_line(main)
