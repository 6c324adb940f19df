"""The jobs on labels alone, initialisers and samplers: what they are made with is what they say, in any process."""

import json
import pickle
from pathlib import Path

import pytest
import torch

from fedgs.config import load_settings
from fedgs.data import build_federation
from fedgs.errors import ConfigError
from fedgs.settings import Settings
from reproduction.experiments import samplers, table2
from reproduction.experiments.bearings import Bearings
from reproduction.experiments.catalogue import EXPERIMENTS, stages_of
from reproduction.experiments.femnist_like import femnist_like_labels
from reproduction.experiments.jobs import read_job, run_jobs
from reproduction.experiments.reproduction import LABELS, PAPER, Reproduction, read_by_a_label_job
from reproduction.experiments.samplers import compare_samplers, draw_instances
from tests.reproduction.made_up import full_size, results_of

CPU = torch.device("cpu")


def test_every_job_goes_to_another_process() -> None:
    reproduction = full_size((0,))
    trained = results_of("beyond", lambda job: 0.5, reproduction)
    for job in [job for stage in stages_of("all") for job in stage(reproduction, trained)]:
        there = pickle.loads(pickle.dumps(job))
        assert (there.name, there.settings, there.federation) == (job.name, job.settings, job.federation)
        assert callable(there.work)


def settings_of(*overrides: str, femnist: Path | None = None) -> Settings:
    (job,) = samplers.make_jobs(Reproduction(femnist, overrides=overrides))
    (other,) = samplers.initialiser_jobs(Reproduction(femnist, overrides=overrides))
    assert job.settings == other.settings
    return job.settings


@pytest.mark.parametrize("femnist", [None, Path("nowhere.npz")])
def test_what_changes_the_federation_is_in_the_settings(femnist: Path | None) -> None:
    plain = settings_of(femnist=femnist)
    assert (plain.federation.devices, plain.federation.factories) == (350, 10)
    for override in ("federation.factories=5", "federation.devices=200", "data.min_samples=50",
                     "data.train_fraction=0.8", "selection.pick=8", "training.batch_size=16"):  # fmt: skip
        section, _, rest = override.partition(".")
        key, _, value = rest.partition("=")
        changed = settings_of(override, femnist=femnist)
        assert str(getattr(getattr(changed, section), key)) == value
        assert changed != plain
    assert settings_of("eval.every=7", femnist=femnist) == plain  # nothing is tested there


@pytest.mark.parametrize(
    "override",
    ["training.precision=bfloat16", "training.iterations=7", "data.samples_per_device=99", "selection.start=zero"],
)
def test_what_no_sampler_reads_makes_no_other_job(tmp_path: Path, override: str) -> None:
    """Whether it is given now, or was when the file was made."""
    assert read_by_a_label_job(settings_of(override)) == read_by_a_label_job(settings_of())
    before = load_settings(overrides=[override])
    (job,) = samplers.make_jobs(Reproduction(None))
    made = {"format": 1, "part": job.name, "title": job.title, "federation": job.federation, "data": "d",
            "settings": before.model_dump(mode="json"), "fedgs": "1", "seconds": 1,
            "hardware": {"device": "x", "cores": 1, "torch": "2"}}  # fmt: skip
    (tmp_path / f"{job.name}.json").write_text(json.dumps(made))
    assert read_job(tmp_path, job, "d") == made
    (other,) = samplers.make_jobs(Reproduction(None, overrides=["training.batch_size=16"]))
    assert read_job(tmp_path, other, "d") is None


def test_a_solver_that_needs_no_draw_beforehand_makes_another_job() -> None:
    assert settings_of("selection.solver=random-by-data").selection.presample == 0
    drawn, nobody = settings_of(), settings_of("selection.solver=random-by-data")
    assert read_by_a_label_job(nobody) != read_by_a_label_job(drawn)
    assert read_by_a_label_job(settings_of("selection.solver=exact")) == read_by_a_label_job(drawn)


