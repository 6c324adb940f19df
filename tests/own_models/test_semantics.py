"""What must hold for any network: buffers, frozen weights, train and eval mode, randomness, what stays on a device."""

import copy
import random
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedgs
from fedgs.algorithms.fedavg import FedAvg
from fedgs.errors import CheckpointError, ConfigError, DataError
from fedgs.simulation.run import settings_for
from fedgs.simulation.selection_plan import SelectionPlan
from fedgs.tasks.bind import bind
from fedgs.training.engine import Setup
from fedgs.training.fused import FactoryThreads
from fedgs.training.layout import Layout
from fedgs.training.network import ModuleNetwork, as_a_gpu_reads, sharing_copy
from fedgs.training.per_device import PerDeviceEngine
from fedgs.training.probe import SAMPLES, probe
from fedgs.training.store import SampleStore
from tests.own_models.networks import CASES, CLASSES, Case, Dropping, Frozen, Signal, Table

QUICK: dict[str, Any] = {
    "rounds": 2, "iterations": 3, "batch_size": 4, "pick": 2, "learning_rate": 0.05, "device": "cpu",
}  # fmt: skip


def run(name: str, **options: Any) -> fedgs.History:
    return fedgs.run(CASES[name].task, CASES[name].federation(), **{**QUICK, **options})


def fast_and_slow(
    task: fedgs.Task, federation: fedgs.Federation, atol: float = 1e-6, **options: Any
) -> tuple[fedgs.History, fedgs.History]:
    """Run with the engine that is chosen and with the oracle, which must come to the same weights."""
    fast, slow = (
        fedgs.run(task, federation, **{**QUICK, **options}, engine=engine) for engine in ("auto", "per-device")
    )
    for name in fast.weights:
        torch.testing.assert_close(fast.weights[name], slow.weights[name], rtol=max(1e-4, 10 * atol), atol=atol)
    return fast, slow


def test_calibration_with_more_outputs_than_classes_is_one_line() -> None:
    case = CASES["mlp on tables"]
    inputs = case.federation().inputs.shape[1]
    task = fedgs.classification(nn.Linear(inputs, CLASSES + 5))
    fedgs.run(task, case.federation(), **QUICK)
    with pytest.raises(ConfigError, match=f"{CLASSES} classes, and the network gives {CLASSES + 5}; set it to"):
        fedgs.run(task, case.federation(), **QUICK, settings={"training": {"calibration": 1.0}})


def test_buffers_are_averaged_by_samples_and_counters_take_the_greatest() -> None:
    """One round of FedAvg with one local epoch, worked out with plain torch."""
    case = CASES["1-D CNN with BatchNorm"]
    federation = case.federation()
    history = fedgs.run(
        case.task, federation, algorithm="fedavg", **{**QUICK, "rounds": 1, "batch_size": 100},
        settings={"algorithm": {"local_epochs": 3, "devices_per_round": 8}},
    )  # fmt: skip
    first = bind(case.task, federation, 0).module
    sizes, means, counters, weights = federation.train.sizes, [], [], []
    for device in range(len(federation)):
        model = copy.deepcopy(first).train()
        # One batch holds all samples of a device.
        train_with_torch(model, torch.optim.SGD(model.parameters(), 0.05), federation, [federation.train[device]] * 3)
        means.append(model.body[1].running_mean.detach().double())
        counters.append(int(model.body[1].num_batches_tracked))
        weights.append(model.fc.weight.detach().double())
    found = history.model
    for name, each in (("body.1.running_mean", means), ("fc.weight", weights)):
        expected = sum(size / sizes.sum() * one for size, one in zip(sizes, each, strict=True))
        torch.testing.assert_close(found.state_dict()[name].double(), expected, rtol=1e-4, atol=1e-6)
    assert int(found.get_buffer("body.1.num_batches_tracked")) == max(counters) == 3


def test_a_station_counts_its_steps_and_its_statistics_move() -> None:
    history = run("1-D CNN with BatchNorm")
    model = history.model
    assert int(model.get_buffer("body.1.num_batches_tracked")) == 2 * 3  # the same in all devices of a team
    assert not model.training
    assert float(model.get_buffer("body.1.running_mean").abs().max()) > 0.01


def test_frozen_weights_neither_train_nor_travel() -> None:
    case = CASES["frozen backbone"]
    first = bind(case.task, case.federation(), 0).module
    for algorithm in ("fedgs", "fedavg"):
        history = run("frozen backbone", algorithm=algorithm)
        trained = history.model
        assert torch.equal(trained.get_parameter("backbone.0.weight"), first.get_parameter("backbone.0.weight"))
        assert not torch.equal(trained.get_parameter("head.weight"), first.get_parameter("head.weight"))
        assert history.finished is not None
        assert set(history.finished.layout.names) == {"head.weight", "head.bias"}  # of checkpoints and messages
        sent = history.summary["traffic"]["device_station_up"]
        times = history.summary["selection"]
        assert sent > 0
        assert times["never_selected"] <= 8
        head = 4 * (12 * CLASSES + CLASSES)
        assert sent % head == 0  # kilobytes, not the backbone


