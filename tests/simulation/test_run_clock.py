"""The clock of runs: by hand from the settings, on resuming, with pre-training; and never in the way of training."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from fedgs.algorithms import BASELINES, make_baseline
from fedgs.algorithms.run_state import RunState
from fedgs.network import fedgs_round, load_profile
from fedgs.network.clock import slowness
from fedgs.network.round_time import Park
from fedgs.simulation.run_clock import PARTS, clock_summary, elapsed, traffic
from fedgs.simulation.simulator import Simulator
from fedgs.training.layout import WEIGHT_BYTES, Layout
from fedgs.training.stacked_networks import build_network
from tests.conftest import Here
from tests.simulation.small import is_one_line, small_config, small_federation, small_settings, small_states

FEDERATION = small_federation()
MEASURED = "clock.step_seconds=measured"
GIVEN = ("clock.step_seconds=0.5", "clock.selection_seconds=0.25")
SLOW = (*GIVEN, "clock.slowness=0.7", "clock.profile=wired", "clock.external.up.rate=1e5")
BASELINE = ("algorithm.name=fedavg", "algorithm.devices_per_round=5", "algorithm.local_epochs=2")


@cache
def run(*options: str) -> RunState:
    return small_states(*options)[-1]


def model_bytes() -> int:
    classes, shape = len(FEDERATION.classes), FEDERATION.inputs.shape[1:]
    return WEIGHT_BYTES * Layout.of_weights(build_network("compact", classes, shape).first_weights(0)).size


def test_rounds_of_fedgs_take_what_the_time_model_says() -> None:
    """3 factories, 3 of 4 devices, 4 iterations."""
    state = run(*GIVEN)
    size = model_bytes()
    park = Park(8 * size, 3, 3, 4, 12, step_seconds=0.5, select_seconds=0.25)
    whole = fedgs_round(park, load_profile("5g").network())
    assert [line["round"] for line in state.clock] == [0, 1, 2, 3]
    assert state.clock[0] == {"round": 0, "elapsed": 0.0, "step_seconds": 0.5}
    for line in state.clock[1:]:
        assert line["seconds"] == pytest.approx(whole.total)
        assert (line["computation"], line["selection"]) == pytest.approx((2.0, 1.0))
        assert (line["internal"], line["top"]) == pytest.approx((whole.internal, whole.top))
        assert line["elapsed"] == pytest.approx(line["round"] * whole.total)
        assert line["bytes"] == {
            "device_station_up": 36 * size, "device_station_down": 36 * size,
            "station_top_up": 3 * size, "station_top_down": 3 * size,
        }  # fmt: skip


def test_rounds_of_fedavg_wait_for_the_device_with_most_to_do() -> None:
    settings = small_settings(*BASELINE, *SLOW)
    state = run(*BASELINE, *SLOW)
    slow = slowness(12, 0.7, settings.seed)
    with Simulator(settings, FEDERATION) as simulator:
        plan = simulator.plan.next_round()
    steps = 2 * -(-FEDERATION.train.sizes // 5)  # two epochs of batches of five
    size, links = model_bytes(), settings.clock.links()
    line = state.clock[1]
    assert line["computation"] == pytest.approx(max(0.5 * steps[device] * slow[device] for device in plan.devices))
    sending = 5 * size * 8 / 1e5 + 5 * size * 8 / links.direct.down.rate + links.direct.latency
    assert line["top"] == pytest.approx(sending)
    assert line["seconds"] == pytest.approx(line["computation"] + sending)
    assert (line["selection"], line["internal"]) == (0.0, 0.0)
    assert set(line["bytes"].values()) == {5 * size}


def sent(name: str, **options: object) -> tuple[int, int, dict[str, int]]:
    baseline = make_baseline(name, **options)
    weights = baseline.network(build_network("compact", 4, (8, 8)), 12).first_weights(0)
    down, up = baseline.traffic(weights)
    return down, up, {key: weight.numel() for key, weight in weights.items()}


@pytest.mark.parametrize("name", [name for name in BASELINES if name != "fedbn"])  # nothing to normalise here
def test_every_baseline_sends_its_own_weights(name: str) -> None:
    down, up, weights = sent(name)
    if name == "scaffold":  # its control variates too
        down, up = down // 2, up // 2
    assert down == 4 * sum(weights.values())
    numbers = {"ida+intrac": 1, "fednova": 1}.get(name, 0)  # its accuracy; its steps
    assert up == down + 4 * numbers
    plain = model_bytes()
    channels = weights["conv2.bias"]
    more = {"fedfusion+conv": 2 * channels**2 + channels, "fedfusion+multi": channels, "fedfusion+single": 1}
    if name.startswith("cgau"):
        assert down == plain + 4 * (sum(n for key, n in weights.items() if key.startswith(("cgau", "output")))
                                    - 4 * weights["dense1.bias"] - 4)  # fmt: skip
    else:
        assert down == plain + 4 * more.get(name, 0)


def test_a_frozen_backbone_goes_down_and_never_up() -> None:
    down, up, weights = sent("cgau", freeze_backbone=True)
    backbone = sum(number for key, number in weights.items() if key.startswith(("conv", "dense1")))
    assert down - up == 4 * backbone


def test_an_option_that_asks_for_a_number_sends_it() -> None:
    assert sent("ida", intrac=True)[:2] == (model_bytes(), model_bytes() + 4)


@pytest.mark.parametrize("options", [(), ("dynamics.drop_out=0.2", "dynamics.leave=0.1"), BASELINE])
def test_the_clock_never_changes_the_training(options: tuple[str, ...]) -> None:
    one, other = run(*options), run(*options, *SLOW)
    assert json.dumps(one.metrics) == json.dumps(other.metrics)
    assert torch.equal(one.weights, other.weights)
    assert one.plan == other.plan
    assert [line["bytes"] for line in one.clock[1:]] == [line["bytes"] for line in other.clock[1:]]
    assert all(a["seconds"] != b["seconds"] for a, b in zip(one.clock[1:], other.clock[1:], strict=True))


def test_lost_devices_receive_and_do_not_send() -> None:
    state = run("dynamics.drop_out=0.3", *GIVEN)
    lost = sum(line["events"]["dropped_out"] for line in state.metrics[1:])
    total = traffic(state.clock, 3)
    assert lost > 0
    assert total is not None
    assert total["device_station_down"] - total["device_station_up"] == lost * model_bytes()


def test_a_step_is_measured_once() -> None:
    state = run(MEASURED)
    step = state.clock[0]["step_seconds"]
    assert 0 < step < 60
    shortened = replace(state, round=0, plan=None, clock=({**state.clock[0], "step_seconds": 7.0},))
    with Simulator(small_settings(MEASURED), FEDERATION) as simulator:
        begun = simulator.begin()
        after = next(simulator.rounds(replace(begun, clock=shortened.clock)))
    assert after.clock[1]["computation"] == pytest.approx(4 * 7.0)


def test_pretraining_counts() -> None:
    options = ("algorithm.name=cgau", "algorithm.options.pretrain_rounds=2", "algorithm.options.units=8",
               "algorithm.devices_per_round=5", "training.rounds=1", *GIVEN)  # fmt: skip
    state = run(*options)
    before = run("algorithm.name=fedavg", "algorithm.devices_per_round=5", "training.rounds=2", *GIVEN)
    assert state.clock[0]["elapsed"] == pytest.approx(before.clock[-1]["elapsed"], rel=0.5)  # other participants
    assert state.clock[0]["bytes"] == traffic(before.clock, 2)
    assert state.clock[1]["elapsed"] == state.clock[0]["elapsed"] + state.clock[1]["seconds"]
    found = clock_summary(small_settings(*options), state.clock, 0)
    assert found["seconds_to_target"] == state.clock[0]["elapsed"]
    assert found["seconds"] == pytest.approx(sum(found[part] for part in PARTS))


def test_the_summary_says_what_was_measured() -> None:
    state = run(*GIVEN)

    def measured(*options: str) -> list[str]:
        return list(clock_summary(small_settings(*options), state.clock, None)["measured"])

    assert measured(MEASURED) == ["step_seconds", "selection_seconds"]
    assert measured(MEASURED, *BASELINE) == ["step_seconds"]  # nobody selects
    assert measured(*GIVEN) == []
    assert elapsed(state.clock, None) is None
    assert traffic(state.clock, 99) is None
    assert clock_summary(small_settings(), state.clock, 2)["seconds_to_target"] == state.clock[2]["elapsed"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["clock.profile=broken.toml"], "broken.toml: not valid TOML"),
        (["clock.step_seconds=soon"], 'give seconds of 0 or more, or "measured"'),
        (["clock.profile=wired", "clock.internal.up.snr_db=3"], "clock: internal.up needs a bandwidth"),
        (["clock.speed=5"], "clock.speed=5 is not a known setting"),
    ],
)
def test_a_clock_that_cannot_be_is_one_line(tmp_path: Path, here: Here, options: list[str], words: str) -> None:
    (tmp_path / "broken.toml").write_text("rate = ")
    code, out, err = here("run", *small_config(tmp_path, *options, "baseline=['seed=1']"), "--out", "a")
    assert (code, out) == (2, "")
    assert is_one_line(err)
    assert words in err
    assert not (tmp_path / "a").exists()


def test_a_profile_of_one_s_own_is_part_of_the_run(tmp_path: Path, here: Here) -> None:
    """A finished run can be compared without the file; an unfinished one is not resumed with another clock."""
    hall = tmp_path / "hall.toml"
    channels = [f"[{link}.{way}]\nrate = 1e6\n" for link in ("internal", "external") for way in ("up", "down")]
    hall.write_text("".join(channels))
    options = small_config(tmp_path, f"clock.profile='{hall}'", *GIVEN)
    assert here("run", *options, "--out", "a")[0] == 0
    hall.write_text("".join(channels).replace("1e6", "2e6"))
    (tmp_path / "a/summary.json").unlink()
    code, _, err = here("resume", "a")
    assert code == 2
    assert "was begun with other settings" in err
    hall.unlink()
    assert here("compare", "a", "--out", "a.png")[0] == 0
