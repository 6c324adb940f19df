"""Losses, metrics and bins by hand; what does not fit a federation in one line."""

import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedgs
from fedgs.errors import ConfigError, FedgsError
from fedgs.tasks.bind import bind
from fedgs.tasks.losses import LOSSES, Loss
from fedgs.tasks.metrics import METRICS, Metric, auroc
from fedgs.tasks.task import QuantileBins, load_task

DRAWS = np.random.default_rng(0)
ROWS = DRAWS.normal(size=(60, 4)).astype(np.float32)
LABELS = np.arange(60) % 3
VALUES = np.linspace(-1, 1, 60)
DEVICES = np.arange(60) % 6


def federation(targets: Any = LABELS, inputs: Any = ROWS) -> fedgs.Federation:
    return fedgs.Federation.from_arrays(inputs, targets, devices=DEVICES, factories=2)


def linear(outputs: int = 3) -> Any:
    return lambda: nn.Linear(4, outputs)


def test_losses_by_hand() -> None:
    logits, labels = torch.tensor([[0.0, 0.0], [math.log(3), 0.0]]), torch.tensor([0, 1])
    assert LOSSES["cross_entropy"](logits, labels).tolist() == pytest.approx([math.log(2), math.log(4)])
    outputs, targets = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[1.0, 0.0], [3.0, 1.0]])
    assert LOSSES["mse"](outputs, targets).tolist() == [2.0, 5.0]
    assert LOSSES["l1"](outputs, targets).tolist() == [1.0, 2.0]
    assert LOSSES["huber"](outputs, targets).tolist() == [0.75, 1.5]  # ½x² up to 1, x − ½ beyond
    assert LOSSES["bce"](torch.zeros(2, 1), torch.tensor([0.0, 1.0])).tolist() == pytest.approx([math.log(2)] * 2)
    for name in ("mse", "l1", "huber"):  # a column of one stands for no column; nothing else is broadcast
        assert LOSSES[name](torch.zeros(3, 1), torch.ones(3)).shape == (3,)
        with pytest.raises(ValueError, match="outputs of shape"):
            LOSSES[name](torch.zeros(3, 2), torch.ones(3))
    loss = Loss.of("cross_entropy")
    assert float(loss.mean(logits, labels)) == pytest.approx((math.log(2) + math.log(4)) / 2)


def test_metrics_by_hand() -> None:
    outputs, labels = torch.tensor([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]]), torch.tensor([0, 0, 0])
    assert METRICS["accuracy"].values(outputs, labels, None).tolist() == [1.0, 0.0, 1.0]
    binary = METRICS["accuracy"].values(torch.tensor([[0.4], [-0.1]]), torch.tensor([1, 1]), None)
    assert binary.tolist() == [1.0, 0.0]
    errors = METRICS["rmse"].values(torch.tensor([1.0, 2.0]), torch.tensor([4.0, 6.0]), None).double().numpy()
    assert METRICS["rmse"].pooled(errors, None) == pytest.approx(math.sqrt((9 + 16) / 2))
    assert METRICS["mae"].mode == "min"
    assert math.isnan(METRICS["mae"].pooled(np.empty(0), None))


def test_auroc_by_hand_and_against_all_pairs() -> None:
    assert auroc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1])) == pytest.approx(0.75)
    assert auroc(np.array([1.0, 1.0, 1.0]), np.array([0, 1, 1])) == 0.5  # ties count half
    assert math.isnan(auroc(np.array([1.0, 2.0]), np.array([1, 1])))
    scores, marks = DRAWS.integers(0, 9, 80).astype(float), DRAWS.integers(0, 2, 80)
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[marks == 1] for b in scores[marks == 0]]
    assert auroc(scores, marks) == pytest.approx(np.mean(pairs))


