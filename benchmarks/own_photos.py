"""Own photos with ``fedgs run --data FOLDER`` and no other option, beside Adam on the same photos in one place.

    python benchmarks/own_photos.py [--folder FOLDER] [--each 150] [--noise 35]

Draws 24 cameras × 6 classes of shapes, 64×64 RGB with noise, at any place, in any size and colour, of which each camera
sees a mix of its own. Then the built-in network learns them centrally with Adam, 10 epochs, and as a federation. Prints
both accuracies on the cameras' test photos, and the seconds.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw

from command import at_least, in_one_line
from fedgs.data import Federation
from fedgs.simulation.history import load_history
from fedgs.tasks.photos import PhotoNet
from fedgs.tasks.prepare import as_input

SHAPES = ("bar", "cross", "disc", "ring", "square", "triangle")
CAMERAS, SIDE = 24, 64


def draw_shape(kind: str, draws: np.random.Generator, noise: float, side: int = SIDE) -> Image.Image:
    """Return a picture of one shape on a plain ground, with noise over both."""
    ground, ink = draws.integers(0, 256, (2, 3))
    image = Image.new("RGB", (side, side), tuple(ground.tolist()))
    pen, colour = ImageDraw.Draw(image), tuple(ink.tolist())
    radius = draws.uniform(0.12, 0.3) * side
    x, y = draws.uniform(radius, side - radius, 2)
    box, thick = (x - radius, y - radius, x + radius, y + radius), max(2, round(radius / 3))
    if kind == "disc":
        pen.ellipse(box, fill=colour)
    elif kind == "ring":
        pen.ellipse(box, outline=colour, width=thick)
    elif kind == "square":
        pen.rectangle(box, fill=colour)
    elif kind == "triangle":
        pen.regular_polygon((x, y, radius), 3, rotation=int(draws.integers(0, 120)), fill=colour)
    else:
        pen.rectangle((x - radius, y - thick / 2, x + radius, y + thick / 2), fill=colour)
        if kind == "cross":
            pen.rectangle((x - thick / 2, y - radius, x + thick / 2, y + radius), fill=colour)
    pixels = np.asarray(image, np.float64) + draws.normal(0, noise, (side, side, 3))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def draw_cameras(folder: Path, each: int = 150, noise: float = 35.0, cameras: int = CAMERAS, seed: int = 0) -> None:
    """Write camera/class/photo.png; of each camera mostly a few classes."""
    for camera in range(cameras):
        draws = np.random.default_rng((seed, camera))
        mix = draws.dirichlet(np.full(len(SHAPES), 0.5))
        for number, kind in enumerate(draws.choice(SHAPES, each, p=mix)):
            file = folder / f"camera-{camera:02}" / kind / f"{number:04}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            draw_shape(kind, draws, noise).save(file)


def central(federation: Federation, epochs: int = 10) -> float:
    """Return the accuracy of the built-in network after some epochs of Adam on all photos in one place."""
    inputs, labels = as_input(torch.from_numpy(federation.inputs)), torch.from_numpy(federation.targets).long()
    train, test = torch.from_numpy(federation.train.flat.copy()), torch.from_numpy(federation.test.flat.copy())
    mean, deviation = inputs[train].mean((0, 2, 3), keepdim=True), inputs[train].std((0, 2, 3), keepdim=True)
    inputs = (inputs - mean) / deviation
    torch.manual_seed(0)
    network = PhotoNet(len(federation.classes), federation.inputs.shape[1:])
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    for _ in range(epochs):
        for rows in train[torch.randperm(len(train))].split(32):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(inputs[rows]), labels[rows]).backward()
            optimizer.step()
    with torch.no_grad():
        return float((network(inputs[test]).argmax(1) == labels[test]).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where photos and run go, or are; a temporary one by default")
    parser.add_argument("--each", type=at_least(2), default=150, help="photos of a camera")
    parser.add_argument("--noise", type=at_least(0), default=35, help="standard deviation, of 255")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        if not (folder / "photos").exists():
            draw_cameras(folder / "photos", options.each, options.noise)
        federation = Federation.load(folder / "photos")
        print(f"central, Adam, 10 epochs: {central(federation):.1%}")
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "fedgs", "run", "--data", "photos", "--device", "cpu"], cwd=folder, check=True
        )
        last = load_history(folder / "runs/photos").summary["accuracy"]
        print(f"federated: {last['final']:.1%} (best {last['best']:.1%}), {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    in_one_line(main)
