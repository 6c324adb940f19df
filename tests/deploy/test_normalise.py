"""What devices tell once a run so that inputs can be normalised: three sums a channel, of whatever source."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedgs.config import load_settings
from fedgs.data.npz import save_npz
from fedgs.data.user_data import from_arrays
from fedgs.deploy.agent import Agent
from fedgs.deploy.pki import Identity
from fedgs.deploy.settings import DeviceSettings, TopSettings
from fedgs.deploy.sources import Source, open_source
from fedgs.deploy.top_process import carry_out
from fedgs.deploy.wire import Ready
from fedgs.errors import ConfigError, WireError
from tests.deploy.devices import Noise, agent, bundle, run_round, running
from tests.deploy.processes import BATCH, SHAPE, Park, named_task


def moments(pixels: np.ndarray) -> np.ndarray:
    """Number, sum and sum of squares of grey pixels from 0 to 1."""
    values = pixels / 255
    return np.array([values.size, values.sum(), (values**2).sum()])


@pytest.mark.parametrize("model", ["linear", "compact"])
async def test_devices_tell_sums_of_all_they_hold_once_a_run(park: Park, tmp_path: Path, model: str) -> None:
    """A file counts with all its samples, a folder with all its photos, another source with its first batch.

    A device with noise on its counts tells no sums.
    """
    draws = np.random.default_rng(0)
    pixels = draws.integers(0, 256, (700, *SHAPE)).astype(np.uint8)
    save_npz(from_arrays(pixels, np.arange(700) % 4, ["a"] * 700), tmp_path / "a.npz")
    photos = draws.integers(0, 256, (9, *SHAPE)).astype(np.uint8)
    for number, photo in enumerate(photos):
        (tmp_path / "b" / f"Kläse {number % 4}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(photo).save(tmp_path / "b" / f"Kläse {number % 4}" / f"{number}.png")
    first = next(Noise(3).batches(BATCH, 4))
    assert first is not None
    expected = moments(pixels) + moments(photos) + moments(first.inputs)
    station = await park.serve("s1", min_devices=4, gather=60)
    sources: dict[str, Source] = {
        "a": open_source(f"npz:{tmp_path / 'a.npz'}", "a"), "b": open_source(f"folder:{tmp_path / 'b'}", "b"),
        "c": Noise(3),
    }  # fmt: skip
    shy = DeviceSettings(count_noise=1.0)
    devices = [agent(park, station, name, source) for name, source in sources.items()]
    devices.append(Agent(Identity("park", "device", "d"), station.devices, Noise(4), bundle(park, "device", "d"), shy))
    task = named_task(model=model, normalise=True, class_names=[f"Kläse {one}" for one in range(4)])
    asking = named_task(model=model, normalise=True, class_names=list(task.class_names), moments=1)
    async with running(*(one.run() for one in devices)):
        result = await run_round(station, 0, 0, task=asking)
        assert result.devices == 4
        np.testing.assert_allclose(result.moments, expected, rtol=1e-6)  # pixels are float32
        again = await run_round(station, 1, 0, task=task)
        assert not len(again.moments)  # they are not asked for any more


def test_moments_that_no_values_have_are_refused() -> None:
    counts = np.array([BATCH])
    fine = Ready(1, counts, np.array([2.0, 3.0, 5.0]))  # of 1 and 2
    np.testing.assert_array_equal(Ready.of(fine.message).moments, fine.moments)
    for bad in ([2.0, 3.0], [0.0, 0.0, 0.0], [2.0, 3.0, 4.0], [2.0, float("nan"), 5.0], [2.0, 1e200, 1.0]):
        with pytest.raises(WireError, match="moments"):
            Ready.of(Ready(1, counts, np.array(bad)).message)


async def test_inputs_of_unknown_shape_cannot_be_normalised(tmp_path: Path) -> None:
    settings = load_settings(overrides=["task=tests.api.plant:signals", "data.normalise=per-channel"])
    with pytest.raises(ConfigError, match="--held-out"):
        await carry_out(settings, TopSettings(classes=3), tmp_path / "state", [])
    assert not list(tmp_path.iterdir())
