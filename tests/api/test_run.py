"""The public API as a researcher uses it: run, history, callbacks, resume, compare, sweep, things by name."""

import json
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedgs
from fedgs.algorithms.fedavg import FedAvg
from fedgs.errors import (
    CheckpointError,
    ConfigError,
    InputFileError,
    MissingDependencyError,
    OutputError,
    TrainingError,
)
from fedgs.simulation import folder
from fedgs.simulation.components import resolve
from fedgs.simulation.run import settings_for
from tests.api import plant
from tests.conftest import Here, error_of

QUICK: dict[str, Any] = {
    "rounds": 3,
    "iterations": 3,
    "batch_size": 5,
    "pick": 2,
    "learning_rate": 0.1,
    "device": "cpu",
}
FEDERATION = plant.federation()
HERE = "tests.api.plant"


def run(**options: Any) -> fedgs.History:
    return fedgs.run(plant.signals(), FEDERATION, **{**QUICK, **options})


@pytest.fixture(scope="module")
def history() -> fedgs.History:
    return run()


def test_every_public_name_is_there() -> None:
    assert set(fedgs.__all__) <= set(dir(fedgs))
    for name in fedgs.__all__:
        assert getattr(fedgs, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fedgs.nothing


def test_a_frame_has_a_row_a_round_and_no_nested_value(history: fedgs.History) -> None:
    frame = history.frame()
    assert len(frame) == 4
    for column in ("round", "loss", "accuracy", "train_loss", "divergence", "seconds", "simulated_seconds"):
        assert column in frame.columns
    assert not frame.map(lambda value: isinstance(value, dict | list | tuple)).any().any()
    assert frame["round"].tolist() == [0, 1, 2, 3]
    assert (np.diff(frame["simulated_seconds"]) > 0).all()
    assert len(history) == 3


def test_without_pandas_there_is_a_clear_line(history: fedgs.History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'fedgs\[pandas\]'"):
        history.frame()
    with pytest.raises(MissingDependencyError, match="pandas"):
        fedgs.sweep(plant.signals(), FEDERATION, {"learning_rate": [0.1]})
    assert len(history.rows) == 4


def test_the_model_predicts_what_was_tested(history: fedgs.History) -> None:
    model = history.model
    assert not model.training
    rows = FEDERATION.test.flat
    with torch.no_grad():
        right = model(torch.from_numpy(FEDERATION.inputs[rows])).argmax(1).numpy() == FEDERATION.targets[rows]
    assert right.mean() == pytest.approx(history.metrics[-1]["accuracy"])


def test_saved_loaded_and_resumed(history: fedgs.History, tmp_path: Path) -> None:
    history.save(tmp_path / "mine")
    loaded = fedgs.load_history(tmp_path / "mine", task=plant.signals())
    assert list(loaded.frame()) == list(history.frame())
    assert loaded.metrics == history.metrics
    assert loaded.summary["accuracy"] == history.summary["accuracy"]
    assert loaded.name == "mine"
    for name, value in history.model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], value)
    by_name = fedgs.load_history(tmp_path / "mine")  # the network is that of an importable module
    assert torch.equal(by_name.model.state_dict()["fc.weight"], history.model.state_dict()["fc.weight"])
    again = fedgs.resume(tmp_path / "mine", plant.signals(), FEDERATION, device="cpu")
    assert again.metrics == history.metrics
    with pytest.raises(OutputError, match="exists already"):
        history.save(tmp_path / "mine")
    with pytest.raises(OutputError, match="only a run of this process"):
        loaded.save(tmp_path / "other")
    with pytest.raises(ConfigError, match="its data cannot be loaded"):
        fedgs.resume(tmp_path / "mine")


