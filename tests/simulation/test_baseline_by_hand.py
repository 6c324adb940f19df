"""Whole rounds of baselines once more in plain torch, with nothing of the package but the plan of who trains on what.

The stack and its oracle share what comes before and after the training (clients, sample weights, uploads, tests), so
comparing them says nothing about it. Here a round is written out anew, on devices whose order is not that of their
names and whose data differ in size.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d, cross_entropy, linear

from fedgs.data import DataSet, Federation, build_federation
from fedgs.simulation.simulator import Simulator
from tests.simulation.small import small_set, small_settings

Weights = dict[str, Tensor]
RATE = 0.05


def shuffled_federation() -> Federation:
    """Twelve devices named backwards, the first ones with twice the data of the last ones."""
    made = small_set()
    keep = np.array([owner < 6 or row % 2 == 0 for row, owner in enumerate(made.clients)])
    names = tuple(f"camera-{99 - device}" for device in range(12))
    return build_federation(
        DataSet("bars", made.inputs[keep], made.targets[keep], made.clients[keep], names, made.classes), 3, seed=1
    )


FEDERATION = shuffled_federation()
NAMES = sorted(FEDERATION.device_names)


def hidden(weights: Weights, images: Tensor) -> Tensor:
    maps = conv2d(images, weights["conv1.weight"], weights["conv1.bias"], stride=3, padding=1).relu()
    maps = conv2d(maps, weights["conv2.weight"], weights["conv2.bias"], stride=2, padding=1).relu()
    return linear(maps.permute(0, 2, 3, 1).flatten(1), weights["dense1.weight"], weights["dense1.bias"]).relu()


def plain_logits(weights: Weights, images: Tensor, owner: int) -> Tensor:
    return linear(hidden(weights, images), weights["dense2.weight"], weights["dense2.bias"])


def gated_logits(weights: Weights, images: Tensor, owner: int) -> Tensor:
    both = linear(hidden(weights, images), weights["cgau1.weight"], weights["cgau1.bias"])
    both = both + weights["cgau1.condition"][owner]
    units = both.shape[1] // 2
    gated = both[:, :units].tanh() * both[:, units:].sigmoid()
    return linear(gated, weights["output.weight"], weights["output.bias"]) + weights["output.condition"][owner]


def batch(samples: np.ndarray) -> tuple[Tensor, Tensor]:
    images = torch.from_numpy(FEDERATION.inputs[samples]).float()[:, None] / 255
    return images, torch.from_numpy(FEDERATION.labels[samples].astype(np.int64))


@pytest.mark.parametrize(
    ("name", "options", "logits_of"),
    [
        ("fedavg", [], plain_logits),
        ("cgau", ["pretrain_rounds=0", "units=9"], gated_logits),
        ("cgau", ["pretrain_rounds=0", "units=9", "cond_aggregation=owner"], gated_logits),
    ],
)
def test_two_rounds_written_out(
    name: str, options: list[str], logits_of: Callable[[Weights, Tensor, int], Tensor]
) -> None:
    settings = small_settings(
        f"algorithm.name={name}", *(f"algorithm.options.{option}" for option in options),
        "algorithm.local_epochs=2", "algorithm.devices_per_round=7", "training.rounds=2",
        f"training.learning_rate={RATE}",
    )  # fmt: skip
    with Simulator(settings, FEDERATION) as simulator:
        first = simulator.begin()
        last = list(simulator.rounds(first))[-1]
        plan = simulator.plan
        plan.load_state(first.plan)
        weights = {key: weight.clone() for key, weight in simulator.layout.views(first.weights).items()}
        found = simulator.layout.views(last.weights)
        tested = simulator.last_evaluation
    assert FEDERATION.train.sizes.max() > 1.5 * FEDERATION.train.sizes.min()
    assert list(FEDERATION.device_names) != NAMES
    for _ in range(2):
        following = plan.next_round()
        uploads = []
        for place, device in enumerate(following.devices.tolist()):
            owner, own = NAMES.index(FEDERATION.device_names[device]), dict(weights)
            for samples in following.samples[:, place]:
                if (samples < 0).all():
                    continue
                images, labels = batch(samples[samples >= 0])
                own = {key: weight.clone().requires_grad_() for key, weight in own.items()}
                gradients = torch.autograd.grad(
                    cross_entropy(logits_of(own, images, owner), labels), list(own.values())
                )
                own = {key: w.detach() - RATE * g for (key, w), g in zip(own.items(), gradients, strict=True)}
            uploads.append((own, len(FEDERATION.train_indices(device)), owner))
        total = sum(samples for _, samples, _ in uploads)
        averaged = {key: sum(own[key] * (n / total) for own, n, _ in uploads) for key in weights}
        if "cond_aggregation=owner" in options:
            for key in (key for key in weights if key.endswith("condition")):
                averaged[key] = weights[key].clone()
                for own, _, owner in uploads:
                    averaged[key][owner] = own[key][owner]
        weights = {key: torch.as_tensor(weight) for key, weight in averaged.items()}
    for key, weight in weights.items():
        assert torch.allclose(found[key], weight, atol=1e-5), key
    assert tested is not None
    for device, device_name in enumerate(FEDERATION.device_names):
        images, labels = batch(FEDERATION.test_indices(device))
        right = (logits_of(weights, images, NAMES.index(device_name)).argmax(1) == labels).double().mean()
        assert tested.devices[device] == pytest.approx(float(right))
