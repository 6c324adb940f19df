"""The devices' side of the baselines: numbers worked out by hand through both trainers; wrong options."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from fedgs.algorithms import BASELINES, RULES, Baseline, Batch, Sent, Upload, make_baseline
from fedgs.algorithms.fedprox import FedProx
from fedgs.algorithms.upload import Weights
from fedgs.errors import AlgorithmError
from fedgs.settings import TrainingSettings
from fedgs.training.clients import ClientSetup, ClientTraining, Sequential
from fedgs.training.layout import Layout
from fedgs.training.network import Network
from fedgs.training.round_plan import ClientPlan
from fedgs.training.stacked_clients import StackedTraining
from fedgs.training.stacked_networks import CompactNetwork, cross_entropy
from fedgs.training.store import SampleStore
from tests.simulation.small import small_task

STORE = SampleStore(small_task(), torch.device("cpu"))
CENTRES = torch.tensor([1.0, -3.0])


def quadratic(parent: type[Baseline], **options: float) -> Baseline:
    """Return a baseline whose devices minimise ½(w − 1)² and ½(w + 3)²."""

    @dataclass(frozen=True)
    class Quadratic(parent):  # type: ignore[misc, valid-type]
        def objective(self, network: Network, weights: Weights, sent: Sent, batch: Batch) -> tuple[Tensor, Tensor]:
            loss = (weights["w"][:, 0] - CENTRES[batch.clients[:, 0]]).square() / 2
            return loss, torch.zeros(*batch.targets.shape, 4)  # what is reported does not matter

    return Quadratic(**options)


class OneNumber(CompactNetwork):
    """A network of a single weight; what it gives does not matter."""

    layout = Layout((("w", (1,)),))


def three_steps(trainer: type[ClientTraining], baseline: Baseline, steps: int = 3) -> tuple[list[float], float]:
    """Return the two devices' weights after some steps of rate 0.1 from 0, and the server's (n = 10 and 30)."""
    plan = ClientPlan(
        1, np.array([0, 1]), np.zeros((steps, 2, 1), np.int32), np.ones((steps, 2), np.int32),
        np.array([1, 1]), np.array([10, 30]), np.array([0, 0]), 0.0,
    )  # fmt: skip
    start = {"w": torch.zeros(1)}
    training = trainer(ClientSetup(OneNumber(4, (8, 8, 1)), baseline, STORE, np.arange(2), TrainingSettings()))
    trained = training.train(Sent({"w": start["w"][None]}, {}), plan, 0.1)
    ends = trained.weights["w"][:, 0].tolist()
    uploads = [Upload({"w": torch.tensor([w])}, n) for w, n in zip(ends, (10, 30), strict=True)]
    return ends, float(baseline.update(baseline.init(start), start, uploads)[0]["w"])


@pytest.mark.parametrize("trainer", [StackedTraining, Sequential])
def test_t_avg_2_two_quadratics(trainer: type[ClientTraining]) -> None:
    """T-AVG-2: 0.271 and −0.813 after three steps; the server has −0.542."""
    ends, server = three_steps(trainer, quadratic(Baseline))
    assert ends == pytest.approx([0.271, -0.813], abs=1e-6)
    assert server == pytest.approx(-0.542, abs=1e-6)


@pytest.mark.parametrize("trainer", [StackedTraining, Sequential])
@pytest.mark.parametrize(
    ("mu", "ends", "server"), [(0.5, [0.25725, -0.77175], -0.5145), (1.0, [0.244, -0.732], -0.488)]
)
def test_t_prox_1_two_quadratics(trainer: type[ClientTraining], mu: float, ends: list[float], server: float) -> None:
    """T-PROX-1: the pull is μ (w − w_t), the square with its half."""
    found = three_steps(trainer, quadratic(FedProx, mu=mu))
    assert found[0] == pytest.approx(ends, abs=1e-6)
    assert found[1] == pytest.approx(server, abs=1e-6)


@pytest.mark.parametrize("trainer", [StackedTraining, Sequential])
def test_t_prox_2_the_first_step_is_fedavgs(trainer: type[ClientTraining]) -> None:
    """T-PROX-2: at w_t there is no pull."""
    assert three_steps(trainer, quadratic(FedProx, mu=1.0), 1) == three_steps(trainer, quadratic(Baseline), 1)
    assert three_steps(trainer, quadratic(FedProx, mu=1.0), 2) != three_steps(trainer, quadratic(Baseline), 2)


def test_the_loss_is_the_mean_over_the_samples_that_count() -> None:
    logits = torch.randn(2, 3, 4)
    labels = torch.tensor([[0, 1, 2], [3, 3, 0]])
    shares = torch.tensor([[1 / 3, 1 / 3, 1 / 3], [0.5, 0.5, 0.0]])
    found = cross_entropy(logits, Batch(torch.empty(0), labels, shares, labels, labels[:, 0]))
    assert found[0] == pytest.approx(float(torch.nn.functional.cross_entropy(logits[0], labels[0])), abs=1e-6)
    assert found[1] == pytest.approx(float(torch.nn.functional.cross_entropy(logits[1, :2], labels[1, :2])), abs=1e-6)


def test_every_name_makes_a_baseline_whose_defaults_are_the_tables() -> None:
    for name, entry in BASELINES.items():
        assert make_baseline(name, **entry.options) == make_baseline(name)
        assert set(RULES[entry.rule].options) <= set(entry.options)
        assert not set(entry.fixed) & set(entry.options)


def test_defaults_are_those_of_the_specification() -> None:
    """§13 and Appendix B."""
    wanted = {
        "fedprox": {"mu": 0.1},
        "ida": {"norm": "l1", "reference": "mean", "intrac": False, "data_size": False, "eps": 1e-8},
        "ida+intrac": {"train_acc": "final"},
        "cgau": {"layers": 1, "units": 256, "dropout": 0.0, "cond_bias": False, "cond_init": "xavier",
                 "cond_aggregation": "average", "freeze_backbone": False, "pretrain_rounds": 50},
        "fedmmd": {"gamma": 0.1, "layer": "logits", "kernel": "fixed19", "floor": 1e-4},
        "fedfusion+multi": {"ema": 0.9, "eval_reference": "previous", "weighting": "samples"},
        "fedavgm": {"beta": 0.9, "server_lr": 0.316, "nesterov": False},
        # The specification's server_lr is 0.1, which learns nothing of FEMNIST (docs/reference/server-rules.md).
        "fedadagrad": {"beta1": 0, "tau": 1e-3, "server_lr": 0.01, "v_init": "tau2"},
        "fedadam": {"beta1": 0.9, "beta2": 0.99, "tau": 1e-3, "server_lr": 0.00316, "v_init": "tau2"},
        "fedyogi": {"beta1": 0.9, "beta2": 0.99, "tau": 1e-3, "server_lr": 0.00316, "v_init": "tau2"},
    }  # fmt: skip
    for name, defaults in wanted.items():
        options = BASELINES[name].options
        assert {option: options[option] for option in defaults} == defaults, name
    for name in ("fedavgm", "fedadagrad", "fedadam", "fedyogi"):
        assert BASELINES[name].options["client_lr"] == pytest.approx(0.0316, abs=1e-4)
    assert make_baseline("cgau-2x").layers == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("fedavgg", {}, "no baseline is called 'fedavgg'; did you mean 'fedavg'?"),
        ("nothing", {}, "there are fedavg, "),
        ("fedprox", {"muu": 1}, "fedprox has no option 'muu'; did you mean 'mu'?"),
        ("fedprox", {"rule": 1}, "fedprox has no option 'rule'; it takes client_lr, mu, weighting"),
        ("fedavg", {"name": 1}, "fedavg has no option 'name'"),
        ("fedprox", {"mu": "0.1"}, "fedprox: mu='0.1' is not possible; it must be a number"),
        ("fedprox", {"mu": True}, "mu=True is not possible"),
        ("fedprox", {"mu": float("nan")}, "mu=nan is not possible"),
        ("fedavg", {"client_lr": 0}, "client_lr=0 is not possible"),
        ("fedadam", {"beta2": 1}, "beta2=1 is not possible"),
        ("ida+intrac", {"intrac": False}, "ida+intrac decides intrac itself"),
        ("ida+intrac", {"train_acc": "last"}, "train_acc='last' is not possible; it is one of final, running"),
        ("ida+intrac", {"train_acc": None}, "train_acc=None is not possible"),
        ("cgau-2x", {"layers": 3}, "cgau-2x decides layers itself"),
        ("cgau", {"layers": 0}, "layers=0 is not possible"),
        ("cgau", {"pretrain_rounds": 1.5}, "pretrain_rounds=1.5 is not possible"),
        ("cgau", {"pretrain_model": 7}, "pretrain_model=7 is not possible"),
        ("cgau", {"dropout": 1.0}, "dropout=1.0 is not possible"),
        ("cgau", {"freeze_backbone": "yes"}, "freeze_backbone='yes' is not possible"),
        ("cgau", {"cond_aggregation": "own"}, "it is one of average, owner"),
        ("fedmmd", {"kernel": "fixed"}, "it is one of fixed19, adaptive5"),
        ("fedmmd", {"layer": ["logits"]}, "it is one of logits, hidden"),
        ("fedmmd", {"gamma": -0.1}, "gamma=-0.1 is not possible"),
        ("fedfusion+conv", {"operator": "multi"}, "fedfusion+conv decides operator itself"),
        ("fedfusion+conv", {"ema": 0.5}, "fedfusion+conv decides ema itself"),
        ("fedfusion+multi", {"ema": 1}, "ema=1 is not possible"),
    ],
)
def test_what_is_wrong_with_a_baseline_is_said(name: str, options: dict[str, object], words: str) -> None:
    with pytest.raises(AlgorithmError) as error:
        make_baseline(name, **options)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_accuracy_is_measured_only_where_somebody_looks_at_it() -> None:
    reported = {name: make_baseline(name).train_acc for name in BASELINES}
    assert {name for name, which in reported.items() if which} == {"ida+intrac"}
    assert make_baseline("ida+fedavg", intrac=True, train_acc="running").train_acc == "running"