class Stop(fedgs.Callback):
    def __init__(self, after: int) -> None:
        self.after = after
        self.rounds: list[int] = []
        self.ended: list[fedgs.History] = []

    def on_round(self, state: Any, metrics: dict[str, Any]) -> bool | None:
        assert metrics["round"] == state.round
        assert metrics["seconds"] > 0
        self.rounds.append(state.round)
        return state.round >= self.after

    def on_end(self, history: fedgs.History) -> None:
        self.ended.append(history)


@pytest.mark.parametrize("optimizer", ["adam", "momentum"])
def test_a_run_that_is_stopped_goes_on_to_the_same_bits(optimizer: str, tmp_path: Path) -> None:
    """Optimisers of stations are in the checkpoint, buffers too."""
    whole = run(optimizer=optimizer, rounds=4)
    stop = Stop(2)
    part = run(optimizer=optimizer, rounds=4, out=tmp_path / "run", callbacks=[stop])
    assert stop.rounds == [1, 2]
    assert stop.ended == [part]
    assert folder.has_stopped_early(tmp_path / "run")  # fedgs resume goes on too
    with pytest.raises(InputFileError, match="has 2 of 4 rounds"):
        folder.check_finished(tmp_path / "run")
    resumed = fedgs.resume(tmp_path / "run", plant.signals(), FEDERATION, device="cpu")
    assert not folder.has_stopped_early(tmp_path / "run")
    assert resumed.metrics == whole.metrics
    assert all(torch.equal(resumed.weights[name], value) for name, value in whole.weights.items())


def test_checkpoints_of_another_network_or_version_are_refused_in_a_line(tmp_path: Path) -> None:
    run(out=tmp_path / "run", callbacks=[Stop(1)])
    other = replace(plant.signals(), model=lambda: plant.Net(width=7))
    with pytest.raises(CheckpointError, match="was begun with other settings, data, network or frozen weights"):
        fedgs.resume(tmp_path / "run", other, FEDERATION, device="cpu")
    inputs = FEDERATION.inputs.copy()
    inputs[100] += 1
    with pytest.raises(CheckpointError, match="was begun with other settings, data, network or frozen weights"):
        fedgs.resume(tmp_path / "run", plant.signals(), replace(FEDERATION, inputs=inputs), device="cpu")
    for path in (tmp_path / "run/checkpoints").iterdir():
        facts = json.loads((path / "state.json").read_text())
        (path / "state.json").write_text(json.dumps(facts | {"format": 1}))
    with pytest.raises(CheckpointError, match="written by another version of fedgs") as error:
        fedgs.resume(tmp_path / "run", plant.signals(), FEDERATION, device="cpu")
    assert "\n" not in str(error.value)
    assert (tmp_path / "run/checkpoints/round-000001").exists()


def doubled(inputs: torch.Tensor) -> torch.Tensor:
    return 2 * inputs


