"""Time the making of the ``glyphs`` data set, print what it holds, and draw its contact sheet.

python benchmarks/glyphs.py                              # 350 cameras, two workers, no cache
python benchmarks/glyphs.py --sheet docs/images/glyphs.png
"""

import argparse
import sys
import time
from io import BytesIO
from pathlib import Path

import numpy as np

from fedgs.data import DataSet
from fedgs.data.glyphs import load_glyphs
from fedgs.data.glyphs_render import draw_style
from fedgs.data.glyphs_words import LINES
from fedgs.errors import FedgsError
from fedgs.rng import stream


def facts(data: DataSet) -> None:
    counts = np.zeros((len(data.client_names), 62))
    np.add.at(counts, (data.clients, data.labels), 1)
    shares = counts.sum(axis=0) / counts.sum()
    per_camera = counts.sum(axis=1)
    variation = np.abs(counts / per_camera[:, None] - shares).sum(axis=1) / 2
    print(f"digits {shares[:10].sum():.1%}, capitals {shares[10:36].sum():.1%}, small {shares[36:].sum():.1%}")
    print(f"rarest class {data.classes[int(shares.argmin())]} {shares.min():.2%}")
    low, middle, high = np.quantile(per_camera, [0.05, 0.5, 0.95])
    print(f"samples per camera: mean {per_camera.mean():.0f}, 5 % {low:.0f}, median {middle:.0f}, 95 % {high:.0f}")
    print(f"classes per camera: {(counts > 0).sum(axis=1).mean():.1f}")
    print(f"total variation between a camera and the whole: mean {variation.mean():.2f}")


def sheet(data: DataSet, seed: int, path: Path) -> None:
    """Left: cameras, each with the first things it read. Right: classes, each as different cameras see it."""
    from matplotlib.figure import Figure
    from PIL import Image

    figure = Figure(figsize=(16, 9.4), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[22, 29])
    chosen = [
        device
        for line, number in zip(range(len(LINES)), (5, 7, 8, 11), strict=True)
        for device in np.flatnonzero(data.attributes["line"] == line)[:number]
    ]
    rows = [data.inputs[data.clients == device][:22] for device in chosen]
    left.imshow(np.vstack([np.hstack([tile(image) for image in row]) for row in rows]), cmap="gray", vmin=0, vmax=255)
    fonts = [draw_style(stream(seed, "glyphs", int(device), "style")).font for device in chosen]
    names = [
        f"{LINES[data.attributes['line'][device]]} ({device})\n{font}"
        for device, font in zip(chosen, fonts, strict=True)
    ]
    left.set_yticks(15 + 30 * np.arange(len(chosen)), names, fontsize=7)
    left.set_title("what a camera reads: line, number of the camera, font")

    draw = np.random.default_rng(0)
    columns = []
    for part in (range(31), range(31, 62)):
        picks = [draw.choice(np.flatnonzero(data.labels == label), 14, replace=False) for label in part]
        columns.append(np.vstack([np.hstack([tile(data.inputs[i]) for i in row]) for row in picks]))
    between = np.full((columns[0].shape[0], 30), 255, np.uint8)
    right.imshow(np.hstack([columns[0], between, columns[1]]), cmap="gray", vmin=0, vmax=255)
    right.set_yticks(15 + 30 * np.arange(31), data.classes[:31])
    second = right.secondary_yaxis("right")
    second.set_yticks(15 + 30 * np.arange(31), data.classes[31:])
    second.tick_params(length=0)
    second.spines[:].set_visible(False)
    right.set_title("how a class looks to different cameras")
    for axes in (left, right):
        axes.set_xticks([])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = BytesIO()
    figure.savefig(drawn, format="png")
    grey = np.asarray(Image.open(drawn).convert("L"))
    levels = (np.rint(grey / 17) * 17).astype(np.uint8)  # sixteen greys take a third of the bytes
    Image.fromarray(levels).save(path, optimize=True)


def tile(image: np.ndarray) -> np.ndarray:
    return np.pad(image, 1, constant_values=255)


def fail(message: str) -> int:
    print(f"glyphs: error: {message}", file=sys.stderr)
    return 2


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--devices", type=int, default=350)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--sheet", type=Path, help="write the contact sheet here (PNG)")
    given = options.parse_args()
    began = time.perf_counter()
    try:
        data = load_glyphs(devices=given.devices, seed=given.seed, workers=given.workers, cache=False)
    except FedgsError as error:
        sys.exit(fail(str(error)))
    print(f"{len(data)} pictures of {given.devices} cameras in {time.perf_counter() - began:.1f} s")
    facts(data)
    if given.sheet:
        if np.bincount(data.labels, minlength=62).min() < 14 or np.bincount(data.attributes["line"]).min() < 11:
            sys.exit(fail(f"--devices {given.devices}: too few for a sheet of 31 cameras and 62 classes; give 100"))
        try:
            sheet(data, given.seed, given.sheet)
        except (OSError, ValueError) as error:
            sys.exit(fail(f"--sheet {given.sheet}: cannot be written as a picture ({error})"))


if __name__ == "__main__":
    main()