def test_quantile_bins_hold_equally_many_samples() -> None:
    values = DRAWS.exponential(size=5000)
    parts = np.array_split(values, 7)
    bins = QuantileBins(10).fit(parts)
    assert bins.edges is not None
    np.testing.assert_allclose(bins.edges, np.quantile(values, np.arange(1, 10) / 10), atol=values.max() / 2000)
    counts = np.bincount(bins(values), minlength=10)
    assert counts.sum() == 5000
    assert (np.abs(counts - 500) < 60).all()
    assert len(bins.names()) == len(set(bins.names())) == 10
    for odd in (np.exp(4 * DRAWS.normal(size=3000)), np.append(DRAWS.normal(size=2999), 1e9)):  # tails, an outlier
        counts = np.bincount(QuantileBins(10).fit(np.array_split(odd, 7))(odd), minlength=10)
        assert (np.abs(counts - 300) < 30).all()
    flat = QuantileBins(3).fit([np.ones(5)])
    assert set(flat(np.ones(5)).tolist()) == {2}
    assert QuantileBins(2, 1, (0.5,))(np.array([[9, 0.2], [9, 0.7]])).tolist() == [0, 1]


def test_a_regression_is_balanced_by_quantiles_of_all_devices() -> None:
    bound = bind(fedgs.regression(linear(1), bins=4), federation(VALUES))
    counts = np.bincount(bound.federation.labels, minlength=4)
    assert counts.min() >= 12
    assert (bound.score, bound.mode) == ("mae", "min")
    assert len(bound.classes) == 4
    history = fedgs.run(
        fedgs.regression(linear(1), bins=4),
        federation(VALUES),
        rounds=3,
        iterations=4,
        batch_size=4,
        pick=2,
        device="cpu",
    )
    mae = [line["mae"] for line in history.metrics]
    assert history.summary["mae"]["best"] == min(mae)
    assert history.summary["mae"]["best_round"] == mae.index(min(mae))
    assert history.summary["score"] == {"name": "mae", "mode": "min"}


def test_a_target_of_a_score_that_should_be_low() -> None:
    history = fedgs.run(
        fedgs.regression(linear(1)), federation(VALUES), rounds=4, iterations=6, batch_size=4, pick=2, device="cpu",
        settings={"eval": {"target": 0.55}},
    )  # fmt: skip
    first = next(line["round"] for line in history.metrics if line["mae"] <= 0.55)
    assert history.summary["target"] == {"mae": 0.55, "round": first}


