"""The fast path equals the slow one, and both are the mathematics of the paper."""

import copy
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedgs.errors import ConfigError
from fedgs.settings import TrainingSettings
from fedgs.simulation.selection_plan import SelectionPlan
from fedgs.training.engine import RoundResult, Setup, make_engine
from fedgs.training.fused import FactoryThreads
from fedgs.training.graph import GraphEngine
from fedgs.training.layout import Layout
from fedgs.training.per_device import PerDeviceEngine
from fedgs.training.precision import processor_has_bfloat16
from fedgs.training.round_plan import RoundPlan
from fedgs.training.stacked import StackedEngine
from fedgs.training.store import SampleStore
from tests.simulation.small import small_engine_setup, small_federation, small_settings, small_task

FEDERATION = small_federation()
TASKS = {name: small_task(name, FEDERATION) for name in ("compact", "paper")}
STORE = SampleStore(TASKS["compact"], torch.device("cpu"))
MODEL = TASKS["compact"].module
LAYOUT = Layout.of(MODEL)
WEIGHTS = LAYOUT.of_module(MODEL)
RATES = np.linspace(0.1, 0.05, 4)
GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))
SHORT = 0.1
"""A length that most gradients here are over."""


def made(
    momentum: float = 0.0,
    clip: float | None = None,
    model: str = "compact",
    device: str = "cpu",
    engine: Any = "auto",
    threads: int | None = None,
) -> Setup:
    training = TrainingSettings(momentum=momentum, clip=clip, precision="float32", engine=engine)
    return replace(small_engine_setup(training, TASKS[model], device), threads=threads)


def first_weights(model: str) -> torch.Tensor:
    return Layout.of(TASKS[model].module).of_module(TASKS[model].module)


def plan(unequal: bool) -> RoundPlan:
    """Return a round as the paper has it, or one with unequal batches and shifted logits."""
    whole = SelectionPlan(FEDERATION, small_settings()).next_round()
    if not unequal:
        assert (whole.sizes == whole.samples.shape[-1]).all()
        return whole
    sizes = np.random.default_rng(5).integers(0, 6, whole.sizes.shape).astype(np.int32)
    sizes[1, 2] = 0  # a factory without anybody
    sizes[2, 0] = [1, 5, 2]
    shifts = np.random.default_rng(6).normal(0, 2, (*sizes.shape[:2], 4)).astype(np.float32)
    return RoundPlan(1, whole.devices, whole.samples, sizes, whole.divergence, shifts=shifts)


def rates_of(name: str) -> np.ndarray:
    """With large steps of a large network one unit at the edge of its rectifier tells rounding errors apart."""
    return RATES if name == "compact" else 0.1 * RATES


@cache
def oracle(unequal: bool, clip: float | None, momentum: float, name: str) -> RoundResult:
    engine = PerDeviceEngine(made(momentum, clip, name))
    return engine.train_round(first_weights(name), plan(unequal), rates_of(name))


@pytest.mark.parametrize("unequal", [False, True])
@pytest.mark.parametrize("clip", [None, SHORT])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("name", ["compact", "paper"])
def test_fused_equals_per_device(unequal: bool, clip: float | None, momentum: float, name: str) -> None:
    weights, schedule, rates = first_weights(name), plan(unequal), rates_of(name)
    slow, fast = PerDeviceEngine(made(momentum, clip, name)), FactoryThreads(made(momentum, clip, name))
    expected = oracle(unequal, clip, momentum, name)
    if clip is not None:
        assert not torch.allclose(expected.stations, oracle(unequal, None, momentum, name).stations, atol=1e-4)
    found = fast.train_round(weights, schedule, rates)
    assert not torch.allclose(expected.stations, weights.expand_as(expected.stations), atol=1e-4)
    torch.testing.assert_close(found.stations, expected.stations, rtol=1e-4, atol=3e-6)
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-4)
    assert np.array_equal(np.isnan(found.losses), schedule.totals == 0)
    if momentum:
        torch.testing.assert_close(found.memory["velocity"], expected.memory["velocity"], rtol=1e-3, atol=1e-4)
        further = fast.train_round(weights, schedule, rates, found.memory)
        expected = slow.train_round(weights, schedule, rates, expected.memory)
        torch.testing.assert_close(further.stations, expected.stations, rtol=1e-3, atol=1e-4)
    fast.close()


def test_one_internal_synchronisation_is_one_sgd_step_on_the_union() -> None:
    schedule = plan(unequal=True)
    one = RoundPlan(1, schedule.devices[2:3], schedule.samples[2:3], schedule.sizes[2:3], schedule.divergence[2:3])
    result = PerDeviceEngine(made()).train_round(WEIGHTS, one, np.array([0.5]))
    samples = one.union(0, 0)
    assert len(samples) == 1 + 5 + 2
    model = copy.deepcopy(MODEL)
    images = torch.from_numpy(FEDERATION.inputs[samples]).float()[:, None] / 255
    loss = cross_entropy(model(images), torch.from_numpy(FEDERATION.labels[samples].astype(np.int64)))
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.5).step()
    expected = LAYOUT.flatten(dict(model.named_parameters()))
    torch.testing.assert_close(result.stations[0], expected, rtol=1e-5, atol=1e-6)
    assert result.losses[0, 0] == pytest.approx(float(loss.detach()), rel=1e-5)