@pytest.mark.parametrize(
    ("begun_with", "resumed_with", "wrong"),
    [
        ({"algorithm": fedgs.FedProx(0.5)}, {}, None),  # its name and options are in the settings
        ({"algorithm": fedgs.FedGS(objective=fedgs.FedProx(mu=0.5))}, {}, None),
        ({"algorithm": fedgs.FedProx(0.5)}, {"algorithm": fedgs.FedProx(0.6)}, "algorithm.mu was 0.5 .* is 0.6 now"),
        ({"algorithm": fedgs.FedGS(rule=plant.Middle())}, {}, "algorithm.rule was Middle .* is not set now"),
        ({"task": {"prepare": doubled}}, {}, None),
        ({"task": {"prepare": lambda rows: 3 * rows}}, {}, "task.prepare was <lambda>.* is not set now"),
        ({"task": {"prepare": lambda rows: 3 * rows}}, {"task": {"prepare": lambda rows: 3 * rows}}, None),
        ({"task": {"prepare": lambda rows: 3 * rows}}, {"task": {"prepare": lambda x: 4 * x}}, "constants was .*3"),
        ({"solver": plant.first_ones, "settings": {"selection": {"options": {"skip": 1}}}}, {}, None),
        ({"solver": lambda problem, generator: range(problem.pick)}, {}, "cannot be imported|has no"),
    ],
)  # fmt: skip
def test_a_run_goes_on_with_what_it_was_begun_with_or_not_at_all(
    begun_with: dict[str, Any], resumed_with: dict[str, Any], wrong: str | None, tmp_path: Path
) -> None:
    def task(fields: dict[str, Any] | None) -> fedgs.Task:
        return fedgs.classification(plant.Net, ["fine", "worn", "broken"], **(fields or {}))

    begun = QUICK | begun_with | {"task": task(begun_with.get("task")), "federation": FEDERATION}
    fedgs.run(**begun, out=tmp_path / "run", callbacks=[Stop(1)])
    again = {key: task(value) if key == "task" else value for key, value in resumed_with.items()}
    if wrong is None:
        whole = fedgs.run(**begun)
        resumed = fedgs.resume(tmp_path / "run", federation=FEDERATION, device="cpu", **again)
        assert [line["loss"] for line in resumed.metrics] == [line["loss"] for line in whole.metrics]
        return
    with pytest.raises(ConfigError, match=wrong):
        fedgs.resume(tmp_path / "run", federation=FEDERATION, device="cpu", **again)


def test_comparing(history: fedgs.History, tmp_path: Path) -> None:
    other = run(algorithm="fedavg")
    comparison = fedgs.compare(history, other)
    assert [row["run"] for row in comparison.rows] == ["fedgs", "fedavg"]
    assert comparison.rows[0]["final"] == history.metrics[-1]["accuracy"]
    assert "fedavg" in str(comparison)
    figure = comparison.plot(tmp_path / "both.png")
    assert (tmp_path / "both.png").read_bytes()[:4] == b"\x89PNG"
    assert len(figure.axes) == 4
    assert comparison.frame().shape[0] == 2
    assert fedgs.compare(history, history).rows[1]["run"] == "fedgs-2"
    history.plot(tmp_path / "one.svg")
    assert b"<svg" in (tmp_path / "one.svg").read_bytes()
    folder = history.save(tmp_path / "saved")
    assert fedgs.compare(str(folder), other).rows[0]["final"] == comparison.rows[0]["final"]
    with pytest.raises(ConfigError, match="a list is no history"):
        fedgs.compare([history, other])  # type: ignore[arg-type]
    with pytest.raises(InputFileError, match="not the folder of a run"):
        fedgs.compare(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="at least one history"):
        fedgs.compare()
    with pytest.raises(ConfigError, match="different names"):
        fedgs.compare(history, other, names=["a", "a"])
    waves, labels, machines = plant.arrays()
    worn = fedgs.Federation.from_arrays(waves, labels.astype(float), devices=machines, factories=3)
    regression = fedgs.run(plant.wear(), worn, **QUICK)
    with pytest.raises(ConfigError, match="judged by different metrics, accuracy and mae"):
        fedgs.compare(history, regression)


def test_seeds_are_taken_together(history: fedgs.History, tmp_path: Path) -> None:
    """Runs that differ in nothing but their seed are one row; anything else is a run by itself."""
    runs = [history, *(run(seed=seed) for seed in (1, 2)), run(seed=1, learning_rate=0.07), run(algorithm="fedavg")]
    names = ["a", "a-seed1", "a-s2", "a-7", "b"]
    comparison = fedgs.compare(*runs, names=names)
    assert {name: len(group) for name, group in comparison.groups.items()} == {"a": 3, "a-7": 1, "b": 1}
    finals = [one.metrics[-1]["accuracy"] for one in runs[:3]]
    first, other, _ = comparison.means
    assert (first["seeds"], other["seeds"]) == (3, 1)
    assert first["final"] == pytest.approx(sum(finals) / 3)
    assert first["final_sd"] == pytest.approx(statistics.stdev(finals))
    assert (other["final"], other["final_sd"]) == (runs[3].metrics[-1]["accuracy"], None)
    assert f"{first['final']:.4g} ± {first['final_sd']:.2g}" in str(comparison)
    assert len(comparison.rows) == 5
    assert [line.get_label() for line in comparison.plot().axes[0].lines] == ["a", "a-7", "b"]
    # The same seed twice says nothing of seeds; a name that another run has is not given to a group.
    assert len(fedgs.compare(history, history, runs[1]).groups) == 3
    assert list(fedgs.compare(*runs[1:4], names=["a-seed1", "a-s2", "a"]).groups) == ["a-seed1", "a"]


