"""``fedgs plan``: what it says, what it draws, wrong arguments."""

import json
import math
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from fedgs.cli.plan import one_selection
from fedgs.network import Park, fedgs_round, load_profile
from fedgs.simulation.folder import write_lines
from fedgs.simulation.run_clock import selection_seconds
from tests.conftest import Done, Here, error_of


def setting(*overrides: str) -> list[str]:
    return [word for override in overrides for word in ("--set", override)]


def in_hertz(link: str, bandwidth: float, snr_db: float = 0) -> list[str]:
    return [f"clock.{link}.{way}.{key}={value}" for way in ("up", "down")
            for key, value in (("bandwidth", bandwidth), ("snr_db", snr_db))]  # fmt: skip


HAND = setting("plan.model_bytes=0.125", "plan.latency=false", *in_hertz("external", 1))
"""T-TIME-1 as settings."""
MEGABYTE = setting("plan.model_bytes=1e6")
PAPER = setting("plan.model_bytes=26.4e6")


def answer(done: Done) -> str:
    """Return the first line of what a plan says."""
    assert (done.code, done.err) == (0, "")
    return done.out.splitlines()[0]


@pytest.mark.parametrize(("internal", "seconds"), [(10, 120), (5, 220)])
def test_the_hand_worked_park(here: Here, internal: float, seconds: float) -> None:
    options = ["plan", *HAND, *setting(*in_hertz("internal", internal))]
    code, out, err = here(*options, "--json")
    assert (code, err) == (0, "")
    said = json.loads(out)
    assert said["as_set"]["round"]["total"] == pytest.approx(seconds)
    assert said["as_set"]["rounds"] == pytest.approx(147)
    assert said["fedavg"]["round"]["total"] == pytest.approx(200)
    assert said["ratio"] == pytest.approx(internal)
    times = said["fedavg"]["seconds"] / said["fedgs"]["seconds"]
    line = answer(here(*options))
    assert line.startswith(f"Yes: FedGS reaches the target accuracy {times:.3g} times as fast as FedAvg, in ")
    assert line.endswith(f", with the best T={said['fedgs']['iterations']}, and L=10 as set.")


@pytest.mark.parametrize("profile", ["5g", "wifi6", "wired"])
@pytest.mark.parametrize(
    "park",
    [
        (),
        ("selection.pick=1",),
        ("federation.factories=1", "federation.devices=2", "selection.pick=2"),
        ("training.iterations=1",),
        ("training.iterations=2_000_000_000",),
        ("clock.internal.up.rate=1e5",),
        ("clock.direct.up.rate=1e9", "clock.direct.down.rate=1e9"),
        ("clock.step_seconds=60", "clock.selection_seconds=60"),
        ("plan.rounds=100", "plan.fedavg_rounds=90"),
    ],
)
def test_the_first_line_answers_and_the_rest_agrees(here: Here, profile: str, park: tuple[str, ...]) -> None:
    options = ["plan", *PAPER, "--profile", profile, *setting(*park)]
    said = json.loads(here(*options, "--json").out)
    done = here(*options)
    line = answer(done)
    times = said["times_as_fast"]
    assert line.startswith("Yes: " if said["pays"] else "No: ")
    assert f"T={said['fedgs']['iterations']}" in line
    # L is the same everywhere: the model cannot tell which one is best, so nothing may rank them.
    pick = said["park"]["pick"]
    assert said["fedgs"]["pick"] == said["fedavg"]["pick"] == pick
    assert line.endswith(f" L={pick} as set.")
    assert set(re.findall(r"\bL=(\d+)", done.out)) <= {str(pick), "10"}  # of the paper's rounds
    assert ("best T" in done.out) == ("best T" in line) == (said["known_rounds"]["fedavg"] > 100)
    if times >= 1.1:
        assert f"{times:.3g} times as fast" in line
        assert said["fedavg"]["seconds"] >= 1.1 * said["fedgs"]["seconds"]
    else:
        assert "as long as FedAvg" in line
    assert "nan" not in done.out
    assert "inf" not in done.out


def test_each_direction_and_receiver_has_its_own_setting(here: Here, tmp_path: Path) -> None:
    # log2(1 + γ): 1 at the top server, 2 at the stations, 3 at the devices.
    station, device = 10 * math.log10(3), 10 * math.log10(7)
    (tmp_path / "park.toml").write_text(f"""
        federation = {{factories = 2, devices = 6}}
        selection = {{pick = 3}}
        training = {{iterations = 5}}
        plan = {{model_bytes = 1.5, latency = false}}
        [clock]
        step_seconds = 0.5
        selection_seconds = 0.25
        internal.up = {{bandwidth = 2.0, snr_db = {station}}}
        internal.down = {{bandwidth = 4.0, snr_db = {device}}}
        external.up = {{bandwidth = 1.0, snr_db = 0.0}}
        external.down = {{bandwidth = 0.5, snr_db = {station}}}
    """)
    code, out, err = here("plan", "park.toml", "--json")
    assert (code, err) == (0, "")
    said = json.loads(out)
    assert said["as_set"]["round"]["total"] == pytest.approx(48 + 60 + 1.25 + 2.5)
    assert said["fedavg"]["round"]["top"] == pytest.approx(120)
    assert (said["sources"]["step"], said["sources"]["select"]) == ("given", "given")


