"""A run that starts from a trained network: the setting ``init``.

The model is the folder of a run, a .safetensors or .pt2 file of ``fedgs export``, or a saved state_dict. It has every
weight that the run trains, in the same shape; where it says the names of its classes they are those of the run.
"""

from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from fedgs.errors import ConfigError, suggestion
from fedgs.simulation.exported import read_weights
from fedgs.simulation.folder import read_task
from fedgs.tasks.bind import BoundTask
from fedgs.tasks.prepare import NormalisedInputs, statistics_of
from fedgs.training.layout import MODEL, Layout, model_file


def warm_start(task: BoundTask, init: str) -> None:
    """Copy the weights of a trained model into the network of a task, or say in a line why they do not fit."""
    where, module = f"init={init!r}", task.module
    weights, classes = _read(Path(init), where)
    numbers = [str(number) for number in range(len(task.classes))]
    if classes is not None and task.classifies and list(task.classes) != classes and numbers != classes:
        raise ConfigError(
            f"{where}: its classes are {', '.join(classes)}, those of the data {', '.join(task.classes)}; a model can "
            "go on with the same classes in the same order"
        )
    known, needed = module.state_dict(), set(Layout.of(module, task.task.keep_local).names)
    if isinstance(module, NormalisedInputs) and not statistics_of(weights):
        weights = {f"network.{name}": value for name, value in weights.items()}
        needed = {name for name in needed if name.startswith("network.")}  # mean and deviation are those of the data
    frozen = {name for name, one in module.named_parameters(remove_duplicate=False) if not one.requires_grad}
    for name, value in weights.items():
        if name not in known:
            raise ConfigError(f"{where}: weight {name!r} is not in the network; {suggestion(name, known)}")
        if value.shape != known[name].shape:
            raise ConfigError(
                f"{where}: weight {name!r} has shape {tuple(value.shape)}, in the network {tuple(known[name].shape)}"
            )
        if not bool(torch.isfinite(value).all()):
            raise ConfigError(f"{where}: weight {name!r} holds NaN or infinity")
        if name in frozen and not torch.equal(value.to(known[name].dtype), known[name]):
            raise ConfigError(
                f"{where}: weight {name!r} is frozen in the network and another one there; load it where the network "
                "is made"
            )
    missing = sorted(needed - set(weights))
    if missing:
        raise ConfigError(f"{where}: has no weight {missing[0]!r}, which the network has")
    for name, value in weights.items():
        known[name].copy_(value)


def classes_of_model(init: str) -> tuple[str, ...]:
    """Return the names of the classes of a trained model; none where it does not say them, or is there no more."""
    return () if not Path(init).exists() else tuple(_read(Path(init), f"init={init!r}")[1] or ())


def _read(path: Path, where: str) -> tuple[Mapping[str, Tensor], list[str] | None]:
    """Return weights by name, and the names of the classes where the model says them."""
    said: Mapping[str, Any] | None = None
    file = model_file(path)
    if path.is_dir():
        said = read_task(path)
        if not file.is_file():
            raise ConfigError(f"{where}: has no {MODEL}; give the folder of a finished run, or a model file")
    elif not file.is_file():
        raise ConfigError(f"{where}: no such file or folder")
    if file.suffix == ".onnx":
        raise ConfigError(f"{where}: an .onnx file cannot be trained; export the model as .safetensors or .pt2")
    known = file.suffix in (".safetensors", ".pt2")
    weights, facts = read_weights(file) if known else (_state_dict(file, where), None)
    said = said or facts
    return weights, said["classes"] if said and said.get("classifies") else None


def _state_dict(file: Path, where: str) -> dict[str, Tensor]:
    how = "save one with torch.save(model.state_dict(), FILE)"
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, LookupError, UnpicklingError):
        raise ConfigError(f"{where}: cannot be read as a state_dict; {how}") from None
    if not isinstance(found, Mapping) or not all(isinstance(one, Tensor) for one in found.values()):
        raise ConfigError(f"{where}: holds something else than the tensors of a state_dict; {how}")
    return dict(found)