def test_a_union_holds_the_counting_parts_of_the_batches() -> None:
    samples = np.array([[[[1, 2, 3], [4, 5, 6]]]], np.int32)
    one = RoundPlan(1, np.zeros((1, 1, 2), np.int32), samples, np.array([[[2, 1]]], np.int32), np.zeros((1, 1)))
    assert one.union(0, 0).tolist() == [1, 2, 4]
    assert one.totals.tolist() == [[3]]
    assert (one.sizes < one.samples.shape[-1]).any()


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_number_of_threads_changes_no_bit(threads: int) -> None:
    schedule = plan(unequal=False)
    inside = torch.get_num_threads()
    engine = FactoryThreads(made(threads=threads))
    found = engine.train_round(WEIGHTS, schedule, RATES).stations
    engine.close()
    reference = FactoryThreads(made(threads=3)).train_round(WEIGHTS, schedule, RATES).stations
    assert torch.equal(found, reference)
    assert torch.get_num_threads() == inside


def test_engines_leave_their_input_alone_and_report_every_iteration() -> None:
    before = WEIGHTS.clone()
    ticks: list[float] = []
    for engine in (FactoryThreads(made()), PerDeviceEngine(made())):
        ticks.clear()
        engine.train_round(WEIGHTS, plan(unequal=False), RATES, tick=ticks.append)
        assert sum(ticks) == pytest.approx(4)
        assert torch.equal(WEIGHTS, before)
        engine.close()


def test_a_cuda_graph_without_a_gpu_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs device='cuda'"):
        make_engine(made(engine="graph"))


def test_images_are_scaled_to_one_and_channels_last() -> None:
    images, labels = STORE.batch(np.array([3, 0]))
    assert images.shape == (2, 1, 8, 8)
    assert labels.tolist() == FEDERATION.labels[[3, 0]].tolist()
    assert np.allclose(images[0, 0].numpy() * 255, FEDERATION.inputs[3])
    assert images.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("unequal", [False, True])
@pytest.mark.parametrize("clip", [None, SHORT])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("engine", [GraphEngine, StackedEngine])
@pytest.mark.parametrize("device", ["cpu", GPU])
def test_gpu_engines_equal_per_device(
    unequal: bool, clip: float | None, momentum: float, engine: type[GraphEngine] | type[StackedEngine], device: str
) -> None:
    """Without a GPU their steps as they stand, not captured; the stacked one with the plain pieces of its kernels."""
    expected = oracle(unequal, clip, momentum, "paper")
    trained, given = engine(made(momentum, clip, "paper", device)), (first_weights("paper"), plan(unequal))
    for found in (trained.train_round(*given, rates_of("paper")) for _ in range(2)):  # the memory is used again
        torch.testing.assert_close(found.stations.cpu(), expected.stations, rtol=1e-4, atol=3e-6)
        np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-4)
        if momentum:
            velocity = found.memory["velocity"].cpu()
            torch.testing.assert_close(velocity, expected.memory["velocity"], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("engine", [PerDeviceEngine, FactoryThreads, StackedEngine])
def test_nothing_moves_at_rate_0(engine: type[PerDeviceEngine] | type[FactoryThreads] | type[StackedEngine]) -> None:
    weights = first_weights("paper")
    found = engine(made(clip=SHORT, model="paper")).train_round(weights, plan(False), 0 * RATES)
    assert torch.equal(found.stations, weights.expand_as(found.stations))


def test_stacked_is_for_the_papers_network_only() -> None:
    with pytest.raises(ConfigError, match="'stacked' is for the paper's CNN"):
        make_engine(made(engine="stacked"))


@pytest.mark.parametrize("has_it", ["avx512_bf16", "amx_bf16", None])
def test_processors_use_bfloat16_where_they_have_it(has_it: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    able = {name: name == has_it for name in ("avx512_bf16", "amx_bf16", "avx2")}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able, raising=False)
    processor_has_bfloat16.cache_clear()
    try:
        training = TrainingSettings(precision="bfloat16", engine="fused")
        engine = make_engine(small_engine_setup(training, TASKS["paper"], "cpu"))
        found = engine.train_round(first_weights("paper"), plan(False), rates_of("paper"))
    finally:
        processor_has_bfloat16.cache_clear()
    engine.close()
    exact = make_engine(made(model="paper", engine="fused")).train_round(
        first_weights("paper"), plan(False), rates_of("paper")
    )
    apart = (found.stations - exact.stations).abs().max() / (exact.stations - first_weights("paper")).abs().max()
    assert found.stations.dtype == torch.float32
    if has_it:  # products have eight bits then
        assert 1e-5 < apart < 0.05
    else:
        assert apart == 0
