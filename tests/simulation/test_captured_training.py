"""The GPU's way to train participants, without its graphs on a processor, with them on a GPU, against the oracle."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from fedgs.algorithms import BASELINES, Baseline, Sent
from fedgs.algorithms.baseline import Batch
from fedgs.algorithms.client_server import ClientServer
from fedgs.algorithms.upload import Weights
from fedgs.simulation.participants import ParticipantPlan
from fedgs.training import stacked_ops
from fedgs.training.captured_clients import GRAPH_SPACING, LARGE, MOST_DEFERRED, CapturedTraining
from fedgs.training.clients import ClientSetup, Sequential
from fedgs.training.network import Network
from fedgs.training.precision import gpu_precision
from fedgs.training.stacked_layers import paper_maps
from fedgs.training.stacked_networks import build_network
from tests.simulation.small import small_federation, small_rounds, small_settings

FEDERATION = small_federation()
TRAINED_THEIR_OWN_WAY = [
    name for name, entry in BASELINES.items() if entry.rule in ("fedavg", "ida+intrac") and name != "fedbn"
]
"""The others differ from FedAvg by what the server does alone, or need another network."""
ALIKE_HERE = ("cgau-2x", "fedfusion+conv", "fedfusion+single")
ONE_EDGE = 2e-3
GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))


def train(
    name: str, device: str, model: str, *overrides: str, large: int = LARGE, baseline: Baseline | None = None
) -> tuple[np.ndarray, ...]:
    """Two rounds by both trainers, from weights that are not the first ones; the largest difference of each round.

    ``large``: weights of a dense layer from which on its updates are deferred.

    One device of ten may be off by a little more in a round: among many rectifiers one or another stands within
    rounding of its edge, and on another processor it falls the other way. Seen once, with fedfusion+multi: 6e-4 in the
    bias of one hidden unit of one device, less where this unit's gradient goes, the other nine devices at 1e-8.
    """
    # FedMMD's narrowest kernel, of width 10⁻⁶, turns rounding into other gradients: with the default weight γ = 0.1
    # twenty steps end elsewhere on some processors. A smaller weight does not.
    overrides += ("algorithm.options.gamma=0.01",) if name == "fedmmd" else ()
    settings = small_settings(
        f"algorithm.name={name}", "algorithm.local_epochs=2", "algorithm.devices_per_round=10",
        f"task.model={model}", "training.precision=float32", *overrides,
    )  # fmt: skip
    rounds = small_rounds(settings, FEDERATION, device)
    assert isinstance(rounds, ClientServer)
    setup = ClientSetup(
        rounds.network, baseline or rounds.baseline, rounds.store, rounds.client_ids, rounds.settings.training
    )
    fast, slow = CapturedTraining(setup), Sequential(setup, threads=1)
    fast.large = large
    # First biases are 0: where images are blank rectifiers stand at their edge, and rounding says which way they fall.
    first = {key: value + 0.05 * (value.ndim == 1) * torch.rand(value.shape, generator=torch.Generator().manual_seed(3))
             for key, value in rounds.network.first_weights(0).items()}  # fmt: skip
    weights = rounds.layout.flatten(first).to(device)
    memory = rounds.begin(weights)
    plan = ParticipantPlan(FEDERATION, settings)
    differences = []
    for _ in range(2):
        sent = Sent({key: weight[None] for key, weight in rounds.layout.views(weights).items()}, memory)
        following = plan.next_round()
        # Not a multiple of a size are ever busy: some who are done take part with nothing.
        assert large == LARGE or len(following.sizes) > 2 * MOST_DEFERRED
        assert any((10 - following.active(step)) % GRAPH_SPACING for step in range(len(following.sizes)))
        one, other = fast.train(sent, following, 0.02), slow.train(sent, following, 0.02)
        by_device = torch.stack([(one.weights[k] - other.weights[k]).abs().flatten(1).amax(1) for k in one.weights])
        worst, second = by_device.amax(0).topk(2).values.tolist()
        differences.append(second if worst < ONE_EDGE else worst)
        assert np.allclose(one.losses, other.losses, rtol=1e-3, atol=1e-4, equal_nan=True)
        if one.accuracies is not None and other.accuracies is not None:
            assert np.allclose(one.accuracies, other.accuracies, atol=0.06)
        weights = rounds.layout.gather(one.weights).mean(0)
    fast.close()
    return tuple(np.array(differences))


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("name", TRAINED_THEIR_OWN_WAY)
def test_captured_steps_equal_one_device_after_the_other(name: str, device: str) -> None:
    assert max(train(name, device, "compact" if device == "cpu" else "paper")) < 1e-4


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("name", [name for name in TRAINED_THEIR_OWN_WAY if name not in ALIKE_HERE])
def test_deferred_updates_equal_those_made_at_once(name: str, device: str) -> None:
    assert max(train(name, device, "compact", "algorithm.local_epochs=4", large=1)) < 1e-4


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedfusion+multi"])
def test_deferred_updates_are_clipped_as_well(name: str, device: str) -> None:
    """FedFusion goes through its layer twice a step; a pull is not clipped."""
    options = ["algorithm.local_epochs=4", "training.clip=0.1"]
    options += ["algorithm.options.mu=1.0"] if name == "fedprox" else []
    assert max(train(name, device, "compact", *options, large=1)) < 1e-4


@dataclass(frozen=True)
class Decay(Baseline):
    """Draws the weights of a layer to 0; to do so it looks at them."""

    reads_weights: ClassVar[bool] = True

    def objective(self, network: Network, weights: Weights, sent: Sent, batch: Batch) -> tuple[Tensor, Tensor]:
        losses, logits = super().objective(network, weights, sent, batch)
        return losses + 0.1 * weights["dense1.weight"].square().sum((1, 2)), logits


@dataclass(frozen=True)
class Careless(Decay):
    """The same, without saying so."""

    reads_weights: ClassVar[bool] = False


def test_a_baseline_that_reads_weights_has_them() -> None:
    long = "algorithm.local_epochs=4"
    assert max(train("fedavg", "cpu", "compact", long, large=1, baseline=Decay())) < 1e-4
    with pytest.raises(TypeError, match="reads_weights"):
        train("fedavg", "cpu", "compact", long, large=1, baseline=Careless())


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedprox", ["training.momentum=0.5", "algorithm.options.mu=1.0"]),
        ("fedprox", ["training.clip=0.1", "algorithm.options.mu=1.0"]),
        ("ida+intrac", ["algorithm.options.train_acc=running"]),
        ("cgau", ["algorithm.options.dropout=0.5"]),
    ],
)
def test_options_that_have_a_memory_of_their_own(name: str, options: list[str], device: str) -> None:
    assert max(train(name, device, "compact", *options)) < 1e-4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("devices", [1, 3])
def test_the_kernels_equal_the_plain_layers(devices: int) -> None:
    """Feature maps and gradients of the paper's CNN, Triton's kernels against grouped convolutions."""
    network = build_network("paper", 62)
    first = {
        name: (weight[None].repeat(devices, *[1] * weight.ndim) * 1.1).cuda()
        for name, weight in network.first_weights(0).items()
    }
    first = {
        name: w.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3) if w.ndim == 5 else w
        for name, w in first.items()
    }
    images = torch.randint(0, 256, (devices, 5, 28, 28, 1), dtype=torch.uint8, device="cuda")
    found = []
    for plain in (False, True):
        weights = {name: weight.detach().clone().requires_grad_() for name, weight in first.items()}
        with pytest.MonkeyPatch.context() as patch, gpu_precision("float32"):
            if plain:
                patch.setattr("fedgs.training.stacked_layers.kernels_for", lambda images, rounded: stacked_ops)
            maps = paper_maps(images, weights, torch.float32, tf32=True)
            convolutions = [weights[name] for name in weights if name.startswith("conv")]
            found.append([maps, *torch.autograd.grad(maps.square().sum(), convolutions)])
    for kernel, layer in zip(*found, strict=True):  # the kernels round to TF32
        assert float((kernel - layer).detach().norm() / layer.detach().norm()) < 3e-3
