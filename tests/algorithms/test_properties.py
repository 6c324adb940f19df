"""What holds for any round: order does not matter, means stay inside, types stay, inputs stay, states travel."""

import json
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedgs.algorithms import State, Upload, join_state, server_rule, split_state
from fedgs.algorithms import mean as arithmetic

from .rounds import EVERY_RULE, MEANS, OPTIMISERS, some_model, some_uploads

FLOATS = st.floats(-1e3, 1e3, width=32)


@st.composite
def rounds(draw: st.DrawFn) -> tuple[dict[str, Tensor], list[Upload]]:
    dtype = draw(st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]))
    shapes = draw(st.lists(st.lists(st.integers(0, 3), max_size=3), min_size=1, max_size=3))

    def model() -> dict[str, Tensor]:
        weights = {}
        for index, shape in enumerate(shapes):
            size = int(torch.Size(shape).numel())
            values = draw(st.lists(FLOATS, min_size=size, max_size=size))
            weights[f"layer{index}"] = torch.tensor(values, dtype=torch.float64).reshape(shape).to(dtype)
        weights["count"] = torch.tensor(draw(st.integers(-(2**40), 2**40)))
        return weights

    number = draw(st.integers(1, 5))
    return model(), [
        Upload(
            model(),
            draw(st.integers(1, 10**6)),
            {"train_acc": draw(st.floats(0, 1)), "steps": draw(st.integers(1, 40))},
        )
        for _ in range(number)
    ]


def tolerance(dtype: torch.dtype) -> float:
    return 4 * torch.finfo(dtype).eps


@given(rounds(), st.sampled_from(EVERY_RULE), st.randoms(use_true_random=False))
def test_order_of_uploads_changes_nothing_beyond_rounding(
    case: tuple[dict[str, Tensor], list[Upload]], name: str, shuffler: object
) -> None:
    weights, uploads = case
    rule = server_rule(name, server_lr=0.1) if name in OPTIMISERS else server_rule(name)
    shuffled = uploads.copy()
    shuffler.shuffle(shuffled)  # type: ignore[attr-defined]
    one, state_one = rule.update(rule.init(weights), weights, uploads)
    other, state_other = rule.update(rule.init(weights), weights, shuffled)
    for key, own in weights.items():
        if own.is_floating_point():
            torch.testing.assert_close(one[key], other[key], rtol=tolerance(own.dtype), atol=1e-9)
        else:
            assert abs(int(one[key]) - int(other[key])) <= 1
    ones, others = split_state(state_one)[0], split_state(state_other)[0]
    assert ones.keys() == others.keys()
    for key, tensor in ones.items():
        torch.testing.assert_close(tensor, others[key], rtol=1e-9, atol=1e-9)


@given(rounds(), st.sampled_from(MEANS))
def test_a_mean_lies_between_the_uploads(case: tuple[dict[str, Tensor], list[Upload]], name: str) -> None:
    weights, uploads = case
    new, _ = server_rule(name).update({}, weights, uploads)
    for key, own in weights.items():
        stacked = torch.stack([upload.weights[key] for upload in uploads]).to(torch.float64)
        slack = 1e-12 * (
            1 + stacked.abs().amax(0)
        )  # float64 before the one rounding to the own dtype, which is monotone
        value = new[key].to(torch.float64)
        assert new[key].dtype == own.dtype
        assert bool((value >= stacked.amin(0) - slack).all())
        assert bool((value <= stacked.amax(0) + slack).all())


@given(rounds(), st.sampled_from(EVERY_RULE))
def test_inputs_are_never_changed_and_results_are_new_memory(
    case: tuple[dict[str, Tensor], list[Upload]], name: str
) -> None:
    weights, uploads = case
    rule = server_rule(name, server_lr=0.1) if name in OPTIMISERS else server_rule(name)
    _, state = rule.update(rule.init(weights), weights, uploads)  # a state that is not at its beginning
    given_tensors = [
        *weights.values(),
        *(tensor for upload in uploads for tensor in upload.weights.values()),
        *split_state(state)[0].values(),
    ]
    copies = [tensor.clone() for tensor in given_tensors]
    numbers = dict(split_state(state)[1])
    new, new_state = rule.update(state, weights, uploads)
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(given_tensors, copies, strict=True))
    assert split_state(state)[1] == numbers
    taken = {tensor.data_ptr() for tensor in given_tensors if tensor.numel()}
    for tensor in (*new.values(), *split_state(new_state)[0].values()):
        assert not tensor.numel() or tensor.data_ptr() not in taken


