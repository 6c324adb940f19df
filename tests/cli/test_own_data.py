"""``fedgs run --data``: sizes that follow from a user's own data, and what is said of data that do not fit."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedgs.simulation.history import load_history
from tests.conftest import Here, error_of

SHORT = ["--set", "training.rounds=1", "--set", "training.iterations=1", "--set", "training.batch_size=4"]


def photos(folder: Path, places: list[str], each: int = 4, side: int = 8, mode: str = "L") -> Path:
    """Write so many photos into each of these folders."""
    draws = np.random.default_rng(0)
    for place in places:
        (folder / place).mkdir(parents=True)
        for number in range(each):
            pixels = draws.integers(0, 256, (side, side) if mode == "L" else (side, side, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(folder / place / f"{number}.png")
    return folder


def settings_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


@pytest.mark.usefixtures("unpainted")
def test_all_devices_in_half_the_root_of_as_many_factories(tmp_path: Path, here: Here) -> None:
    photos(tmp_path / "mine", [f"cam{camera}/{kind}" for camera in range(17) for kind in ("bolt", "nut")])
    done = here("run", "--data", "mine", *SHORT)
    assert done.code == 0
    line = "mine: 136 samples of 8×8, 2 classes (bolt, nut); 17 devices in 3 factories, each station picks 2"
    assert done.out.startswith(line)
    settings = settings_of(tmp_path / "runs/mine")
    assert settings["federation"] == {"devices": 17, "factories": 3}
    assert (settings["selection"]["pick"], settings["data"]["name"]) == (2, str(tmp_path / "mine"))
    assert (settings["data"]["normalise"], settings["training"]["optimizer"]) == ("per-channel", "adam")
    assert settings["baseline"] == []
    assert here("resume", "runs/mine").code == 0
    said = here("predict", "runs/mine", "mine/cam3", "--csv").out.splitlines()
    assert len(said) == 9
    assert {line.split(",")[1] for line in said[1:]} <= {"bolt", "nut"}


@pytest.mark.usefixtures("unpainted")
def test_a_sweep_of_own_data(tmp_path: Path, here: Here) -> None:
    photos(tmp_path / "mine", [f"cam{camera}/{kind}" for camera in range(9) for kind in ("bolt", "nut")])
    done = here("sweep", "--data", "mine", "--grid", "selection.pick=2,3", *SHORT)
    assert done.code == 0, done.err
    assert "9 devices in 2 factories" in done.out
    runs = list((tmp_path / "runs/mine-sweep").rglob("config.json"))
    assert sorted(settings_of(run.parent)["selection"]["pick"] for run in runs) == [2, 3]
    assert all(settings_of(run.parent)["training"]["optimizer"] == "adam" for run in runs)
    again = here("sweep", "--data", "mine", "--grid", "selection.pick=2,3", *SHORT)
    assert (again.code, "best: --set selection.pick=" in again.out) == (0, True)
    assert "nowhere" in error_of(here("sweep", "--data", "nowhere", "--grid", "selection.pick=2,3"))
    assert "--data" in error_of(here("sweep", "--preset", "own", "--grid", "selection.pick=2,3"))


@pytest.mark.usefixtures("unpainted")
def test_factories_are_the_folders_above_the_devices(tmp_path: Path, here: Here) -> None:
    places = [f"{plant}/cam{camera}/{kind}" for plant, size in (("a", 3), ("b", 5)) for camera in range(size)
              for kind in ("bolt", "nut")]  # fmt: skip
    photos(tmp_path / "mine", places)
    assert "8 devices in 2 factories" in here("run", "--data", "mine", *SHORT).out
    rows = (tmp_path / "runs/mine/devices.csv").read_text().splitlines()[1:]
    assert [row.split(",")[:2] for row in rows[:4]] == [
        ["a-cam0", "factory=0"], ["a-cam1", "factory=0"], ["a-cam2", "factory=0"], ["b-cam0", "factory=1"],
    ]  # fmt: skip


@pytest.mark.usefixtures("unpainted")
def test_what_the_user_says_stays(tmp_path: Path, here: Here) -> None:
    photos(tmp_path / "mine", [f"cam{camera}/{kind}" for camera in range(8) for kind in ("bolt", "nut")])
    (tmp_path / "mine.toml").write_text("[federation]\nfactories = 2\n[task]\nmodel = 'linear'\n")
    sizes = ["--devices", "6", "--pick", "3", "--out", "a"]
    assert here("run", "mine.toml", "--data", "mine", *sizes, *SHORT).code == 0
    settings = settings_of(tmp_path / "a")
    assert settings["federation"] == {"devices": 6, "factories": 2}
    assert (settings["selection"]["pick"], settings["task"]["model"]) == (3, "linear")
    assert here("run", "--preset", "quick", "--data", "mine", "--set", "baseline=[]", "--out", "b", *SHORT).code == 0
    settings = settings_of(tmp_path / "b")
    assert (settings["data"]["name"], settings["federation"]["devices"]) == (str(tmp_path / "mine"), 8)
    assert (settings["training"]["optimizer"], settings["data"]["samples_per_device"]) == ("sgd", None)


@pytest.mark.usefixtures("unpainted")
def test_the_settings_of_another_run_go_with_other_data(tmp_path: Path, here: Here) -> None:
    for name, cameras in (("one", 6), ("two", 8)):
        photos(tmp_path / name, [f"cam{camera}/{kind}" for camera in range(cameras) for kind in ("bolt", "nut")])
    assert here("run", "--data", "one", *SHORT, "--set", "seed=7").code == 0
    sizes = ("--devices", "8", "--factories", "2", "--pick", "3")
    done = here("run", "runs/one/config.json", "--data", "two", *sizes, "--out", "again")
    assert done.code == 0, done.err
    settings = settings_of(tmp_path / "again")
    assert (settings["seed"], settings["data"]["name"]) == (7, str(tmp_path / "two"))
    assert settings["federation"] == {"devices": 8, "factories": 2}


@pytest.mark.usefixtures("unpainted")
def test_a_split_without_a_number_of_devices_has_as_many_as_none(tmp_path: Path, here: Here) -> None:
    photos(tmp_path / "mine", ["bolt", "nut"], each=90)
    assert "9 devices in 2 factories" in here("run", "--data", "mine", *SHORT).out
    split = "data.split={kind = 'dirichlet', alpha = 0.3}"
    assert "9 devices in 2 factories" in here("run", "--data", "mine", *SHORT, "--set", split, "--out", "b").out


@pytest.mark.usefixtures("unpainted")
def test_photos_without_devices_are_dealt_and_large_ones_resized(tmp_path: Path, here: Here) -> None:
    photos(tmp_path / "mine", ["bolt", "nut"], each=60, side=100, mode="RGB")
    done = here("run", "--data", "mine", *SHORT)
    assert "120 samples of 64×64×3" in done.out
    assert "photos are resized to 64×64 pixels" in done.out
    assert "dealt to 6 unlike devices" in done.out
    split = ["--set", 'data.split={kind="classes-per-device", classes=1, devices=4}', "--out", "b"]
    assert here("run", "--data", "mine", *split, "--set", "data.size=16", "--set", "data.grey=true", *SHORT).code == 0
    settings = settings_of(tmp_path / "b")
    assert (settings["federation"]["devices"], settings["data"]["size"]) == (4, [16, 16])
    assert json.loads((tmp_path / "b/task.json").read_text())["inputs"] == [[16, 16], "uint8"]
    assert here("resume", "b").code == 0


@pytest.mark.usefixtures("unpainted")
def test_signals_and_tables_have_networks_of_their_own(tmp_path: Path, here: Here) -> None:
    labels, devices = np.arange(48) % 3, np.arange(48) // 8
    for shape, model in (((7,), "linear"), ((2, 512), "vibration"), ((40, 40), "photo")):
        inputs = np.random.default_rng(0).random((48, *shape))
        np.savez(tmp_path / f"{model}.npz", inputs=inputs, targets=labels, devices=devices)
        assert here("run", "--data", f"{model}.npz", *SHORT).code == 0
        assert settings_of(tmp_path / f"runs/{model}")["task"]["model"] == model


def test_small_devices_are_left_out_by_name(tmp_path: Path, here: Here) -> None:
    photos(tmp_path / "mine", [f"cam{camera}/{kind}" for camera in range(4) for kind in ("bolt", "nut")])
    photos(tmp_path / "mine", ["lonely/nut"], each=1)
    done = here("run", "--data", "mine", *SHORT)
    assert "left out, with fewer than 2 samples (data.min_samples): lonely" in done.out
    assert "4 devices in 1 factory," in done.out


WORKS = "fedgs reads folders of images (device/class/photo.png, factory/device/class/photo.png or class/photo.png)"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data", "empty"], f"empty: a folder without images; {WORKS}"),
        (["--data", "table.csv"], f"table.csv: a CSV file; {WORKS}"),
        (["--data", "nowhere"], "nowhere: no such file or folder"),
        (["--data", "mine", "--devices", "9"], "9 devices were asked for, 4 clients"),
        (["--data", "mine", "--pick", "9"], "error: --pick 9 is more than the 4 devices of a factory"),
        (["--data", "mine", "--factories", "9"], "error: --factories 9 is more than devices=4"),
        (["--data", "single"], "single: all samples are of one class (bolt): nothing to learn"),
        (["--data", "mine", "--set", "data.size=abc"], "give a number of pixels, or height and width"),
        (["--data", "mine", "--set", "data.size=[1, 2, 3]"], "give a number of pixels, or height and width"),
        (["--data", "mine", "--set", "data.size=0"], "data.size=0 is not possible"),
        (["--data", "mine", "--set", "data.split.kind=fair"], "data.split.kind='fair' is not possible"),
        (["--data", "mine", "--set", "data.split.devices=900"], "cannot split 32 samples among 900 devices"),
        (["--data", "mine", "--set", "data.split={kind='classes-per-device', classes=7, devices=4}"], "has 2 classes"),
        (["--preset", "own"], "--preset own: it is for your own data; name them with --data FOLDER"),
        (["--data", "mine", "--preset", "mine"], "there is no such preset; choose one of quick"),
        (["--data", "bare.npz", "--set", "data.size=9"], "data.grey are for folders of images"),
    ],
)
def test_data_that_do_not_fit_are_one_line(tmp_path: Path, here: Here, arguments: list[str], words: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    np.savez(tmp_path / "bare.npz", inputs=np.zeros((4, 8, 8)), targets=np.zeros(4, int))
    photos(tmp_path / "mine", [f"cam{camera}/{kind}" for camera in range(4) for kind in ("bolt", "nut")])
    photos(tmp_path / "single", [f"cam{camera}/bolt" for camera in range(4)])
    err = error_of(here("run", *arguments, *SHORT))
    assert words in err
    assert "baseline" not in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("unpainted")
def test_the_tutorial_of_own_photos_word_by_word(tmp_path: Path, here: Here) -> None:
    """Its commands one after the other, as a stranger types them; the run is cut to two rounds."""
    page = (Path(__file__).parents[2] / "docs/tutorial/own-photos.md").read_text(encoding="utf-8")
    exec(compile(re.findall(r"^```python\n(.*?)^```", page, flags=re.M | re.S)[0], "draw", "exec"), {})
    commands = [shlex.split(line.partition("  #")[0]) for line in re.findall(r"^    fedgs (.*)$", page, flags=re.M)]
    assert [words[0] for words in commands[:4]] == ["data", "run", "predict", "export"]
    for words in commands:
        done = here(*words, *(["--set", "training.rounds=2"] if words[0] == "run" else []))
        assert done.code == 0, done.err
    assert load_history(tmp_path / "runs/photos").confusion["last"].sum() == 72


@pytest.mark.usefixtures("unpainted")
def test_a_run_whose_data_were_moved_or_changed_says_so_in_a_line(tmp_path: Path, here: Here) -> None:
    mine = photos(tmp_path / "mine", [f"cam{camera}/{kind}" for camera in range(4) for kind in ("bolt", "nut")])
    assert here("run", "--data", "mine", *SHORT, "--out", "my run").code == 0
    assert "fedgs resume 'my run'" in here("run", "--data", "mine", *SHORT, "--out", "my run").err
    assert "fedgs predict 'my run/m.safetensors'" in here("export", "my run", "my run/m.safetensors").out
    (tmp_path / "my run/summary.json").unlink()  # as if it had been killed

    def said(before: str, after: str) -> str:
        (tmp_path / before).rename(tmp_path / after)
        done = here("resume", "my run")
        (tmp_path / after).rename(tmp_path / before)
        assert "restore" in error_of(done)
        return error_of(done)

    assert f"its data {mine} are not there" in said("mine", "moved")
    assert "devices missing: cam3; devices new: press" in said("mine/cam3", "mine/press")
    assert "4 devices were asked for" in said("mine/cam3", "elsewhere")
    assert "classes new: screw" in said("mine/cam3/nut", "mine/cam3/screw")
    said("mine/cam0/nut/0.png", "0.png")
    assert here("resume", "my run").code == 0


@pytest.mark.usefixtures("unpainted")
def test_classes_whose_names_look_alike_are_named(tmp_path: Path, here: Here) -> None:
    """A camera that says OK where the others say ok; an umlaut as a Mac writes it."""
    photos(tmp_path / "mine", ["a/ok", "a/Löcher", "b/OK", "b/Lo\u0308cher", "b/nut"])
    warnings = [line for line in here("run", "--data", "mine", *SHORT).out.splitlines() if "warning" in line]
    assert [re.findall("'(.*?)'", line) for line in warnings] == [["Lo\\u0308cher", "L\\xf6cher"], ["OK", "ok"]]
