"""Everything a caller can get wrong ends in one line that names the culprit."""

import math
import re

import pytest
import torch

from fedgs.algorithms import Upload, join_state, server_rule
from fedgs.errors import AlgorithmError, FedgsError

from .rounds import EVERY_RULE, OPTIMISERS, some_model, some_uploads, upload, vector

WEIGHTS = {"w": vector(1, 1), "b": vector(0)}


def other(**changes: object) -> dict[str, object]:
    return {**WEIGHTS, **changes}


def refuse(name: str, uploads: object, message: str, weights: object = WEIGHTS) -> None:
    rule = server_rule(name)
    with pytest.raises(AlgorithmError, match=message) as caught:
        rule.update(rule.init(WEIGHTS), weights, uploads)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, FedgsError)
    assert isinstance(caught.value, ValueError)


GOOD = Upload(WEIGHTS, 3, {"train_acc": 0.5, "steps": 4})


@pytest.mark.parametrize("name", EVERY_RULE)
@pytest.mark.parametrize(
    ("weights", "samples", "message"),
    [
        ({"w": vector(1, 1)}, 3, r"uploads\[1\].weights lacks 'b'"),
        (other(c=vector(1)), 3, r"uploads\[1\].weights has 'c', which the server's"),
        (
            other(w=vector(1, 1, 1)),
            3,
            r"uploads\[1\].weights\['w'\] has shape \(3,\), the server's weights have \(2,\)",
        ),
        (other(b=vector(1)[0]), 3, r"uploads\[1\].weights\['b'\] has shape \(\), the server's weights have \(1,\)"),
        (other(w=vector(1, 1).float()), 3, r"uploads\[1\].weights\['w'\] is float32, the server's weights are float64"),
        (other(w=vector(1, 1).long()), 3, r"'w'\] is int64, the server's weights are float64"),
        (other(w=vector(1, 1).to_sparse()), 3, r"uploads\[1\].weights\['w'\] is a sparse tensor"),
        (other(w=[1.0, 1.0]), 3, r"uploads\[1\].weights\['w'\] is a list, not a tensor"),
        ([vector(1, 1)], 3, r"uploads\[1\].weights is a list, not a dict"),
        (other(w=vector(1, math.nan)), 3, r"uploads\[1\].weights\['w'\] holds nan; leave this upload out"),
        (other(b=vector(math.inf)), 3, r"uploads\[1\].weights\['b'\] holds inf"),
        (other(b=vector(-math.inf)), 3, r"uploads\[1\].weights\['b'\] holds -inf"),
        (WEIGHTS, 0, r"uploads\[1\].num_samples is 0; it must be above 0"),
        (WEIGHTS, -5, r"uploads\[1\].num_samples is -5"),
        (WEIGHTS, math.nan, r"uploads\[1\].num_samples is nan"),
        (WEIGHTS, math.inf, r"uploads\[1\].num_samples is inf"),
        (WEIGHTS, 10**400, r"uploads\[1\].num_samples is 1000"),
        (WEIGHTS, "3", r"uploads\[1\].num_samples is '3', not a number"),
        (WEIGHTS, None, r"uploads\[1\].num_samples is None, not a number"),
        (WEIGHTS, True, r"uploads\[1\].num_samples is True, not a number"),
    ],
)
def test_an_upload_that_does_not_fit(name: str, weights: object, samples: object, message: str) -> None:
    bad = Upload(weights, samples, {"train_acc": 0.5, "steps": 4})  # type: ignore[arg-type]
    refuse(name, [GOOD, bad, GOOD], message)


@pytest.mark.parametrize("name", EVERY_RULE)
def test_nothing_to_average(name: str) -> None:
    refuse(name, [], "no uploads in this round")
    refuse(name, [Upload(WEIGHTS, 0, {"train_acc": 0.5, "steps": 4})] * 2, "num_samples is 0 in all 2 uploads")
    refuse(name, [WEIGHTS], r"uploads\[0\] is a dict, not an Upload; write Upload\(")


