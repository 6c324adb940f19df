import numpy as np
import pytest
import torch

from fedgs.errors import ConfigError
from fedgs.tasks.cnn import build_model
from fedgs.training.layout import Layout


def test_the_papers_network_has_its_number_of_weights() -> None:
    """T-NET-1."""
    model = build_model("paper")
    sizes = {name: weight.numel() for name, weight in model.named_parameters()}
    assert sum(sizes.values()) == 6_603_710
    assert sizes["conv1.weight"] + sizes["conv1.bias"] == 832
    assert sizes["conv2.weight"] + sizes["conv2.bias"] == 51_264
    assert sizes["dense1.weight"] + sizes["dense1.bias"] == 6_424_576
    assert sizes["dense2.weight"] + sizes["dense2.bias"] == 127_038


def test_the_compact_network_is_small() -> None:
    assert Layout.of(build_model("compact")).size < 60_000


@pytest.mark.parametrize("name", ["paper", "compact", "linear"])
@pytest.mark.parametrize("shape", [(28, 28), (9, 14), (12, 12, 3)])
def test_networks_take_any_size_of_image(name: str, shape: tuple[int, ...]) -> None:
    model = build_model(name, 7, shape)
    channels = shape[2] if len(shape) == 3 else 1
    assert model(torch.rand(5, channels, *shape[:2])).shape == (5, 7)


def test_first_weights_are_xavier_uniform_and_follow_from_the_seed() -> None:
    model, again, other = (build_model("compact", seed=seed) for seed in (3, 3, 4))
    for (name, weight), same, else_ in zip(
        model.named_parameters(), again.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(weight, same)
        if weight.ndim == 1:
            assert not weight.any()
            continue
        assert not torch.equal(weight, else_)
        fan_in, fan_out = weight[0].numel(), weight[:, 0].numel()
        bound = (6 / (fan_in + fan_out)) ** 0.5
        assert weight.abs().max() <= bound, name
        assert float(weight.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.2), name


def test_pooling_before_the_rectifier_changes_nothing() -> None:
    model = build_model("paper", 5, (8, 8))
    images = torch.rand(3, 1, 8, 8)
    pool, relu = torch.nn.functional.max_pool2d, torch.relu
    hidden = pool(relu(model.conv2(pool(relu(model.conv1(images)), 2))), 2)  # type: ignore[operator]
    logits = model.dense2(relu(model.dense1(hidden.flatten(1))))  # type: ignore[operator]
    torch.testing.assert_close(model(images), logits)


def test_unknown_networks_and_tiny_images_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"no model is called 'large'; there are paper, compact"):
        build_model("large")
    with pytest.raises(ConfigError, match="4×4"):
        build_model("paper", 5, (3, 9))


def test_a_layout_gives_back_what_it_was_given() -> None:
    model = build_model("compact", 5, (12, 12, 3))
    layout = Layout.of(model)
    flat = layout.flatten(dict(model.named_parameters()))
    assert flat.shape == (layout.size,)
    for name, weight in layout.named(flat).items():
        assert torch.equal(weight, model.get_parameter(name))
        assert weight.is_contiguous()
    assert torch.equal(layout.of_module(model), flat)
    flat += 1
    layout.load(model, flat)
    assert np.isclose(float(model.get_parameter("dense2.bias")[0].detach()), 1.0)
    assert torch.equal(layout.of_module(model), flat)


def test_the_linear_model_has_no_stacked_form() -> None:
    from fedgs.training.stacked_networks import build_network

    with pytest.raises(ConfigError, match=r"model 'linear' has no stacked form .*; use paper or compact"):
        build_network("linear")