def test_a_run_in_a_folder_is_gone_on_with_or_read(tmp_path: Path) -> None:
    class Stop(fedgs.Callback):
        def on_end(self, history: fedgs.History) -> None:
            raise KeyboardInterrupt

    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(out=folder, resume=True, callbacks=[Stop()])
    for _ in range(2):
        history = run(out=folder, resume=True)
        assert history.metrics == run().metrics
        written = (folder / "summary.json").stat().st_mtime_ns
    assert (folder / "summary.json").stat().st_mtime_ns == written
    with pytest.raises(OutputError, match="holds a run with other settings; choose another folder"):
        run(out=folder, resume=True, seed=9)
    with pytest.raises(OutputError, match="exists already"):
        run(out=folder)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_sweep_has_a_row_a_run(workers: int) -> None:
    options = {key: value for key, value in QUICK.items() if key != "learning_rate"}
    task = fedgs.classification(lambda: plant.Net(), 3)  # cannot be pickled
    frame = fedgs.sweep(
        task, FEDERATION, {"learning_rate": [0.05, 1e30], "training.weight_decay": [0.0, 0.1]}, seeds=2,
        workers=workers, **options,
    )  # fmt: skip
    assert len(frame) == 8
    assert set(frame["seed"]) == {0, 1}
    diverged = frame["learning_rate"] == 1e30
    assert frame.loc[diverged, "error"].str.contains("no finite number").all()
    assert frame.loc[~diverged, "final"].notna().all()
    assert frame.loc[~diverged, "error"].isna().all()
    one = fedgs.run(
        task, FEDERATION, **options, learning_rate=0.05, seed=1, settings={"training": {"weight_decay": 0.1}}
    )
    row = frame[(frame["seed"] == 1) & (frame["training.weight_decay"] == 0.1) & ~diverged].iloc[0]
    assert row["final"] == one.metrics[-1]["accuracy"]
    assert row["loss"] == one.metrics[-1]["loss"]


def test_a_sweep_takes_numpy_s_numbers() -> None:
    rows = fedgs.sweep(
        plant.signals(),
        FEDERATION,
        {"learning_rate": np.array([0.1, 0.2])},
        seeds=np.arange(2),
        **{**QUICK, "rounds": 1, "learning_rate": None},
    ).to_dict("records")
    assert [(row["learning_rate"], row["seed"]) for row in rows] == [(0.1, 0), (0.1, 1), (0.2, 0), (0.2, 1)]
    with pytest.raises(ConfigError, match="give seeds=3"):
        fedgs.sweep(plant.signals(), FEDERATION, {"learning_rate": [0.1]}, seed=5)


def test_sweeps_that_cannot_be() -> None:
    for grid, words in (
        ({"learning_rate": 0.1}, "give a list of values"),
        ({"learning_rate": []}, "give a list"),
        ({"lr": [0.1]}, "no keyword 'lr'"),
        ([0.1], "the grid is a list"),
        ({1: [0.1]}, "no keyword 1"),
        ({"seed": [1, 2]}, r"give seeds=3, or seeds=\[0, 1, 2\]"),
        ({"task.keep_local": [["fc.*"]]}, "task was given as an object too"),
        ({"algorithm": [fedgs.FedProx()], "algorithm.options": [{"mu": 1}]}, "algorithm was given as an object too"),
    ):
        with pytest.raises(ConfigError, match=words):
            fedgs.sweep(plant.signals(), FEDERATION, grid, **{k: v for k, v in QUICK.items() if k != "learning_rate"})  # type: ignore[arg-type]


