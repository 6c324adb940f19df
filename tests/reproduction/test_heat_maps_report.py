"""The sections on the surfaces and on FedOpt's rates say what their cells say, also when they say the reverse."""

from collections.abc import Callable
from pathlib import Path

from reproduction.experiments import fedopt_rates, surfaces
from reproduction.experiments.parts import Part, Result, Results
from reproduction.report.report_inputs import read_remarks
from reproduction.report.write import compose, write_report
from tests.reproduction.made_up import astray, full_size, run, write
from tests.reproduction.test_reproduction_report import Words, text_of


def level(part: Part, end: float) -> Result:
    """Return a result whose accuracy is the same in all tests after the first."""
    result = run(part, end) | {"factories": part.settings.federation.factories}
    result["curve"]["accuracy"][1:] = [end] * (len(result["curve"]["accuracy"]) - 1)
    return result


def surface_of(end: Callable[[int, int, int, int], float]) -> Results:
    """Return results of both surfaces, of an accuracy by T, n, M and L."""
    return {
        part.name: level(part, end(*(axis.of(part.settings) for axis in surfaces.AXES.values())))
        for part in surfaces.make_parts(full_size((0,)))
    }


def papers_own(T: int, n: int, M: int, L: int) -> float:
    return surfaces.papers("T_n")[T, n] if (M, L) == (10, 10) else surfaces.papers("M_L")[M, L]


def test_the_papers_own_numbers_give_the_papers_own_sentences() -> None:
    text = text_of(surface_of(papers_own))
    assert "| T = 50 | 86.1 % (86.1, 0.0) | 86.0 % (86.0, 0.0) | 86.0 % (86.0, 0.0) | 85.7 % (85.7, 0.0) |" in text
    assert "| M = 20 | 86.2 % (86.2, 0.0) | 86.4 % (86.4, 0.0) | 86.5 %† (86.5, 0.0) | 86.5 %† (86.7, −0.2) |" in text
    assert (
        "A larger T **helps** here: +6.77 points from T = 10 to 50 on average, upwards at 4 of 4 values of n (+5.95 "
        "from 10 to 30, " in text
    )
    assert "from 30 to 50); as in the paper, which has +6.77." in text
    assert (
        "The batch size n **has little effect** here: the largest difference over n at one T is 0.40 points (T = 50: n "
        "= 64 85.7 %, n = 8 86.1 %), as in the paper, where it is 0.4 (T = 50)." in text
    )
    # (0.865 − 0.864 for L = 40: everybody of M = 20 is its L = 20)
    assert "A larger number of groups M **helps** here: +0.20 points from M = 5 to 20 on average" in text
    # From 20 to 40 without M = 20, where both are one run: +0.1 for M = 5 and M = 10.
    assert (
        "A larger number of selected devices L **helps** here: +0.37 points from L = 5 to 40 on average, upwards at 3 "
        "of 3 values of M (+0.07 from 5 to 10, +0.23 from 10 to 20, +0.10 from 20 to 40); as in the paper, which has "
        "+0.43." in text
    )
    assert "is 0.0 points from the paper's on average of 12 cells; furthest away is M = 20, L = 40 (−0.2)." in text
    assert (
        "with M = 10 a factory has 35 devices, so L = 40 means everybody; with M = 20 a factory has 17 or 18 devices, "
        "so L = 20 and L = 40 mean everybody and are one run. In the paper these cells of M = 20 differ by 0.2 points"
        in text
    )
    # Level curves: round 100 with T = 50 has what its last round has.
    assert (
        "After the same 5,000 iterations (round 500 with T = 10, round 100 with T = 50) a larger T still helps: +6.77 "
        "points with T = 50 on average of 4 values of n." in text
    )
    assert "Not run yet" not in text.partition("## How to make")[0]


