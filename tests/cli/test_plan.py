"""``fedgs plan``: what it says, what it draws, wrong arguments."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from fedgs.cli import quantities
from fedgs.cli.plan_run import one_selection
from fedgs.errors import ConfigError
from fedgs.network import Park, fedgs_round, load_profile
from fedgs.simulation import step_time
from fedgs.simulation.step_time import selection_seconds, step_seconds
from fedgs.tasks.bind import BoundTask
from fedgs.training import local_step
from fedgs.training.objective import Objective
from tests.conftest import Here
from tests.simulation.small import small_config

HAND = ("--size", "1bit", "--external", "1Hz", "--snr", "0", "--no-latency")
"""T-TIME-1 as options."""


@pytest.mark.parametrize(("internal", "seconds", "wins"), [("10Hz", 120, True), ("5Hz", 220, False)])
def test_the_hand_worked_park(here: Here, internal: str, seconds: float, wins: bool) -> None:
    code, out, err = here("plan", *HAND, "--internal", internal, "--json")
    assert (code, err) == (0, "")
    said = json.loads(out)
    assert said["fedgs_seconds"]["total"] == pytest.approx(seconds)
    assert said["fedavg_seconds"]["total"] == pytest.approx(200)
    assert said["fedgs_wins"] is wins
    assert said["break_even_ratio"] == pytest.approx(said["proposition_threshold"]) == pytest.approx(50 / 9)
    assert said["ratio"] == pytest.approx(float(internal.removesuffix("Hz")))
    code, out, _ = here("plan", *HAND, "--internal", internal)
    assert code == 0
    assert (
        "1.67 times as fast as FedAvg: it saves 80 s" if wins else "1.1 times as slow as FedAvg: it loses 20 s"
    ) in out
    assert "TL/(M(L−1)) = 5.556 < " in out
    assert "FedGS wins above 5.556" in out


def test_each_direction_and_receiver_has_its_own_option(here: Here) -> None:
    # log2(1 + γ): 1 at the top server, 2 at the stations, 3 at the devices.
    _, out, _ = here(
        "plan", "--size", "12bit", "-M", "2", "-L", "3", "-T", "5", "-K", "6", "--no-latency", "--json",
        "--internal-up", "2Hz", "--internal-down", "4Hz", "--external-up", "1Hz", "--external-down", "0.5Hz",
        "--snr-top", "0", "--snr-station", "4.771212547", "--snr-device", "8.450980400",
        "--step-time", "500ms", "--select-time", "250ms",
    )  # fmt: skip
    said = json.loads(out)
    assert said["fedgs_seconds"]["total"] == pytest.approx(48 + 60 + 1.25 + 2.5)
    assert said["fedavg_seconds"]["total"] == pytest.approx(120 + 2.5)


def test_an_snr_of_the_devices_counts_on_the_direct_link_alone(here: Here) -> None:
    options = ("plan", "--size", "1MB", "--internal", "500Mbit/s", "--external", "20MHz", "--snr-station", "20",
               "--snr-top", "20", "--snr-device", "10")  # fmt: skip
    code, out, err = here(*options, "--json")
    assert (code, err) == (0, "")
    rates = json.loads(out)["links_bits_per_second"]
    assert rates["external"]["down"] == rates["direct"]["up"] == pytest.approx(20e6 * math.log2(101))
    assert rates["direct"]["down"] == pytest.approx(20e6 * math.log2(11))
    assert "devices–top, of FedAvg: 133 Mbit/s up, 69.2 Mbit/s down" in here(*options)[1]
    assert "devices–top" not in here("plan", "--size", "1MB", "--profile", "wired")[1]
    code, out, _ = here("plan", "--size", "1MB", "--direct", "999.9bit/s")
    assert code == 0
    assert "devices–top, of FedAvg: 1 kbit/s up, 1 kbit/s down" in out


def test_what_a_verdict_rests_on_is_printed_beside_it(here: Here) -> None:
    _, out, _ = here("plan", *HAND, "--internal", "10Hz", "--select-time", "1min")
    assert "times as slow" in out
    assert "TL/(M(L−1)) = 5.556 < 10 holds (assumes equal links, no selection time)." in " ".join(out.split())
    _, out, _ = here("plan", *HAND, "--internal", "10Hz")
    assert "assumes" not in out
    options = ("plan", "--size", "1MB", "--divergence", "1", "--learning-rate", "0.5")
    _, out, _ = here(*options, "--smoothness", "4")
    assert "η=0.5 is above 1/β=0.25: the bound is not known there" in out
    assert "is above 1/β" not in here(*options, "--smoothness", "2")[1]
    _, out, _ = here("plan", "--size", "1MB", "--step-time", "1s", "--json")
    assert json.loads(out)["times"] == {"step": "given", "select": "not counted"}


def test_a_round_too_long_for_the_bound_is_void_and_no_more(here: Here, tmp_path: Path) -> None:
    code, out, _ = here("plan", "--size", "1MB", "--divergence", "1", "-T", "2000000000", "--plot", "plan.png")
    assert code == 0
    assert "Best: T=" in out
    assert "the bound is void" in out
    assert (tmp_path / "plan.png").exists()


def test_the_paper_model_in_a_profile(here: Here) -> None:
    _, out, _ = here("plan", "--profile", "wifi6", "--model", "paper", "--step-time", "20ms", "--json")
    said = json.loads(out)
    assert said["park"]["model_bits"] == 32 * 6_603_710
    park = Park(32 * 6_603_710, step_seconds=0.02)
    assert said["fedgs_seconds"]["total"] == pytest.approx(fedgs_round(park, load_profile("wifi6").network()).total)
    code, out, _ = here("plan", "--profile", "wifi6", "--size", "26.4MB")
    assert code == 0
    assert "Wi-Fi 6" in out
    assert "changed by options" not in out
    assert "changed by options" in here("plan", "--size", "26.4MB", "--external", "10Mbit/s")[1]
    assert "not counted" in out
    assert "the longest that beats FedAvg" in out


def test_drift_is_weighed_when_the_divergence_is_given(here: Here) -> None:
    code, out, _ = here("plan", "--size", "26.4MB", "--profile", "wired", "--divergence", "2")
    assert code == 0
    assert "Best: T=" in out
    assert "At L=10 the best is T=" in out
    assert "Here: T=50, L=10; worth 21.1 iterations" in out  # 50 − 2·100·h(50)
    _, out, _ = here("plan", "--size", "26.4MB", "--divergence", "20")
    assert "the bound is void" in out
    _, out, _ = here("plan", "--size", "26.4MB", "-L", "1")
    assert "No T at L=1 beats FedAvg" in out
    assert "no ratio is enough" in out
    _, out, _ = here("plan", "--size", "26.4MB", "--speedup", "1.5")
    assert "is 1.5 times as fast as FedAvg" in out


@pytest.mark.parametrize("options", [(), ("--divergence", "1"), ("-L", "1"), ("--divergence", "1e6", "-L", "1")])
def test_the_picture(here: Here, tmp_path: Path, options: tuple[str, ...]) -> None:
    code, out, err = here("plan", "--size", "26.4MB", "--plot", "plan.png", *options)
    assert (code, err) == (0, "")
    assert "picture: plan.png" in out
    with Image.open(tmp_path / "plan.png") as picture:
        assert picture.width > (1800 if "--divergence" in options else 1200)
        assert len(set(picture.convert("RGB").resize((64, 64)).get_flattened_data())) > 20
    assert [path.name for path in tmp_path.iterdir()] == ["plan.png"]


def test_times_are_measured(here: Here) -> None:
    code, out, _ = here("plan", "--model", "compact", "--measure", "-K", "40", "-M", "4", "-L", "3", "--json")
    assert code == 0
    park = json.loads(out)["park"]
    assert 0 < park["step_seconds"] < 60
    assert 0 < park["select_seconds"] < 60
    _, out, _ = here("plan", "--model", "compact", "--measure", "--step-time", "1s", "--select-time", "2s", "--json")
    park = json.loads(out)["park"]
    assert (park["step_seconds"], park["select_seconds"]) == (1, 2)
    assert step_seconds("compact", batch_size=2, repeats=1) > 0
    assert selection_seconds(6, 2, repeats=1) > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--profile", "lte"], "no profile is called 'lte'; there are 5g, wifi6, wired"),
        (["--profile", "none.toml"], "none.toml: no such file"),
        (["--model", "large"], "no model is called 'large'"),
        (["--model", "paper", "--size", "1MB"], "give one of them"),
        (["--size", "26"], "--size 26: expected a number with its unit, as in 26.4MB"),
        (["--size", "0MB"], "model_bits=0 is impossible"),
        (["--internal", "100"], "--internal 100: expected a number with its unit"),
        (["--internal", "fastMHz"], "--internal fastMHz"),
        (["--internal", "1.2.3MHz"], "--internal 1.2.3MHz"),
        (["--internal-up=-1MHz"], "--internal-up -1MHz is impossible; it must be above 0"),
        (["--external", "5MHz"], "external.up needs snr_db"),
        (["--internal", "0MHz"], "--internal 0MHz is impossible; it must be above 0"),
        (["--direct", "0MHz"], "--direct 0MHz is impossible"),
        (["--snr-top", "3"], "--snr-top changes nothing: the top server receives on links given as rates"),
        (["--snr-top=-500"], "--snr-top -500 is impossible; it must be from -100 to 200 dB"),
        (["--snr", "3", "--profile", "wired"], "--snr changes nothing"),
        (["--snr", "1000"], "--snr 1000 is impossible; it must be from -100 to 200 dB"),
        (["-L", "36"], "pick=36 is impossible; a factory has 35 devices"),
        (["-T", "0"], "iterations=0 is impossible"),
        (["-M", "0"], "factories=0 is impossible"),
        (["-M", "0", "--measure", "--step-time", "1s"], "factories=0 is impossible"),
        (["--step-time", "5"], "--step-time 5: expected a number with its unit, as in 15ms"),
        (["--step-time=-5ms"], "step_seconds=-0.005 s is impossible"),
        (["--measure"], "--measure needs a model by name"),
        (["--divergence=-1"], "divergence=-1 is impossible"),
        (["--divergence", "1", "--smoothness", "0"], "smoothness=0 is impossible"),
        (["--phi", "2"], "--phi 2 changes nothing without δ; give --divergence or --run too"),
        (["--learning-rate", "0.1"], "--learning-rate 0.1 changes nothing"),
        (["--smoothness", "3"], "--smoothness 3 changes nothing"),
        (["--speedup", "0"], "speedup=0 is impossible"),
        (["--most-iterations", "0"], "0 is not in the range"),
        (["--plot", "plan.doc"], "plan.doc: a picture must end in .png"),
        (["--plot", "none/plan.png"], "there is no folder none"),
        (["-T", "many"], "'many' is not a valid int"),
    ],
)
def test_wrong_arguments_are_one_line(here: Here, tmp_path: Path, options: list[str], message: str) -> None:
    small = [] if {"--size", "--model"} & set(options) else ["--size", "1MB"]
    code, out, err = here("plan", *small, *options)
    assert code == 2
    assert out == ""
    assert err.startswith("fedgs: error: ")
    assert len(err.strip().splitlines()) == 1
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_units() -> None:
    assert quantities.bits("--size", "26.4MB") == pytest.approx(211.2e6)
    assert quantities.bits("--size", "1 KiB") == 8192
    assert quantities.bits("--size", "3kbit") == 3000
    assert quantities.seconds("--step-time", "1.5e1ms") == pytest.approx(0.015)
    assert quantities.seconds("--step-time", "20µs") == pytest.approx(2e-5)
    assert quantities.bandwidth("--internal", "100MHz") == (1e8, False)
    assert quantities.bandwidth("--internal", "50Mbps") == (5e7, True)
    assert quantities.bandwidth("--internal", "0.5Gbit/s") == (5e8, True)
    with pytest.raises(ConfigError, match="expected a number"):
        quantities.bits("--size", "1Mb")  # bits or bytes? never guessed


def test_a_run_gives_its_park_and_what_the_bound_needs(tmp_path: Path, here: Here) -> None:
    options = ("clock.step_seconds=0.5", "clock.selection_seconds=0.25", "clock.profile=wired",
               "clock.external.up.rate=1e6")  # fmt: skip
    assert here("run", *small_config(tmp_path, *options), "--out", "a")[0] == 0
    code, out, err = here("plan", "--run", "a", "--json")
    assert (code, err) == (0, "")
    said = json.loads(out)
    park = said["park"]
    assert [park[key] for key in ("factories", "devices", "pick", "iterations")] == [3, 12, 3, 4]
    assert (park["step_seconds"], park["select_seconds"]) == pytest.approx((0.5, 0.25))
    assert (said["profile"], said["links_bits_per_second"]["external"]["up"]) == ("wired", 1e6)
    measured = said["run"]
    assert (measured["round"], measured["super_nodes"]) == (3, 12)  # T is 4: all of the next round
    assert 0 < measured["divergence_actual"] <= measured["divergence"]
    constants = said["constants"]
    assert (constants["divergence"], constants["smoothness"]) == (measured["divergence"], measured["smoothness"])
    assert constants["learning_rate"] == 0.1
    # A round of the plan is a round of the run.
    line = json.loads((tmp_path / "a/clock.jsonl").read_text().splitlines()[-1])
    assert said["fedgs_seconds"]["total"] == pytest.approx(line["seconds"])
    code, out, _ = here("plan", "--run", "a", "-T", "9", "--profile", "5g", "--step-time", "1s", "--smoothness", "2")
    assert code == 0
    assert f"run a after round 3: δ = {measured['divergence']:.4g}" in out
    assert "private 5G" in out
    assert "9 iterations" in out
    assert "1 s each, given" in out
    assert "250 ms each, of the run" in out


def test_a_step_of_a_run_is_measured_with_its_own_batches(
    tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[object, ...]] = []

    def step() -> None:
        pass

    def noted(task: BoundTask, objective: Objective, batch_size: int) -> Callable[[], None]:
        seen.append((task.task.model, len(task.classes), task.federation.inputs.shape[1:], batch_size))
        return step

    monkeypatch.setattr(local_step, "local_step", noted)
    monkeypatch.setattr(step_time, "fastest", lambda action, *_: 3.0 if action is step else 0.5)
    assert here("run", *small_config(tmp_path, "training.rounds=1", "clock.step_seconds=1"), "--out", "a")[0] == 0
    code, out, _ = here("plan", "--run", "a", "--measure", "--json")
    assert code == 0
    assert seen == [("compact", 4, (8, 8), 5)]
    said = json.loads(out)
    assert said["times"] == {"step": "measured here", "select": "measured here"}
    assert (said["park"]["step_seconds"], said["park"]["select_seconds"]) == (3, 0.5)


def test_a_slow_round_does_not_move_the_time_of_a_selection() -> None:
    lines = [{"round": 0, "elapsed": 0.0}, *({"round": n, "selection": s} for n, s in ((1, 900.0), (2, 2.0), (3, 4.0)))]
    assert one_selection(lines, 8) == 0.5
    assert one_selection(lines[:1], 8) == 0


def test_a_run_that_cannot_be_planned_with_is_one_line(tmp_path: Path, here: Here) -> None:
    options = small_config(tmp_path, "training.rounds=1")
    assert here("run", *options, "--out", "a")[0] == 0
    assert here("run", *options, "--set", "algorithm.name=fedavg", "--out", "flat")[0] == 0
    (tmp_path / "bare").mkdir()
    shutil.copy(tmp_path / "a/config.json", tmp_path / "bare")
    for arguments, words in (
        (["--run", "nowhere"], "nowhere: is not the folder of a run"),
        (["--run", "flat"], "--run flat: is a run of fedavg, which has no super nodes"),
        (["--run", "bare"], "--run bare: has no checkpoint yet"),
        (["--run", "a", "-L", "2"], "-L and --run: δ is measured in the run's own park"),
        (["--run", "a", "--model", "paper"], "--model and --run"),
    ):
        code, out, err = here("plan", *arguments)
        assert (code, out) == (2, "")
        assert err.startswith("fedgs: error: ")
        assert err.count("\n") == 1
        assert words in err
