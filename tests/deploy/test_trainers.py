import json

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedgs.deploy.sources import Batch
from fedgs.deploy.torch_trainer import TorchTrainer
from fedgs.deploy.trainers import LinearTrainer, check_batch, make_trainer
from fedgs.errors import ConfigError, DataError
from fedgs.tasks.cnn import build_model
from fedgs.tasks.prepare import as_input
from tests.deploy.processes import named_task


def test_a_linear_step_by_hand() -> None:
    """One white pixel, two classes, weights 0: p = (1/2, 1/2), so class 0 is pulled up by η/2 and class 1 down."""
    trainer = LinearTrainer(2, (1, 1))
    batch = Batch(np.full((1, 1, 1), 255, np.uint8), np.array([0]))
    change, loss = trainer.step(np.zeros(4, np.float32), batch, 0.5)
    assert change.tolist() == [0.25, -0.25, 0.25, -0.25]
    assert loss == pytest.approx(np.log(2))


@pytest.mark.parametrize("model", ["linear", "compact", "paper"])
@pytest.mark.parametrize(("shape", "spread"), [((8, 8), 0), ((8, 9, 3), 0), ((8, 8), 3)])
def test_a_step_moves_the_weights_down_the_gradient(model: str, shape: tuple[int, ...], spread: float) -> None:
    """``spread``: of a shift of the last bias, which trains as shifted logits do: calibration relies on it."""
    draws = np.random.default_rng(1)
    batch = Batch(draws.integers(0, 256, (6, *shape)).astype(np.uint8), draws.integers(0, 4, 6))
    shift = draws.normal(0, spread, 4).astype(np.float32)
    network = build_model(model, 4, shape, seed=3)
    logits = network(as_input(torch.from_numpy(batch.inputs))) + torch.from_numpy(shift)
    loss = cross_entropy(logits, torch.from_numpy(batch.targets))
    gradients = torch.autograd.grad(loss, list(network.parameters()))
    trainer = make_trainer(named_task("r", model, 4, shape, 6))
    assert isinstance(trainer, LinearTrainer if model == "linear" else TorchTrainer)
    flat = trainer.shapes.flatten({name: value.detach().numpy() for name, value in network.named_parameters()})
    flat[-4:] += shift
    change, found = trainer.step(flat, batch, 0.5)
    assert found == pytest.approx(float(loss.detach()), rel=1e-5)
    for view, gradient in zip(trainer.shapes.views(change).values(), gradients, strict=True):
        np.testing.assert_allclose(view, -0.5 * gradient.numpy(), atol=2e-6)


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"task\.model='huge' is not a built-in network"):
        make_trainer(named_task("r", "huge", 4, (8, 8), 6))


def twice(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return 2 * cross_entropy(outputs, targets, reduction="none")


def test_a_loss_by_name_is_that_of_the_module() -> None:
    batch = Batch(np.random.default_rng(2).integers(0, 256, (6, 8, 8)).astype(np.uint8), np.arange(6) % 4)
    found = []
    for loss in ("cross_entropy", f"{__name__}:twice"):
        task = named_task("r", "linear", 4, (8, 8), 6, spec=json.dumps({"model": "linear", "loss": loss}))
        found.append(make_trainer(task).step(np.zeros(4 * 65, np.float32), batch, 0.5))
    np.testing.assert_allclose(found[1][0], 2 * found[0][0], atol=1e-6)
    assert found[1][1] == pytest.approx(2 * found[0][1])


def stumbling(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    raise KeyError("a stone\non the way")


def test_whatever_a_task_raises_is_one_line() -> None:
    task = named_task(
        "r", "linear", 4, (8, 8), 6, spec=json.dumps({"model": "linear", "loss": f"{__name__}:stumbling"})
    )
    with pytest.raises(ConfigError, match="cannot train on this batch") as error:
        make_trainer(task).step(
            np.zeros(4 * 65, np.float32), Batch(np.zeros((6, 8, 8), np.uint8), np.arange(6) % 4), 0.5
        )
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("described", [True, False])
def test_a_batch_with_nan_is_refused_also_where_nobody_described_the_inputs(described: bool) -> None:
    task = named_task("r", "linear", 4, (8,), 6)
    if not described:
        task.inputs = ""
    inputs, targets = np.zeros((6, 8), np.float32), np.arange(6) % 4
    check_batch(Batch(inputs, targets), task)
    broken, wear = inputs.copy(), targets / 2
    broken[3, 1], wear[5] = np.nan, np.inf
    with pytest.raises(DataError, match=r"gives inputs with NaN or infinity \(sample 3 of a batch\)"):
        check_batch(Batch(broken, targets), task)
    with pytest.raises(DataError, match=r"gives targets with NaN or infinity \(sample 5 of a batch\)"):
        check_batch(Batch(inputs, wear), task)
