"""Baselines in whole rounds: the stack against one device after the other, paired plans, identities."""

from functools import cache

import numpy as np
import pytest
import torch

from fedgs.algorithms import BASELINES
from fedgs.algorithms.client_server import ClientServer
from fedgs.algorithms.run_state import RunState
from fedgs.data import Federation
from fedgs.errors import TrainingError
from fedgs.settings import Settings
from fedgs.simulation.participants import ParticipantPlan
from fedgs.simulation.simulator import Simulator
from fedgs.training import stacked_clients
from fedgs.training.clients import ClientSetup, ClientTraining, Sequential, Trained
from fedgs.training.stacked_clients import StackedTraining, bucket_size
from tests.simulation.small import small_federation, small_rounds, small_settings

FEDERATION = small_federation()
CGAU = ("algorithm.options.pretrain_rounds=1", "algorithm.options.units=32")
PAPER = ("task.model=paper", "training.rounds=1", "algorithm.devices_per_round=3")


def baseline_settings(name: str, *overrides: str) -> Settings:
    common = ["algorithm.local_epochs=2", "algorithm.devices_per_round=10", "training.learning_rate=0.05"]
    extra = CGAU if name.startswith("cgau") else ()
    return small_settings(f"algorithm.name={name}", *common, *extra, *overrides)


@cache
def run(name: str, *overrides: str) -> RunState:
    with Simulator(baseline_settings(name, *overrides), FEDERATION) as simulator:
        return list(simulator.rounds(simulator.begin()))[-1]


CASES = [
    *((name, ()) for name in BASELINES if name != "fedbn"),  # this network has nothing to normalise
    ("fedavg", ("training.momentum=0.5",)),
    ("fedprox", ("training.momentum=0.5", "algorithm.options.mu=0.5")),
    *((name, ("training.clip=0.1",)) for name in ("fedavg", "fedmmd", "cgau", "fedfusion+multi")),
    ("fedprox", ("training.clip=0.1", "training.momentum=0.5", "algorithm.options.mu=0.5")),
    ("fedavg", PAPER),
    ("fedfusion+conv", (*PAPER, "algorithm.options.conv_init=torch_default")),
    ("ida+intrac", ("algorithm.options.train_acc=running",)),
    ("ida", ("algorithm.options.intrac=true", "algorithm.options.norm=l2")),
    ("fedmmd", ("algorithm.options.kernel=adaptive5",)),
    ("fedmmd", ("algorithm.options.layer=hidden", "algorithm.options.kernel=adaptive5")),
    ("cgau", ("algorithm.options.cond_aggregation=owner", "algorithm.options.cond_bias=true")),
    ("cgau", ("algorithm.options.dropout=0.5",)),
    ("cgau", ("algorithm.options.freeze_backbone=true", "algorithm.options.cond_init=zero")),
    ("fedfusion+multi", ("algorithm.options.eval_reference=current", "algorithm.options.ema=0.5")),
    ("scaffold", ("algorithm.options.server_lr=0.5", "algorithm.options.weighting=uniform")),
    ("feddyn", ("training.momentum=0.5", "algorithm.options.alpha=0.5")),
    ("moon", PAPER),
]


@pytest.mark.parametrize(("name", "options"), CASES, ids=[" ".join((name, *extra)) for name, extra in CASES])
def test_the_stack_equals_one_device_after_the_other(name: str, options: tuple[str, ...]) -> None:
    """Two rounds, so that what the server remembers has come round; buckets of unequal devices, short batches."""
    # FedMMD's narrow kernels blow up rounding errors a thousandfold in an epoch: in the first nothing is seen of it.
    length = ("training.rounds=1", "algorithm.local_epochs=1") if name == "fedmmd" else ("training.rounds=2",)
    together, alone = (run(name, *length, *options, *engine) for engine in ((), ("training.engine=per-device",)))
    assert np.allclose(together.weights.numpy(), alone.weights.numpy(), atol=2e-5)
    for fast, slow in zip(together.metrics[1:], alone.metrics[1:], strict=True):
        assert fast["train_loss"] == pytest.approx(slow["train_loss"], rel=1e-4)


def rounds_of(name: str, federation: Federation = FEDERATION) -> ClientServer:
    rounds = small_rounds(baseline_settings(name), federation)
    assert isinstance(rounds, ClientServer)
    return rounds