def test_anomalies_are_found_by_what_cannot_be_drawn_again() -> None:
    rows = DRAWS.normal(size=(200, 4)).astype(np.float32)
    rows[:, 2:] = rows[:, :2]  # the healthy lie in a plane
    odd = np.arange(200) % 10 == 0
    rows[odd, 2:] = DRAWS.normal(size=(odd.sum(), 2)) * 2
    targets = {"mode": np.arange(200) % 3, "anomalous": odd.astype(int)}
    test = odd | (np.arange(200) % 4 == 1)
    made = fedgs.Federation.from_arrays(rows, targets, devices=np.arange(200) // 20, factories=2, test=test)

    class Plane(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = nn.Linear(4, 2), nn.Linear(2, 4)

        def forward(self, given: Tensor) -> Tensor:
            outputs: Tensor = self.decoder(self.encoder(given))
            return outputs

    task = fedgs.reconstruction(Plane, by="mode")
    history = fedgs.run(task, made, rounds=10, iterations=10, batch_size=8, pick=3, learning_rate=0.1, device="cpu")
    assert history.score == "auroc"
    assert history.metrics[-1]["auroc"] > 0.85
    assert history.metrics[-1]["auroc"] > history.metrics[0]["auroc"]
    assert history.metrics[-1]["error"] < history.metrics[0]["error"]
    assert len(history.metrics[-1]["factories"]) == 2
    with pytest.raises(ConfigError, match=r"the targets have no column 'speed'; there are 'mode', 'anomalous'"):
        bind(fedgs.reconstruction(Plane, by="speed"), made)


def test_a_score_of_ones_own_and_the_loss_as_score() -> None:
    def margin(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.gather(1, targets[:, None])[:, 0] - outputs.mean(1)

    task = fedgs.Task(linear(), metrics={"margin": margin, "accuracy": "accuracy"})
    assert (bind(task, federation()).score, bind(task, federation()).mode) == ("margin", "max")
    other = fedgs.Task(linear(), metrics={"margin": Metric(margin, "min")}, score="loss")
    assert (bind(other, federation()).score, bind(other, federation()).mode) == ("loss", "min")
    own = fedgs.Task(linear(), loss=lambda outputs, targets: outputs.square().sum(1))
    assert bind(own, federation()).score == "loss"
    history = fedgs.run(own, federation(), rounds=2, iterations=2, batch_size=4, pick=2, device="cpu")
    assert history.metrics[-1]["loss"] < history.metrics[0]["loss"]
    assert "accuracy" not in history.metrics[-1]


def test_balance_of_ones_own() -> None:
    task = fedgs.Task(linear(), balance=lambda targets: (targets > 0).astype(int), bins=["zero", "more"])
    bound = bind(task, federation())
    assert bound.classes == ("zero", "more")
    assert np.array_equal(bound.federation.labels, (LABELS > 0).astype(int))
    assert bound.federation.targets.max() == 2  # what is predicted stays what it is


def scalar_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets)


class Locked(nn.Linear):
    """Holds what cannot be copied."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.lock = threading.Lock()


class Stateful(nn.Linear):
    """Has a state that is no tensor."""

    def __init__(self) -> None:
        super().__init__(4, 3)

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": 1}


class Gives(nn.Module):
    """Gives its outputs in some form or other."""

    def __init__(self, form: Callable[[Tensor], Any], training: bool = False) -> None:
        super().__init__()
        self.layer, self.form, self.only = nn.Linear(4, 3), form, training

    def forward(self, rows: Tensor) -> Any:
        outputs = self.layer(rows)
        return self.form(outputs) if self.training or not self.only else outputs


def stumble(outputs: Tensor) -> Tensor:
    raise RuntimeError("over a stone\nand a root")


def broken_after(rows: int) -> Callable[[Tensor, Any], Tensor]:
    def augment(inputs: Tensor, generator: Any) -> Tensor:
        return inputs if len(inputs) > rows else 1 / 0  # type: ignore[return-value]

    return augment


def last_sensor(raw: Tensor) -> Tensor:
    if bool((raw == float(ROWS[-1, 0])).any()):
        raise ValueError("bad sensor")
    return raw


@pytest.mark.parametrize(
    ("task", "options", "words"),
    [
        (fedgs.Task(Gives(stumble, True)), {}, r"task.model Gives: .* \(RuntimeError: over a stone\)"),
        (fedgs.Task(Gives(lambda o: (o, o), True)), {}, "cross_entropy: cannot take what the network gives in"),
        (fedgs.Task(linear(), loss=lambda o, t: stumble(o) if o.requires_grad else o.sum(1)), {}, "task.loss <lambda>"),
        (fedgs.Task(linear(), augment=broken_after(3)), {"algorithm": "fedavg"}, "task.augment: fails on a batch"),
        (fedgs.Task(linear(), prepare=last_sensor), {"rounds": 9}, r"task.prepare: fails on .*bad sensor"),
        (
            fedgs.Task(linear(), prepare=lambda raw: 1 / 0),
            {"settings": {"data": {"normalise": "per-channel"}}},
            "task.prepare: fails on",
        ),
        (
            fedgs.Task(linear(), metrics={"m": Metric(lambda o, t: o[:, 0], pool=lambda v, t: 1 / 0)}),
            {},
            "task.metrics m: its pool fails on",
        ),
        (fedgs.Task(linear(), metrics=Metric(lambda o, t: o[:, 0], pool=lambda v, t: v)), {}, "pool gives ndarray"),
        (fedgs.Task(lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))), {"batch_size": 1}, "network needs 2"),
        (fedgs.Task(linear(), loss=lambda o, t: o.sum(1) * math.nan), {}, "so mend the network or the loss"),
    ],
)  # fmt: skip
def test_what_fails_later_is_one_line_too(task: fedgs.Task, options: dict[str, Any], words: str) -> None:
    quick = {"rounds": 1, "iterations": 1, "batch_size": 4, "pick": 2, "device": "cpu"}
    with pytest.raises(FedgsError, match=words) as error:
        fedgs.run(task, federation(), **{**quick, **options})
    assert "\n" not in str(error.value)


class Fickle:
    """Gives another network at each call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> nn.Module:
        self.calls += 1
        return nn.Linear(4, 3) if self.calls % 2 else nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))


