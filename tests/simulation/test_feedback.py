"""Selection that learns from training: what it is told, when, and that a resumed run goes on with it."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, softmax

import fedgs
from fedgs.errors import ConfigError
from fedgs.selection.feedback import Feedback
from fedgs.selection.solve import RIVALS
from fedgs.simulation.simulator import Simulator
from tests.simulation.small import resumed, small_federation, small_settings, small_states

FEDAVG = ("algorithm.name=fedavg", "algorithm.devices_per_round=4", "algorithm.local_epochs=1")


@pytest.mark.parametrize("name", RIVALS)
@pytest.mark.parametrize("kind", ["fedgs", "fedavg"])
def test_a_resumed_run_selects_as_if_it_had_not_stopped(name: str, kind: str) -> None:
    select = (f"selection.solver={name}", "selection.presample=0") if kind == "fedgs" else ()
    options = (*FEDAVG, f"algorithm.sampling={name}") if kind == "fedavg" else select
    states = small_states(*options, "clock.slowness=0.5")
    last = resumed(states[1], *options, "clock.slowness=0.5")
    assert torch.equal(last.weights, states[-1].weights)
    assert last.plan == states[-1].plan
    assert sum(last.plan["selected"]) == (3 * 4 if kind == "fedavg" else 3 * 4 * 9)
    assert ("lessons" in last.plan) == (RIVALS[name].learns in ("loss", "gradient"))


TOLD: list[Feedback] = []


def spy(problem: fedgs.SelectionProblem, generator: np.random.Generator) -> np.ndarray:
    assert problem.feedback is not None
    TOLD.append(problem.feedback)
    return np.arange(problem.pick)


spy.learns = "gradient"  # type: ignore[attr-defined]
ME = f"{__name__}:spy"


@pytest.mark.parametrize(
    "options", [(f"selection.solver={ME}", "selection.presample=0"), (*FEDAVG, f"algorithm.sampling={ME}")]
)
def test_what_is_told_is_what_the_new_model_says_of_the_last_samples(options: tuple[str, ...]) -> None:
    federation = small_federation()
    TOLD.clear()
    with Simulator(small_settings(*options, "training.rounds=2"), federation) as simulator:
        begun = simulator.begin()
        state = next(iter(simulator.rounds(begun)))
        first = simulator.last_plan
        assert all(np.isnan(feedback.loss).all() for feedback in TOLD)
        turns = len(TOLD)
        list(simulator.rounds(state))
        assert {feedback.turn for feedback in TOLD[:turns]} == {1}  # losses change once a round, so turns are rounds
        assert {(feedback.turn, feedback.turns) for feedback in TOLD[turns:]} == {(2, 2)}
        assert all(feedback.last.max() <= feedback.turn for feedback in TOLD)
        network = simulator.task.module
        network.load_state_dict(simulator.layout.named(state.weights))
    rows = dict(zip(state.plan["lessons"]["devices"], state.plan["lessons"]["rows"], strict=True))
    assert sorted(rows) == np.unique(first.devices[first.devices >= 0]).tolist()
    last = TOLD[-1]
    with pytest.raises(ValueError, match="read-only"):
        last.loss[0] = 0.0
    baseline = "algorithm.name=fedavg" in options
    samples_of = federation.train.sizes if baseline else np.full(len(federation), first.samples.shape[-1])
    assert last.utility == pytest.approx([sum(samples_of[device] * row[1] for device, row in rows.items())])
    for device, row in rows.items():
        samples = federation.train_indices(device)
        if "algorithm.name=fedavg" in options:
            assert (last.loss[device], last.rms_loss[device], *last.gradient[device]) == tuple(row)
        else:
            samples = first.samples[first.devices == device][-1]
        images = torch.from_numpy(federation.inputs[samples]).float()[:, None] / 255
        labels = torch.from_numpy(federation.labels[samples].astype(np.int64))
        with torch.no_grad():
            outputs = network(images)
        losses = cross_entropy(outputs, labels, reduction="none")
        gradient = softmax(outputs, 1).mean(0) - torch.bincount(labels, minlength=4) / len(labels)
        expected = [float(losses.mean()), float(losses.square().mean().sqrt()), *gradient.tolist()]
        assert row == pytest.approx(expected, abs=1e-5)


def test_what_is_wrong_is_said() -> None:
    for options, words in (
        (("algorithm.sampling=oort",), "algorithm.sampling='oort' has no meaning with algorithm.name='fedgs'"),
        ((*FEDAVG, "algorithm.sampling=ort"), "did you mean 'oort'"),
        ((*FEDAVG, "algorithm.sampling=oort", "algorithm.sampling_options.alfa=1"), "it takes alpha, epsilon"),
        ((*FEDAVG, "algorithm.sampling=auto", "algorithm.sampling_options.alpha=1"), "are of one solver"),
        (("selection.solver=oort", "selection.coverage.weight=0.3"), "does not; set it to 0"),
    ):
        with pytest.raises(ConfigError) as error:
            small_settings(*options)
        assert words in str(error.value)
        assert "\n" not in str(error.value)
    x, y = np.random.default_rng(0).random((40, 3)).astype("float32"), np.random.default_rng(1).random(40)
    federation = fedgs.Federation.from_arrays(x, y.astype("float32"), devices=np.arange(40) % 4, factories=2)
    task = fedgs.regression(lambda: torch.nn.Linear(3, 1), bins=2)
    with pytest.raises(ConfigError, match="gradients of a classifier"):
        fedgs.run(task, federation, solver=spy, rounds=1, iterations=1, batch_size=2, pick=1)


def test_nothing_is_known_before_the_first_turn() -> None:
    nothing = Feedback.nothing(2)
    assert (nothing.turn, nothing.selected.tolist()) == (1, [0, 0])
    assert np.isnan(nothing.of(np.array([1])).gradient).all()