@pytest.mark.parametrize("name", EVERY_RULE)
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({}, "weights is empty"),
        ([vector(1)], "weights is a list, not a dict of tensors"),
        ({"w": 3.0}, r"weights\['w'\] is a float, not a tensor"),
        ({"w": torch.zeros(2, dtype=torch.complex64)}, r"weights\['w'\] is of dtype complex64; rules take"),
        ({"w": vector(0, 1).to_sparse()}, r"weights\['w'\] is a sparse tensor; rules take"),
    ],
)
def test_weights_that_no_rule_can_average(name: str, weights: object, message: str) -> None:
    with pytest.raises(AlgorithmError, match=message):
        server_rule(name).init(weights)  # type: ignore[arg-type]
    refuse(name, [GOOD], message, weights)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_broken_global_weights(name: str) -> None:
    refuse(name, [GOOD], r"weights\['b'\] of the server holds nan; go back", other(b=vector(math.nan)))


def test_broken_global_weights_do_not_matter_to_a_mean() -> None:
    new, _ = server_rule("fedavg").update({}, {"w": vector(math.nan)}, [upload([2])])
    assert new["w"].item() == 2


def test_a_step_too_long_for_the_dtype() -> None:
    weights = {"w": torch.zeros(1, dtype=torch.float16)}
    rule = server_rule("fedavgm", server_lr=100.0)
    with pytest.raises(AlgorithmError, match=r"new weights\['w'\] come out as inf in float16; lower server_lr"):
        rule.update(rule.init(weights), weights, [Upload({"w": torch.tensor([1000.0]).half()}, 1)])


def test_an_update_whose_square_is_no_number() -> None:
    rule = server_rule("fedadam")
    with pytest.raises(AlgorithmError, match=r"\['w'\] come out as inf"):
        rule.update(rule.init({"w": vector(0)}), {"w": vector(0)}, [upload([1e200])])
    with pytest.raises(AlgorithmError, match="too far apart in 'w'"):
        server_rule("ida", norm="l2").update({}, {"w": vector(0)}, [upload([1e200]), upload([-1e200])])


