"""What a rule remembers between rounds, as plain data.

A state is a dict whose values are whole numbers or dicts of float64 tensors named like the weights:

    {"round": 3, "first_moment": {"conv.weight": …}, "second_moment": {"conv.weight": …}}

``split_state`` turns it into one flat dict of tensors for a safetensors file (``"first_moment/conv.weight"``) and one
of numbers for JSON; ``join_state`` is the way back, exact to the last bit. FedAvg and IDA remember nothing: ``{}``.
Moments are float64 whatever the weights are, since a squared update of a float16 model is far below float16.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedgs.algorithms.upload import Weights
from fedgs.errors import AlgorithmError

State = dict[str, dict[str, Tensor] | int]


def split_state(state: State) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Return the tensors of a state under ``entry/key``, and its numbers."""
    tensors = {f"{entry}/{key}": tensor for entry, value in _groups(state).items() for key, tensor in value.items()}
    numbers = {entry: value for entry, value in state.items() if isinstance(value, int)}
    return tensors, numbers


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


def check_entries(rule: str, state: State, *entries: str) -> None:
    """Refuse a state that another rule made."""
    if not isinstance(state, dict):
        raise AlgorithmError(f"the state of {rule} is a {type(state).__name__}, not a dict; make it with rule.init")
    for entry in state:
        if entry not in entries:
            raise AlgorithmError(
                f"the state has {entry!r}, which {rule} does not know; make it with rule.init(weights)"
            )


def moments(rule: str, state: State, entry: str, weights: Weights) -> dict[str, Tensor]:
    """Return one group of tensors of a state, each on the device of its weight."""
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


def count(rule: str, state: State, entry: str) -> int:
    """Return one number of a state."""
    value = state.get(entry)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise AlgorithmError(f"{entry!r} in the state of {rule} is {value!r}, not a count; make it with rule.init")
    return value


def _groups(state: State) -> dict[str, dict[str, Tensor]]:
    return {entry: value for entry, value in state.items() if isinstance(value, dict)}
