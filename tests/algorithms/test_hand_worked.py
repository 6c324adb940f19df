"""Every number worked out by hand for the server rules, and the identities between them."""

from math import sqrt

import pytest
import torch

from fedgs.algorithms import Upload, server_rule

from .rounds import EVERY_RULE, MEANS, one_round, some_model, some_uploads, upload, vector

THREE = ([0, 0], [2, 0], [4, 6])
ACCURACIES = (0.5, 0.8, 1.0)
SAMPLES = (10, 20, 70)


def three_uploads() -> list[Upload]:
    return [upload(*values) for values in zip(THREE, SAMPLES, ACCURACIES, strict=True)]


# FedAvg


def test_fedavg_weighs_by_samples() -> None:
    """T-AVG-1."""
    uploads = [upload([1, 3], 10), upload([2, 7], 30)]
    assert one_round(server_rule("fedavg"), [9, 9], uploads) == [1.75, 6.0]
    assert one_round(server_rule("fedavg", weighting="uniform"), [9, 9], uploads) == [1.5, 5.0]
    assert one_round(server_rule("fedavg"), [9, 9], three_uploads()) == pytest.approx([3.2, 4.2])


# IDA


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("ida", {}, (1.818182, 1.090909)),
        ("ida", {"norm": "l2"}, (1.758724, 1.245535)),
        ("ida+intrac", {}, (1.483871, 0.774194)),
        ("ida+fedavg", {}, (2.758621, 2.896552)),
        # The same by flags, and both flags at once: α·ι·φ ∝ (12, 30, 28)/…, worked out below.
        ("ida", {"intrac": True}, (1.483871, 0.774194)),
        ("ida", {"data_size": True}, (2.758621, 2.896552)),
    ],
)
def test_ida_of_three_uploads(name: str, options: dict[str, object], expected: tuple[float, ...]) -> None:
    """T-IDA-1 (L1 and L2), T-IDA-2 (INTRAC), T-IDA-3 (data size)."""
    assert one_round(server_rule(name, **options), [0, 0], three_uploads()) == pytest.approx(expected, abs=1e-6)


def test_ida_shares() -> None:
    weights = {"w": vector(0, 0)}
    rule = server_rule("ida")
    assert rule.shares(weights, three_uploads()) == pytest.approx([3 / 11, 6 / 11, 2 / 11])  # type: ignore[attr-defined]
    rule = server_rule("ida", intrac=True, data_size=True)
    # 1/d·1/acc·n: 10/(4·0.5) = 5, 20/(2·0.8) = 12.5, 70/(6·1) = 11.6667
    total = 5 + 12.5 + 70 / 6
    expected = [5 / total, 12.5 / total, 70 / 6 / total]
    assert rule.shares(weights, three_uploads()) == pytest.approx(expected)  # type: ignore[attr-defined]


def test_ida_with_weighted_reference() -> None:
    # Reference (3.2, 4.2): L1 distances 7.4, 5.4, 2.6.
    inverse = [1 / 7.4, 1 / 5.4, 1 / 2.6]
    expected = [(2 * inverse[1] + 4 * inverse[2]) / sum(inverse), 6 * inverse[2] / sum(inverse)]
    assert one_round(server_rule("ida", reference="weighted"), [0, 0], three_uploads()) == pytest.approx(expected)


def test_ida_distance_is_over_the_whole_model() -> None:
    # The three uploads cut into two tensors must give the same shares as in one.
    uploads = [Upload({"a": u.weights["w"][:1], "b": u.weights["w"][1:]}, 1) for u in three_uploads()]
    weights = {"a": vector(0), "b": vector(0)}
    new, _ = server_rule("ida", norm="l2").update({}, weights, uploads)
    assert [new["a"].item(), new["b"].item()] == pytest.approx([1.758724, 1.245535], abs=1e-6)


def test_ida_eps_evens_out_the_shares() -> None:
    assert one_round(server_rule("ida", eps=1e9), [0, 0], three_uploads()) == pytest.approx([2, 2], abs=1e-6)
    tiny = one_round(server_rule("ida", eps=5e-324), [0, 0], [upload([1, 1]), upload([1, 1]), upload([1, 1])])
    assert tiny == [1, 1]