@pytest.mark.parametrize(
    ("task", "targets", "words"),
    [
        (
            fedgs.Task(linear(), loss=scalar_loss),
            LABELS,
            "task.loss scalar_loss: returns a single number; return one loss a sample",
        ),
        (fedgs.Task(linear(), loss=lambda o, t: o), LABELS, "one loss a sample is needed"),
        (fedgs.Task(linear(), loss="hinge"), LABELS, "task.loss='hinge' is not a loss; there are cross_entropy"),
        (fedgs.Task(linear(2)), LABELS, "gives 2 outputs, the targets go up to class 2; give the last layer 3 outputs"),
        (fedgs.classification(linear(), 2), LABELS, "targets go up to class 2, but the task has 2 classes"),
        (
            fedgs.classification(linear(), ["a", "b", "d"]),
            np.array(["a", "b", "c"])[LABELS],
            "the class 'c' is not one of the task's; they are a, b, d",
        ),
        (fedgs.Task(linear()), VALUES, "its targets are no classes, which cross-entropy needs; .* or task.balance"),
        (fedgs.Task(linear(1), loss="bce"), LABELS, r"sample 2 \(device '2'\) is not between 0 and 1; for several"),
        (fedgs.Task(linear(), loss="mse"), LABELS, r"task.loss mse: cannot take outputs \(2, 3\) float32"),
        (fedgs.Task(lambda: nn.Linear(5, 3)), LABELS, r"fails on inputs \(2, 4\) float32 \(RuntimeError"),
        (fedgs.Task(lambda: 3), LABELS, "gives a int, not a torch.nn.Module"),
        (fedgs.Task(lambda: 1 / 0), LABELS, "fails when it is made \\(ZeroDivisionError"),
        (fedgs.Task(Fickle()), LABELS, "gives another network at each call"),
        (fedgs.Task(lambda: nn.Linear(4, 3).double()), LABELS, "weight 'weight' is float64; call .float()"),
        (
            fedgs.Task(lambda: nn.Linear(4, 3).requires_grad_(False)),
            LABELS,
            "no weight to train; requires_grad is false",
        ),
        (fedgs.Task(nn.Flatten), LABELS, "has no weight to train; it has none; make its layers in __init__"),
        (fedgs.Task(linear(), metrics={"m": lambda o, t: o.mean()}), LABELS, "task.metrics m: returns a single number"),
        (fedgs.Task(linear(), metrics=["recall"]), LABELS, "'recall' is not a metric; there are accuracy"),
        (fedgs.Task(linear(), metrics={"loss": lambda o, t: o[:, 0]}), LABELS, "the name 'loss' is taken"),
        (
            fedgs.Task(linear(), score="f1"),
            LABELS,
            "task.score='f1' is not among the metrics; there are accuracy, loss",
        ),
        (
            fedgs.Task(linear(), balance=lambda t: t, bins=2),
            LABELS,
            r"gives bin 2 for sample 2 \(device '2'\); there are 2 bins",
        ),
        (
            fedgs.Task(linear(), balance=lambda t: t - 1),
            LABELS,
            r"gives bin -1 for sample 0 \(device '0'\); bins are numbered",
        ),
        (fedgs.Task(linear(), balance=lambda t: t / 2), LABELS, "task.balance: gives float64 of shape"),
        (fedgs.Task(linear(), balance=lambda t: 1 / 0), LABELS, "task.balance: fails on the targets"),
        (fedgs.Task(linear(), prepare=lambda raw: raw.missing), LABELS, "task.prepare: fails on"),
        (fedgs.Task(linear(), head="fc"), LABELS, "task.head='fc' is not a part of the network"),
        (
            fedgs.Task("resnet"),
            LABELS,
            "task.model='resnet' is not a built-in network; there are paper, compact, linear",
        ),
        (fedgs.Task("paper"), LABELS, "model 'paper' needs images"),
        (fedgs.Task("vibration"), LABELS, r"takes signals \(channels, length\)"),
        (fedgs.Task("no_such_package.nets:Net"), LABELS, "module 'no_such_package.nets' cannot be imported"),
        (fedgs.Task("torch.nn:NoSuchLayer"), LABELS, "module 'torch.nn' has no 'NoSuchLayer'"),
        (fedgs.Task(nn.Linear(4, 3), options={"bias": False}), LABELS, "this one is a module already"),
        (fedgs.Task(3), LABELS, "task.model=3 is neither a module, nor a callable"),
        (fedgs.Task(linear()), np.where(np.arange(60) == 50, -1, LABELS), r"sample 50 \(device '.*'\) is -1"),
        (fedgs.Task(linear()), np.where(np.arange(60) == 50, -100, LABELS), r"sample 50 \(device '.*'\) is -100"),
        (fedgs.Task(linear(), head="fc"), LABELS, "it is a single layer"),
        (fedgs.reconstruction(linear(4)), {"anomalous": LABELS * 0}, "no test sample is marked in 'anomalous'"),
        (fedgs.reconstruction(linear(4)), None, "the targets have no column 'anomalous'.*, or give anomalous=None"),
        (
            fedgs.reconstruction(linear(4), by="mode", anomalous=None),
            {"mode": LABELS / 2},
            "column 'mode' of the targets holds fractions",
        ),
        (
            fedgs.regression(linear(1), by="a"),
            {"a": VALUES, "b": VALUES},
            "task.loss mse: needs one array of targets, these are a: .*; give one of them, or a loss of your own",
        ),
        (fedgs.regression(linear(1), 2), np.array(["a", "b", "c"])[LABELS], r"its targets are names \(a, …\)"),
        (fedgs.Task(linear(), metrics=3), LABELS, "task.metrics=3; give names, or a dict"),
        *(
            (fedgs.Task(linear(), metrics={name: lambda o, t: o[:, 0]}), LABELS, f"the name '{name}' is taken")
            for name in ("learning_rate", "missing_classes", "target", "solver", "score", "clock", "")
        ),
        (fedgs.Task(linear(), balance=lambda t: t * 10**9), LABELS, "gives bin 2000000000; number them 0, 1, 2"),
        (fedgs.Task(lambda: Locked()), LABELS, "cannot be copied .*lock"),
        (fedgs.Task(Locked()), LABELS, "cannot be copied .*lock"),
        (fedgs.Task(Stateful), LABELS, "'_extra_state' is no tensor"),
        (fedgs.Task(Gives(lambda o: (o, (o, o)))), LABELS, "its output '1' is a tuple; give a tensor, or a tuple"),
        (fedgs.Task(Gives(lambda o: [o, o])), LABELS, "its outputs are a list"),
        (fedgs.Task(Gives(lambda o: {"o": o, "aux": None})), LABELS, "its output 'aux' is a NoneType"),
        (
            fedgs.reconstruction(linear(4), by="mode", anomalous=None),
            {"mode": np.array(["idle", "load"] * 30)},
            "column 'mode' of the targets holds text",
        ),
        (
            fedgs.reconstruction(linear(4), by="mode", anomalous=None),
            {"mode": np.array([0.0, 0.7] * 30)},
            "column 'mode' of the targets holds fractions",
        ),
        (fedgs.Task("photo"), LABELS, r"task.model='photo' takes images \(height, width"),
    ],
)
def test_what_does_not_fit_is_one_line(task: fedgs.Task, targets: Any, words: str) -> None:
    with pytest.raises(FedgsError, match=words) as error:
        bind(task, federation(targets))
    assert "\n" not in str(error.value)


