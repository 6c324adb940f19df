"""What a server rule is, and what it remembers between rounds, as plain data.

A state is a dict whose values are whole numbers or dicts of float64 tensors named like the weights:

    {"round": 3, "first_moment": {"conv.weight": …}, "second_moment": {"conv.weight": …}}

``split_state`` turns it into one flat dict of tensors for a safetensors file (``"first_moment/conv.weight"``) and one
of numbers for JSON; ``join_state`` is the way back, exact to the last bit. FedAvg and IDA remember nothing: ``{}``.
Moments are float64 whatever the weights are, since a squared update of a float16 model is far below float16.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from fedgs.algorithms.upload import Upload, Weights, check_uploads
from fedgs.errors import AlgorithmError
from fedgs.tasks.task import users_own

State = dict[str, dict[str, Tensor] | int]


class ServerRule(Protocol):
    """How the uploads of a round become the next global weights."""

    def init(self, weights: Weights) -> State:
        """Return what the rule remembers before the first round."""
        ...

    def update(self, state: State, weights: Weights, uploads: Sequence[Upload]) -> tuple[dict[str, Tensor], State]:
        """Return the next weights, in the dtypes and on the devices of the old ones, and what to remember."""
        ...


def check_rule(rule: object) -> None:
    """Refuse what is no server rule."""
    if isinstance(rule, type):
        raise AlgorithmError(f"rule {rule.__name__} is a class; give an object of it: {rule.__name__}(…)")
    if not all(callable(getattr(rule, method, None)) for method in ("init", "update")):
        shown = repr(rule) if isinstance(rule, str) else f"a {type(rule).__name__}"
        raise AlgorithmError(f"{shown} is no server rule, for it has no init and update; FedAvgM() is one")


def begin_by(rule: Any, weights: Weights) -> dict[str, Any]:
    """Return what a rule, or a baseline, remembers before the first round."""
    with users_own(f"{type(rule).__name__}.init: fails"):
        found = rule.init(weights)
    if not isinstance(found, Mapping):
        raise AlgorithmError(f"{type(rule).__name__}.init gave a {type(found).__name__}; give a dict")
    _check_state(f"{type(rule).__name__}.init", found)
    return dict(found)


def _check_state(where: str, state: Mapping[str, Any]) -> None:
    """Refuse what no checkpoint could hold."""
    for entry, value in state.items():
        groups = isinstance(value, dict) and all(isinstance(one, Tensor) for one in value.values())
        if not isinstance(entry, str) or "/" in entry or not (groups or _is_plain(value)):
            raise AlgorithmError(
                f"{where}: cannot remember {entry!r}, a {type(value).__name__}; give numbers, or dicts of tensors by "
                "name, under names without a slash"
            )


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def update_by(
    rule: ServerRule, state: State, weights: Weights, uploads: Sequence[Upload]
) -> tuple[dict[str, Tensor], State]:
    """Return what a rule makes of a round; one of the user's own is told in a line what it left out."""
    name = type(rule).__name__
    with users_own(f"{name}.update: fails"):
        result = rule.update(state, weights, uploads)
    if not isinstance(result, tuple) or len(result) != 2 or not all(isinstance(one, Mapping) for one in result):
        raise AlgorithmError(f"{name}.update gave a {type(result).__name__}; give a pair of dicts: (weights, state)")
    new, memory = result
    _check_state(f"{name}.update", memory)
    for key, weight in weights.items():
        found = new.get(key)
        if not isinstance(found, Tensor) or found.shape != weight.shape:
            shape = tuple(found.shape) if isinstance(found, Tensor) else f"is a {type(found).__name__}, no tensor"
            raise AlgorithmError(f"{name}.update: weight {key!r} has shape {tuple(weight.shape)}, the new one {shape}")
    return new, memory


def required_metrics(rule: ServerRule) -> tuple[str, ...]:
    """Return what a rule wants participants to report beside their weights: its ``reports``, where it has any."""
    found: tuple[str, ...] = getattr(rule, "reports", ())
    return found


def split_state(state: State) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Return the tensors of a state under ``entry/key``, and its numbers."""
    groups = {entry: value for entry, value in state.items() if isinstance(value, dict)}
    tensors = {f"{entry}/{key}": tensor for entry, group in groups.items() for key, tensor in group.items()}
    return tensors, {entry: value for entry, value in state.items() if not isinstance(value, dict)}


def join_state(tensors: Mapping[str, Tensor], numbers: Mapping[str, int]) -> State:
    """Return the state that ``split_state`` took apart."""
    state: State = dict(numbers)
    for name, tensor in tensors.items():
        entry, slash, key = name.partition("/")  # no entry has a slash in its name; keys may
        group = state.setdefault(entry, {})
        if not slash or not isinstance(group, dict):
            raise AlgorithmError(f"{name!r} is not a tensor of a state; names are like 'momentum/conv.weight'")
        group[key] = tensor
    return state


def filled(weights: Weights, value: float) -> dict[str, Tensor]:
    """Return a float64 tensor full of one value for each weight that is not a whole number."""
    return {
        key: torch.full(tensor.shape, value, dtype=torch.float64, device=tensor.device)
        for key, tensor in weights.items()
        if tensor.is_floating_point()
    }


def check_round(
    rule: str, state: State, weights: Weights, uploads: Sequence[Upload], *moments: str, counts: tuple[str, ...] = ()
) -> list[dict[str, Tensor]]:
    """Refuse uploads that do not fit the weights, and a state that another rule or model made.

    Return its ``moments``, each tensor on the device of its weight; ``counts`` are its numbers.
    """
    check_uploads(weights, uploads)
    if not isinstance(state, dict):
        raise AlgorithmError(f"the state of {rule} is a {type(state).__name__}, not a dict; make it with rule.init")
    for entry in state:
        if entry not in (*moments, *counts):
            raise AlgorithmError(
                f"the state has {entry!r}, which {rule} does not know; make it with rule.init(weights)"
            )
    found = [_moments(rule, state, entry, weights) for entry in moments]
    for entry in counts:
        value = state.get(entry)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise AlgorithmError(f"{entry!r} in the state of {rule} is {value!r}, not a count; make it with rule.init")
    return found


def _moments(rule: str, state: State, entry: str, weights: Weights) -> dict[str, Tensor]:
    group = state.get(entry, {})  # absent when no weight has moments: a file of tensors cannot hold an empty group
    wanted = {key: tensor for key, tensor in weights.items() if tensor.is_floating_point()}
    if not isinstance(group, dict):
        raise AlgorithmError(f"{entry!r} in the state of {rule} is {group!r}, not a dict of tensors")
    for key in wanted.keys() ^ group.keys():
        verb = "lacks" if key in wanted else "has"
        raise AlgorithmError(f"the state of {rule} {verb} {entry}/{key}; make it with rule.init(weights) of this model")
    for key, tensor in wanted.items():
        if group[key].shape != tensor.shape:
            raise AlgorithmError(
                f"{entry}/{key} in the state of {rule} has shape {tuple(group[key].shape)}, "
                f"the weights have {tuple(tensor.shape)}; make it with rule.init(weights) of this model"
            )
    return {key: group[key].to(tensor.device, torch.float64) for key, tensor in wanted.items()}