def test_accuracy_of_zero_counts_as_chance() -> None:
    """T-IDA-4: an accuracy of 0 does not divide by zero."""
    uploads = [upload([0, 0], 1, 0.0), upload([2, 0], 1, 1 / 62), upload([4, 6], 1, 1.0)]
    shares = server_rule("ida+intrac").shares({"w": vector(0, 0)}, uploads)  # type: ignore[attr-defined]
    raw = [62 / 4, 62 / 2, 1 / 6]
    assert shares == pytest.approx([value / sum(raw) for value in raw])
    ten = server_rule("ida+intrac", classes=10).shares({"w": vector(0, 0)}, uploads)  # type: ignore[attr-defined]
    raw = [10 / 4, 10 / 2, 1 / 6]
    assert ten == pytest.approx([value / sum(raw) for value in raw])


@pytest.mark.parametrize("name", MEANS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_identical_uploads_come_back_bit_for_bit(name: str, dtype: torch.dtype) -> None:
    """T-IDA-4: all-equal uploads return the upload."""
    weights = some_model(dtype)
    same = some_uploads(weights, 1)[0].weights
    uploads = [Upload(same, 3 + k, {"train_acc": k / 10}) for k in range(7)]
    new, _ = server_rule(name).update({}, weights, uploads)
    assert all(torch.equal(new[key], same[key]) for key in weights)


def test_ida_of_two_is_the_plain_mean_whatever_the_sizes() -> None:
    for options in ({}, {"norm": "l2"}):
        new = one_round(server_rule("ida", **options), [0, 0], [upload([1, 3], 10), upload([2, 7], 3000)])
        assert new == pytest.approx([1.5, 5.0], rel=1e-14)


@pytest.mark.parametrize("name", ["ida+intrac", "ida+fedavg"])
def test_equal_accuracies_or_sizes_are_ida(name: str) -> None:
    uploads = [upload(values, 40, 0.7) for values in THREE]
    plain = one_round(server_rule("ida"), [0, 0], uploads)
    assert one_round(server_rule(name), [0, 0], uploads) == pytest.approx(plain, rel=1e-14)


# FedNova


def test_fednova_counts_steps_once() -> None:
    """From 1: device A (n = 10, 2 steps) came to 0.8, device B (n = 30, 6 steps) to 0.1.

    In a step they moved by 0.1 and 0.15; p = (¼, ¾) gives 0.1375. They made ¼·2 + ¾·6 = 5 steps on average: 5 × 0.1375.
    """
    uploads = [Upload({"w": vector(0.8)}, 10, {"steps": 2}), Upload({"w": vector(0.1)}, 30, {"steps": 6})]
    assert one_round(server_rule("fednova"), [1], uploads) == pytest.approx([1 - 0.6875], abs=1e-12)
    # All alike: (0.1 + 0.15)/2 in a step, 4 steps.
    assert one_round(server_rule("fednova", weighting="uniform"), [1], uploads) == pytest.approx([0.5], abs=1e-12)


@pytest.mark.parametrize("steps", [1, 7, 35.0])
def test_fednova_of_equal_steps_is_fedavg(steps: float) -> None:
    weights = some_model(torch.float64)
    uploads = [Upload(one.weights, one.num_samples, {"steps": steps}) for one in some_uploads(weights)]
    plain, _ = server_rule("fedavg").update({}, weights, uploads)
    new, state = server_rule("fednova").update({}, weights, uploads)
    assert state == {}
    for key in weights:
        torch.testing.assert_close(new[key], plain[key], rtol=1e-13, atol=1e-14)


# FedAvgM


def run(name: str, averages: list[list[float]], start: list[float], **options: object) -> list[list[float]]:
    """Weights after each round, when the mean upload of the rounds is as given."""
    rule = server_rule(name, **options)
    weights = {"w": vector(*start)}
    state = rule.init(weights)
    seen = []
    for mean in averages:
        weights, state = rule.update(state, weights, [upload(mean, 5)])
        seen.append(weights["w"].tolist())
    return seen


@pytest.mark.parametrize(
    ("averages", "options", "expected"),
    [
        ([0.6, 0.5, 0.45], {"server_lr": 1.0}, [0.6, 0.14, 0.036]),
        ([0.6, 0.7], {"server_lr": 0.5}, [0.8, 0.57]),  # old minus average: 0.4, then 0.8 − 0.7
        ([0.6, 0.14], {"server_lr": 1.0, "nesterov": True}, [0.24, -0.274]),  # 0.4, then 0.24 − 0.14
    ],
)
def test_fedavgm_over_some_rounds(averages: list[float], options: dict[str, object], expected: list[float]) -> None:
    """T-AVGM-1 and T-AVGM-2."""
    seen = run("fedavgm", [[mean] for mean in averages], [1], beta=0.9, **options)
    assert [w for (w,) in seen] == pytest.approx(expected, abs=1e-12)


def test_fedavgm_without_momentum_is_fedavg() -> None:
    weights = some_model(torch.float64)
    uploads = some_uploads(weights)
    plain, _ = server_rule("fedavg").update({}, weights, uploads)
    for nesterov in (False, True):
        rule = server_rule("fedavgm", server_lr=1.0, beta=0.0, nesterov=nesterov)
        state = rule.init(weights)
        for _ in range(2):  # no memory: a second round from the same weights gives the same
            new, state = rule.update(state, weights, uploads)
            for key in weights:
                torch.testing.assert_close(new[key], plain[key], rtol=1e-14, atol=1e-15)


# FedOpt

CHANGES = ((0.1, -0.2), (0.05, 0.1))
TABLE = {
    "fedadagrad": (
        ((0.1, -0.2), (0.010001, 0.040001), (1.00990050, 0.99004988)),
        ((0.05, 0.1), (0.012501, 0.050001), (1.01433281, 0.99450206)),
    ),
    "fedadam": (
        ((0.01, -0.02), (1.0099e-4, 4.0099e-4), (1.00905028, 0.99048739)),
        ((0.014, -0.008), (1.249801e-4, 4.969801e-4), (1.02054506, 0.98705289)),
    ),
    "fedyogi": (
        ((0.01, -0.02), (1.01e-4, 4.01e-4), (1.00904988, 0.99048751)),
        ((0.014, -0.008), (1.26e-4, 5.01e-4), (1.02050184, 0.98706622)),
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_fedopt_over_two_rounds(name: str) -> None:
    """T-OPT-1 (FedAdagrad), T-OPT-2 (FedAdam), T-OPT-3 (FedYogi)."""
    rule = server_rule(name, server_lr=0.01)  # all else by default
    weights = {"w": vector(1, 1)}
    state = rule.init(weights)
    assert state["second_moment"]["w"].tolist() == [1e-6, 1e-6]  # type: ignore[index]
    for number, (change, (m, v, w)) in enumerate(zip(CHANGES, TABLE[name], strict=True), start=1):
        trained = weights["w"] + vector(*change)
        # Two participants whose mean is the wanted change: 3·(+0.3) and 1·(−0.9) cancel.
        uploads = [Upload({"w": trained + 0.3}, 30), Upload({"w": trained - 0.9}, 10)]
        weights, state = rule.update(state, weights, uploads)
        assert state["first_moment"]["w"].tolist() == pytest.approx(m, abs=1e-12)  # type: ignore[index]
        assert state["second_moment"]["w"].tolist() == pytest.approx(v, abs=1e-12)  # type: ignore[index]
        assert weights["w"].tolist() == pytest.approx(w, abs=1e-8)
        assert state["round"] == number


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fedadagrad", (1.00990099, 0.99004975)),
        ("fedadam", (1.00909091, 0.99047619)),
        ("fedyogi", (1.00909091, 0.99047619)),
    ],
)
def test_fedopt_from_a_second_moment_of_zero(name: str, expected: tuple[float, float]) -> None:
    new = one_round(server_rule(name, server_lr=0.01, v_init="zero"), [1, 1], [upload([1.1, 0.8])])
    assert new == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize(("name", "expected"), [("fedyogi", 0.0399), ("fedadam", 0.0397)])
def test_a_smaller_update_separates_yogi_from_adam(name: str, expected: float) -> None:
    """T-OPT-4."""
    rule = server_rule(name, server_lr=0.01)
    state = rule.init({"w": vector(0)})
    state["second_moment"] = {"w": vector(0.04)}
    _, state = rule.update(state, {"w": vector(0)}, [upload([0.1])])
    assert state["second_moment"]["w"].item() == pytest.approx(expected, abs=1e-15)  # type: ignore[index]


def test_yogi_stands_still_where_the_moment_equals_the_square() -> None:
    rule = server_rule("fedyogi")
    state = rule.init({"w": vector(0)})
    state["second_moment"] = {"w": vector(0.25)}
    _, state = rule.update(state, {"w": vector(0)}, [upload([0.5])])
    assert state["second_moment"]["w"].item() == 0.25  # type: ignore[index]


def test_fedadagrad_tends_to_fedavg() -> None:
    uploads = three_uploads()
    average = one_round(server_rule("fedavg"), [1, 1], uploads)
    errors = []
    for tau in (1e2, 1e4, 1e6):
        new = one_round(server_rule("fedadagrad", v_init="zero", tau=tau, server_lr=tau), [1, 1], uploads)
        errors.append(abs(new[0] - average[0]) + abs(new[1] - average[1]))
    assert errors[0] > 50 * errors[1] > 2500 * errors[2]  # the error is Δ²/τ
    assert errors[2] < 2e-5
    # From τ² it is half a step: √v + τ → 2τ.
    half = one_round(server_rule("fedadagrad", tau=1e8, server_lr=1e8), [1, 1], uploads)
    assert half == pytest.approx([1 + (average[0] - 1) / 2, 1 + (average[1] - 1) / 2], rel=1e-6)


def test_flowers_bias_correction_counts_from_two() -> None:
    # First round: m = 0.1·0.2, v = 0.01·0.04; factor √(1 − 0.99²)/(1 − 0.9²) = √0.0199/0.19.
    options = {"server_lr": 0.1, "tau": 1e-9, "v_init": "zero"}
    flower = run("fedadam", [[0.2], [0.2]], [0], bias_correction="flower", **options)
    first = 0.1 * sqrt(0.0199) / 0.19 * 0.02 / (0.02 + 1e-9)
    assert flower[0] == pytest.approx([first], rel=1e-12)
    change = 0.2 - first
    m, v = 0.9 * 0.02 + 0.1 * change, 0.99 * 0.0004 + 0.01 * change**2
    second = first + 0.1 * sqrt(1 - 0.99**3) / (1 - 0.9**3) * m / (sqrt(v) + 1e-9)
    assert flower[1] == pytest.approx([second], rel=1e-12)


def test_adams_bias_correction_makes_the_first_step_the_rate() -> None:
    # √(1 − β₂)/(1 − β₁) · (1 − β₁)Δ / (√(1 − β₂)|Δ|) = sign Δ
    for name in ("fedadam", "fedyogi"):
        (new,) = run(name, [[0.2, -3]], [0, 0], bias_correction="adam", v_init="zero", tau=1e-12, server_lr=0.1)
        assert new == pytest.approx([0.1, -0.1], rel=1e-9)


@pytest.mark.parametrize("name", ["fedavgm", "fedadagrad", "fedadam", "fedyogi"])
def test_uniform_weighting_ignores_samples(name: str) -> None:
    unequal = [upload([1], 1), upload([4], 99)]
    equal = [upload([1], 5), upload([4], 5)]
    rule = server_rule(name, weighting="uniform")
    assert one_round(rule, [0], unequal) == one_round(rule, [0], equal)
    assert one_round(server_rule(name), [0], unequal) != one_round(server_rule(name), [0], equal)


@pytest.mark.parametrize("name", EVERY_RULE)
def test_a_round_that_changes_nothing_changes_nothing(name: str) -> None:
    weights = some_model()
    rule = server_rule(name)
    uploads = [Upload(weights, 5, {"train_acc": 0.5, "steps": 4}) for _ in range(3)]
    new, _ = rule.update(rule.init(weights), weights, uploads)
    assert all(torch.equal(new[key], weights[key]) for key in weights)
