"""Conditional gated units: values worked out by hand, whose column learns, how many weights there are."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fedgs.algorithms import Upload, make_baseline
from fedgs.algorithms.cgau import Cgau, CgauNetwork
from fedgs.training.network import Forward
from fedgs.training.stacked_networks import CompactNetwork, build_network

BASE = build_network("compact", 3, (8, 8))


class OnlyHead(CompactNetwork):
    """A network whose inputs are what its last layer sees."""

    def forward(self, weights: Any, inputs: Tensor, *others: Any, classify: Any = None, **options: Any) -> Forward:
        return Forward(classify(inputs), inputs)


def scalar_unit() -> tuple[CgauNetwork, dict[str, Tensor]]:
    """One unit on one feature, for two devices, its value passed on to the only class as it is."""
    network = CgauNetwork(OnlyHead(num_classes=1), 2, Cgau(units=1))
    weights = {
        "cgau1.weight": torch.tensor([[[0.5], [1.0]]]), "cgau1.bias": torch.zeros(1, 2),
        "cgau1.condition": torch.tensor([[[0.1, 0.0], [-0.2, 0.3]]]),
        "output.weight": torch.ones(1, 1, 1), "output.bias": torch.zeros(1, 1),
        "output.condition": torch.zeros(1, 2, 1),
    }  # fmt: skip
    return network, weights


def test_t_cgau_1_unit_values() -> None:
    """T-CGAU-1: tanh(0.6) σ(1) and tanh(0.3) σ(1.3); a device nobody knows has neither column."""
    network, weights = scalar_unit()
    hidden, owners = torch.ones(1, 3, 1), torch.tensor([[0, 1, -1]])
    found = network(weights, hidden, owners)[0, :, 0].tolist()
    assert found == pytest.approx([0.392615, 0.228924, 0.462117 * 0.731059], abs=1e-6)


def test_t_cgau_1_the_output_has_a_column_too() -> None:
    network, weights = scalar_unit()
    weights["output.condition"] = torch.tensor([[[1.0], [2.0]]])
    found = network(weights, torch.ones(1, 2, 1), torch.tensor([[0, 1]]))[0, :, 0].tolist()
    assert found == pytest.approx([1.392615, 2.228924], abs=1e-6)


@pytest.mark.parametrize(("aggregation", "expected"), [("average", [0.15, -0.5]), ("owner", [0.3, -0.6])])
def test_t_cgau_2_columns_are_averaged_or_their_owners(aggregation: str, expected: list[float]) -> None:
    """T-CGAU-2: device 0 (n = 10) moves its column from 0.1 to 0.3, device 1 (n = 30) from −0.2 to −0.6."""
    name = "cgau1.condition"
    before = {name: torch.tensor([[0.1], [-0.2]]), "cgau1.bias": torch.tensor([0.0])}
    uploads = [
        Upload({name: torch.tensor([[0.3], [-0.2]]), "cgau1.bias": torch.tensor([1.0])}, 10, {"device": 0}),
        Upload({name: torch.tensor([[0.1], [-0.6]]), "cgau1.bias": torch.tensor([2.0])}, 30, {"device": 1}),
    ]
    new, _ = make_baseline("cgau", cond_aggregation=aggregation).update({}, before, uploads)
    assert new[name].flatten().tolist() == pytest.approx(expected)
    assert new["cgau1.bias"].tolist() == pytest.approx([1.75])  # all else is averaged
    # The column of a device that did not take part stays.
    alone, _ = make_baseline("cgau", cond_aggregation="owner").update({}, before, uploads[:1])
    assert alone[name].flatten().tolist() == pytest.approx([0.3, -0.2])


@pytest.mark.parametrize("layers", [1, 2])
def test_t_cgau_3_only_the_own_column_has_a_gradient(layers: int) -> None:
    """T-CGAU-3: of every V, in the units and in the output."""
    network = make_baseline("cgau", layers=layers, units=7).network(BASE, 5)
    weights = {name: weight[None].requires_grad_() for name, weight in network.first_weights(0).items()}
    images = torch.randint(0, 256, (1, 4, 8, 8, 1), dtype=torch.uint8)
    loss = network(weights, images, torch.full((1, 4), 3)).square().sum()
    columns = [name for name in weights if name.endswith("condition")]
    assert len(columns) == layers + 1
    for gradient in torch.autograd.grad(loss, [weights[name] for name in columns]):
        moved = gradient[0].abs().sum(1) > 0
        assert moved.tolist() == [False, False, False, True, False]


@pytest.mark.parametrize(
    ("name", "cond_bias", "expected"),
    [
        ("cgau", False, 1_265_922),
        ("cgau-2x", False, 1_576_706),
        ("cgau", True, 1_266_496),
        ("cgau-2x", True, 1_577_792),
    ],
)
def test_t_cgau_4_number_of_weights(name: str, cond_bias: bool, expected: int) -> None:
    """T-CGAU-4: the classifier for 350 devices on the paper's network."""
    network = make_baseline(name, cond_bias=cond_bias).network(build_network("paper"), 350)
    sizes = {key: weight.numel() for key, weight in network.first_weights(0).items()}
    backbone = sum(size for key, size in sizes.items() if key.startswith(("conv", "dense")))
    assert backbone == 6_476_672
    assert sum(sizes.values()) - backbone == expected


def test_without_columns_the_model_does_not_know_its_device() -> None:
    """§1.6: CGAU with all conditioning matrices zero is independent of the client id."""
    images = torch.randint(0, 256, (1, 3, 8, 8, 1), dtype=torch.uint8)
    for init in ("zero", "xavier"):
        network = make_baseline("cgau-2x", units=6, cond_init=init).network(BASE, 4)
        weights = {name: weight[None] for name, weight in network.first_weights(1).items()}
        nobody, *somebody = (network(weights, images, torch.full((1, 3), owner)) for owner in (-1, 0, 3))
        assert [torch.equal(logits, nobody) for logits in somebody] == [init == "zero"] * 2


def test_dropout_is_for_training_alone() -> None:
    network = make_baseline("cgau", units=6, dropout=0.5).network(BASE, 4)
    weights = {name: weight[None] for name, weight in network.first_weights(1).items()}
    images = torch.randint(0, 256, (1, 3, 8, 8, 1), dtype=torch.uint8)
    owners = torch.zeros(1, 3, dtype=torch.int64)
    tested = network(weights, images, owners)
    assert torch.equal(tested, network(weights, images, owners))
    assert not torch.allclose(tested, network(weights, images, owners, torch.tensor([5])))


def test_an_upload_without_its_device_is_refused_where_columns_have_owners() -> None:
    from fedgs.errors import AlgorithmError

    weights = {"output.condition": torch.zeros(2, 1)}
    with pytest.raises(AlgorithmError, match=r"uploads\[0\].metrics has no 'device'"):
        make_baseline("cgau", cond_aggregation="owner").update({}, weights, [Upload(weights, 1)])
