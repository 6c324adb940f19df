"""How hard is ``bearings``? Trained in one place, without any federation.

    python benchmarks/bearings.py [--epochs 30] [--seed 0]

A 1-D CNN with batch normalisation should reach 85 to 97 %, a linear model on raw samples stay below 40 %: so federated
methods can be told apart. Both see nine tenths of every machine's windows and are tested on the rest.
"""

import argparse
import time

import torch
from torch import Tensor, nn

from command import at_least, in_one_line
from fedgs.data import Federation
from fedgs.tasks.signals import VibrationNet

BATCH, RATE = 64, 1e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=at_least(1), default=30)
    parser.add_argument("--seed", type=at_least(0), default=0)
    options = parser.parse_args()
    federation = Federation.load("bearings", seed=options.seed)
    inputs, labels = torch.tensor(federation.inputs), torch.tensor(federation.labels).long()
    train, test = (torch.tensor(part.flat).long() for part in (federation.train, federation.test))
    print(f"bearings, seed {options.seed}: {len(train):,} windows to train on, {len(test):,} to test on")
    classes, (channels, length) = len(federation.classes), inputs.shape[1:]
    torch.manual_seed(options.seed)
    networks = {
        "1-D CNN with batch normalisation": (VibrationNet(channels, classes), 0.85, 0.97),
        "linear on raw samples": (nn.Sequential(nn.Flatten(), nn.Linear(channels * length, classes)), 0.0, 0.40),
    }
    for name, (network, least, most) in networks.items():
        began = time.perf_counter()
        accuracy = learn(network, inputs[train], labels[train], inputs[test], labels[test], options.epochs)
        verdict = "as asked" if least <= accuracy <= most else "NOT as asked"
        asked = f"{least:.0%} to {most:.0%}"
        print(f"{name:34} {accuracy:6.1%}  asked {asked:12} {verdict}; {time.perf_counter() - began:.0f} s")


def learn(network: nn.Module, inputs: Tensor, labels: Tensor, held: Tensor, truth: Tensor, epochs: int) -> float:
    """Train with Adam and a rate that falls to nothing; return the accuracy on what was held out."""
    optimizer = torch.optim.Adam(network.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * -(-len(inputs) // BATCH))
    for _ in range(epochs):
        network.train()
        for rows in torch.randperm(len(inputs)).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(inputs[rows]), labels[rows]).backward()
            optimizer.step()
            schedule.step()
    network.eval()
    with torch.no_grad():
        found = torch.cat([network(part).argmax(1) for part in held.split(256)])
    return float((found == truth).float().mean())


if __name__ == "__main__":
    in_one_line(main)