def test_a_sweep_of_which_nothing_is_left_has_a_score_column_and_a_file_may_name_what_an_object_replaces() -> None:
    grid = {"learning_rate": [1e30], "training.weight_decay": [0.0]}
    frame = fedgs.sweep(
        plant.signals(), FEDERATION, grid, algorithm=fedgs.FedProx(), settings=fedgs.Settings(),
        **{**QUICK, "learning_rate": None, "device": "cpu"},
    )  # fmt: skip
    assert frame[["final", "error"]].isna().to_numpy().tolist() == [[True, False]]


@pytest.mark.parametrize("objective", [fedgs.FedProx(mu=1.0), fedgs.FedMMD(gamma=0.5), plant.Pulled()])
def test_fedgs_with_the_objective_of_a_baseline(objective: Any, history: fedgs.History) -> None:
    found = run(algorithm=fedgs.FedGS(objective=objective))
    slow = run(algorithm=fedgs.FedGS(objective=objective), engine="per-device")
    for name in found.weights:
        torch.testing.assert_close(found.weights[name], slow.weights[name], rtol=1e-3, atol=1e-4)
    assert not torch.allclose(found.weights["fc.weight"], history.weights["fc.weight"], atol=1e-5)
    first = history.metrics[0]
    assert found.metrics[0] == first


def test_fedprox_in_fedgs_holds_stations_near_the_rounds_model() -> None:
    """μ → 1/η makes every step end at the model the round began with."""
    start = run(rounds=1).finished
    assert start is not None
    held = run(rounds=1, iterations=6, algorithm=fedgs.FedGS(objective=fedgs.FedProx(mu=9.0)))
    free = run(rounds=1, iterations=6)
    first = torch.cat([value.detach().flatten() for value in start.task.module.parameters()])

    def moved(one: fedgs.History) -> float:
        now = torch.cat([one.model.get_parameter(name).flatten() for name, _ in start.task.module.named_parameters()])
        return float((now - first).detach().norm())

    assert moved(held) < 0.5 * moved(free)


def test_objectives_that_fedgs_cannot_take_say_why_not() -> None:
    from fedgs.algorithms import make_baseline

    for name in ("cgau", "fedfusion+conv"):
        with pytest.raises(ConfigError, match="changes the network and its rounds"):
            fedgs.FedGS(objective=make_baseline(name))
    for name in ("fedavg", "fedadam", "fednova", "ida"):
        with pytest.raises(ConfigError, match="has no local objective of its own"):
            fedgs.FedGS(objective=make_baseline(name))


def test_an_algorithm_a_rule_and_a_solver_of_ones_own_as_objects(history: fedgs.History) -> None:
    plain = run(algorithm="fedavg")
    shrinking = run(algorithm=plant.Shrinking(strength=1.0))
    assert shrinking.weights["fc.weight"].norm() < plain.weights["fc.weight"].norm()
    assert shrinking.settings.algorithm.name == f"{HERE}:Shrinking"
    assert shrinking.settings.algorithm.is_baseline
    middle = run(algorithm=fedgs.FedGS(rule=plant.Middle()))
    assert not torch.allclose(middle.weights["fc.weight"], history.weights["fc.weight"], atol=1e-6)
    mean = run(algorithm=fedgs.FedGS(rule=FedAvg(weighting="uniform")))
    torch.testing.assert_close(mean.weights["fc.weight"], history.weights["fc.weight"], rtol=1e-5, atol=1e-6)
    first = run(solver=plant.first_ones, settings={"selection": {"presample": 0}})
    assert first.settings.selection.solver == f"{HERE}:first_ones"
    assert first.summary["divergence"] > history.summary["divergence"]  # it does not look at what it takes


