"""The live page in a real browser, fed by real runs."""

import json
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import fedgs
from fedgs.config import load_settings
from tests.ui.conftest import SMALL, serving, until

TILE = "#factories .tile"


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "teams.jsonl").read_text().splitlines()]


def rounds_shown(page: Any) -> int:
    return int(page.locator("#round").get_attribute("max"))


def test_a_finished_run_is_shown_and_replayed(finished: Path, served: str, open_page: Callable[..., Any]) -> None:
    teams = rounds_of(finished)
    names = [name for name, _ in json.loads((finished / "federation.json").read_text())["devices"]]
    page = open_page(served)
    until(lambda: page.locator("#shown").inner_text() == "4 of 4")
    assert page.locator(TILE).count() == 12
    assert page.locator(".card").count() == 3
    assert page.locator(".run").count() == 2
    assert page.locator(".plot canvas").count() == 4
    legend = page.locator(".u-legend").first.locator(".u-value").first
    for number in (4, 2):  # the slider goes back in time
        page.locator("#round").evaluate("(one, at) => { one.value = at; one.oninput(); }", number)
        until(lambda at=number: page.locator("#shown").inner_text() == f"{at} of 4")
        until(lambda at=number: legend.inner_text() == str(at))
        line = teams[number - 1]
        chosen = page.locator(f"{TILE}[data-state=selected]").evaluate_all("all => all.map(one => +one.dataset.device)")
        assert sorted(chosen) == sorted(device for team in line["team"] for device in team)
        turns = sum(row["turns"][5] for row in teams[:number])
        page.locator(f"{TILE}[data-device='5']").hover()
        assert f"{names[5]} in" in page.locator("#about").inner_text()
        until(lambda turns=turns: f" {turns} turns" in page.locator("#about").inner_text())
    assert page.locator("#live").get_attribute("aria-pressed") == "false"


def test_legends_tell_the_newest_numbers_of_every_run(served: str, open_page: Callable[..., Any]) -> None:
    page = open_page(served)

    def numbers() -> list[str]:
        return [text.strip() for text in page.locator(".u-series .u-value").all_inner_texts()]

    def known() -> bool:
        return len(numbers()) == 4 * 3 and not {"–", "--", ""}.intersection(numbers())

    until(known)
    for button in ("[data-axis=seconds]", "#theme", "[data-axis=round]"):
        page.locator(button).click()
        until(known)
    page.locator(".u-over").first.hover()
    page.mouse.move(1, 1)
    until(known)


def test_keyboard_narrow_screens_and_colours(served: str, open_page: Callable[..., Any]) -> None:
    page = open_page(served, viewport={"width": 400, "height": 800}, color_scheme="dark")
    page.wait_for_selector(f"{TILE}[data-state=selected]")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    first = page.locator(".card").first.locator(".tile")
    first.first.focus()
    page.keyboard.press("ArrowRight")
    assert first.nth(1).evaluate("one => one === document.activeElement")
    assert first.nth(1).get_attribute("aria-label") in page.evaluate("document.activeElement.ariaLabel")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.locator("#theme").click()
    assert page.evaluate(background) != dark


def test_curves_take_the_colours_of_a_system_that_turns_dark(served: str, open_page: Callable[..., Any]) -> None:
    light, dark = (open_page(served, color_scheme=scheme) for scheme in ("light", "dark"))

    def picture(page: Any) -> str:
        found: str = page.locator("canvas").first.evaluate("one => one.toDataURL()")
        return found

    for page in (light, dark):
        page.wait_for_selector("canvas")
    until(lambda: picture(light) != picture(dark))
    light.emulate_media(color_scheme="dark")
    until(lambda: picture(light) == picture(dark))


def write_rounds(folder: Path, rounds: range) -> None:
    """Add made-up rounds to a run's files: device 5 has a turn in every third, every fifth is tested."""
    lines: dict[str, list[dict[str, Any]]] = {"teams": [], "metrics": [], "clock": [], "timings": []}
    for number in rounds:
        turns = [int(device == 5 and number % 3 == 0) for device in range(12)]
        lines["teams"].append({"round": number, "turns": turns, "team": [[0], [1], [2]], "mix": [], "divergence": []})
        score = {"accuracy": 0.5, "loss": 1.0} if number % 5 == 0 else {}
        lines["metrics"].append({"round": number, **score, "train_loss": 1 / number})
        lines["clock"].append({"round": number, "elapsed": float(number), "bytes": {"station_top_up": 1000}})
        lines["timings"].append({"round": number, "seconds": 0.5})
    for name, rows in lines.items():
        with (folder / f"{name}.jsonl").open("a") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))


def test_the_rounds_of_a_long_run_are_thinned_and_its_sums_stay_right(
    finished: Path, tmp_path: Path, open_page: Callable[..., Any]
) -> None:
    folder = shutil.copytree(finished, tmp_path / "long")
    for name in ("teams", "metrics", "clock", "timings"):
        (folder / f"{name}.jsonl").write_text("")
    write_rounds(folder, range(1, 1301))

    def shown_round(page: Any) -> int:
        return int(page.locator("#shown").inner_text().split()[0])

    def turns(page: Any) -> str:
        return str(page.locator(f"{TILE}[data-device='5']").get_attribute("aria-label"))

    with serving(folder) as address:
        page = open_page(address)
        until(lambda: shown_round(page) == 1300)
        assert rounds_shown(page) < 1000
        assert "every 2nd round is kept" in page.locator("#time").inner_text()
        until(lambda: f" {1300 // 3} turns" in turns(page))
        page.locator("#round").evaluate("one => { one.value = 300; one.oninput(); }")
        until(lambda: shown_round(page) < 1300)
        before = shown_round(page)
        assert before > 300
        until(lambda: f" {before // 3} turns" in turns(page))
        assert f"{before} kB" in page.locator("#now").inner_text()
        for last in (1301, 1302, 1900):  # whoever looks at an earlier round stays there
            write_rounds(folder, range(int((folder / "timings.jsonl").read_text().count("\n")) + 1, last + 1))
        until(lambda: page.locator("#thinned").inner_text() == "(every 2nd round is kept)" and rounds_shown(page) > 900)
        assert shown_round(page) == before
        page.locator("#live").click()
        until(lambda: shown_round(page) == 1900)
        until(lambda: f" {1900 // 3} turns" in turns(page))
        write_rounds(folder, range(1901, 2401))
        until(lambda: "every 4th" in page.locator("#thinned").inner_text())
        until(lambda: shown_round(page) == 2400 and f" {2400 // 3} turns" in turns(page))
        assert rounds_shown(page) < 1000