def test_other_federations_are_other_jobs(tmp_path: Path) -> None:
    def made(*overrides: str) -> tuple[int, int, int]:
        reproduction = Reproduction(None, overrides=overrides)
        jobs = samplers.initialiser_jobs(reproduction)
        (result,) = run_jobs(jobs, tmp_path, reproduction.federation, "d", CPU, again=True).values()
        assert result["factories"] == result["settings"]["federation"]["factories"]
        assert result["devices"] == result["settings"]["federation"]["devices"]
        return result["devices"], result["factories"], result["train_samples"]

    devices, factories, samples = made()
    assert (devices, factories) == (350, 10)
    assert made("federation.factories=5")[:2] == (60, 5)  # of the small size, as the runs have it
    assert made("federation.devices=350", "federation.factories=5") == (350, 5, samples)
    assert made("data.train_fraction=0.5")[2] < samples
    assert made() == (350, 10, samples)


@pytest.mark.parametrize("key", [PAPER, LABELS, "natural", "two-classes"])
def test_federations_follow_the_settings(key: str) -> None:
    def dealt(*overrides: str) -> tuple[int, float]:
        small = ("federation.devices=40", "federation.factories=4", *overrides)
        federation = Reproduction(None, overrides=small).federation(key, 0)
        train, test = int(federation.train.sizes.sum()), int(federation.test.sizes.sum())
        return federation.factories, train / (train + test)

    assert dealt() == (4, pytest.approx(0.9, abs=0.02))
    assert dealt("data.train_fraction=0.7") == (4, pytest.approx(0.7, abs=0.03))


@pytest.mark.parametrize("override", ["foo=bar", "training.rouds=3", "federation.devices=3", "training.momentum=2"])
@pytest.mark.parametrize("what", [*EXPERIMENTS, "all"])
def test_overrides_are_checked_before_anything_is_loaded(what: str, override: str) -> None:
    """By all experiments, and those of a job that leaves them out, too."""
    for femnist in (Path("nowhere.npz"), None):
        kind = Bearings if what == "bearings" else Reproduction
        reproduction = kind(femnist, overrides=[override])
        with pytest.raises(ConfigError, match=override.partition("=")[0].partition(".")[0]):
            stages_of(what)[0](reproduction, {})
        assert reproduction._dataset is None


def test_jobs_on_labels_are_checked_at_their_own_size() -> None:
    """35 devices a factory, where runs of the small size have 15, and 10 of them selected, not 5."""
    for override in ("selection.pick=20", "selection.presample=8"):
        reproduction = Reproduction(None, overrides=[override])
        (job,) = samplers.make_jobs(reproduction)
        assert f"{job.settings.selection.pick} {job.settings.selection.presample}" in ("20 4", "10 8")
        assert (len(reproduction.federation(LABELS, 0)), len(reproduction.dataset.client_names)) == (350, 60)
        with pytest.raises(ConfigError, match=f"^--set {override}: "):
            table2.make_jobs(reproduction)
    with pytest.raises(ConfigError, match="pick=36 is more than the 35 devices of a factory"):
        settings_of("selection.pick=36")
    with pytest.raises(
        ConfigError, match=r"^the experiment's own settings: federation.factories=4 is more than devices=3"
    ):
        settings_of("federation.devices=3")
    with pytest.raises(
        ConfigError, match=r"^--set federation.factories=61: federation.factories=61 is more than devices=60"
    ):
        settings_of("federation.factories=61")


@pytest.mark.parametrize(("count", "of"), [(1, 1), (3, 2), (30, 3), (200, 10)])
def test_the_slowest_sampler_has_a_tenth_of_few_instances(monkeypatch: pytest.MonkeyPatch, count: int, of: int) -> None:
    monkeypatch.setattr(samplers, "SLOWEST", "random")  # the Bayesian one would take a minute
    monkeypatch.setattr(samplers, "SLOW", {"random": samplers.SLOW["bayesian"]})
    federation = build_federation(femnist_like_labels(12), 3)
    settings = settings_of("federation.devices=12", "federation.factories=3", "selection.pick=2")
    problems = draw_instances(federation, settings, count)
    random, swap = compare_samplers(problems, "labels", solvers=("random", "swap"), starts=()).rows
    assert (random.instances, swap.instances) == (of, count)
    assert random.note == ("" if of == count else f"first {of} of {count} instances")