def test_classes_have_the_order_of_the_task_by_their_names() -> None:
    """The data have ok and rust, numbered 0 and 1; the task knows four classes in an order of its own."""
    data = federation(np.array(["ok", "rust"] * 30))
    bound = bind(fedgs.classification(linear(4), ["rust", "dent", "ok", "scratch"]), data)
    assert bound.classes == ("rust", "dent", "ok", "scratch")
    assert bound.federation.labels[:4].tolist() == bound.federation.targets[:4].tolist() == [2, 0, 2, 0]
    assert data.labels[:4].tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("kind", ["int32", "complex64"])
def test_inputs_that_a_network_cannot_take_are_refused_with_what_to_do(kind: str) -> None:
    with pytest.raises(ConfigError, match="prepare=lambda x: x"):
        bind(fedgs.Task(linear()), federation(inputs=ROWS.astype(kind)))


def test_a_module_that_ends_the_process_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "leaves_early.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"fails while it is imported \(SystemExit: 3\)"):
        load_task("leaves_early:task")

    def leave() -> nn.Module:
        raise SystemExit(3)

    with pytest.raises(ConfigError, match=r"fails when it is made \(SystemExit: 3\)"):
        bind(fedgs.Task(leave), federation())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        *(({"bins": bins}, r"task\.bins") for bins in (-1, 0, True, [], ["a", "a"], "abc")),
        ({"options": [1]}, r"task\.options=\[1\]; give a dict"),
        ({"options": {"kind": nn.ReLU}}, "task.options: 'kind' is a type, which settings cannot hold"),
        ({"keep_local": [3]}, "3 is no pattern"),
        ({"head": 3}, "task.head=3; give a submodule's name"),
        ({"score": 5}, "task.score=5; give the name of a metric"),
        ({"keeplocal": ["a"]}, "did you mean 'keep_local'"),
    ],
)
def test_fields_of_a_task_that_cannot_be(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        fedgs.classification(linear(), **fields)


def test_numpy_s_numbers_are_numbers() -> None:
    task = fedgs.classification(lambda width: nn.Linear(4, width), np.int64(3), options={"width": np.int64(3)})
    history = fedgs.run(task, federation(), rounds=1, iterations=1, batch_size=4, pick=2, device="cpu")
    assert len(history.classes) == 3
    assert fedgs.classification(linear(), np.array(["a", "b"])).bins == ["a", "b"]
    assert bind(fedgs.regression(linear(1), np.int64(4)), federation(VALUES)).classes[0].startswith("… to")
    assert fedgs.Task(linear(), keep_local="0.*").keep_local == ("0.*",)


def test_metrics_and_bins_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="mode='Max'; it is max or min"):
        Metric(LOSSES["l1"], "Max")  # type: ignore[arg-type]
    for edges in ([math.nan], "a"):
        with pytest.raises(ConfigError, match="give finite numbers"):
            fedgs.regression(linear(1), 2, edges=edges)  # type: ignore[arg-type]