def test_reversed_numbers_give_reversed_sentences() -> None:
    text = text_of(surface_of(lambda T, n, M, L: 0.9 - 0.001 * T - 0.001 * n - 0.001 * M - 0.0005 * L))
    assert "A larger T **harms** here: −4.00 points from T = 10 to 50 on average, upwards at 0 of 4 values" in text
    assert "unlike in the paper, which has +6.77." in text
    assert "The batch size n **matters** here: the largest difference over n at one T is 5.60 points" in text
    assert "unlike in the paper, where it is 0.4" in text
    assert "A larger number of groups M **harms** here: −1.25 points" in text  # −1.5, and −0.5 with everybody
    assert "A larger number of selected devices L **harms** here" in text
    assert "a larger T harms: −4.00 points with T = 50" in text
    text = text_of(surface_of(lambda T, n, M, L: 0.8))
    assert "A larger T **makes little difference** here: 0.00 points" in text
    assert "T matters little: 0.00 points with T = 50" in text


def test_missing_and_astray_cells_of_a_surface() -> None:
    every = surface_of(papers_own)
    parts = {part.name: part for part in surfaces.make_parts(full_size((0,)))}
    wild = "surfaces-M5-L40-seed-0"
    text = text_of({**every, wild: astray(parts[wild])})
    assert "| M = 5 | 86.0 % (86.0, 0.0) | 86.1 % (86.1, 0.0) | 86.3 % (86.3, 0.0) | astray (86.4) |" in text
    assert "Went astray: M = 5, L = 40." in text
    del every["surfaces-T10-n8-seed-0"], every["surfaces-M20-L20-seed-0"]
    text = text_of(every)
    assert "| T = 10 | not run (79.2) |" in text
    assert "Not run yet: T = 10, n = 8; M = 20, L = 20; and M = 20, L = 40." in text
    common = "surfaces-T50-n32-M10-L10-seed-0"
    text = text_of({common: every[common]})
    assert "Not run yet: 22 of 24 cells." in text
    assert "Whether a larger T helps cannot be said yet" in text
    assert "Whether the batch size n matters cannot be said yet" in text
    assert "Whether a larger number of selected devices L helps cannot be said yet" in text
    assert "a factory has" not in text
    only_wild = text_of({wild: astray(parts[wild])})
    assert "Went astray: M = 5, L = 40." in only_wild


def rates_of(end: Callable[[str, float, float], float | None]) -> Results:
    """Return results of all rules, of an accuracy by rule and rates; None: astray."""
    results = {}
    for part in fedopt_rates.make_parts(full_size((0,))):
        options = part.settings.algorithm.options
        value = end(part.settings.algorithm.name, options["client_lr"], options["server_lr"])
        results[part.name] = astray(part) if value is None else level(part, value)
    return results


def made_up_rates(rule: str, client: float, server: float) -> float | None:
    if rule == "fedavgm":
        return 0.80 if (client, server) == (0.0316, 0.316) else 0.795
    if rule == "fedadagrad":
        return 0.79 if (client, server) == (0.0316, 0.1) else 0.05 if server == 0.00316 else 0.72
    if rule == "fedadam":
        return None if server == 0.0316 else 0.81 if (client, server) == (0.0316, 0.01) else 0.8
    return 0.78 if (client, server) == (0.1, 0.001) else None if (client, server) == (0.0316, 0.00316) else 0.775


def test_a_sentence_for_each_rule() -> None:
    text = text_of(rates_of(made_up_rates))
    assert "| FedAvgM | 0.0316 |  |  |  |  | 79.5 % | **80.0 %** | 79.5 % |" in text
    assert "| FedAdam | 0.01 | 80.0 % | 80.0 % | 80.0 % | astray |  |  |  |" in text
    assert (
        "**FedAvgM** is best at devices 0.0316, server 0.316: 80.0 %; these are Table II's rates. From the best cell "
        "to the worst (devices 0.01, server 0.1) it is 0.5 points; 9 of 9 cells are within a point of the best." in text
    )
    assert (
        "server 0.1: 79.0 %, on the edge of the grid: beyond it might be better still. Table II's cell (devices "
        "0.0316, server 0.01) has 72.0 %, −7.0 points." in text
    )
    assert "1 of 12 cells are within a point of the best, 3 learnt nothing (below 20 %)." in text
    assert (
        "**FedAdam** is best at devices 0.0316, server 0.01: 81.0 %. Table II's cell (devices 0.0316, server 0.00316) "
        "has 80.0 %, −1.0 points. From the best cell to the worst" in text
    )
    assert "9 of 12 cells are within a point of the best, 3 went astray." in text
    assert "Table II's cell (devices 0.0316, server 0.00316) went astray. From the best" in text
    assert (
        "**holds in part**: for FedAdagrad, FedAdam and FedYogi, not for FedAvgM. The best cells of these rules lie "
        "within 3.0 points of each other, the paper's rows within 1.2." in text
    )
    assert (
        "**Table II's rows have rates set beforehand, the defaults of their rules, not the best cells found here**"
        in text
    )
    assert "the mean of the tests in the last quarter of the rounds (3 tests, one every 5 rounds)" in text


