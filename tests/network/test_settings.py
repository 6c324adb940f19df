"""Profiles and the clock's settings: what lies over what, and every way to get them wrong."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from fedgs.errors import ConfigError, NetworkError
from fedgs.network import PROFILES, ClockSettings, Park, fedgs_wins, load_profile
from fedgs.network.settings import ChannelSettings

WAN = "[external.up]\nrate = 1e6\n[external.down]\nrate = 2e6\n"
CELL = "[internal.up]\nbandwidth = 1e6\nsnr_db = 0.0\n[internal.down]\nbandwidth = 4e6\nsnr_db = 10.0\n"


@pytest.mark.parametrize("name", PROFILES)
def test_profiles_lie_in_the_range_of_the_paper(name: str) -> None:
    profile = load_profile(name)
    network = profile.network()
    assert profile.title
    assert 10 <= network.ratio <= 100
    assert network.direct == network.external
    assert fedgs_wins(Park(model_bits=32 * 6_603_710, select_seconds=0.0154), network)


def test_a_profile_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "hall.toml"
    file.write_text(WAN + CELL)
    network = load_profile(str(file)).network()
    assert network.internal.up.rate == pytest.approx(1e6)
    assert network.external.down.rate == pytest.approx(2e6)
    assert network.direct == network.external
    file.write_text(WAN + CELL + "[direct.down]\nrate = 5e5\nlatency = 0.1\n")
    direct = load_profile(str(file)).network().direct
    assert (direct.up.rate, direct.down.rate, direct.down.latency) == pytest.approx((1e6, 5e5, 0.1))


def test_in_hertz_devices_receive_with_their_own_snr_as_in_the_paper(tmp_path: Path) -> None:
    file = tmp_path / "hall.toml"
    air = "[external.up]\nbandwidth = 1e6\nsnr_db = 3.0\n[external.down]\nbandwidth = 2e6\nsnr_db = 6.0\n"
    file.write_text(CELL + air)
    network = load_profile(str(file)).network()
    assert network.direct.up == network.external.up
    assert (network.direct.down.bandwidth, network.direct.down.snr_db) == (2e6, 10.0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a = [", "not valid TOML"),
        (CELL, "external.up needs a bandwidth"),
        (WAN, "internal.up needs a bandwidth"),
        (WAN + "[internal.up]\nbandwidth = 1e6\n", "internal.up needs snr_db"),
        (WAN + CELL.replace("1e6", "-1e6"), "internal.up.bandwidth: Input should be greater than 0"),
        (WAN + CELL + "[inner]\n", "inner: Extra inputs"),
        (WAN + CELL.replace("snr_db = 0.0", "rate = 1.0"), "leave out bandwidth and snr_db, or leave out rate"),
    ],
)
def test_broken_profiles_are_one_line_with_the_file(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "hall.toml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        load_profile(str(file))
    assert "hall.toml" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "message"), [("wifi", "did you mean 'wifi6'"), ("lte", "there are 5g"), ("none.toml", "no such file")]
)
def test_unknown_profiles(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_profile(name)


def test_a_profile_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_profile(str(tmp_path / "a.toml"))


def test_settings_lie_over_the_profile() -> None:
    below = ChannelSettings(bandwidth=1e6, snr_db=3.0, latency=0.1)
    assert ChannelSettings().over(below) == below
    assert ChannelSettings(bandwidth=2e6).over(below) == ChannelSettings(bandwidth=2e6, snr_db=3.0, latency=0.1)
    assert ChannelSettings(rate=5.0).over(below) == ChannelSettings(rate=5.0, latency=0.1)
    assert ChannelSettings(latency=0.0).over(below) == ChannelSettings(bandwidth=1e6, snr_db=3.0, latency=0.0)
    with pytest.raises(NetworkError, match="known by its rate"):
        ChannelSettings(snr_db=3.0).over(ChannelSettings(rate=1.0)).channel("external.up")


def test_clock_settings_give_a_clock() -> None:
    settings = ClockSettings.model_validate(
        {"profile": "wired", "step_seconds": 0.02, "slowness": 0.5, "external": {"up": {"rate": 5e6}}}
    )
    clock = settings.clock(devices=7, seed=1)
    assert clock.network.external.up.rate == pytest.approx(5e6)
    assert clock.network.external.down.rate == pytest.approx(20e6)
    assert clock.network.direct.up.rate == pytest.approx(5e6)
    assert clock.step_seconds == 0.02
    assert clock.slowness is not None
    assert len(clock.slowness) == 7
    assert clock.selection_seconds is None
    assert ClockSettings().clock(7, 1, measured_step=0.5).step_seconds == 0.5
    assert ClockSettings().clock(7, 1, measured_step=0.5).slowness is None
    assert ClockSettings(step_seconds=0.0, selection_seconds=0.1).clock(7, 1).selection_seconds == 0.1
    with pytest.raises(NetworkError, match="is to be measured"):
        ClockSettings().clock(7, 1)
    assert ClockSettings.model_validate_json(settings.model_dump_json()) == settings


@pytest.mark.parametrize(
    "values",
    [
        {"step_seconds": -1.0},
        {"selection_seconds": -0.5},
        {"step_seconds": "fast"},
        {"slowness": -1.0},
        {"profil": "5g"},
        {"internal": {"up": {"bandwidth": 0.0}}},
        {"internal": {"up": {"rate": 1.0, "snr_db": 3.0}}},
    ],
)
def test_impossible_clock_settings(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ClockSettings.model_validate(values)