class Slowly(fedgs.Callback):
    """Makes a round last."""

    def __init__(self) -> None:
        self.stop = threading.Event()

    def on_round(self, state: Any, metrics: dict[str, Any]) -> bool:
        return self.stop.wait(0.2)


def test_a_run_under_way_grows_on_the_page(tmp_path: Path, open_page: Callable[..., Any]) -> None:
    folder, slowly = tmp_path / "live", Slowly()
    settings = load_settings(None, [*SMALL, "training.rounds=200"], "quick")
    run = threading.Thread(target=lambda: fedgs.run(settings=settings, out=folder, callbacks=[slowly], device="cpu"))
    run.start()
    try:
        until(lambda: (folder / "teams.jsonl").exists(), 30)
        with serving(folder) as address:
            page = open_page(address)
            shown = partial(rounds_shown, page)
            until(lambda: shown() >= 2)
            before = shown()
            until(lambda: shown() > before + 1)
            told = page.locator(".u-legend").first.locator(".u-value")
            until(lambda: int(told.first.inner_text()) > before)  # the legend follows, with nobody pointing at it
            assert "running" in page.locator(".run").inner_text()
            slowly.stop.set()
            run.join()
            until(lambda: "finished" in page.locator(".run").inner_text())
            # A run that is resumed cuts its lines back; the page begins again and is not confused.
            for name in ("teams.jsonl", "metrics.jsonl", "clock.jsonl", "timings.jsonl"):
                path = folder / name
                path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
            until(lambda: shown() <= 2)
    finally:
        slowly.stop.set()
        run.join()


def test_a_folder_that_goes_away_is_told(finished: Path, tmp_path: Path, open_page: Callable[..., Any]) -> None:
    folder = shutil.copytree(finished, tmp_path / "gone")
    with serving(folder) as address:
        page = open_page(address)
        page.wait_for_selector(f"{TILE}[data-state=selected]")
        shutil.rmtree(folder)
        until(lambda: "is gone" in page.locator("#events").inner_text())
        assert page.locator(TILE).count() == 12  # what was known stays


def write_deployment(folder: Path, rounds: range) -> None:
    """Add made-up rounds of a top server: two stations, the devices of the second one turn up in round 3."""
    from fedgs.deploy.round_messages import RoundResult
    from fedgs.deploy.team_file import TeamFile, parts_of

    def result(mix: list[int], **turns: int) -> Any:
        took_part = [name for name, count in turns.items() if count]
        return RoundResult(
            "run", 1, None, np.zeros(0), 5, 50, 0.5, 0.1, 2, np.zeros(0), took_part=took_part,  # type: ignore[arg-type]
            turns=[turns[name] for name in took_part], team=took_part, mix=mix, online=list(turns), sent_bytes=1000,
        )  # fmt: skip

    teams = TeamFile(folder)
    for number in rounds:
        results = {0: result([6, 4], a=5, b=number % 2)} | ({1: result([5, 5], c=5)} if number > 2 else {})
        teams.add(number, parts_of(results))
        line = {"round": number, "accuracy": 0.5 + number / 100, "loss": 1 / number, "train_loss": 1 / number}
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


def test_the_folder_of_a_top_server_is_shown_and_replayed(tmp_path: Path, open_page: Callable[..., Any]) -> None:
    from fedgs.deploy.team_file import TeamFile

    settings = load_settings(None, ["training.rounds=4"])
    TeamFile(tmp_path).describe(settings, "accuracy", ["ok", "dent"], [0.5, 0.5])
    (tmp_path / "stations.json").write_text(json.dumps({"stations": {"press": 0, "paint": 1}}))
    write_deployment(tmp_path, range(1, 3))
    with serving(tmp_path) as address:
        page = open_page(address)

        def shown() -> dict[str, str]:
            tiles = page.locator(TILE).evaluate_all("all => all.map(one => [one.ariaLabel, one.dataset.state])")
            return {label: state for label, state in tiles if label}

        until(lambda: shown() == {"a: selected now, 10 turns": "selected", "b: idle, 1 turns": "idle"})
        write_deployment(tmp_path, range(3, 5))
        until(lambda: set(shown()) == {"a: selected now, 20 turns", "b: idle, 2 turns", "c: selected now, 10 turns"})
        assert page.locator(".card h3").all_inner_texts() == ["press", "paint"]
        assert page.locator("#factories path.bar").count() == 2
        assert "6.0 kB" in page.locator("#now").inner_text()
        until(lambda: "finished" in page.locator(".run").inner_text())
        page.locator("#round").evaluate("one => { one.value = 0; one.oninput(); }")
        until(lambda: "b: selected now, 1 turns" in shown())
        assert "c: idle, 0 turns" in shown()