def test_what_needs_no_labels_and_what_has_several() -> None:
    short: dict[str, Any] = {"rounds": 1, "iterations": 1, "batch_size": 4, "pick": 2, "device": "cpu"}
    assert fedgs.run(fedgs.reconstruction(linear(4), anomalous=None), federation(None), **short).score == "error"
    several = np.stack([LABELS > 0, LABELS > 1], axis=1).astype(np.float32)
    assert fedgs.run(fedgs.Task(linear(2), loss="bce"), federation(several), **short).score == "accuracy"
    outputs = torch.tensor([[1.0, -1.0], [1.0, 1.0]])
    assert METRICS["accuracy"].per_sample(outputs, torch.tensor([[1.0, 0.0], [0.0, 1.0]])).tolist() == [1.0, 0.5]


def test_lazy_layers_take_their_shapes_from_the_data() -> None:
    task = fedgs.classification(lambda: nn.Sequential(nn.LazyLinear(5), nn.Tanh(), nn.LazyLinear(3)), 3)
    bound = bind(task, federation())
    assert bound.module.get_parameter("0.weight").shape == (5, 4)
    again = bind(task, federation())
    assert torch.equal(bound.module.get_parameter("0.weight"), again.module.get_parameter("0.weight"))


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("instance", [False, True])
def test_lazy_batch_normalisation(affine: bool, instance: bool) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 5), nn.LazyBatchNorm1d(affine=affine), nn.Linear(5, 3))

    model = make() if instance else make
    bound = bind(fedgs.classification(model, 3), federation())
    assert bound.module.get_buffer("1.running_mean").tolist() == [0.0] * 5
    short: dict[str, Any] = {"rounds": 1, "iterations": 1, "batch_size": 4, "pick": 2, "device": "cpu"}
    history = fedgs.run(fedgs.classification(model, 3), federation(), **short)
    assert history.weights["1.running_mean"].abs().sum() > 0


@pytest.mark.parametrize("kind", ["float64", "float32", "float16", "int32", "uint16", "bool"])
def test_inputs_of_any_type(kind: str) -> None:
    rows = (np.abs(ROWS) * 10).astype(kind)
    task = fedgs.Task(linear(), prepare=lambda raw: raw.float())
    history = fedgs.run(task, federation(inputs=rows), rounds=1, iterations=1, batch_size=4, pick=2, device="cpu")
    assert history.finished is not None
    assert history.finished.task.federation.inputs.dtype == np.dtype(kind)  # nothing is rounded or copied


def test_more_than_256_classes() -> None:
    labels = np.arange(60) * 10
    task = fedgs.classification(linear(600), 600)
    history = fedgs.run(task, federation(labels), rounds=1, iterations=2, batch_size=4, pick=2, device="cpu")
    assert len(history.finished.task.classes) == 600  # type: ignore[union-attr]
