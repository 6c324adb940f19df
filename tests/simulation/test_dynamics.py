import json
from pathlib import Path

import numpy as np
import pytest

from fedgs.algorithms.fedgs import StationRounds
from fedgs.errors import InputFileError
from fedgs.settings import DynamicsSettings
from fedgs.simulation.dynamics import Dynamics, read_trace
from fedgs.simulation.selection_plan import SelectionPlan
from fedgs.simulation.simulator import Simulator
from tests.simulation.small import small_federation, small_settings, small_states

FEDERATION = small_federation()


def dynamics(**settings: float | str) -> Dynamics:
    return Dynamics(FEDERATION, DynamicsSettings.model_validate(settings), seed=1)


def test_rates_are_rates() -> None:
    park = dynamics(leave=0.1, come_back=0.3, move=0.05)
    online = []
    for iteration in range(2000):
        park.begin(iteration)
        online.append(park.online.mean())
    events = park.take_events()
    # The chain of two states is online for come_back / (leave + come_back) of the time.
    assert np.mean(online) == pytest.approx(0.75, abs=0.02)
    assert events["moved"] == pytest.approx(2000 * 12 * 0.05, rel=0.1)
    assert events["offline"] == pytest.approx(events["returned"], abs=12)
    assert set(park.factory_of.tolist()) == {0, 1, 2}
    assert park.take_events() == {}


def test_lost_and_slow_devices() -> None:
    park = dynamics(drop_out=0.2, straggle=0.5, straggle_share=0.4)
    shares = np.concatenate([park.shares(iteration, np.arange(12)) for iteration in range(500)])
    assert set(np.unique(shares)) == {0.0, 0.4, 1.0}
    assert (shares == 0).mean() == pytest.approx(0.2, abs=0.02)
    assert (shares == 0.4).mean() == pytest.approx(0.4, abs=0.02)  # those who are slow and not lost
    assert park.events["dropped_out"] == (shares == 0).sum()
    # What happens to a device does not depend on who else was selected.
    assert park.shares(3, np.array([5]))[0] == park.shares(3, np.array([1, 5, 7]))[1]


def test_a_trace_is_followed(tmp_path: Path) -> None:
    names = FEDERATION.device_names
    moving = int(FEDERATION.devices_of(0)[0])
    trace = tmp_path / "trace.csv"
    trace.write_text(
        f"iteration,device,event,factory\n1,{names[3]},offline,\n3,{names[3]},online,\n2,{names[moving]},move,factory-02\n"
        "2,11,offline,\n"
    )
    plan = SelectionPlan(FEDERATION, small_settings(f"dynamics.trace='{trace}'", "training.iterations=5")).next_round()
    present = [set(row[row >= 0].tolist()) for row in plan.devices]
    assert 3 not in present[0] | present[1]
    assert all(11 not in row for row in present[1:])
    assert all(moving not in set(row[0].tolist()) for row in plan.devices[1:])
    assert any(moving in set(row[2].tolist()) for row in plan.devices[1:])
    # In the second iteration factory 0 has lost one to the trace and one to factory 2.
    assert plan.events == {"moved": 1, "offline": 2, "returned": 1, "short": 1}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("0,device-03,offline,", "iteration '0' is not a whole number from 1 on"),
        ("x,device-03,offline,", "iteration 'x'"),
        ("1,nobody,offline,", "there is no device 'nobody'"),
        ("1,device-03,asleep,", "event 'asleep' is not one of offline, online, move"),
        ("1,device-03,move,mars", "there is no factory 'mars'"),
        ("1", "a trace has the columns"),
    ],
)
def test_bad_traces_name_the_line(tmp_path: Path, line: str, words: str) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(f"iteration,device,event,factory\n1,device-01,offline,\n{line}\n")
    with pytest.raises(InputFileError, match=r"trace\.csv:3: ") as error:
        read_trace(trace, FEDERATION)
    assert words in str(error.value)


def test_short_and_idle_factories(tmp_path: Path) -> None:
    """All devices of factory 1 are away in the whole round, and two of the four of factory 0."""
    gone = [*FEDERATION.devices_of(1), *FEDERATION.devices_of(0)[:2]]
    trace = tmp_path / "trace.csv"
    trace.write_text("iteration,device,event\n" + "".join(f"1,{device},offline\n" for device in gone))
    settings = small_settings(f"dynamics.trace='{trace}'", "training.rounds=1", "training.momentum=0.5")
    plan = SelectionPlan(FEDERATION, settings).next_round()
    assert plan.trained.tolist() == [True, False, True]
    assert (plan.totals == [10, 0, 15]).all()
    assert plan.events == {"idle": 4, "offline": 6, "short": 4}
    assert np.isnan(plan.divergence[:, 1]).all()
    with Simulator(settings, FEDERATION) as simulator:
        state = simulator.run_round(simulator.begin(), plan)
        assert isinstance(simulator.rounds_of, StationRounds)
        result = simulator.rounds_of.engine.train_round(simulator.begin().weights, plan, np.full(4, 0.1))
    expected = (result.stations[0].double() + result.stations[2].double()) / 2
    assert np.allclose(state.weights.numpy(), expected.numpy(), atol=1e-7)
    line = state.metrics[-1]
    assert line["sat_out"] == 1
    assert line["events"]["idle"] == 4


def test_everybody_away_changes_nothing_but_the_clock() -> None:
    first, _, last = small_states("dynamics.leave=1.0", "dynamics.come_back=0.0", "training.rounds=2")
    assert np.array_equal(first.weights.numpy(), last.weights.numpy())
    assert last.metrics[-1]["train_loss"] is None
    assert last.metrics[-1]["sat_out"] == 3
    json.dumps(last.metrics)


def test_stragglers_are_weighted_by_what_they_did() -> None:
    common = ("dynamics.straggle=0.5", "dynamics.straggle_share=0.4", "dynamics.drop_out=0.2", "training.rounds=2")
    fast, slow = (small_states(*common, f"training.engine={engine}")[-1] for engine in ("auto", "per-device"))
    assert np.allclose(fast.weights.numpy(), slow.weights.numpy(), atol=1e-5)
    events = fast.metrics[-1]["events"]
    assert events["straggled"] > 0
    assert events["dropped_out"] > 0
    assert fast.metrics[-1]["samples"] < 4 * 3 * 15
