"""The run config of ``flwr run``."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.cli.config_utils import load_and_validate
from flwr.common.config import flatten_dict

from fedgs.errors import ConfigError
from fedgs.flower.server import options_of
from tests.simulation.small import small_settings

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-park" / "pyproject.toml"


def test_settings_and_options_are_told_apart() -> None:
    settings, options = options_of(
        {
            "top.stations": 3,
            "top.state": "runs/a",
            "top.held-out": "",
            "top.min-stations": 2,
            "top.linger": 5,
            "top.image": "8x9",
            "training.rounds": 7,
            "server.rule": "FedAdam",
            "server.options.eta": 0.5,
            "server.options.tau": "",
        }
    )
    assert (options.stations, options.state, options.held_out) == (3, "runs/a", None)
    assert (options.min_stations, options.linger, options.image) == (2, 5.0, "8x9")
    assert settings.training.rounds == 7
    assert settings.server.options == {"eta": 0.5}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, "top.stations: field required"),
        ({"top.stations": 2}, "top.state: field required"),
        ({"top.stations": 0, "top.state": "a"}, "top.stations: input should be greater"),
        ({"top.stations": 2, "top.state": "a", "top.sates": 1}, "top.sates: extra inputs"),
        ({"top.stations": 2, "top.state": "a", "top.wire": "int4"}, "top.wire: input should be"),
        ({"top.stations": 2, "top.state": "a", "top.linger": -1.0}, "linger"),
        ({"top.stations": 2, "top.state": "a", "training.roundz": 1}, "roundz"),
        ({"top.stations": 2, "top.state": "a", "training.rounds": "7"}, "training.rounds"),
    ],
)
def test_what_is_wrong_is_one_line(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        options_of(config)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_example_is_a_flower_app_with_settings_that_hold() -> None:
    config, warnings = load_and_validate(EXAMPLE)
    assert not warnings
    settings, options = options_of(flatten_dict(config["tool"]["flwr"]["app"]["config"]))
    assert options.stations == 2
    assert settings.server.rule == "mean"


def test_the_app_of_a_park_carries_all_settings_that_are_not_at_their_default(tmp_path: Path) -> None:
    from fedgs.data import build_federation
    from fedgs.flower.park import FlowerPark
    from tests.simulation.small import small_set

    settings = small_settings("server.rule=FedAdam", "server.options.eta=0.25", "data.name='it\"s.npz'", "seed=4")
    app = FlowerPark(tmp_path, settings, build_federation(small_set(12), 3))._app()
    found, options = options_of(flatten_dict(tomllib.loads(app)["tool"]["flwr"]["app"]["config"]))
    assert found == settings
    assert options.stations == 3