def test_the_same_by_name(history: fedgs.History) -> None:
    settings = {
        "algorithm": {"name": f"{HERE}:Shrinking", "options": {"strength": 1.0}},
    }
    assert run(settings=settings).metrics == run(algorithm=plant.Shrinking(strength=1.0)).metrics
    solver = {"selection": {"solver": f"{HERE}:first_ones", "presample": 0, "options": {"skip": 0}}}
    assert (
        run(settings=solver).metrics == run(solver=plant.first_ones, settings={"selection": {"presample": 0}}).metrics
    )
    rule = {"server": {"rule": f"{HERE}:Middle", "options": {"scale": 0.5}}}
    assert run(settings=rule).metrics == run(algorithm=fedgs.FedGS(rule=plant.Middle(0.5))).metrics
    for task in (f"{HERE}:signals", f"{HERE}:ready", {"model": f"{HERE}:Net", "options": {"channels": 2}, "bins": 3}):
        found = fedgs.run(None, FEDERATION, **QUICK, settings={"task": task})
        assert found.metrics == history.metrics
    loss = {
        "task": {"model": f"{HERE}:Net", "loss": f"{HERE}:double", "metrics": ["accuracy"], "balance": f"{HERE}:halves"}
    }
    doubled = fedgs.run(None, FEDERATION, **QUICK, settings=loss)
    assert doubled.metrics[0]["loss"] == pytest.approx(2 * history.metrics[0]["loss"], rel=1e-5)
    objective = {"algorithm": {"objective": "fedprox", "options": {"mu": 1.0}}}
    assert run(settings=objective).metrics == run(algorithm=fedgs.FedGS(objective=fedgs.FedProx(mu=1.0))).metrics
    own = {"algorithm": {"objective": f"{HERE}:Pulled"}}
    assert run(settings=own).metrics == run(algorithm=fedgs.FedGS(objective=plant.Pulled())).metrics


