from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from fedgs.algorithms import RULES
from fedgs.algorithms.fedgs import StationRounds
from fedgs.algorithms.run_state import RunState
from fedgs.algorithms.synchronise import Synchroniser
from fedgs.errors import ConfigError, DeviceError, TrainingError
from fedgs.settings import ServerSettings, TrainingSettings
from fedgs.simulation.evaluate import Evaluator
from fedgs.simulation.folder import create_run
from fedgs.simulation.memory import translate_oom
from fedgs.simulation.process_group import ProcessGroup
from fedgs.simulation.run import execute
from fedgs.simulation.selection_plan import SelectionPlan
from fedgs.simulation.simulator import Simulator, pick_device
from fedgs.training.layout import Layout
from fedgs.training.optimizers import learning_rates
from fedgs.training.store import SampleStore
from tests.simulation.small import (
    resumed,
    small_federation,
    small_rounds,
    small_settings,
    small_states,
    small_task,
)

FEDERATION = small_federation()


@cache
def run(*options: str, ahead: int = 3) -> RunState:
    return small_states(*options, ahead=ahead)[-1]


def test_a_small_run_learns() -> None:
    state = run("training.rounds=12", "training.iterations=8", "training.learning_rate=0.3")
    first, last = state.metrics[0], state.metrics[-1]
    assert first["round"] == 0
    assert first["accuracy"] < 0.6
    assert last["accuracy"] > 0.95
    assert last["loss"] < 0.5 * first["loss"]
    assert [line["round"] for line in state.metrics] == list(range(13))


def test_the_same_seed_gives_the_same_bits() -> None:
    one = run()
    other = run(ahead=1)
    different = run("seed=1")
    assert torch.equal(one.weights, other.weights)
    assert one.metrics == other.metrics
    assert one.plan == other.plan
    assert one.metrics != different.metrics


def test_the_whole_run_equals_the_oracles() -> None:
    fast = run("training.rounds=5")
    slow = run("training.rounds=5", "training.engine=per-device")
    torch.testing.assert_close(fast.weights, slow.weights, rtol=1e-4, atol=1e-5)
    for one, other in zip(fast.metrics, slow.metrics, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)


def test_external_synchronisation_is_the_uniform_mean_of_those_who_trained() -> None:
    layout = Layout((("w", (2,)),))
    synchroniser = Synchroniser(ServerSettings(), layout, ProcessGroup())
    stations = torch.tensor([[1.0, 2.0], [3.0, 4.0], [8.0, 0.0]])
    old = torch.zeros(2)
    everyone, nobody = np.array([True, True, True]), np.zeros(3, bool)
    assert synchroniser.update({}, old, stations, everyone)[0].tolist() == [4.0, 2.0]
    assert synchroniser.update({}, old, stations, np.array([True, False, True]))[0].tolist() == [4.5, 1.0]
    assert synchroniser.update({}, old, stations, nobody)[0] is old


@pytest.mark.parametrize(
    "options",
    [
        *((f"server.rule={rule}",) for rule in RULES),
        ("training.momentum=0.5", "eval.ema=0.8"),
        ("selection.solver=auto", "selection.coverage.weight=0.3", "dynamics.leave=0.1", "dynamics.move=0.1"),
        ("algorithm.name=fedadam", "algorithm.local_epochs=2", "training.momentum=0.5", "eval.ema=0.5"),
        ("algorithm.name=fedfusion+single", "algorithm.devices_per_round=8"),
    ],
    ids=" ".join,
)
def test_a_resumed_run_ends_like_an_uninterrupted_one(options: tuple[str, ...]) -> None:
    """What servers, stations and plans remember comes back from the checkpoint to the bit; so does the clock."""
    clock = ("clock.step_seconds=0.5", "clock.selection_seconds=0.25", "clock.slowness=0.7")
    states = small_states(*options, *clock)
    again, last = resumed(states[2], *options, *clock), states[-1]
    for name in ("weights", "tested", "stations", "server"):
        torch.testing.assert_close(getattr(again, name), getattr(last, name), rtol=0, atol=0)
    assert (again.metrics, again.clock, again.plan) == (last.metrics, last.clock, last.plan)


@pytest.mark.parametrize("rule", RULES)
def test_the_top_server_takes_any_rule(rule: str) -> None:
    """Stations report what a rule asks for, their steps and training accuracy."""
    # Every station counts as one sample, and all make the same number of steps: the paper's mean.
    as_mean = torch.allclose(run(f"server.rule={rule}").weights, run().weights, atol=1e-6)
    assert as_mean == (rule in ("fedavg", "fednova"))


def test_stations_report_the_accuracy_of_their_own_model() -> None:
    """Two stations' models that always answer 1 and 2: right as often as these classes are in their last batches."""
    settings = small_settings("server.rule=ida+intrac")
    method = small_rounds(settings, FEDERATION)
    assert isinstance(method, StationRounds)
    plan = SelectionPlan(FEDERATION, settings).next_round()
    stations = torch.zeros(3, method.layout.size)
    for station, answer in ((0, 1), (1, 2), (2, 2)):
        method.layout.views(stations[station])["dense2.bias"][answer] = 1.0
    reports = method._reports(plan, stations)
    for station, answer in ((0, 1), (1, 2), (2, 2)):
        share = float((FEDERATION.labels[plan.union(3, station)] == answer).mean())
        assert reports[station] == {"steps": 4.0, "train_acc": pytest.approx(share)}


