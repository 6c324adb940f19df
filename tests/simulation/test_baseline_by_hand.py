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
from torch.nn.functional import conv2d, cosine_similarity, cross_entropy, linear

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


def step_down(name: str, own: Weights, before: Weights, memory: Weights, kept: Weights, samples: np.ndarray) -> Weights:
    """One local step; ``before`` is the global model, ``memory`` the server's and ``kept`` the client's own."""
    images, labels = batch(samples[samples >= 0])
    own = {key: weight.clone().requires_grad_() for key, weight in own.items()}
    loss = cross_entropy(plain_logits(own, images, 0), labels)
    if name == "scaffold":
        loss = loss + sum(((memory[key] - kept[key]) * own[key]).sum() for key in own)
    elif name == "feddyn":
        loss = loss + sum((0.05 * (own[key] - before[key]) ** 2 - kept[key] * own[key]).sum() for key in own)
    else:
        far, near = (cosine_similarity(hidden(own, images), hidden(other, images)) / 0.5 for other in (kept, before))
        loss = loss - 0.3 * (near.exp() / (near.exp() + far.exp())).log().mean()
    gradients = torch.autograd.grad(loss, list(own.values()))
    return {key: w.detach() - RATE * g for (key, w), g in zip(own.items(), gradients, strict=True)}


@pytest.mark.parametrize("name", ["scaffold", "feddyn", "moon"])
def test_clients_that_remember_written_out(name: str) -> None:
    """Three rounds of seven of twelve devices, so that many take part again."""
    options = {"feddyn": ["alpha=0.1"], "moon": ["mu=0.3"]}.get(name, [])
    settings = small_settings(
        f"algorithm.name={name}", *(f"algorithm.options.{option}" for option in [*options, "weighting=uniform"]),
        "algorithm.local_epochs=1", "algorithm.devices_per_round=7", f"training.learning_rate={RATE}",
    )  # fmt: skip
    with Simulator(settings, FEDERATION) as simulator:
        first = simulator.begin()
        last = list(simulator.rounds(first))[-1]
        plan = simulator.plan
        plan.load_state(first.plan)
        weights = {key: weight.clone() for key, weight in simulator.layout.views(first.weights).items()}
        found = simulator.layout.views(last.weights)
    memory = {key: torch.zeros_like(weight) for key, weight in weights.items()}
    kept = [dict(weights if name == "moon" else memory) for _ in NAMES]
    for _ in range(3):
        following = plan.next_round()
        sums, changes = ({key: torch.zeros_like(weight) for key, weight in weights.items()} for _ in range(2))
        for place, device in enumerate(following.devices.tolist()):
            own, steps = dict(weights), int((following.samples[:, place, 0] >= 0).sum())
            for samples in following.samples[:steps, place]:
                own = step_down(name, own, weights, memory, kept[device], samples)
            for key in own:
                way = own[key] - weights[key]
                sums[key] += own[key] / 7
                if name == "moon":
                    kept[device][key] = own[key]
                elif name == "scaffold":
                    change = -memory[key] - way / (steps * RATE)
                    kept[device][key] = kept[device][key] + change
                    changes[key] += change / 12
                else:
                    kept[device][key] = kept[device][key] - 0.1 * way
                    changes[key] -= 0.1 * way / 12
        memory = {key: value + changes[key] for key, value in memory.items()}
        weights = {key: value - memory[key] / 0.1 if name == "feddyn" else value for key, value in sums.items()}
    for key, weight in weights.items():
        assert torch.allclose(found[key], weight, atol=2e-5), key