@pytest.mark.parametrize(
    ("name", "metrics", "message"),
    [
        *(("ida+intrac", {"train_acc": wrong}, r"\['train_acc'\] is .*between 0 and 1")
          for wrong in (87.0, -0.1, math.nan, "0.5", True)),
        ("ida+intrac", {}, r" has no 'train_acc', which INTRAC needs"),
        *(("fednova", {"steps": wrong}, r"\['steps'\] is ")
          for wrong in (None, 0, -3, True, "7", math.nan, math.inf)),
    ],
)  # fmt: skip
def test_reports_that_a_rule_cannot_use(name: str, metrics: dict[str, float], message: str) -> None:
    uploads = [Upload({"w": vector(1)}, 1, one) for one in ({"train_acc": 0.5, "steps": 3}, metrics)]
    with pytest.raises(AlgorithmError, match=r"uploads\[1\].metrics" + message):
        server_rule(name).update({}, {"w": vector(0)}, uploads)
    server_rule("ida").update({}, {"w": vector(0)}, uploads)  # who does not need it does not ask


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fedadm", {}, "no server rule is called 'fedadm'; did you mean 'fedadam'?"),
        ("FedYogi", {}, "no server rule is called 'FedYogi'; did you mean 'fedyogi'?"),
        ("scaffold", {}, "no server rule is called 'scaffold'; there are fedavg, fedavgm,"),
        (None, {}, "no server rule is called None"),
        ("fedadam", {"beta_1": 0.9}, "fedadam has no option 'beta_1'; did you mean 'beta1'?"),
        ("fedavg", {"zzz": 1}, "fedavg has no option 'zzz'; it takes weighting"),
        ("fedavgm", {"tau": 1e-3}, "fedavgm has no option 'tau'; it takes server_lr, beta"),
        ("ida+intrac", {"intrac": False}, "ida+intrac decides intrac itself; leave intrac=False out"),
        ("ida+fedavg", {"data_size": True}, "ida+fedavg decides data_size itself"),
        ("fedadam", {"server_lr": 0}, "fedadam: server_lr=0 is not possible; it must be a number above 0"),
        ("fedadam", {"server_lr": math.inf}, "server_lr=inf is not possible"),
        ("fedadam", {"server_lr": "0.1"}, "server_lr='0.1' is not possible"),
        ("fedadam", {"server_lr": True}, "server_lr=True is not possible"),
        ("fedadam", {"beta1": 1.0}, "beta1=1.0 is not possible; it must be at least 0 and below 1"),
        ("fedyogi", {"beta2": -0.1}, "fedyogi: beta2=-0.1 is not possible"),
        ("fedyogi", {"beta2": math.nan}, "beta2=nan is not possible"),
        ("fedadagrad", {"beta2": 0.99}, "beta2=0.99 is not possible; the second moment of fedadagrad never decays"),
        ("fedadagrad", {"bias_correction": "adam"}, "fedadagrad has no option 'bias_correction'"),
        ("fedadagrad", {"tau": 0.0}, "tau=0.0 is not possible"),
        ("fedadagrad", {"tau": 1e-200}, "tau=1e-200 is not possible; its square"),
        ("fedadagrad", {"tau": 1e200}, "tau=1e+200 is not possible; its square"),
        ("fedadam", {"v_init": "tau"}, "v_init='tau' is not possible; it is one of tau2, zero"),
        ("fedadam", {"bias_correction": True}, "bias_correction=True is not possible; it is one of none, adam, flower"),
        ("fedavg", {"weighting": ["samples"]}, "weighting=['samples'] is not possible"),
        ("fedavgm", {"beta": None}, "beta=None is not possible"),
        ("fedavgm", {"nesterov": 1}, "nesterov=1 is not possible; it is True or False"),
        ("ida", {"norm": "l3"}, "ida: norm='l3' is not possible; it is one of l1, l2"),
        ("ida", {"reference": "median"}, "reference='median' is not possible"),
        ("ida", {"eps": 0}, "eps=0 is not possible"),
        ("ida+intrac", {"classes": 1}, "classes=1 is not possible; it must be a whole number, at least 2"),
        ("ida+intrac", {"classes": 62.0}, "classes=62.0 is not possible"),
    ],
)
def test_rules_and_options_that_do_not_exist(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(AlgorithmError, match=re.escape(message)) as caught:
        server_rule(name, **options)
    assert "\n" not in str(caught.value)


def test_fedadagrad_takes_the_papers_beta2_of_zero() -> None:
    assert server_rule("fedadagrad", beta1=0.0, beta2=0.0) == server_rule("fedadagrad")


def test_a_state_of_another_rule_or_model() -> None:
    weights = some_model()
    uploads = some_uploads(weights)
    adam, momentum, plain = server_rule("fedadam"), server_rule("fedavgm"), server_rule("fedavg")
    state = adam.init(weights)
    for rule, wrong, message in (
        (plain, state, "the state has 'round', which fedavg does not know"),
        (server_rule("ida"), state, "the state has 'round', which ida does not know"),
        (momentum, state, "the state has 'round', which fedavgm does not know"),
        (adam, {}, "fedadam lacks first_moment/"),
        (adam, {**state, "round": -1}, "'round' in the state of fedadam is -1"),
        (adam, {**state, "round": None}, "'round' in the state of fedadam is None"),
        (adam, {**state, "second_moment": 3}, "'second_moment' in the state of fedadam is 3, not a dict"),
        (adam, adam.init({**weights, "more": vector(1)}), "fedadam has first_moment/more"),
        (
            adam,
            adam.init({**weights, "scale": vector(1)}),
            r"first_moment/scale .* has shape \(1,\), the weights have \(\)",
        ),
        (adam, None, "the state of fedadam is a NoneType, not a dict"),
    ):
        with pytest.raises(AlgorithmError, match=message):
            rule.update(wrong, weights, uploads)  # type: ignore[arg-type]


def test_names_that_are_not_of_a_state() -> None:
    with pytest.raises(AlgorithmError, match="'momentum' is not a tensor of a state"):
        join_state({"momentum": vector(1)}, {})
    with pytest.raises(AlgorithmError, match="'round/w' is not a tensor of a state"):
        join_state({"round/w": vector(1)}, {"round": 1})
