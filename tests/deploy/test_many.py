"""Many devices and many iterations; how fast that is, benchmarks/deployment.py measures."""

from pathlib import Path

import numpy as np

from fedgs.deploy.tensors import Shapes
from tests.deploy.devices import good_devices, run_round
from tests.deploy.processes import Park, StationHandle, named_task


async def test_two_hundred_devices_on_one_station(park: Park) -> None:
    station = park.station("s1", "--min-devices", "200", "--gather", "60")
    names = [f"d{number:03d}" for number in range(200)]
    async with good_devices(park, station, *names) as agents:
        result = await run_round(station, iterations=40, pick=10)
        assert (result.iterations, result.samples, result.devices) == (40, 40 * 10 * 5, 200)
        assert result.events == {}
        assert sum(agent.steps for agent in agents) == 400
        turns = {device.name: device.turns for device in station.status().devices}
        assert list(turns) == names
        assert sum(turns.values()) == 400


def resident(station: StationHandle) -> float:
    """Megabytes of a station."""
    text = Path(f"/proc/{station.process.pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) / 1024


async def test_the_memory_of_a_station_stays_flat(park: Park) -> None:
    """An update of this model is 100 KB; a station that kept one an iteration would grow by 60 MB."""
    classes, shape = 4, (80, 80)
    shapes = Shapes((("dense.weight", (classes, 6400)), ("dense.bias", (classes,))))
    large = {
        "task": named_task("large", "linear", classes, shape, 5),
        "shapes": shapes,
        "weights": np.zeros(shapes.size, np.float32),
    }
    station = park.station("s1", "--log-level", "warning")
    used = []
    async with good_devices(park, station, "a", "b", image_shape=shape):
        for number, iterations in ((1, 200), (2, 600)):
            result = await run_round(station, number, iterations, pick=2, rate=1e-4, **large)
            assert result.iterations == iterations
            used.append(resident(station))
    assert used[1] - used[0] < 20