@pytest.mark.parametrize(
    ("overrides", "said", "unsaid"),
    [
        (
            [*in_hertz("external", 20e6, 20), *in_hertz("internal", 1e8, 10)],
            "devices–top, of FedAvg: 133 Mbit/s up, 69.2 Mbit/s down",
            "",
        ),
        ([f"clock.direct.{way}.rate=999.9" for way in ("up", "down")], "of FedAvg: 1 kbit/s up, 1 kbit/s down", ""),
        (["clock.profile=wifi6"], "Wi-Fi 6", "changed by settings"),
        (["clock.external.up.rate=1e7"], "changed by settings", ""),
        (["clock.profile=wired"], "rounds: of the paper: 147 and 478 to 82 %", "devices–top"),
        (["plan.rounds=30", "plan.fedavg_rounds=90"], "rounds: given", "of the paper"),
        (["training.iterations=300"], "T=300, as set, is too long", "longer"),
        (["training.iterations=10"], "T=10, as set, takes", "too long"),
        (["selection.pick=1"], "No links in the factories are fast enough", "Yes"),
        (["clock.internal.up.rate=1e4"], "No: FedGS takes 1,649 times as long", "e+"),
        (["selection.pick=3"], "fedgs sweep --grid selection.pick", "L=10 as set"),
    ],
)
def test_what_a_plan_says(here: Here, overrides: list[str], said: str, unsaid: str) -> None:
    code, out, err = here("plan", *PAPER, *setting(*overrides))
    assert (code, err) == (0, "")
    assert said in out
    assert not unsaid or unsaid not in out


def test_the_paper_model_in_a_profile(here: Here) -> None:
    _, out, _ = here("plan", "--profile", "wifi6", *setting("task.model=paper", "clock.step_seconds=0.02"), "--json")
    said = json.loads(out)
    assert said["park"]["model_bits"] == 32 * 6_603_710
    park = Park(32 * 6_603_710, step_seconds=0.02)
    expected = fedgs_round(park, load_profile("wifi6").network()).total
    assert said["as_set"]["round"]["total"] == pytest.approx(expected)
    assert (said["sources"]["step"], said["sources"]["select"]) == ("given", "not counted")


@pytest.mark.parametrize(
    ("overrides", "weights"),
    [
        (
            ["task.model=photo", "data.name=photos"],
            27_231,
        ),  # 912 + 2,616 + 7,812 + 15,600 of four convolutions, 291 of the head
        (["task.model=linear", "data.name=photos"], 3 * (8 * 8 * 3) + 3),
        (["task.model=linear", "data.name=photos", "data.size=4", "data.grey=true"], 3 * 16 + 3),
        (["task.model=regularised", "data.name=femnist"], 6_603_710),
        # A mean, a deviation and a counter of each batch normalisation travel too.
        (["task.model=vibration", "data.name=bearings"], 63_567),
        (["task=fedgs.tasks.bearings:severity", "data.name=bearings-severity"], 62_277),
        (["task.model=tests.cli.test_plan:own_network", "data.name=photos"], 8 * 8 * 3 * 3 + 3),
    ],
)
def test_a_network_is_built_to_the_shapes_of_its_data(
    here: Here, tmp_path: Path, overrides: list[str], weights: int
) -> None:
    for device in ("cam0", "cam1"):
        for name in ("dent", "ok", "scratch"):
            (tmp_path / "photos" / device / name).mkdir(parents=True)
            Image.new("RGB", (8, 8), "grey").save(tmp_path / "photos" / device / name / "1.png")
    said = json.loads(here("plan", *setting(*overrides), "--json").out)
    assert said["park"]["model_bits"] == 32 * weights


def own_network() -> torch.nn.Module:
    """Return a network whose shapes follow from the data."""
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(3))


def test_the_picture(here: Here, tmp_path: Path) -> None:
    code, out, err = here("plan", *PAPER, "--plot", "plan.png")
    assert (code, err) == (0, "")
    assert "picture: plan.png" in out
    with Image.open(tmp_path / "plan.png") as picture:
        assert picture.width > 1200
        assert len(set(picture.convert("RGB").resize((64, 64)).get_flattened_data())) > 20
    assert [path.name for path in tmp_path.iterdir()] == ["plan.png"]