@pytest.mark.parametrize("weighting", ["test_size", "leaf"])
def test_evaluation_by_hand(weighting: str) -> None:
    """A network that always answers one class gets exactly the samples of that class right.

    LEAF weighs devices by all their samples, train samples too.
    """
    task = small_task("compact", FEDERATION)
    store = SampleStore(task, torch.device("cpu"))

    def always_two(samples: np.ndarray, devices: np.ndarray) -> torch.Tensor:
        logits = torch.zeros(len(samples), 4)
        logits[:, 2] = 1
        return logits

    found = Evaluator(task, store, weighting=weighting).evaluate(always_two)
    shares = np.array([(FEDERATION.test_labels(k) == 2).mean() for k in range(12)])
    sizes = FEDERATION.test.sizes + (FEDERATION.train.sizes if weighting == "leaf" else 0)
    assert found.accuracy == pytest.approx(np.average(shares, weights=sizes))
    right, wrong = np.log(np.e + 3) - 1, np.log(np.e + 3)
    assert found.loss == pytest.approx(np.average(shares * right + (1 - shares) * wrong, weights=sizes), rel=1e-5)
    assert found.devices.tolist() == shares.tolist()
    assert found.percentiles == pytest.approx(tuple(np.percentile(shares, [10, 50, 90])))
    mine = np.concatenate([FEDERATION.test_labels(int(k)) for k in FEDERATION.devices_of(1)])
    assert found.factories[1] == pytest.approx((mine == 2).mean())


def test_a_loss_that_is_no_number_names_factory_iteration_and_rate() -> None:
    with pytest.raises(TrainingError, match=r"factory 'factory-0\d' .* iteration \d+ \(learning rate 1e\+20\)"):
        run("training.learning_rate=1e20")


def test_evaluation_comes_every_so_many_rounds_and_at_the_end() -> None:
    state = run("training.rounds=5", "eval.every=2")
    assert [line["round"] for line in state.metrics if "accuracy" in line] == [0, 2, 4, 5]


def test_schedules() -> None:
    common = {"learning_rate": 0.8, "iterations": 4, "rounds": 10}
    constant = TrainingSettings.model_validate(common)
    assert learning_rates(constant, 7).tolist() == [0.8] * 4
    step = TrainingSettings.model_validate({**common, "schedule": {"kind": "step", "every": 3, "factor": 0.5}})
    assert [learning_rates(step, r)[0] for r in (1, 3, 4, 7)] == [0.8, 0.8, 0.4, 0.2]
    cosine = TrainingSettings.model_validate({**common, "schedule": {"kind": "cosine", "floor": 0.5}})
    assert learning_rates(cosine, 1)[0] == pytest.approx(0.8)
    assert learning_rates(cosine, 6)[0] == pytest.approx(0.6)
    warm = TrainingSettings.model_validate({**common, "schedule": {"warmup": 2.0}})
    assert learning_rates(warm, 1).tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert learning_rates(warm, 3).tolist() == [0.8] * 4


def test_devices() -> None:
    assert pick_device("cpu") == torch.device("cpu")
    with pytest.raises(DeviceError, match="choose auto, cpu or cuda"):
        pick_device("tpu")
    if not torch.cuda.is_available():
        assert pick_device("auto") == torch.device("cpu")
        with pytest.raises(DeviceError, match="no CUDA GPU"):
            pick_device("cuda")


def test_options_of_a_server_rule_reach_it() -> None:
    one = run("server.rule=fedavgm", "server.options.beta=0.0", "server.options.server_lr=1.0")
    plain = run()
    torch.testing.assert_close(one.weights, plain.weights, rtol=1e-5, atol=1e-6)


def test_the_average_that_is_tested_follows_the_model_slowly() -> None:
    state = run("eval.ema=0.9", "training.rounds=2")
    start, first, second = (one.weights for one in small_states("training.rounds=2"))
    assert state.average is not None
    # Round 1 keeps a tenth of the start, round 2 two elevenths of that.
    half = start * 0.1 + first * 0.9  # the decay of round r is at most r / (r + 9)
    torch.testing.assert_close(state.average, half * (2 / 11) + second * (9 / 11), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("too_much", [lambda: np.empty(2**58), lambda: torch.empty(2**50)])
def test_running_out_of_memory_is_one_line(too_much: Callable[[], object]) -> None:
    words = r"memory does not suffice \(.*\); lower training.batch_size"
    with pytest.raises(DeviceError, match=words) as error, translate_oom():
        too_much()
    assert "\n" not in str(error.value)
    with pytest.raises(RuntimeError, match="something else"), translate_oom():
        raise RuntimeError("something else")


def test_a_server_rule_that_blows_up_is_named_and_the_last_good_round_kept(tmp_path: Path) -> None:
    settings = small_settings("server.rule=fedadam", "server.options.server_lr=1e38")
    create_run(tmp_path / "run", settings)
    with pytest.raises(TrainingError, match=r"server\.rule='fedadam'"):
        execute(settings, small_federation(), folder=tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert all("NaN" not in line and "Infinity" not in line for line in lines)
    assert (tmp_path / "run" / "checkpoints" / "round-000000").is_dir()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["server.options.server_lr=1.0"], r"has no meaning with server\.rule='mean'"),
        (["server.rule=fedadamm"], r"server\.rule='fedadamm'.*no server rule is called 'fedadamm'"),
        (["server.rule=fedadam", "server.options.speed=1"], r"server\.rule='fedadam'.*has no option 'speed'"),
    ],
)
def test_server_rules_that_cannot_be(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Simulator(small_settings(*overrides), small_federation(), torch.device("cpu"))