def test_the_claim_on_sensitivity_may_hold_or_not() -> None:
    steep = text_of(rates_of(lambda rule, client, server: 0.8 if client == 0.0316 else 0.7))
    assert "**holds** here for FedAvgM, FedAdagrad, FedAdam and FedYogi" in steep
    flat = text_of(rates_of(lambda rule, client, server: 0.8 if client == 0.0316 else 0.76))
    assert "**does not hold** here: not for FedAvgM, FedAdagrad, FedAdam and FedYogi" in flat


def test_missing_cells_of_a_rule() -> None:
    every = rates_of(made_up_rates)
    few = {name: run for name, run in every.items() if "-fedavgm-" in name or "fedadam-0.01-" in name}
    text = text_of(few)
    assert "| FedAdam | 0.0316 | not run | not run | not run | not run |  |  |  |" in text
    assert "Table II's cell (devices 0.0316, server 0.00316) has not been run" in text
    assert "Not run yet: 12 of 12 cells of FedAdagrad, 8 of 12 cells of FedAdam and 12 of 12 cells of FedYogi." in text
    assert "**does not hold** here: not for FedAvgM." in text  # the one whose grid is complete
    wild = {name: run for name, run in every.items() if "fedadam-0.01-0.0316" in name}
    text = text_of(wild)
    assert "**FedAdam** went astray in every cell that was run." in text
    assert "sensitive" not in text


def test_pictures_remarks_and_runs_of_another_kind(tmp_path: Path) -> None:
    results = surface_of(papers_own) | rates_of(made_up_rates)
    other = next(part for part in fedopt_rates.make_parts(full_size((7,))))
    results[other.name] = level(other, 0.9)
    (tmp_path / "remarks.toml").write_text(
        '[surfaces]\nT = "Longer."\nsection = "One GPU."\n[fedopt-rates]\nfedadam = "Wild."\nsection = "Ours."\n'
    )
    _, unused = write_report(write(tmp_path, results))
    assert unused == []
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    for remark in ("which has +6.77. *Longer.*", "\n\n*One GPU.*", "went astray. *Wild.*", "\n\n*Ours.*"):
        assert remark in text
    assert "Not shown, for they were made with another seed or other settings than most: 1 run." in text
    assert "    python -m reproduction surfaces --femnist FILE --out " in text
    assert "    python -m reproduction fedopt-rates --femnist FILE --out " in text
    for name in ("surfaces", "fedopt-rates"):
        assert (tmp_path / f"figures/{name}.png").stat().st_size > 5000
        # What is written on a field keeps its colour when the page is dark.
        svg = (tmp_path / f"figures/{name}.svg").read_text(encoding="utf-8")
        assert "fill: #ffffff" in svg
        assert "fill: #101418" in svg


def test_a_small_size_is_not_compared() -> None:
    results = surface_of(papers_own) | rates_of(made_up_rates)
    for result in results.values():
        result["settings"]["data"]["name"] = "glyphs"
    text = compose(Words(Path("results"), results, read_remarks(Path("nowhere"))))
    assert "in the paper, which has" not in text
    assert "points from the paper's" not in text
    assert "The paper's claim" not in text
    assert "what T, n, M and L do to accuracy is not tested" in text
    assert "**helps**" not in text