def one_round(name: str, trainer: type[ClientTraining], threads: int | None = None) -> Trained:
    """Return what the participants of a first round come to."""
    from fedgs.algorithms import Sent

    rounds = rounds_of(name)
    weights = rounds.first_weights(None)
    views = rounds.layout.views(weights)
    sent = Sent({key: weight[None] for key, weight in views.items()}, rounds.begin(weights))
    setup = ClientSetup(
        rounds.network, rounds.baseline, rounds.store, rounds.client_ids, rounds.settings.training, threads=threads
    )
    return trainer(setup).train(sent, ParticipantPlan(FEDERATION, rounds.settings).next_round(), 0.05)


@pytest.mark.parametrize("name", ["fedavg", "ida+intrac", "fedmmd", "cgau", "fedfusion+conv"])
def test_threads_change_no_bit(name: str) -> None:
    reference = one_round(name, StackedTraining, threads=1)
    for threads in (2, 5):
        found = one_round(name, StackedTraining, threads)
        assert all(torch.equal(found.weights[key], weight) for key, weight in reference.weights.items())
        assert np.array_equal(found.losses, reference.losses, equal_nan=True)
        assert found.accuracies is None or np.array_equal(found.accuracies, reference.accuracies)


@pytest.mark.parametrize("bucket", [1, 3, 100])
def test_buckets_change_nothing_beyond_rounding(bucket: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices alone, some together, all together: each has its own weights, losses and accuracy."""
    expected = one_round("ida+intrac", Sequential)
    asked = []
    monkeypatch.setattr(stacked_clients, "bucket_size", lambda *sizes: asked.append(sizes) or bucket)
    found = one_round("ida+intrac", StackedTraining)
    assert len(asked) == 1
    for key, weight in expected.weights.items():
        torch.testing.assert_close(found.weights[key], weight, rtol=1e-4, atol=2e-6)
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-4)
    assert found.accuracies is not None
    assert found.accuracies.tolist() == expected.accuracies.tolist()  # type: ignore[union-attr]


def test_buckets_leave_work_for_all_cores_and_fit_the_caches() -> None:
    assert bucket_size(100, 60_000) == 12
    assert bucket_size(12, 60_000) == 1  # not one bucket of all, which would keep one core busy alone
    assert bucket_size(20, 60_000) == 2
    assert bucket_size(100, 6_600_000) == 1
    assert bucket_size(3, 10) == 1


def test_participants_and_batches_are_the_same_for_all_baselines() -> None:
    """Curves are paired: at a seed every baseline sees the same devices, in the same rounds, on the same batches."""
    plans = []
    for name in BASELINES:
        plan = ParticipantPlan(FEDERATION, baseline_settings(name))
        plans.append([plan.next_round() for _ in range(3)])
    for others in plans[1:]:
        for one, other in zip(plans[0], others, strict=True):
            assert np.array_equal(one.devices, other.devices)
            assert np.array_equal(one.samples, other.samples)
    lines = [run(name, "training.rounds=2").metrics for name in ("fedavg", "fedadam", "fedfusion+conv")]
    for key in ("divergence", "samples", "selections"):
        assert len({str([line[key] for line in metrics[1:]]) for metrics in lines}) == 1
    again = ParticipantPlan(FEDERATION, baseline_settings("fedavg", "seed=1")).next_round()
    assert again.devices.tolist() != plans[0][0].devices.tolist()


def test_a_plan_has_every_sample_once_an_epoch_and_keeps_the_short_batch() -> None:
    plan = ParticipantPlan(FEDERATION, baseline_settings("fedavg"))
    first, second = plan.next_round(), plan.next_round()
    for one in (first, second):
        assert len(set(one.devices.tolist())) == 10
        assert (np.diff(one.steps) <= 0).all()  # those with most steps first
        for place, device in enumerate(one.devices.tolist()):
            own, steps = FEDERATION.train_indices(device), int(one.epoch_steps[place])
            assert steps == -(-len(own) // 5)
            assert one.num_samples[place] == len(own)
            epochs = one.samples[: 2 * steps, place].reshape(2, -1)
            for epoch in epochs:
                assert sorted(epoch[epoch >= 0].tolist()) == sorted(own.tolist())
            assert epochs[0].tolist() != epochs[1].tolist()  # shuffled anew
            assert one.sizes[steps - 1, place] == (len(own) - 1) % 5 + 1
            assert (one.sizes[2 * steps :, place] == 0).all()
    assert sorted(first.devices.tolist()) != sorted(second.devices.tolist())
    pooled = FEDERATION.train_counts[first.devices].sum(axis=0)
    assert first.divergence == pytest.approx(float(np.linalg.norm(pooled / pooled.sum() - FEDERATION.p_real())))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedprox", ["algorithm.options.mu=0"]),
        ("fedmmd", ["algorithm.options.gamma=0"]),
        ("ida+fedavg", None),  # not FedAvg: the comparison below can fail
    ],
)
def test_what_must_be_fedavg_is_fedavg_bit_for_bit(name: str, options: list[str] | None) -> None:
    """§1.6: FedProx with μ = 0, FedMMD with γ = 0."""
    plain, found = run("fedavg", "training.rounds=2"), run(name, "training.rounds=2", *(options or []))
    assert torch.equal(found.weights, plain.weights) == (options is not None)
    if options is not None and name == "fedprox":
        assert found.metrics == plain.metrics


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedavgm", ["beta=0", "server_lr=1.0", "client_lr=0.05"]),
        ("fedadagrad", ["v_init=zero", "tau=1e5", "server_lr=1e5", "client_lr=0.05"]),
    ],
)
def test_what_tends_to_fedavg_is_near_it(name: str, options: list[str]) -> None:
    """§1.6: FedAvgM with β = 0 and server rate 1; FedAdagrad with v = 0, τ → ∞ and server rate τ."""
    found = run(name, "training.rounds=2", *(f"algorithm.options.{option}" for option in options))
    plain = run("fedavg", "training.rounds=2")
    torch.testing.assert_close(found.weights, plain.weights, rtol=0, atol=2e-6)


def test_fednova_differs_where_devices_make_unequal_steps() -> None:
    found, plain = run("fednova", "training.rounds=2"), run("fedavg", "training.rounds=2")
    assert not torch.allclose(found.weights, plain.weights, atol=1e-5)
    assert torch.allclose(found.weights, plain.weights, atol=0.1)


def test_a_frozen_backbone_stays_and_a_pretrained_one_is_fedavgs() -> None:
    frozen = "algorithm.options.freeze_backbone=true"
    settings = baseline_settings("cgau", "training.rounds=2", frozen)
    with Simulator(settings, FEDERATION) as simulator:
        begun = simulator.begin()
        ended = list(simulator.rounds(begun))[-1]
        before, after = (simulator.layout.views(state.weights) for state in (begun, ended))
    for name in before:
        assert torch.equal(before[name], after[name]) == name.startswith(("conv", "dense")), name
    with Simulator(baseline_settings("fedavg", "training.rounds=1"), FEDERATION, purpose="pretrain") as simulator:
        trained = list(simulator.rounds(simulator.begin()))[-1]
        plain = simulator.layout.views(trained.weights)
    assert all(torch.equal(before[name], plain[name]) for name in before if name.startswith(("conv", "dense")))


def test_a_device_is_known_by_the_place_of_its_name() -> None:
    """However the devices are dealt to factories, a column belongs to a name."""
    other = small_federation(factories=2, seed=3)
    for federation in (FEDERATION, other):
        rounds = rounds_of("cgau", federation)
        names = sorted(federation.device_names)
        assert [names[number] for number in rounds.client_ids] == list(federation.device_names)


def test_rates_of_a_round() -> None:
    """client_lr before algorithm.learning_rate before training.learning_rate; a schedule counts rounds."""
    for overrides, expected in (
        ([], 0.05),
        (["algorithm.learning_rate=0.2"], 0.2),
        (["algorithm.learning_rate=0.2", "algorithm.options.client_lr=0.3"], 0.3),
        (["training.schedule.warmup=4"], 0.0125),
        (["training.schedule.kind=step", "training.schedule.every=1"], 0.05),
    ):
        assert run("fedavg", "training.rounds=1", *overrides).metrics[-1]["learning_rate"] == pytest.approx(expected)


def test_a_loss_that_explodes_names_the_device_and_the_setting() -> None:
    for overrides, setting in (
        (["training.learning_rate=1e18"], "training.learning_rate"),
        (["algorithm.learning_rate=1e18"], "algorithm.learning_rate"),
        (["algorithm.options.client_lr=1e18"], "algorithm.options.client_lr"),
    ):
        with pytest.raises(TrainingError, match=rf"round 1: the loss of device 'device-\d\d'.*lower {setting}$"):
            run("fedavg", *overrides)
