"""FedNova: a number worked out by hand, and what it is when all devices make the same number of steps."""

import pytest
import torch

from fedgs.algorithms import Upload, server_rule
from fedgs.errors import AlgorithmError

from .rounds import one_round, some_model, some_uploads, vector


def upload(value: float, samples: int, steps: object) -> Upload:
    return Upload({"w": vector(value)}, samples, {"steps": steps})  # type: ignore[dict-item]


def test_steps_do_not_count_twice() -> None:
    """From 1: device A (n = 10, 2 steps) came to 0.8, device B (n = 30, 6 steps) to 0.1.

    In a step they moved by 0.1 and 0.15; p = (¼, ¾) gives 0.1375. They made ¼·2 + ¾·6 = 5 steps on average: 5 × 0.1375.
    """
    uploads = [upload(0.8, 10, 2), upload(0.1, 30, 6)]
    assert one_round(server_rule("fednova"), [1], uploads) == pytest.approx([1 - 0.6875], abs=1e-12)
    # All alike: (0.1 + 0.15)/2 in a step, 4 steps.
    assert one_round(server_rule("fednova", weighting="uniform"), [1], uploads) == pytest.approx([0.5], abs=1e-12)


@pytest.mark.parametrize("steps", [1, 7, 35.0])
def test_with_equal_steps_it_is_fedavg(steps: float) -> None:
    weights = some_model(torch.float64)
    uploads = [Upload(one.weights, one.num_samples, {"steps": steps}) for one in some_uploads(weights)]
    plain, _ = server_rule("fedavg").update({}, weights, uploads)
    new, state = server_rule("fednova").update({}, weights, uploads)
    assert state == {}
    for key in weights:
        torch.testing.assert_close(new[key], plain[key], rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("steps", [None, 0, -3, True, "7", float("nan"), float("inf")])
def test_steps_that_are_none_are_refused(steps: object) -> None:
    with pytest.raises(AlgorithmError, match=r"uploads\[1\].metrics\['steps'\] is "):
        server_rule("fednova").update({}, {"w": vector(1)}, [upload(1, 1, 3), upload(1, 1, steps)])