def test_times_are_measured(here: Here) -> None:
    small = setting("task.model=compact", "federation.devices=40", "federation.factories=4", "selection.pick=3")
    code, out, _ = here("plan", *small, "--measure", "--json")
    assert code == 0
    park = json.loads(out)["park"]
    assert 0 < park["step_seconds"] < 60
    assert 0 < park["select_seconds"] < 60
    times = setting("clock.step_seconds=1", "clock.selection_seconds=2")
    _, out, _ = here("plan", *small, *times, "--measure", "--json")
    park = json.loads(out)["park"]
    assert (park["step_seconds"], park["select_seconds"]) == (1, 2)
    assert selection_seconds(6, 2, repeats=1) > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--profile", "lte"], "clock.profile='lte' is not possible: no such profile; there are 5g, wifi6, wired"),
        (["--profile", "none.toml"], "none.toml: no such file"),
        (["none.toml"], "none.toml: no such file"),
        (setting("task.model=large"), "task.model='large' is not a built-in network; there are paper,"),
        (setting("task.model=my.module:Net"), "task.model='my.module:Net': module 'my.module' cannot be imported"),
        (setting("task.model=vibration"), "task.model vibration: fails on inputs (1, 1, 28, 28) float32"),
        (setting("task.model=photo", "data.name=photos"), "photos: no such file or folder"),
        (setting("task.model=photo", "data.name=photos"), "; to plan without the data give plan.model_bytes"),
        (setting("plan.model_bytes=0"), "plan.model_bytes=0"),
        (setting("plan.size=1"), "plan.size=1 is not a known setting; known keys here: model_bytes"),
        (setting("clock.internal.up.bandwidth=-1"), "clock.internal.up.bandwidth=-1"),
        (setting("clock.external.up.bandwidth=5e6"), "external.up needs snr_db"),
        (setting("clock.external.up.snr_db=3"), "external.up needs a bandwidth (it is known by its rate"),
        (setting("clock.external.up.snr_db=500"), "clock.external.up.snr_db=500"),
        (setting("selection.pick=36"), "selection.pick=36 is more than the 35 devices of a factory"),
        (setting("selection.pick=36", "selection.cap=true"), "pick=36 is impossible; a factory has 35 devices"),
        (setting("training.iterations=0"), "training.iterations=0"),
        (setting("federation.factories=0"), "federation.factories=0"),
        (setting("clock.step_seconds=-5"), "clock.step_seconds=-5 is not possible: give seconds of 0 or more"),
        (setting("plan.rounds=0", "plan.fedavg_rounds=1"), "plan.rounds=0"),
        (setting("plan.rounds=3"), "plan.rounds and plan.fedavg_rounds go together"),
        (setting("plan.fedavg_rounds=3"), "plan.rounds and plan.fedavg_rounds go together"),
        (setting("plan.most_iterations=0"), "plan.most_iterations=0"),
        (["--plot", "plan.doc"], "plan.doc: a picture must end in .png"),
    ],
)
def test_wrong_arguments_are_one_line(here: Here, tmp_path: Path, options: list[str], message: str) -> None:
    small = [] if "task.model" in str(options) else MEGABYTE
    assert message in error_of(here("plan", *small, *options))
    assert list(tmp_path.iterdir()) == []


def test_a_run_gives_its_park_its_times_and_its_rounds(runs: Path, here: Here) -> None:
    run = str(runs / "a")
    code, out, err = here("plan", "--run", run, "--json")
    assert (code, err) == (0, "")
    said = json.loads(out)
    park = said["park"]
    assert [park[key] for key in ("factories", "devices", "pick", "iterations")] == [3, 12, 3, 4]
    assert (park["step_seconds"], park["select_seconds"]) == pytest.approx((0.5, 0.25))
    assert said["bits_per_second"]["external_up"] == 1e6
    # Both reach the target, 1 %, in the first round.
    assert said["known_rounds"] == {"fedgs": 1, "fedavg": 1, "iterations": 4, "pick": 3}
    assert said["sources"]["rounds"] == "of these runs: 1 and 1 to accuracy 1.0%"
    # A round of the plan is a round of the run.
    line = json.loads((runs / "a/clock.jsonl").read_text().splitlines()[-1])
    assert said["as_set"]["round"]["total"] == pytest.approx(line["seconds"])
    changed = setting("training.iterations=9", "clock.step_seconds=1", "plan.rounds=5", "plan.fedavg_rounds=20")
    code, out, _ = here("plan", "--run", run, "--profile", "wired", *changed)
    assert code == 0
    for words in ("Gigabit Ethernet", "1 s each, given", "250 ms each, of the run", "rounds: given"):
        assert words in out