@given(rounds(), st.sampled_from(EVERY_RULE))
def test_a_state_travels_through_a_file_exactly(case: tuple[dict[str, Tensor], list[Upload]], name: str) -> None:
    weights, uploads = case
    rule = server_rule(name, server_lr=0.1) if name in OPTIMISERS else server_rule(name)
    weights, state = rule.update(rule.init(weights), weights, uploads)
    tensors, numbers = split_state(state)
    # A safetensors file holds named raw bytes, dtype and shape; JSON holds the rest.
    raw = {key: (bytes(t.contiguous().numpy().tobytes()), t.dtype, list(t.shape)) for key, t in tensors.items()}
    read = {
        key: (torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)).reshape(shape)
        for key, (data, dtype, shape) in raw.items()
    }
    back = join_state(read, json.loads(json.dumps(numbers)))
    one, state_one = rule.update(state, weights, uploads)
    other, state_other = rule.update(back, weights, uploads)
    assert all(torch.equal(one[key], other[key]) for key in weights)
    assert_same_state(state_one, state_other)


def assert_same_state(one: State, other: State) -> None:
    tensors, numbers = split_state(one)
    others, other_numbers = split_state(other)
    assert numbers == other_numbers
    assert tensors.keys() == others.keys()
    assert all(torch.equal(tensor, others[key]) for key, tensor in tensors.items())


@pytest.mark.parametrize("name", EVERY_RULE)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2])
def test_dtypes_shapes_and_order_of_keys_stay(name: str, dtype: torch.dtype) -> None:
    weights = some_model(dtype)
    rule = server_rule(name)
    new, state = rule.update(rule.init(weights), weights, some_uploads(weights))
    assert list(new) == list(weights)
    assert all(new[key].dtype == own.dtype and new[key].shape == own.shape for key, own in weights.items())
    assert all(tensor.dtype == torch.float64 for tensor in split_state(state)[0].values())
    assert all("seen" not in group for group in state.values() if isinstance(group, dict))


def test_sums_are_taken_in_float64() -> None:
    # In float16 65504 + 65504 overflows and 1/3 is off by 1e-4; the mean must be the nearest float16 all the same.
    weights = {"w": torch.zeros(2, dtype=torch.float16)}
    uploads = [Upload({"w": torch.tensor([65504.0, value], dtype=torch.float16)}, 1) for value in (1.0, 1.0, 2.0)]
    new, _ = server_rule("fedavg").update({}, weights, uploads)
    assert new["w"].tolist() == [65504.0, torch.tensor(4 / 3, dtype=torch.float16).item()]
    # 2^24 + 1 is not a float32: a float32 sum of 100 would lose the ones.
    uploads = [Upload({"w": torch.tensor([2.0**24 if k == 0 else 1.0])}, 1) for k in range(100)]
    new, _ = server_rule("fedavg").update({}, {"w": torch.zeros(1)}, uploads)
    assert new["w"].item() == torch.tensor((2**24 + 99) / 100).item()


def test_moments_of_half_precision_weights_do_not_underflow() -> None:
    weights = {"w": torch.zeros(1, dtype=torch.float16)}
    rule = server_rule("fedadam", tau=1e-6)
    _, state = rule.update(rule.init(weights), weights, [Upload({"w": torch.tensor([1e-4]).half()}, 1)])
    assert 0 < float(state["second_moment"]["w"]) < 1e-9  # type: ignore[index]


def whole(values: list[int], dtype: torch.dtype) -> list[Upload]:
    return [Upload({"n": torch.tensor(value, dtype=dtype)}, 1, {"train_acc": 0.5, "steps": 4}) for value in values]


@pytest.mark.parametrize("name", EVERY_RULE)
def test_whole_numbers_are_averaged_and_rounded(name: str) -> None:
    rule = server_rule(name)
    for dtype, values, expected in (
        (torch.int64, [1, 2], 2),  # halves go up …
        (torch.int64, [-2, -1], -1),  # … towards +∞, whichever comes first
        (torch.int64, [-1, -2], -1),
        (torch.int64, [2**60 + 1, 2**60 + 1], 2**60 + 1),  # no float64 holds this
        (torch.int32, [4, 4, 5], 4),
        (torch.uint8, [255, 255, 254], 255),
        (torch.int8, [-128, 127, 127], 42),
        (torch.bool, [1, 1, 0], 1),
        (torch.bool, [1, 0, 0], 0),
    ):
        weights = {"n": torch.tensor(0, dtype=dtype)}
        new, _ = rule.update(rule.init(weights), weights, whole(values, dtype))
        assert (new["n"].dtype, int(new["n"])) == (dtype, expected)


def test_whole_numbers_take_no_part_in_distances() -> None:
    uploads = [
        Upload({"w": torch.tensor(values, dtype=torch.float64), "n": torch.tensor(count)}, 1)
        for values, count in (([0, 0], 10**6), ([2, 0], 0), ([4, 6], 5))
    ]
    weights = {"w": torch.zeros(2, dtype=torch.float64), "n": torch.tensor(0)}
    new, _ = server_rule("ida").update({}, weights, uploads)
    assert new["w"].tolist() == pytest.approx([1.818182, 1.090909], abs=1e-6)


