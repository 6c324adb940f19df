"""How hard the ``glyphs`` data set is: train a network centrally, print its accuracy and the pairs it confuses.

python benchmarks/glyphs_hardness.py                      # compact network, about three minutes on two cores
python benchmarks/glyphs_hardness.py --paper --epochs 3   # the paper's network; slow without a GPU
python benchmarks/glyphs_hardness.py --npz femnist.npz    # the same on images and labels of an .npz, to compare
"""

import argparse
import sys
import time

import numpy as np
import torch
from torch import nn

from fedgs.data.characters import CHARACTERS
from fedgs.data.glyphs import load_glyphs
from fedgs.errors import FedgsError


def network(paper: bool) -> nn.Sequential:
    first, second, hidden = (32, 64, 2048) if paper else (16, 32, 256)
    return nn.Sequential(
        nn.Conv2d(1, first, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * 49, hidden),
        nn.ReLU(),
        nn.Linear(hidden, len(CHARACTERS)),
    )


def load(npz: str | None, seed: int) -> tuple[np.ndarray, np.ndarray]:
    if npz is None:
        data = load_glyphs(seed=seed, cache=False)
        return data.inputs, data.labels.astype(np.int64)
    with np.load(npz) as file:
        kept = ~file["leaf_dup"] if "leaf_dup" in file else slice(None)
        return file["images"][kept], file["labels"][kept].astype(np.int64)


def batch(images: np.ndarray, which: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(images[which]).unsqueeze(1).float() / 255


def predict(model: nn.Module, images: np.ndarray, which: np.ndarray, device: str) -> np.ndarray:
    with torch.no_grad():
        parts = [model(batch(images, which[i : i + 512]).to(device)).argmax(1).cpu() for i in range(0, len(which), 512)]
    return torch.cat(parts).numpy()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--epochs", type=int, default=6)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--paper", action="store_true", help="the paper's network instead of the compact one")
    options.add_argument("--npz", help="measure this file's images and labels instead")
    given = options.parse_args()
    try:
        images, labels = load(given.npz, given.seed)
    except (FedgsError, OSError, ValueError, KeyError) as error:
        print(f"glyphs_hardness: error: {f'{given.npz}: ' if given.npz else ''}{error}", file=sys.stderr)
        sys.exit(2)
    if given.epochs < 1:
        print(f"glyphs_hardness: error: --epochs {given.epochs}: give at least 1", file=sys.stderr)
        sys.exit(2)
    torch.manual_seed(0)
    draw = np.random.default_rng(0)
    order = draw.permutation(len(labels))
    test, train = order[: len(order) // 10], order[len(order) // 10 :]

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = network(given.paper).to(device)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    size = 64
    steps = given.epochs * (len(train) // size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, max_lr=2e-3 if not given.paper else 1e-3, total_steps=steps
    )
    began = time.perf_counter()
    for epoch in range(given.epochs):
        draw.shuffle(train)
        for i in range(len(train) // size):
            which = train[i * size : (i + 1) * size]
            loss = nn.functional.cross_entropy(
                model(batch(images, which).to(device)), torch.from_numpy(labels[which]).to(device)
            )
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        right = predict(model, images, test, device) == labels[test]
        print(f"epoch {epoch + 1}: test accuracy {right.mean():.4f}, {time.perf_counter() - began:.0f} s", flush=True)

    guess, truth = predict(model, images, test, device), labels[test]
    fit = predict(model, images, train[: len(test)], device) == labels[train[: len(test)]]
    print(f"train accuracy {fit.mean():.4f}")
    for name, low, high in (("digits", 0, 10), ("capitals", 10, 36), ("small letters", 36, 62)):
        own = (truth >= low) & (truth < high)
        print(f"{name}: {(guess == truth)[own].mean():.4f} of {own.sum()}")
    confused = np.zeros((62, 62), int)
    np.add.at(confused, (np.minimum(truth, guess), np.maximum(truth, guess)), truth != guess)
    wrong = max(1, int(confused.sum()))
    pairs = np.argsort(-confused, axis=None)[:25]
    print("share of all errors by pair:")
    print(
        "  ".join(
            f"{CHARACTERS[pair // 62]}/{CHARACTERS[pair % 62]} {confused.flat[pair] / wrong:.1%}"
            for pair in pairs.tolist()
        )
    )


if __name__ == "__main__":
    main()