def test_options_reach_the_solver() -> None:
    found = {}
    for generations in (0, 20):
        options = {"population": 4, "generations": generations}
        found[generations] = run(settings={"selection": {"solver": "genetic", "options": options}})
        assert found[generations].settings.selection.options == options
    assert found[20].summary["divergence"] < found[0].summary["divergence"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"settings": {"algorithm": {"name": "no_such:Thing"}}},
            "algorithm.name='no_such:Thing': module 'no_such' cannot be imported",
        ),
        ({"settings": {"algorithm": {"name": f"{HERE}:Nothing"}}}, f"module '{HERE}' has no 'Nothing'"),
        ({"settings": {"algorithm": {"name": f"{HERE}:Net"}}}, "is no algorithm"),
        (
            {"settings": {"algorithm": {"name": f"{HERE}:Shrinking", "options": {"x": 1}}}},
            "cannot be made with these options",
        ),
        ({"algorithm": plant.Net}, "algorithm 'Net' is no algorithm"),
        ({"settings": {"selection": {"solver": f"{HERE}:missing"}}}, "has no 'missing'"),
        ({"solver": plant.wrong_ones}, "solver 'wrong_ones' gave"),
        ({"solver": plant.failing}, "solver 'failing' failed: ZeroDivisionError: two lines"),
        (
            {"solver": plant.first_ones, "settings": {"selection": {"options": {"zz": 0.1}}}},
            "solver 'first_ones' with selection.options={'zz': 0.1} failed: TypeError",
        ),
        ({"callbacks": [print]}, "callbacks: 'print' is no object with a hook (on_begin, "),
        ({"callbacks": [object()]}, "callbacks: 'object' is no object with a hook"),
        ({"callbacks": [fedgs.Callback]}, "callbacks: 'Callback' is no object with a hook"),
        ({"callbacks": fedgs.Callback()}, "callbacks must be a list"),
        ({"settings": {"selection": {"options": {"startz": 1}}}}, "gbp-cs has no option 'startz'"),
        ({"settings": {"selection": {"solver": "auto", "options": {"starts": 1}}}}, "are of one solver"),
        ({"settings": {"server": {"rule": f"{HERE}:Net"}}}, "has no init and update"),
        ({"settings": {"server": {"rule": "nowhere:Rule"}}}, "module 'nowhere' cannot be imported"),
        ({"settings": {"task": f"{HERE}:nothing"}}, "has no 'nothing'"),
        ({"settings": {"training": {"optimizer": "lion"}}}, "training.optimizer='lion' is not possible"),
        (
            {"settings": {"task": {"modell": "paper"}}},
            "task.modell='paper' is not a known setting; did you mean 'model'?",
        ),
        ({"pick": 9}, "selection.pick=9 is more than the 4 devices of a factory"),
        ({"out": 3}, "out=3; give the path of a folder"),
        ({"settings": {"selection": None}}, "selection is a value, not a section"),
        ({"settings": {"training": {"betas": [1.0, 2.0]}}}, "training.betas=[1.0, 2.0] is not possible"),
        ({"algorithm": fedgs.FedGS(rule=plant.Odd("init"))}, "Odd.init gave a int; give a dict"),
        ({"algorithm": fedgs.FedGS(rule=plant.Odd("update"))}, "Odd.update: fails (KeyError: 'momentum')"),
        ({"algorithm": fedgs.FedGS(rule=plant.Odd("numpy"))}, "the new one is a ndarray, no tensor"),
        ({"algorithm": fedgs.FedGS(rule=plant.Odd("tensor"))}, "Odd.init: cannot remember 'mean', a Tensor; give"),
        ({"algorithm": plant.Forgetful()}, "Forgetful.update: fails (KeyError: 'momentum')"),
        ({"algorithm": plant.Stumbling()}, "the objective of Stumbling: fails on a batch (ValueError: a stone)"),
        ({"device": "tpu"}, "device='tpu' is not possible; choose auto, cpu or cuda"),
        ({"learning_rate": -1.0}, "training.learning_rate=-1.0 is not possible"),
        ({"engine": "graph"}, "takes a team's batches as one, but layer 'body.1' normalises"),
    ],
)
def test_what_cannot_be_is_one_line(options: dict[str, Any], words: str) -> None:
    from fedgs.errors import FedgsError

    with pytest.raises(FedgsError) as error:
        fedgs.run(
            None if "task" in options.get("settings", {}) else plant.signals(), FEDERATION, **{**QUICK, **options}
        )
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("task", [torch.nn.Linear(8, 4), "my:thing"])
def test_other_objects_than_a_task_and_a_federation_are_one_line(task: Any, tmp_path: Path) -> None:
    for call in (fedgs.run, lambda *given: fedgs.resume(tmp_path, *given), lambda *given: fedgs.sweep(*given, {})):
        with pytest.raises(ConfigError, match=f"task is a {type(task).__name__}, not a fedgs.Task"):
            call(task, FEDERATION)
        with pytest.raises(ConfigError, match=r"federation is a ndarray, not a fedgs.Federation"):
            call(plant.signals(), np.zeros(3))
    for read in (fedgs.load_history, fedgs.load_model):
        with pytest.raises(ConfigError, match=f"task is a {type(task).__name__}, not a fedgs.Task"):
            read(tmp_path, task=task)
    with pytest.raises(ConfigError, match="settings is a int"):
        run(settings=3)


def test_a_task_that_is_none_is_named() -> None:
    for path, words in ((f"{HERE}:not_a_task", "gives a int, not a fedgs.Task"), (f"{HERE}:Net", "not a fedgs.Task")):
        with pytest.raises(ConfigError, match=words):
            fedgs.run(None, FEDERATION, **QUICK, settings={"task": path})


