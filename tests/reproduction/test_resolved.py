"""What a run really used is what its baseline and server rule hold, defaults included."""

import json
from pathlib import Path

import pytest
import torch

from fedgs.config import load_settings
from fedgs.simulation.simulator import Simulator
from reproduction.experiments.jobs import Job, Result, digest_of, read_job, run_jobs, source_digest
from reproduction.experiments.resolved import resolved_of
from tests.reproduction.test_jobs import dealt
from tests.simulation.small import small_federation, small_settings

CPU = torch.device("cpu")
SERVER_ADAM = {"server_lr": 0.00316, "beta1": 0.9, "tau": 0.001, "v_init": "tau2", "weighting": "samples",
               "beta2": 0.99, "bias_correction": "none"}  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "rate", "options"),
    [
        (["algorithm.name=fedadam"], 10**-1.5, SERVER_ADAM),
        (["algorithm.name=fedadam", "algorithm.learning_rate=0.5"], 10**-1.5, SERVER_ADAM),  # it has a client_lr
        (
            ["algorithm.name=fedadam", "algorithm.options.client_lr=0.3", "algorithm.options.server_lr=0.1"],
            0.3,
            SERVER_ADAM | {"server_lr": 0.1},
        ),
        (
            ["algorithm.name=fedavgm"],
            10**-1.5,
            {"server_lr": 0.316, "beta": 0.9, "nesterov": False, "weighting": "samples"},
        ),
        (["algorithm.name=fedprox"], 0.01, {"mu": 0.1, "weighting": "samples"}),
        (["algorithm.name=fedprox", "algorithm.learning_rate=0.2"], 0.2, {"mu": 0.1, "weighting": "samples"}),
        ([], 0.01, {}),
        (["training.learning_rate=0.03", "server.rule=fedadam"], 0.03, SERVER_ADAM),
        (["server.rule=fedadam", "server.options.tau=0.01"], 0.01, SERVER_ADAM | {"tau": 0.01}),
    ],
)
def test_by_hand(overrides: list[str], rate: float, options: dict[str, object]) -> None:
    settings = load_settings(overrides=overrides)
    found = resolved_of(settings)
    assert found == {"learning_rate": pytest.approx(rate), "options": options}
    assert resolved_of(json.loads(settings.model_dump_json())) == found  # as an older job's file has them


def test_what_a_name_decides_and_how_many_classes_there_are() -> None:
    assert resolved_of(load_settings(overrides=["algorithm.name=cgau-2x"]))["options"]["layers"] == 2
    ida = load_settings(overrides=["algorithm.name=ida+intrac"])
    assert resolved_of(ida, classes=7)["options"]["classes"] == 7
    assert resolved_of(ida)["options"]["intrac"] is True


@pytest.mark.parametrize("name", ["fedgs", "fedavg", "fedadam"])
def test_the_rate_is_the_one_of_the_first_round(name: str) -> None:
    own = [] if name == "fedgs" else ["algorithm.learning_rate=0.07"]
    settings = small_settings(f"algorithm.name={name}", "training.rounds=1", *own)
    with Simulator(settings, small_federation(), CPU) as simulator:
        *_, state = simulator.rounds(simulator.begin())
    assert resolved_of(settings)["learning_rate"] == state.metrics[-1]["learning_rate"]


def run(folder: Path, job: Job) -> Result:
    return run_jobs([job], folder, dealt, "d", CPU)[job.name]


@pytest.mark.parametrize("rate", [0.1, 1e30])
def test_a_training_job_tells_and_older_ones_need_not(tmp_path: Path, rate: float) -> None:
    options = ("algorithm.name=fedavgm", f"algorithm.options.client_lr={rate}")
    job = Job("a", "a", small_settings(*options), "bars")
    made = run(tmp_path, job)
    assert ("failed" in made) == (rate > 1)
    assert made["resolved"]["learning_rate"] == rate
    assert made["resolved"]["options"]["beta"] == 0.9
    assert made["source"] == source_digest()
    file = tmp_path / "parts/a.json"
    older = json.loads(file.read_text())
    del older["resolved"], older["source"]
    file.write_text(json.dumps(older))
    assert read_job(tmp_path / "parts", job, "d") == older


@pytest.mark.parametrize(
    ("key", "value", "counts"),
    [(("learning_rate",), 0.2, False), (("options", "beta"), 0.8, False), (("options", "gone_since"), 1, True)],
)
def test_a_job_made_with_other_defaults_is_made_again(
    tmp_path: Path, key: tuple[str, ...], value: float, counts: bool
) -> None:
    job = Job("a", "a", small_settings("algorithm.name=fedavgm", "training.rounds=1"), "bars")
    made = run(tmp_path, job)
    assert read_job(tmp_path / "parts", job, "d") == made
    other = json.loads(json.dumps(made))
    place = other["resolved"]
    for name in key[:-1]:
        place = place[name]
    place[key[-1]] = value
    (tmp_path / "parts/a.json").write_text(json.dumps(other))
    assert (read_job(tmp_path / "parts", job, "d") is not None) == counts


def test_the_digest_of_the_code(tmp_path: Path) -> None:
    assert len(source_digest()) == 12
    assert int(source_digest(), 16) >= 0
    (tmp_path / "below").mkdir()
    (tmp_path / "a.py").write_text("a = 1\n")
    (tmp_path / "below/b.py").write_text("b = 1\n")
    first = digest_of(tmp_path)
    (tmp_path / "notes.txt").write_text("no code")
    assert digest_of(tmp_path) == first
    (tmp_path / "below/b.py").write_text("b = 2\n")
    second = digest_of(tmp_path)
    (tmp_path / "below/b.py").rename(tmp_path / "below/c.py")
    assert len({first, second, digest_of(tmp_path)}) == 3