def test_a_run_says_which_selection_pays(runs: Path, tmp_path: Path, here: Here) -> None:
    shutil.copytree(runs / "a", tmp_path / "a")
    said = json.loads(here("plan", "--run", "a", "--json").out)["selection"]
    summary = json.loads((tmp_path / "a/summary.json").read_text())
    facts = summary["selection"]
    assert f"{facts['random_divergence'] / facts['independent_divergence']:.1f} times as far" in said["reasons"][0]
    text = here("plan", "--run", "a").out
    assert f"selection: {said['selection']} ({', '.join(said['settings'])})" in text
    assert all(reason in text for reason in said["reasons"])
    # A network with batch normalisation keeps a mean of each channel.
    facts["random_divergence"] = 3 * facts["independent_divergence"]
    (tmp_path / "a/summary.json").write_text(json.dumps(summary))
    assert "normalisation" not in here("plan", "--run", "a").out
    last = sorted((tmp_path / "a/checkpoints").iterdir())[-1] / "state.safetensors"
    save_file(load_file(last) | {"weights/norm.running_mean": torch.zeros(2)}, last)
    assert "With batch normalisation" in here("plan", "--run", "a").out
    (tmp_path / "a/summary.json").unlink()
    assert "selection: no advice: the run is not finished" in here("plan", "--run", "a").out
    assert json.loads(here("plan", "--run", "a", "--json").out)["selection"] is None
    assert "selection" not in json.loads(here("plan", "--json").out)


def test_the_rounds_of_two_runs_are_those_to_the_best_that_both_reach(runs: Path, tmp_path: Path, here: Here) -> None:
    for name, scores in (("a", [0.1, 0.2, 0.6, 0.7]), ("a-fedavg", [0.1, 0.1, 0.2, 0.5])):
        shutil.copytree(runs / name, tmp_path / name)
        lines = [{"round": number, "accuracy": score, "loss": 1.0} for number, score in enumerate(scores)]
        write_lines(tmp_path / name / "metrics.jsonl", lines)
    config = json.loads((tmp_path / "a/config.json").read_text())
    config["eval"]["target"] = 0.65
    (tmp_path / "a/config.json").write_text(json.dumps(config))
    said = json.loads(here("plan", "--run", "a", "--json").out)
    assert (said["known_rounds"]["fedgs"], said["known_rounds"]["fedavg"]) == (2, 3)  # to 50 %
    write_lines(tmp_path / "a-fedavg/metrics.jsonl", [{"round": 0}, {"round": 1}])
    assert "not of this run: a or its run of FedAvg has made no test yet;" in here("plan", "--run", "a").out
    shutil.rmtree(tmp_path / "a-fedavg")
    said = json.loads(here("plan", "--run", "a", "--json").out)
    assert (said["known_rounds"]["fedgs"], said["known_rounds"]["fedavg"]) == (147, 478)


@pytest.mark.usefixtures("unpainted")
def test_a_run_without_fedavg_says_so_and_how_to_get_it(runs: Path, tmp_path: Path, here: Here) -> None:
    shutil.copytree(runs / "a", tmp_path / "a b")
    done = here("plan", "--run", "a b")
    assert "of the paper: 147 and 478" in done.out.splitlines()[1]
    assert "not of this run: a b has no run of FedAvg beside it" in done.out
    # The command that it names makes a run with rounds of its own.
    (command,) = re.findall(r"to get its own: fedgs (.*), then --run with the new folder", done.out)
    assert here(*shlex.split(command), "--set", "training.rounds=1", "--out", "new").code == 0
    assert "rounds: of these runs: 1 and 1" in here("plan", "--run", "new").out


def test_a_slow_round_does_not_move_the_time_of_a_selection() -> None:
    lines = [{"round": 0, "elapsed": 0.0}, *({"round": n, "selection": s} for n, s in ((1, 900.0), (2, 2.0), (3, 4.0)))]
    assert one_selection(lines, 8) == 0.5
    assert one_selection(lines[:1], 8) == 0


def test_a_run_that_cannot_be_planned_with_is_one_line(runs: Path, tmp_path: Path, here: Here) -> None:
    run, flat = str(runs / "a"), str(runs / "a-fedavg")
    (tmp_path / "bare").mkdir()
    shutil.copy(runs / "a/config.json", tmp_path / "bare")
    for arguments, words in (
        (["--run", "nowhere"], "nowhere: is not the folder of a run"),
        (["--run", flat], f"--run {flat}: is a run of fedavg; give a run of fedgs"),
        (["--run", "bare"], "--run bare: has made no round yet"),
        (["x.toml", "--run", run], "x.toml and --run: a run has settings of its own"),
        (["--measure", "--run", run], "--measure and --run: the run has measured its times"),
    ):
        assert words in error_of(here("plan", *arguments))