def test_nan_that_prepare_makes_is_said_to_come_from_it() -> None:
    waves, labels, machines = plant.arrays()
    waves[17] = -9.0
    test = np.arange(180) % 10 == 0
    federation = fedgs.Federation.from_arrays(waves, labels, devices=machines, factories=3, test=test)
    task = replace(plant.signals(), prepare=lambda raw: (raw + 8.5).sqrt())
    for algorithm in ("fedgs", "fedavg"):
        with pytest.raises(TrainingError, match=r"task.prepare makes NaN .* sample 17 .* device '05'"):
            fedgs.run(task, federation, **{**QUICK, "rounds": 30}, algorithm=algorithm)
    with pytest.raises(ConfigError, match=r"task.prepare: makes NaN or infinity of inputs of device '05', sample 17"):
        fedgs.run(task, federation, **QUICK, settings={"data": {"normalise": "per-channel"}})


def test_numbers_that_are_too_large_for_float32_are_named() -> None:
    waves, _, machines = plant.arrays()
    wear, test = waves.std((1, 2)).astype(np.float64), np.arange(180) % 10 == 0
    wear[17] = 1e300
    task = fedgs.regression(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(1)))
    federation = fedgs.Federation.from_arrays(waves, wear, devices=machines, factories=3, test=test)
    with pytest.raises(TrainingError, match=r"as float32, targets hold NaN or infinity: sample 17 .* device '05'"):
        fedgs.run(task, federation, **{**QUICK, "rounds": 30}, algorithm="fedavg")


@pytest.mark.usefixtures("unpainted")
def test_the_command_line_runs_a_task_by_name(here: Here, tmp_path: Path) -> None:
    from fedgs.data import save_npz
    from fedgs.data.user_data import from_arrays

    waves, labels, machines = plant.arrays()
    save_npz(from_arrays(waves, labels, machines), tmp_path / "waves.npz")
    options = [
        "data.name=waves.npz", "data.min_samples=0", "federation.devices=12",
        "federation.factories=3", "selection.pick=2",
        "training.rounds=2", "training.iterations=2", "training.batch_size=4", "training.learning_rate=0.1",
        f"task={HERE}:signals", "training.optimizer=adam", "baseline=['algorithm.name=fedavg']",
    ]  # fmt: skip
    command = ["run", "--preset", "paper", "--out", "mine", *(part for one in options for part in ("--set", one))]
    code, out, err = here(*command)
    assert (code, err) == (0, "")
    assert "mine: accuracy" in out
    assert (tmp_path / "mine/comparison.png").is_file()
    assert json.loads((tmp_path / "mine/task.json").read_text())["classes"] == ["fine", "worn", "broken"]
    code, out, _ = here("resume", "mine")
    assert code == 0
    assert "nothing left to do" in out
    code, out, _ = here("compare", "mine", "mine-fedavg")
    assert code == 0
    assert "has no 'nothing'" in error_of(here(*command[:-2], "--set", f"task={HERE}:nothing", "--out", "other"))
    assert not (tmp_path / "other").exists()


def test_settings_from_python_do_not_remember_each_other() -> None:
    one = settings_for(FEDERATION, None, {"algorithm.name": "fedavg", "training.rounds": 7})
    other = settings_for(FEDERATION, None, {})
    assert (one.algorithm.name, other.algorithm.name) == ("fedavg", "fedgs")
    assert other.training.rounds == 40
    assert (other.federation.devices, other.federation.factories, other.selection.pick) == (12, 3, 2)


def test_settings_name_what_was_given_as_an_object() -> None:
    settings, components = resolve(settings_for(FEDERATION, None, {}), task=plant.signals())
    assert settings.task.model == f"{HERE}:Net"  # type: ignore[union-attr]
    assert components.algorithm.kind == "fedgs"
