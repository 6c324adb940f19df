"""``fedgs plan``: what it says, what it draws, wrong arguments."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from fedgs.cli.plan import REPLACED, one_selection
from fedgs.network import Park, fedgs_round, load_profile
from fedgs.simulation import run_clock
from fedgs.simulation.run_clock import selection_seconds, step_seconds
from fedgs.tasks.bind import BoundTask
from fedgs.training import clients
from fedgs.training.objective import Objective
from tests.conftest import Here, error_of


def setting(*overrides: str) -> list[str]:
    return [word for override in overrides for word in ("--set", override)]


def in_hertz(link: str, bandwidth: float, snr_db: float = 0) -> list[str]:
    return [f"clock.{link}.{way}.{key}={value}" for way in ("up", "down")
            for key, value in (("bandwidth", bandwidth), ("snr_db", snr_db))]  # fmt: skip


HAND = setting("plan.model_bytes=0.125", "plan.latency=false", *in_hertz("external", 1))
"""T-TIME-1 as settings."""
MEGABYTE = setting("plan.model_bytes=1e6")
PAPER = setting("plan.model_bytes=26.4e6")


@pytest.mark.parametrize(("internal", "seconds", "wins"), [(10, 120, True), (5, 220, False)])
def test_the_hand_worked_park(here: Here, internal: float, seconds: float, wins: bool) -> None:
    options = ["plan", *HAND, *setting(*in_hertz("internal", internal))]
    code, out, err = here(*options, "--json")
    assert (code, err) == (0, "")
    said = json.loads(out)
    assert said["fedgs_seconds"]["total"] == pytest.approx(seconds)
    assert said["fedavg_seconds"]["total"] == pytest.approx(200)
    assert said["fedgs_wins"] is wins
    assert said["break_even_ratio"] == pytest.approx(said["proposition_threshold"]) == pytest.approx(50 / 9)
    assert said["ratio"] == pytest.approx(internal)
    code, out, _ = here(*options)
    assert code == 0
    assert (
        "1.67 times as fast as FedAvg: it saves 80 s" if wins else "1.1 times as slow as FedAvg: it loses 20 s"
    ) in out
    assert "TL/(M(L−1)) = 5.556 < " in out
    assert "FedGS wins above 5.556" in out


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
    assert said["fedgs_seconds"]["total"] == pytest.approx(48 + 60 + 1.25 + 2.5)
    assert said["fedavg_seconds"]["total"] == pytest.approx(120 + 2.5)
    assert said["times"] == {"step": "given", "select": "given"}


@pytest.mark.parametrize(
    ("overrides", "said", "unsaid"),
    [
        (
            [*in_hertz("external", 20e6, 20), *in_hertz("internal", 1e8, 10)],
            "devices–top, of FedAvg: 133 Mbit/s up, 69.2 Mbit/s down",
            "",
        ),
        ([f"clock.direct.{way}.rate=999.9" for way in ("up", "down")], "of FedAvg: 1 kbit/s up, 1 kbit/s down", ""),
        (["clock.profile=wired"], "the longest that beats FedAvg", "devices–top"),
        (["clock.profile=wifi6"], "Wi-Fi 6", "changed by settings"),
        (["clock.external.up.rate=1e7"], "changed by settings", ""),
        (["plan.divergence=1", "training.learning_rate=0.5", "plan.smoothness=4"], "η=0.5 is above 1/β=0.25", ""),
        (["plan.divergence=1", "training.learning_rate=0.5", "plan.smoothness=2"], "Best: T=", "is above 1/β"),
        # 50 − 2·100·h(50)
        (["clock.profile=wired", "plan.divergence=2"], "Here: T=50, L=10; worth 21.1 iterations", "is void"),
        (["plan.divergence=20"], "the bound is void", ""),
        (["selection.pick=1"], "No T at L=1 beats FedAvg", "wins above"),
        (["selection.pick=1"], "no ratio is enough", "Best"),
        (["plan.speedup=1.5"], "is 1.5 times as fast as FedAvg", "beats FedAvg"),
    ],
)
def test_what_a_plan_says(here: Here, overrides: list[str], said: str, unsaid: str) -> None:
    code, out, err = here("plan", *PAPER, *setting(*overrides))
    assert (code, err) == (0, "")
    assert said in out
    assert not unsaid or unsaid not in out


def test_what_proposition_4_assumes_is_said_where_it_does_not_hold(here: Here) -> None:
    fast = setting(*in_hertz("internal", 10))
    _, out, _ = here("plan", *HAND, *fast, *setting("clock.selection_seconds=60"))
    assert "times as slow" in out
    assert "TL/(M(L−1)) = 5.556 < 10 holds (assumes equal links, no selection time)." in " ".join(out.split())
    assert "assumes" not in here("plan", *HAND, *fast)[1]


def test_a_round_too_long_for_the_bound_is_void_and_no_more(here: Here, tmp_path: Path) -> None:
    longest = setting("plan.divergence=1", "training.iterations=2_000_000_000")
    code, out, _ = here("plan", *MEGABYTE, *longest, "--plot", "plan.png")
    assert code == 0
    assert "Best: T=" in out
    assert "the bound is void" in out
    assert (tmp_path / "plan.png").exists()


def test_the_paper_model_in_a_profile(here: Here) -> None:
    _, out, _ = here("plan", "--profile", "wifi6", *setting("task.model=paper", "clock.step_seconds=0.02"), "--json")
    said = json.loads(out)
    assert said["park"]["model_bits"] == 32 * 6_603_710
    park = Park(32 * 6_603_710, step_seconds=0.02)
    assert said["fedgs_seconds"]["total"] == pytest.approx(fedgs_round(park, load_profile("wifi6").network()).total)
    assert said["times"] == {"step": "given", "select": "not counted"}


@pytest.mark.parametrize(
    "overrides",
    [(), ("plan.divergence=1",), ("plan.divergence=1e6", "selection.pick=1")],
)
def test_the_picture(here: Here, tmp_path: Path, overrides: tuple[str, ...]) -> None:
    code, out, err = here("plan", *PAPER, "--plot", "plan.png", *setting(*overrides))
    assert (code, err) == (0, "")
    assert "picture: plan.png" in out
    with Image.open(tmp_path / "plan.png") as picture:
        assert picture.width > (1800 if "divergence" in str(overrides) else 1200)
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
    assert step_seconds("compact", batch_size=2, repeats=1) > 0
    assert selection_seconds(6, 2, repeats=1) > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--profile", "lte"], "clock.profile='lte' is not possible: no such profile; there are 5g, wifi6, wired"),
        (["--profile", "none.toml"], "none.toml: no such file"),
        (["none.toml"], "none.toml: no such file"),
        (setting("task.model=large"), "no model is called 'large'"),
        (setting("task.model=my.module:Net"), "task 'my.module:Net' is known with its data only"),
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
        (setting("plan.divergence=-1"), "plan.divergence=-1"),
        (setting("plan.phi=2"), "plan.phi changes nothing without δ; give plan.divergence or --run too"),
        (setting("plan.smoothness=3"), "plan.smoothness changes nothing"),
        (setting("plan.speedup=0"), "plan.speedup=0"),
        (setting("plan.most_iterations=0"), "plan.most_iterations=0"),
        (["--plot", "plan.doc"], "plan.doc: a picture must end in .png"),
        (["--plot", "none/plan.png"], "there is no folder none"),
    ],
)
def test_wrong_arguments_are_one_line(here: Here, tmp_path: Path, options: list[str], message: str) -> None:
    small = [] if "task.model" in str(options) else MEGABYTE
    assert message in error_of(here("plan", *small, *options))
    assert list(tmp_path.iterdir()) == []


def test_an_option_of_older_versions_names_the_setting(here: Here) -> None:
    for option, name in REPLACED.items():
        assert f"it is now a setting: --set {name}" in error_of(here("plan", option, "1"))


def test_a_run_gives_its_park_and_what_the_bound_needs(runs: Path, here: Here) -> None:
    run = str(runs / "a")
    code, out, err = here("plan", "--run", run, "--json")
    assert (code, err) == (0, "")
    said = json.loads(out)
    park = said["park"]
    assert [park[key] for key in ("factories", "devices", "pick", "iterations")] == [3, 12, 3, 4]
    assert (park["step_seconds"], park["select_seconds"]) == pytest.approx((0.5, 0.25))
    assert (said["profile"], said["links_bits_per_second"]["external"]["up"]) == ("5g", 1e6)
    measured = said["run"]
    assert (measured["round"], measured["super_nodes"]) == (3, 12)  # T is 4: all of the next round
    assert 0 < measured["divergence_actual"] <= measured["divergence"]
    constants = said["constants"]
    assert (constants["divergence"], constants["smoothness"]) == (measured["divergence"], measured["smoothness"])
    assert constants["learning_rate"] == 0.1
    # A round of the plan is a round of the run.
    line = json.loads((runs / "a/clock.jsonl").read_text().splitlines()[-1])
    assert said["fedgs_seconds"]["total"] == pytest.approx(line["seconds"])
    changed = setting("training.iterations=9", "clock.step_seconds=1", "plan.smoothness=2")
    code, out, _ = here("plan", "--run", run, "--profile", "wired", *changed)
    assert code == 0
    measured_words = f"run {run} after round 3: δ = {measured['divergence']:.4g}"
    for words in (measured_words, "profile wired", "9 iterations", "1 s each, given", "250 ms each, of the run"):
        assert words in out


def test_a_step_of_a_run_is_measured_with_its_own_batches(
    runs: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[object, ...]] = []

    def step() -> None:
        pass

    def noted(task: BoundTask, objective: Objective, batch_size: int) -> Callable[[], None]:
        seen.append((task.task.model, len(task.classes), task.federation.inputs.shape[1:], batch_size))
        return step

    monkeypatch.setattr(clients, "local_step", noted)
    monkeypatch.setattr(run_clock, "fastest", lambda action, *_: 3.0 if action is step else 0.5)
    code, out, _ = here("plan", "--run", str(runs / "a"), "--measure", "--json")
    assert code == 0
    assert seen == [("compact", 4, (8, 8), 5)]
    said = json.loads(out)
    assert said["times"] == {"step": "measured here", "select": "measured here"}
    assert (said["park"]["step_seconds"], said["park"]["select_seconds"]) == (3, 0.5)


def test_a_slow_round_does_not_move_the_time_of_a_selection() -> None:
    lines = [{"round": 0, "elapsed": 0.0}, *({"round": n, "selection": s} for n, s in ((1, 900.0), (2, 2.0), (3, 4.0)))]
    assert one_selection(lines, 8) == 0.5
    assert one_selection(lines[:1], 8) == 0


def test_a_run_that_cannot_be_planned_with_is_one_line(runs: Path, tmp_path: Path, here: Here) -> None:
    run, flat = str(runs / "a"), str(runs / "a-fedavg")
    (tmp_path / "bare").mkdir()
    shutil.copy(runs / "a/config.json", tmp_path / "bare")
    own = "and --run: δ is measured in the run's own park"
    for arguments, words in (
        (["--run", "nowhere"], "nowhere: is not the folder of a run"),
        (["--run", flat], f"--run {flat}: is a run of fedavg, which has no super nodes"),
        (["--run", "bare"], "--run bare: has no checkpoint yet"),
        (["--run", run, *setting("selection.pick=2")], f"selection.pick=2 {own}"),
        (["--run", run, *setting("task.model=paper")], f"task.model=paper {own}"),
        (["x.toml", "--run", run], "x.toml and --run: a run has settings of its own"),
    ):
        assert words in error_of(here("plan", *arguments))