def test_a_model_of_whole_numbers_alone_has_a_state_that_travels() -> None:
    weights = {"n": torch.tensor(3)}
    rule = server_rule("fedadam")
    state = join_state(*split_state(rule.init(weights)))
    new, state = rule.update(state, weights, whole([3, 5], torch.int64))
    assert int(new["n"]) == 4
    assert state["round"] == 1


@pytest.mark.parametrize("name", EVERY_RULE)
def test_large_tensors_in_pieces_and_odd_strides(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(3)

    def model() -> dict[str, Tensor]:
        return {
            "rows": torch.randn(50, 7, generator=generator),
            "transposed": torch.randn(9, 40, generator=generator).T,
            "images": torch.randn(6, 5, 4, 3, generator=generator).to(memory_format=torch.channels_last),
            "wide": torch.randn(1, 300, generator=generator),
            "empty": torch.randn(0, 3, generator=generator),
            "scalar": torch.randn((), generator=generator),
        }

    weights = model()
    uploads = [Upload(model(), k + 1, {"train_acc": 0.3 * k, "steps": 4}) for k in range(3)]
    rule = server_rule(name)
    whole_result, _ = rule.update(rule.init(weights), weights, uploads)
    monkeypatch.setattr(arithmetic, "PIECE", 16)
    pieces, _ = rule.update(rule.init(weights), weights, uploads)
    for key in weights:
        if name.startswith("ida"):  # its distances are summed in another order
            torch.testing.assert_close(pieces[key], whole_result[key], rtol=1e-6, atol=1e-7)
        else:
            assert torch.equal(pieces[key], whole_result[key])


@pytest.mark.parametrize("name", EVERY_RULE)
def test_number_of_threads_changes_nothing(name: str) -> None:
    generator = torch.Generator().manual_seed(5)

    def model() -> dict[str, Tensor]:  # float64, where the last bit shows
        wide, long = torch.randn(3, 70_001, generator=generator), torch.randn(170_001, generator=generator)
        return {"wide": wide.double(), "long": long.double()}

    weights = model()
    uploads = [Upload(model(), k + 1, {"train_acc": 0.1, "steps": 4}) for k in range(5)]
    rule = server_rule(name)
    threads = torch.get_num_threads()
    try:
        results = []
        for number in (1, 3):
            torch.set_num_threads(number)
            results.append(rule.update(rule.init(weights), weights, uploads))
    finally:
        torch.set_num_threads(threads)
    (one, state_one), (other, state_other) = results
    assert all(torch.equal(one[key], other[key]) for key in weights)
    assert_same_state(state_one, state_other)


def test_only_pieces_are_widened() -> None:
    """However many the uploads, no float64 copy of more than one tensor exists at a time."""
    weights = {f"layer{index}": torch.zeros(200, 500) for index in range(4)}
    uploads = [
        Upload({key: own + k for key, own in weights.items()}, 1, {"train_acc": 0.5, "steps": 4}) for k in range(20)
    ]
    one_tensor = 200 * 500 * 8
    results = sum(own.numel() * 4 for own in weights.values())
    for name in MEANS:
        assert (
            peak_allocated(lambda name=name: server_rule(name).update({}, weights, uploads)) < results + 3 * one_tensor
        )


def peak_allocated(work: Callable[[], object]) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    assert events
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def test_weights_that_want_gradients_come_back_plain() -> None:
    layer = torch.nn.Linear(3, 2)
    weights = dict(layer.named_parameters())
    for name in EVERY_RULE:
        rule = server_rule(name)
        new, state = rule.update(rule.init(weights), weights, [Upload(weights, 1, {"train_acc": 0.5, "steps": 4})] * 2)
        assert not any(tensor.requires_grad for tensor in (*new.values(), *split_state(state)[0].values()))
        layer.load_state_dict(new)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", EVERY_RULE)
@pytest.mark.parametrize("uploads_on", ["cuda", "cpu"])
def test_gpu_agrees_with_cpu(name: str, uploads_on: str) -> None:
    weights = some_model(torch.float64)
    uploads = some_uploads(weights)
    rule = server_rule(name)
    expected, expected_state = rule.update(rule.init(weights), weights, uploads)
    on_gpu = {key: own.cuda() for key, own in weights.items()}
    moved = [Upload({k: t.to(uploads_on) for k, t in u.weights.items()}, u.num_samples, u.metrics) for u in uploads]
    # A state read from a file starts on the CPU.
    new, state = rule.update(rule.init(weights), on_gpu, moved)
    assert all(tensor.is_cuda for tensor in (*new.values(), *split_state(state)[0].values()))
    for key in weights:
        torch.testing.assert_close(new[key].cpu(), expected[key], rtol=1e-14, atol=1e-15)
        if not name.startswith("ida"):
            assert torch.equal(new[key].cpu(), expected[key])
    for key, tensor in split_state(expected_state)[0].items():
        assert torch.equal(split_state(state)[0][key].cpu(), tensor)
