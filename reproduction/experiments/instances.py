"""Selection problems as a base station meets them: real or realistic next mini-batches of a factory's devices.

Each instance is one factory at one iteration (Algorithm 2, line 1): L_rnd devices are pre-sampled at random and make up
the base b; the others are the candidates, of which L − L_rnd are to be picked. All devices move on to a new batch
between iterations, so that instances are not copies of each other.
"""

from fedgs.data import DeviceStreams, Federation
from fedgs.errors import ConfigError
from fedgs.rng import stream
from fedgs.selection import SelectionProblem
from fedgs.settings import Settings


def draw_instances(federation: Federation, settings: Settings, count: int) -> list[SelectionProblem]:
    """Return ``count`` selection problems, factory by factory and iteration by iteration."""
    target = federation.p_real()
    streams = DeviceStreams(federation, settings.training.batch_size, settings.seed, mode="fresh")
    problems: list[SelectionProblem] = []
    while True:
        for factory in range(federation.factories):
            if len(problems) == count:
                return problems
            devices = federation.devices_of(factory)
            order = stream(settings.seed, "presample", streams.iteration, factory).permutation(devices)
            if len(devices) <= settings.selection.presample:
                raise ConfigError(
                    f"selection.presample={settings.selection.presample} leaves nobody to select in a factory of "
                    f"{len(devices)} devices; lower it or use fewer factories"
                )
            presampled, candidates = order[: settings.selection.presample], order[settings.selection.presample :]
            counts = streams.counts
            problems.append(
                SelectionProblem(
                    counts[candidates],
                    target,
                    min(settings.selection.pick, len(devices)) - len(presampled),
                    base=counts[presampled].sum(axis=0),
                )
            )
        streams.advance([])
