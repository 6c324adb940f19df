"""Small rounds that several tests of the server rules share."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedgs.algorithms import RULES, ServerRule, Upload

EVERY_RULE = tuple(RULES)
MEANS = ("fedavg", "ida", "ida+intrac", "ida+fedavg")
OPTIMISERS = ("fedavgm", "fedadagrad", "fedadam", "fedyogi")


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def upload(values: Sequence[float], samples: float = 1, accuracy: float | None = None) -> Upload:
    return Upload({"w": vector(*values)}, samples, {} if accuracy is None else {"train_acc": accuracy})


def one_round(rule: ServerRule, start: Sequence[float], uploads: Sequence[Upload]) -> list[float]:
    weights = {"w": vector(*start)}
    new, _ = rule.update(rule.init(weights), weights, uploads)
    return new["w"].tolist()


def some_model(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)
    return {
        "conv.weight": torch.randn(4, 2, 3, 3, generator=generator).to(dtype),
        "fc.weight": torch.randn(5, 9, generator=generator).to(dtype),
        "scale": torch.tensor(0.5).to(dtype),
        "seen": torch.tensor(10),
    }


def some_uploads(weights: dict[str, Tensor], number: int = 4) -> list[Upload]:
    generator = torch.Generator().manual_seed(11)
    uploads = []
    for index in range(number):
        trained = {
            key: (own.double() + 0.1 * torch.randn(own.shape, generator=generator)).to(own.dtype)
            if own.is_floating_point()
            else own + index
            for key, own in weights.items()
        }
        uploads.append(Upload(trained, 10 + 7 * index, {"train_acc": 0.9 - 0.2 * index, "steps": 3 + 2 * index}))
    return uploads