def test_a_backbone_that_was_trained_elsewhere_comes_along_with_the_model(tmp_path: Path) -> None:
    """The files of a run, and its identity, have the frozen weights of a module in them: its name makes others."""
    federation, rows = CASES["frozen backbone"].federation(), torch.randn(5, 6)
    given, other = Frozen(), Frozen()
    history = fedgs.run(fedgs.classification(given, CLASSES), federation, **QUICK)
    history.save(tmp_path / "run")
    with torch.no_grad():
        wanted = history.model(rows)
        assert torch.equal(fedgs.load_history(tmp_path / "run").model(rows), wanted)
    file = history.export(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(fedgs.load_model(file).predict(rows.numpy()).outputs, wanted.numpy())
    assert torch.equal(history.model.get_parameter("backbone.0.weight"), given.backbone[0].weight)
    for task in (None, fedgs.classification(other, CLASSES)):
        with pytest.raises(CheckpointError, match="frozen weights"):
            fedgs.resume(tmp_path / "run", task, federation, device="cpu")
    fedgs.resume(tmp_path / "run", fedgs.classification(given, CLASSES), federation, device="cpu")


class Inner(nn.Module):
    """Has a part of the name that normalising gives to the whole network."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.network = nn.Embedding(5, 3), nn.Linear(9, CLASSES)

    def forward(self, words: Tensor, rows: Tensor) -> Tensor:
        outputs: Tensor = self.network(torch.cat([self.words(words).mean(1), rows], 1))
        return outputs


@pytest.mark.parametrize("normalise", ["none", "per-channel"])
def test_a_model_is_made_again_whatever_its_parts_are_called(normalise: str, tmp_path: Path) -> None:
    """Of words and signals only the signals are normalised."""
    federation = CASES["mlp on tables"].federation()
    inputs = (federation.targets[:, None] + np.arange(2), federation.inputs)
    both = fedgs.Federation.from_arrays(inputs, federation.targets, devices=np.arange(100) % 8, factories=2)
    history = fedgs.run(
        fedgs.classification(Inner, CLASSES), both, **QUICK, settings={"data": {"normalise": normalise}}
    )
    history.save(tmp_path / "run")
    batch = [torch.from_numpy(inputs[0][:5]), torch.from_numpy(inputs[1][:5]).float()]
    with torch.no_grad():
        assert torch.equal(fedgs.load_history(tmp_path / "run").model(*batch), history.model(*batch))


def test_tied_weights_stay_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(6, 6)
            self.two = nn.Linear(6, 6)
            self.two.weight = self.one.weight
            self.fc = nn.Linear(6, CLASSES)

        def forward(self, rows: Tensor) -> Tensor:
            outputs: Tensor = self.fc(torch.tanh(self.two(torch.tanh(self.one(rows)))))
            return outputs

    case = Case(Tied, (6,))
    history, _ = fast_and_slow(case.task, case.federation())
    assert history.model.one.weight is history.model.two.weight  # type: ignore[union-attr]
    assert "two.weight" not in history.weights


@pytest.mark.parametrize("named", [False, True])
def test_several_inputs(named: bool) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.signal, self.table = nn.Linear(8, 6), nn.Linear(3, 6)
            self.fc = nn.Linear(6, CLASSES)

        def forward(self, signal: Tensor, table: Tensor) -> Tensor:
            outputs: Tensor = self.fc(torch.tanh(self.signal(signal) + self.table(table)))
            return outputs

    draws = np.random.default_rng(1)
    labels = draws.integers(0, CLASSES, 96)
    signal = (draws.normal(size=(96, 8)) + labels[:, None]).astype(np.float32)
    table = draws.normal(size=(96, 3))
    inputs: Any = {"table": table, "signal": signal} if named else (signal, table)
    federation = fedgs.Federation.from_arrays(inputs, labels, devices=np.arange(96) % 8, factories=2)
    task = fedgs.classification(Two, CLASSES)
    for algorithm in ("fedgs", "fedprox"):
        fast_and_slow(task, federation, algorithm=algorithm)


class Modes(nn.Module):
    """Notes in which mode it is called, and whether gradients are wanted."""

    seen: ClassVar[set[tuple[bool, bool]]] = set()

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        Modes.seen.add((self.training, torch.is_grad_enabled()))
        outputs: Tensor = self.fc(rows)
        return outputs


class Forget(fedgs.Callback):
    """Forgets what was seen while the network was tried out."""

    def on_begin(self, run: Any) -> None:
        Modes.seen.clear()


@pytest.mark.parametrize("algorithm", ["fedgs", "fedavg", "fedmmd"])
@pytest.mark.parametrize("engine", ["auto", "per-device"])
def test_train_mode_while_training_and_eval_mode_while_testing(algorithm: str, engine: str) -> None:
    """FedMMD's second stream is the frozen global model: in eval mode, without a gradient."""
    task = fedgs.classification(Modes, CLASSES)
    fedgs.run(
        task, CASES["frozen backbone"].federation(), algorithm=algorithm, engine=engine, **QUICK, callbacks=[Forget()]
    )
    assert Modes.seen == {(True, True), (False, False)}


def test_dropout_is_off_in_tests_and_drawn_from_the_seed() -> None:
    case = Case(lambda: Dropping(0.5), (8, 8), "uint8")
    one, again = (fedgs.run(case.task, case.federation(), **QUICK) for _ in range(2))
    other = fedgs.run(case.task, case.federation(), **QUICK, seed=1)
    assert one.metrics == again.metrics  # the same seed, the same run
    assert all(torch.equal(one.weights[name], again.weights[name]) for name in one.weights)
    assert one.metrics[1]["train_loss"] != other.metrics[1]["train_loss"]
    plain = fedgs.run(Case(lambda: Dropping(0.0), (8, 8), "uint8").task, case.federation(), **QUICK)
    assert one.metrics[0] == plain.metrics[0]  # the same first weights, tested without dropout
    assert one.metrics[1]["train_loss"] != plain.metrics[1]["train_loss"]


@pytest.mark.parametrize("algorithm", ["fedgs", "fedavg"])
def test_dropout_does_not_depend_on_threads(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(lambda: Dropping(0.5), (8, 8), "uint8")
    found = []
    for cores in (1, 3):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        found.append(fedgs.run(case.task, case.federation(), algorithm=algorithm, **QUICK).weights)
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_dropout_of_engines_is_equal_in_distribution() -> None:
    """The mean over many draws of a step's change is the same on the union batch and device by device."""
    case = Case(lambda: Dropping(0.5), (8, 8), "uint8")
    task, cpu = bind(case.task, case.federation(), 0), torch.device("cpu")
    settings = settings_for(task.federation, {"training": {"iterations": 1, "batch_size": 4}}, {"selection.pick": 2})
    network, store, plan = ModuleNetwork(task, cpu), SampleStore(task, cpu), SelectionPlan(task.federation, settings)
    first, schedule = network.layout.of_module(task.module), plan.next_round()
    changes = []
    for kind in (FactoryThreads, PerDeviceEngine):
        engines = [kind(Setup(network, store, settings.training, seed=seed, threads=1)) for seed in range(60)]
        ends = torch.stack([engine.train_round(first, schedule, np.array([0.05])).stations[0] for engine in engines])
        changes.append(network.layout.views(ends - first)["layers.6.weight"])
        for engine in engines:
            engine.close()
    difference = (changes[0].mean(0) - changes[1].mean(0)).abs()
    spread = torch.sqrt((changes[0].var(0) + changes[1].var(0)) / 60)
    assert float((difference / spread.clamp(min=1e-6)).mean()) < 1.5  # of a standard normal: 0.8
    assert float(changes[0].std(0).min()) > 0


def test_functional_dropout_is_found_and_reproducible() -> None:
    masks: list[Tensor] = []

    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(6, CLASSES)

        def forward(self, rows: Tensor) -> Tensor:
            dropped = nn.functional.dropout(rows, 0.5, self.training)
            if self.training:
                masks.append(dropped == 0)
            outputs: Tensor = self.fc(dropped)
            return outputs

    case = Case(Hidden, (6,))
    task = bind(case.task, case.federation(), 0)
    traits = probe(task)
    assert traits.draws_elsewhere
    assert not traits.mixes_samples
    state = torch.get_rng_state()
    one, again = (fedgs.run(case.task, case.federation(), **QUICK) for _ in range(2))
    assert one.metrics == again.metrics
    steps = masks[-QUICK["rounds"] * QUICK["iterations"] * 2 :]  # of two factories; those before are the probe's
    assert len({mask.numpy().tobytes() for mask in steps}) == len(steps)
    assert torch.equal(torch.get_rng_state(), state)  # the user's own generator is left alone


class Tripled(nn.Dropout):
    """A child of a dropout layer that does something else."""

    def forward(self, rows: Tensor) -> Tensor:
        return 3 * rows


class Locked(nn.Dropout):
    """Drops the same columns in all rows."""

    def forward(self, rows: Tensor) -> Tensor:
        return rows * torch.empty(1, rows.shape[1]).bernoulli_(1 - self.p) if self.training else rows


class Drawing(nn.Module):
    """Draws random numbers in training, in one way or another."""

    def __init__(self, how: str) -> None:
        super().__init__()
        drop: nn.Module = Locked(0.5) if how == "own layer" else nn.Dropout(0.5 if how == "used twice" else 0.0)
        self.layers, self.how = nn.Sequential(nn.Linear(6, 8), drop, nn.Linear(8, 8), drop, nn.Linear(8, CLASSES)), how

    def forward(self, rows: Tensor) -> Tensor:
        if self.training and self.how == "numpy":
            rows = rows * torch.from_numpy(np.random.rand(*rows.shape)).float()  # noqa: NPY002
        if self.training and self.how == "Python":
            rows = rows * random.random()
        outputs: Tensor = self.layers(rows)
        return outputs


@pytest.mark.parametrize("how", ["used twice", "own layer", "numpy", "Python"])
def test_whatever_a_network_draws_follows_the_seed(how: str) -> None:
    case = Case(lambda: Drawing(how), (6,))
    found = []
    for seed in range(2):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        found.append([fedgs.run(case.task, case.federation(), algorithm=name, **QUICK) for name in ("fedgs", "fedavg")])
        assert random.random() == random.Random(seed).random()  # the user's own generators are left alone
    assert [one.metrics for one in found[0]] == [one.metrics for one in found[1]]
    reads = probe(bind(case.task, case.federation())).reads_values
    assert reads == (f"its training draws from the generator of {how}" if how in ("numpy", "Python") else "")


def test_a_child_of_a_dropout_layer_stays_what_it_is() -> None:
    federation = CASES["mlp on tables"].federation()
    one, other = (
        fedgs.run(
            fedgs.classification(lambda last=last: nn.Sequential(nn.Linear(6, CLASSES), last), CLASSES),
            federation,
            **QUICK,
        )
        for last in (Tripled(0.0), Times())
    )
    assert one.metrics == other.metrics


class Times(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        return 3 * rows


def test_a_network_that_mixes_samples_without_a_known_layer_is_found() -> None:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(6, CLASSES)

        def forward(self, rows: Tensor) -> Tensor:
            outputs: Tensor = self.fc(rows - rows.mean(0))
            return outputs

    case = Case(Centred, (6,))
    task = bind(case.task, case.federation(), 0)
    assert "depends on the other samples" in probe(task).mixes_samples
    fast_and_slow(case.task, case.federation())
    with pytest.raises(ConfigError, match="takes a team's batches as one"):
        fedgs.run(case.task, case.federation(), **QUICK, engine="fused")


class Noisy(Table):
    """Mixes samples in training alone, where it draws random numbers."""

    def forward(self, rows: Tensor) -> Tensor:
        if self.training:
            rows = rows - rows.mean(0) + 0.1 * torch.randn(rows.shape)
        return super().forward(rows)


class Gated(Table):
    """Mixes samples behind a gate that is shut at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows + self.gate * rows.mean(0))


def centred_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs - outputs.mean(0), targets, reduction="none")


def noise(rows: Tensor, generator: torch.Generator) -> Tensor:
    return rows + 0.1 * torch.randn(rows.shape, generator=generator)


def mixup(rows: Tensor, generator: torch.Generator) -> Tensor:
    return rows + 0.5 * rows[torch.randperm(len(rows), generator=generator)]


@pytest.mark.parametrize(
    ("task", "what"),
    [
        (fedgs.Task(Table, loss=centred_loss), "task.loss centred_loss"),
        (fedgs.Task(Table, loss=lambda o, t: centred_loss(o, t) / len(o)), "task.loss"),
        (fedgs.Task(Table, prepare=lambda raw: raw.float() - raw.float().mean(0)), "task.prepare"),
        (fedgs.Task(Table, augment=lambda rows, generator: rows + 0.5 * rows.flip(0)), "task.augment"),
        (fedgs.Task(Table, augment=mixup), "task.augment"),
        (fedgs.Task(Noisy), "the network's output"),
        (fedgs.Task(Gated), "the network's output"),
    ],
    ids=["loss", "size of a batch", "prepare", "augment", "mixup", "noisy network", "shut gate"],
)
def test_whatever_mixes_samples_is_found(task: fedgs.Task, what: str) -> None:
    """Devices whose samples are all of one class do not hide it."""
    federation = CASES["mlp on tables"].federation()
    order = np.argsort(federation.targets, kind="stable")
    skewed = fedgs.Federation.from_arrays(
        federation.inputs[order], federation.targets[order], devices=np.arange(len(order)) // 20, factories=2
    )
    assert probe(bind(task, skewed)).mixes_samples.startswith(what)
    with pytest.raises(ConfigError, match=f"as one, but {what}"):
        fedgs.run(task, skewed, **QUICK, engine="fused")
    if task.augment is None and task.model is not Noisy:  # where nothing is drawn, engines come to the same weights
        fast_and_slow(task, skewed)


def test_random_changes_of_single_samples_mix_nothing() -> None:
    federation = CASES["mlp on tables"].federation()
    assert not probe(bind(fedgs.Task(Table, augment=noise), federation)).mixes_samples
    with pytest.raises(ConfigError, match=r"task\.prepare: draws random numbers"):
        probe(bind(fedgs.Task(Table, prepare=lambda raw: noise(raw.float(), None)), federation))  # type: ignore[arg-type]


def test_losses_that_cannot_be_right_are_refused() -> None:
    federation = CASES["mlp on tables"].federation()
    crossed = fedgs.Task(lambda: nn.Linear(6, 1), loss=lambda o, t: ((o - t) ** 2).mean(-1))
    with pytest.raises(ConfigError, match="compares every sample with the targets of all"):
        fedgs.run(crossed, federation, **QUICK)
    with pytest.raises(ConfigError, match="has no gradient"):
        fedgs.run(fedgs.Task(Table, loss=lambda o, t: centred_loss(o.detach(), t)), federation, **QUICK)


def flipped(inputs: Tensor, generator: torch.Generator) -> Tensor:
    return inputs.flip(1) if torch.rand((), generator=generator) < 0.5 else inputs


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"augment": flipped}, "(bool)"),
        ({"prepare": lambda raw: raw.float() / float(raw.abs().max())}, "(float)"),
        (
            {"loss": lambda o, t: nn.functional.cross_entropy(o * o.new_tensor(2.0), t, reduction="none")},
            "(new_tensor)",
        ),
        ({"loss": lambda o, t: torch.zeros_like(o[:, 0]).index_add(0, torch.where(t > 0)[0], o[t > 0, 0])}, "(where)"),
        ({"augment": lambda inputs, generator: inputs * random.random()}, "generator of Python"),
    ],
)
def test_what_no_captured_graph_can_hold_is_found_in_every_part_of_a_step(fields: dict[str, Any], word: str) -> None:
    """A GPU then runs the step without a graph."""
    assert word in probe(bind(fedgs.Task(Table, **fields), CASES["mlp on tables"].federation(), 0)).reads_values


@pytest.mark.parametrize("algorithm", ["fedgs", "fedavg"])
def test_an_augmentation_that_ignores_its_generator_follows_the_seed_too(algorithm: str) -> None:
    task = fedgs.Task(Table, augment=lambda inputs, generator: inputs + torch.randn_like(inputs))
    found = []
    for seed in range(2):
        torch.manual_seed(seed)
        found.append(fedgs.run(task, CASES["mlp on tables"].federation(), algorithm=algorithm, **QUICK).metrics)
    assert found[0] == found[1]


def test_a_forward_pass_that_takes_derivatives_is_tested_too() -> None:
    class Derived(nn.Module):
        """Its outputs are derivatives of an energy."""

        def __init__(self) -> None:
            super().__init__()
            self.energy = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

        def forward(self, rows: Tensor) -> Tensor:
            with torch.enable_grad():
                at = rows.detach().requires_grad_()
                (slopes,) = torch.autograd.grad(self.energy(at).sum(), at, create_graph=True)
            return slopes[:, :CLASSES]

    fast_and_slow(fedgs.classification(Derived, CLASSES), CASES["mlp on tables"].federation())


def test_python_that_reads_values_is_found() -> None:
    class Reads(Table):
        def forward(self, rows: Tensor) -> Tensor:
            return super().forward(rows if float(rows.sum()) > 0 else -rows)

    task = bind(fedgs.classification(Reads, CLASSES), CASES["mlp on tables"].federation(), 0)
    assert "(float)" in probe(task).reads_values

    class Masks(Table):
        def forward(self, rows: Tensor) -> Tensor:
            outputs = super().forward(rows)
            outputs[outputs > 100] = 100.0
            return outputs + 0 * rows[rows > 0].mean()

    masked = bind(fedgs.classification(Masks, CLASSES), CASES["mlp on tables"].federation(), 0)
    assert "True and False" in probe(masked).reads_values
    plain = bind(CASES["mlp on tables"].task, CASES["mlp on tables"].federation(), 0)
    assert not probe(plain).reads_values


def test_a_last_batch_of_one_sample_is_left_out_where_the_network_cannot_train_on_it() -> None:
    class Normalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, CLASSES))

        def forward(self, rows: Tensor) -> Tensor:
            outputs: Tensor = self.layers(rows)
            return outputs

    draws = np.random.default_rng(0)
    devices = np.repeat(np.arange(6), [9, 13, 8, 17, 5, 12])
    rows, labels = draws.normal(size=(len(devices), 6)).astype(np.float32), draws.integers(0, CLASSES, len(devices))
    test = np.zeros(len(devices), bool)
    test[[0, 10, 24]] = True
    federation = fedgs.Federation.from_arrays(rows, labels, devices=devices, factories=2, test=test)
    assert (federation.train.sizes % 4 == 1).any()
    task = fedgs.classification(Normalised, CLASSES)
    for engine in ("auto", "per-device"):
        history = fedgs.run(task, federation, algorithm="fedavg", **QUICK, engine=engine)
        assert np.isfinite(history.metrics[-1]["train_loss"])
    alone = fedgs.Federation.from_arrays(
        rows, labels, devices=np.r_[np.zeros(len(devices) - 1, int), 7], factories=1, test=test
    )
    with pytest.raises(DataError, match="device '7' has 1 training samples; this network needs batches"):
        fedgs.run(task, alone, algorithm="fedavg", **{**QUICK, "pick": 1})


@pytest.mark.parametrize("algorithm", ["fedgs", "fedavg"])
def test_what_devices_keep_to_themselves(algorithm: str) -> None:
    """FedBN: statistics, and scale and shift, stay where they are; every device is tested with its own."""
    case = CASES["1-D CNN with BatchNorm"]
    task = fedgs.classification(Signal, CLASSES, keep_local=["body.1.*", "body.4.*"])
    federation = case.federation()
    history, slow = fast_and_slow(task, federation, 1e-5, algorithm=algorithm)
    state, slow_state = (one.finished.state for one in (history, slow))  # type: ignore[union-attr]
    local = state.local
    assert local is not None
    torch.testing.assert_close(local, slow_state.local, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state.weights, slow_state.weights, rtol=1e-4, atol=1e-5)
    assert len({tuple(row) for row in local.tolist()}) > 1  # devices differ
    first = bind(task, federation, 0)
    layout = Layout.of(first.module, task.keep_local)
    start = layout.of_module(first.module)
    places = torch.from_numpy(layout.local_places)
    assert torch.equal(state.weights[places], start[places])  # the server has never seen them
    shared = run("1-D CNN with BatchNorm", algorithm=algorithm)
    normalised = fedgs.run(
        task, federation, algorithm=algorithm, **QUICK, settings={"data": {"normalise": "per-channel"}}
    )
    names = normalised.finished.layout.local  # type: ignore[union-attr]
    assert names == {f"network.{name}" for name in layout.local}
    ratio = history.summary["traffic"]["device_station_up"] / shared.summary["traffic"]["device_station_up"]
    assert ratio == pytest.approx(layout.shared_size / layout.size)
    assert history.metrics[-1]["loss"] == pytest.approx(slow.metrics[-1]["loss"], rel=1e-4)


def test_a_server_rule_and_a_pull_know_nothing_of_what_devices_keep() -> None:
    """One round of FedProx, worked out with plain torch: one batch holds all samples of a device."""
    seen, federation = set[str](), CASES["mlp on tables"].federation()
    task = fedgs.classification(Table, CLASSES, keep_local=["layers.3.*"])

    class Noting(FedAvg):
        def update(self, state: Any, weights: Any, uploads: Any) -> Any:
            seen.update(weights, *(upload.weights for upload in uploads))
            return super().update(state, weights, uploads)

    found = fedgs.run(
        task, federation, algorithm=fedgs.FedProx(mu=5.0, rule=Noting()), **{**QUICK, "batch_size": 100, "rounds": 2},
        settings={"algorithm": {"local_epochs": 3, "devices_per_round": 8}},
    )  # fmt: skip
    assert seen == {"layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"}
    sent = bind(task, federation, 0).module
    models = [copy.deepcopy(sent) for _ in range(len(federation))]
    shares = federation.train.sizes / federation.train.sizes.sum()
    for _ in range(2):
        for device, model in enumerate(models):
            with torch.no_grad():
                for name in seen:
                    model.get_parameter(name).copy_(sent.get_parameter(name))
            for _ in range(3):
                before = copy.deepcopy(model)
                train_with_torch(
                    model, torch.optim.SGD(model.parameters(), 0.05), federation, [federation.train[device]]
                )
                with torch.no_grad():
                    for name in seen:
                        away = before.get_parameter(name) - sent.get_parameter(name)
                        model.get_parameter(name).sub_(5.0 * 0.05 * away)
        with torch.no_grad():
            for name in seen:
                parts = zip(shares, models, strict=True)
                sent.get_parameter(name).copy_(sum(share * one.get_parameter(name).double() for share, one in parts))
    for name in ("layers.0.weight", "layers.3.weight"):
        each = torch.stack([model.get_parameter(name) for model in models]).mean(0)
        wanted = sent.get_parameter(name) if name in seen else each
        torch.testing.assert_close(found.weights[name], wanted, rtol=1e-4, atol=1e-6, check_dtype=False)


class Unused(Table):
    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(3, 3)


@pytest.mark.parametrize("engine", ["auto", "clients"])
@pytest.mark.parametrize(
    ("task", "settings"),
    [
        (fedgs.classification(Unused, CLASSES), {"weight_decay": 0.1}),
        (fedgs.classification(Unused, CLASSES), {"weight_decay": 0.1, "optimizer": "adamw"}),
        (fedgs.classification(Table, CLASSES, keep_local=["layers.3.*"]), {"clip": 0.1}),
    ],
    ids=["unused weight decays", "with adamw", "clipping sees what is sent"],
)
def test_a_station_treats_all_weights_it_has_alike(task: fedgs.Task, settings: dict[str, Any], engine: str) -> None:
    federation = CASES["mlp on tables"].federation()
    found = [
        fedgs.run(task, federation, **QUICK, engine=name, settings={"training": settings}).weights
        for name in (engine, "per-device")
    ]
    for name, value in found[0].items():
        torch.testing.assert_close(value, found[1][name], rtol=1e-4, atol=1e-6)
    first = bind(task, federation).module.state_dict()
    assert all(not torch.equal(value, first[name]) for name, value in found[0].items())


def test_patterns_that_cannot_be_kept() -> None:
    federation = CASES["mlp on tables"].federation()
    for patterns, words in ((["*.running_*"], "fits no weight"), (["*"], "nothing is left to learn together")):
        with pytest.raises(ConfigError, match=words):
            fedgs.run(fedgs.classification(Table, CLASSES, keep_local=patterns), federation, **QUICK)


def test_first_weights_are_the_modules_own_under_the_runs_seed() -> None:
    task = CASES["mlp on tables"].task
    federation = CASES["mlp on tables"].federation()
    torch.manual_seed(123)
    one = bind(task, federation, 0).module.state_dict()
    torch.manual_seed(456)
    again, other = bind(task, federation, 0).module.state_dict(), bind(task, federation, 1).module.state_dict()
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["layers.0.weight"], other["layers.0.weight"])
    assert torch.equal(one["layers.1.weight"], torch.ones(16))  # a norm's scale begins at 1
    given = Table()
    kept = bind(fedgs.classification(given, CLASSES), federation, 0).module.state_dict()
    assert all(torch.equal(kept[name], value) for name, value in given.state_dict().items())


def test_group_normalisation_learns() -> None:
    """Its scale was once set to zero with all other vectors, and training stood still without a word."""
    case = CASES["ResNet-8 with GroupNorm"]
    history = fedgs.run(case.task, case.federation(), **{**QUICK, "rounds": 16, "iterations": 10})
    assert history.metrics[-1]["train_loss"] < 0.8 * history.metrics[1]["train_loss"]


def test_the_linear_network_runs_everywhere() -> None:
    for shape, kind in (((8, 8), "uint8"), ((6,), "float32"), ((2, 5), "float64")):
        case = Case(nn.Identity, shape, kind)
        task = fedgs.classification("linear", CLASSES)
        for algorithm in ("fedgs", "fedavg", "fedmmd"):
            history = fedgs.run(task, case.federation(), algorithm=algorithm, **QUICK)
            assert history.metrics[-1]["train_loss"] < history.metrics[0]["loss"] + 0.5
            assert set(history.weights) == {"dense.weight", "dense.bias"}


def test_augmentation_is_for_training_alone_and_follows_the_seed() -> None:
    case = CASES["mlp on tables"]
    calls: list[int] = []

    def jitter(rows: Tensor, generator: torch.Generator) -> Tensor:
        calls.append(len(rows))
        return rows + 0.1 * torch.randn(rows.shape, generator=generator)

    task = fedgs.classification(Table, CLASSES, augment=jitter)
    one, again = (fedgs.run(task, case.federation(), **QUICK) for _ in range(2))
    assert one.metrics == again.metrics
    trained = [size for size in calls if size > SAMPLES]  # the others are the probe's
    assert len(trained) == 2 * 2 * 2 * 3  # runs, rounds, factories, iterations: never in a test
    plain = run("mlp on tables")
    assert one.metrics[0] == plain.metrics[0]
    assert one.metrics[1]["train_loss"] != plain.metrics[1]["train_loss"]
    fedgs.run(task, case.federation(), algorithm="fedavg", **QUICK)


def test_normalising_makes_channels_alike_and_travels_with_the_model() -> None:
    draws = np.random.default_rng(0)
    rows = (draws.normal(size=(96, 6)) * [1, 10, 100, 0.1, 1, 0] + [0, 5, -300, 2, 1, 7]).astype(np.float32)
    labels = (draws.normal(size=96) + (rows[:, 2] + 300) / 100 > 0).astype(int)
    federation = fedgs.Federation.from_arrays(rows, labels, devices=np.arange(96) % 8, factories=2)
    task = fedgs.classification(lambda: nn.Linear(6, 2), 2)
    history = fedgs.run(task, federation, **QUICK, settings={"data": {"normalise": "per-channel"}})
    train = rows[federation.train.flat].astype(np.float64)
    mean, deviation = train.mean(0), train.std(0)
    deviation[5] = 1.0  # a channel that never changes
    model = history.model
    np.testing.assert_allclose(model.get_buffer("mean_0").numpy(), mean, rtol=1e-5)
    np.testing.assert_allclose(model.get_buffer("deviation_0").numpy(), deviation, rtol=1e-4)
    with torch.no_grad():
        raw = model(torch.from_numpy(rows[:5]))
        inner = model.get_submodule("network")(torch.from_numpy(((rows[:5] - mean) / deviation).astype(np.float32)))
    torch.testing.assert_close(raw, inner, rtol=1e-4, atol=1e-5)
    plain = fedgs.run(task, federation, **QUICK)
    assert history.metrics[-1]["loss"] < plain.metrics[-1]["loss"]


OPTIMIZERS: dict[str, Any] = {
    "adam": lambda weights, rate: torch.optim.Adam(weights, rate, weight_decay=0.1),
    "adamw": lambda weights, rate: torch.optim.AdamW(weights, rate, weight_decay=0.1),
    "momentum": lambda weights, rate: torch.optim.SGD(weights, rate, momentum=0.9, weight_decay=0.1),
    "sgd": lambda weights, rate: torch.optim.SGD(weights, rate, weight_decay=0.1),
}


def train_with_torch(model: nn.Module, optimizer: Any, federation: fedgs.Federation, batches: Any) -> None:
    """Train a classifier on some batches of samples, in plain torch."""
    for rows in batches:
        optimizer.zero_grad()
        outputs = model(torch.from_numpy(federation.inputs[rows]).float())
        nn.functional.cross_entropy(outputs, torch.from_numpy(federation.targets[rows].astype(int))).backward()
        optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_client_of_a_baseline_trains_with_the_optimiser_of_torch(name: str) -> None:
    """On the same batches: one holds all samples of a device."""
    case = CASES["mlp on tables"]
    federation = case.federation()
    settings = {"training": {"weight_decay": 0.1}, "algorithm": {"local_epochs": 4, "devices_per_round": 8}}
    quick = {**QUICK, "rounds": 1, "batch_size": 100}
    history = fedgs.run(case.task, federation, algorithm="fedavg", **quick, optimizer=name, settings=settings)
    total: Any = 0
    for device, size in enumerate(federation.train.sizes):
        model = copy.deepcopy(bind(case.task, federation, 0).module)
        train_with_torch(model, OPTIMIZERS[name](model.parameters(), 0.05), federation, [federation.train[device]] * 4)
        share = size / federation.train.sizes.sum()
        total = total + share * model.get_parameter("layers.0.weight").detach().double()
    torch.testing.assert_close(history.weights["layers.0.weight"].double(), total, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["adam", "adamw", "momentum"])
def test_a_stations_optimiser_is_that_of_torch_on_the_union_of_its_team(name: str) -> None:
    case = CASES["mlp on tables"]
    federation = fedgs.Federation.from_arrays(
        case.federation().inputs, case.federation().targets, devices=np.arange(100) % 4, factories=1, test=0.2
    )
    settings = settings_for(
        federation,
        {"training": {"weight_decay": 0.1, "rounds": 2, "iterations": 5, "batch_size": 4, "learning_rate": 0.02}},
        {"training.optimizer": name, "selection.pick": 2},
    )
    history = fedgs.run(case.task, federation, settings=settings, device="cpu")
    bound = bind(case.task, federation, 0)
    plan, model = SelectionPlan(bound.federation, settings), copy.deepcopy(bound.module)
    optimizer = OPTIMIZERS[name](model.parameters(), 0.02)
    for schedule in (plan.next_round(), plan.next_round()):  # state goes on from round to round
        train_with_torch(model, optimizer, federation, [schedule.union(iteration, 0) for iteration in range(5)])
    expected = model.get_parameter("layers.0.weight").detach()
    torch.testing.assert_close(history.weights["layers.0.weight"], expected, rtol=1e-4, atol=1e-5)


def test_memory_stays_flat() -> None:
    """Forty rounds of a network of one's own: no more memory at the end than after ten."""
    case = CASES["1-D CNN with BatchNorm"]
    for algorithm in ("fedgs", "fedavg"):
        history = fedgs.run(case.task, case.federation(), algorithm=algorithm, **{**QUICK, "rounds": 40})
        megabytes = [line["megabytes"] for line in history.timings]
        assert megabytes[-1] < megabytes[10] + 20


def test_a_network_is_never_changed_by_a_run() -> None:
    given = Signal()
    before = copy.deepcopy(given.state_dict())
    fedgs.run(fedgs.classification(given, CLASSES), CASES["1-D CNN with BatchNorm"].federation(), **QUICK)
    assert all(torch.equal(value, before[name]) for name, value in given.state_dict().items())


def test_frozen_backbones_are_shared_by_all_copies_of_a_network() -> None:
    one, other = (sharing_copy(module) for module in [Frozen()] * 2)
    assert one.get_parameter("backbone.0.weight").data_ptr() == other.get_parameter("backbone.0.weight").data_ptr()


def test_baselines_that_cut_a_network_say_what_they_need() -> None:
    federation = CASES["1-D CNN with BatchNorm"].federation()
    gated = {"settings": {"algorithm": {"options": {"pretrain_rounds": 1, "units": 5}}}}
    uncut, needs = fedgs.classification(Signal, CLASSES), {"cgau": "head", "moon": "head", "fedfusion+conv": "features"}
    for algorithm, part in needs.items():
        with pytest.raises(ConfigError, match=rf"task\.{part}"):
            fedgs.run(uncut, federation, algorithm=algorithm, **QUICK, **(gated if algorithm == "cgau" else {}))
    task = fedgs.classification(Signal, CLASSES, head="fc", features="body")
    for algorithm in ("cgau", "fedfusion+conv", "fedfusion+multi", "fedfusion+single", "fedmmd"):
        fast_and_slow(task, federation, 1e-4, algorithm=algorithm, rounds=1, **(gated if algorithm == "cgau" else {}))


def test_a_weight_at_an_odd_address_is_copied_to_where_a_gpu_can_read_it() -> None:
    """Rows of a flat vector with a counter at its end begin anywhere; the gradient must come back all the same."""
    flats = torch.arange(2 * 109.0).reshape(2, 109).requires_grad_()
    kernel = flats[1, :108].view(4, 3, 3, 3).movedim(-1, 1)  # channels last
    found = as_a_gpu_reads(kernel)
    assert kernel.data_ptr() % 16
    assert found.data_ptr() % 16 == 0
    assert found.stride() == kernel.stride()
    assert torch.equal(found, kernel)
    found.sum().backward()
    assert flats.grad is not None
    assert flats.grad.tolist() == [[0.0] * 109, [1.0] * 108 + [0.0]]
    assert as_a_gpu_reads(found) is found
