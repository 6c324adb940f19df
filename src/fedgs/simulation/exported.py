"""A trained network as a file of its own, and predictions with it.

    history.export("press.onnx")
    fedgs.load_model("press.onnx").predict(inputs)

================  ========================================================================================
``.safetensors``  weights alone: for fedgs, which builds the network again from its name
``.pt2``          weights and computation (torch.export): for torch alone
``.onnx``         weights and computation: for every other runtime; needs the extra ``onnx``
================  ========================================================================================

Every file carries the same facts as JSON under the key ``fedgs``: version, task, class names, shape and type of the
inputs, how they are prepared. Normalisation of the inputs is a part of the network. What the network takes are prepared
inputs: images of bytes as float CHW from 0 to 1, other numbers as float32 or int64 (:mod:`fedgs.tasks.prepare`).
"""

import importlib
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError
from torch import nn

from fedgs import __version__
from fedgs.data.arrays import leaves, map_tree, rows_of, take
from fedgs.errors import ConfigError, FedgsError, InputFileError, MissingDependencyError, OutputError
from fedgs.imports import load_object
from fedgs.settings import TaskSettings
from fedgs.tasks.bind import build_module, prepare_of
from fedgs.tasks.prepare import NormalisedInputs, as_tensor, call, default_prepare, image_prepare, stand_in
from fedgs.tasks.task import Task, task_from

if TYPE_CHECKING:
    from fedgs.simulation.history import History

KEY = "fedgs"
SUFFIXES = (".safetensors", ".pt2", ".onnx")
BATCH = 256
PREPARE = {"images": image_prepare, "default": default_prepare}


class ModelFacts(BaseModel):
    """What has to be known of a model to use it."""

    version: str
    """Of the fedgs that wrote it."""
    task: TaskSettings | str
    seed: int
    classes: list[str]
    """The names of the classes, or of the bins that selection balances."""
    classifies: bool
    """Whether the outputs stand for the classes, in their order; else they are values."""
    inputs: Any
    """Shape and type of one stored sample, a list of both; or a list or dict of such."""
    prepare: str | None
    """``images``, ``default``, package.module:name, or None: a function that nobody can import."""
    reconstructs: bool = False
    """Whether the outputs are reconstructions of the inputs, as in anomaly detection."""


@dataclass(frozen=True)
class Predictions:
    """What a model says of some samples."""

    outputs: NDArray[np.float32]
    """As the network gives them: a number a class before the softmax, or values."""
    classes: tuple[str, ...] = ()
    errors: NDArray[np.float64] | None = None
    """Of a network that reconstructs its inputs: the mean squared error of each sample."""

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """(samples, classes)."""
        shifted = np.exp(self.outputs - self.outputs.max(1, keepdims=True), dtype=np.float64)
        found: NDArray[np.float64] = shifted / shifted.sum(1, keepdims=True)
        return found

    @property
    def labels(self) -> list[str]:
        """The most likely class of each sample."""
        return [self.classes[place] for place in self.outputs.argmax(1)]


@dataclass(frozen=True, eq=False)
class ExportedModel:
    """A model that can be asked, whatever kind of file it came from.

    Examples:
        >>> import fedgs
        >>> model = fedgs.load_model("press.onnx")                  # doctest: +SKIP
        >>> model.predict(images).labels                            # doctest: +SKIP
    """

    facts: ModelFacts
    network: Callable[[Any], Any]
    """From prepared inputs (tensors) to outputs."""
    where: str

    def predict(self, inputs: Any) -> Predictions:
        """Return what the model says of stored inputs: arrays as the federation had them, one row a sample."""
        expected = _shapes(self.facts.inputs)
        inputs = map_tree(np.asarray, inputs)
        given = [(list(array.shape[1:]), str(array.dtype)) for _, array in leaves(inputs)]
        if [shape for shape, _ in given] != [shape for shape, _ in expected]:
            raise ConfigError(f"{self.where}: takes inputs of shape {_shown(expected)}, given are {_shown(given)}")
        prepare = self._prepare()
        outputs, errors = [], []
        for first in range(0, rows_of(inputs), BATCH):
            rows = np.arange(first, min(first + BATCH, rows_of(inputs)))
            prepared = prepare(map_tree(as_tensor, take(inputs, rows)))
            with torch.no_grad():
                found = torch.as_tensor(self.network(prepared)).float()
            outputs.append(found.numpy())
            if self.facts.reconstructs:
                _, drawn = next(leaves(prepared))
                errors.append((found - drawn).square().flatten(1).double().mean(1).numpy())
        if not outputs:
            raise ConfigError(f"{self.where}: nothing to predict; there are no samples")
        classes = tuple(self.facts.classes) if self.facts.classifies else ()
        return Predictions(np.concatenate(outputs), classes, np.concatenate(errors) if errors else None)

    def _prepare(self) -> Callable[[Any], Any]:
        named = self.facts.prepare
        if named is None:
            raise ConfigError(
                f"{self.where}: its task prepares inputs with a function that has no name to import it by"
            )
        found = PREPARE.get(named)
        return found if found is not None else load_object(named, "prepare")


def load_model(path: str | Path, task: Task | None = None) -> ExportedModel:
    """Return the model of a run's folder or of an exported file.

    Args:
        path: a folder of a run, or a .safetensors, .pt2 or .onnx file that fedgs wrote.
        task: where the network of a folder or a .safetensors file has no name to import it by.
    """
    file = Path(path)
    if file.is_dir():
        from fedgs.simulation.history import load_history

        history = load_history(file, task)
        return ExportedModel(facts_of(history), _module_call(history.model), str(file))
    if not file.is_file():
        raise InputFileError(f"{file}: no such file or folder")
    if file.suffix not in SUFFIXES:
        raise InputFileError(f"{file}: a model is a run's folder or a file that ends in {', '.join(SUFFIXES)}")
    try:
        said, make = _READERS[file.suffix](file, task)
    except (OSError, RuntimeError, ValueError, BadZipFile) as error:
        raise InputFileError(f"{file}: cannot be read as a model ({str(error).splitlines()[0]})") from None
    facts = _facts(file, said)
    return ExportedModel(facts, make(facts), str(file))


def export_model(history: "History", path: str | Path) -> Path:
    """Write the trained network of a run into a file; its suffix says how."""
    file = Path(path)
    if file.suffix not in SUFFIXES:
        raise OutputError(f"{file}: the name must end in {', '.join(SUFFIXES)}")
    if not file.parent.is_dir():
        raise OutputError(f"{file}: there is no folder {file.parent}")
    said = facts_of(history).model_dump_json()
    temporary = file.with_name(f".{file.stem}.unfinished{file.suffix}")
    try:
        with _quiet():
            _WRITERS[file.suffix](history, said, temporary)
        os.replace(temporary, file)
    except FedgsError:
        raise
    except OSError as error:
        raise OutputError(f"{file}: cannot be written ({error.strerror or error})") from None
    finally:
        temporary.unlink(missing_ok=True)
    return file


def facts_of(history: "History") -> ModelFacts:
    """Return the facts of a run's model."""
    task, said = history.settings.task, history.facts
    if "inputs" not in said:
        raise InputFileError(f"{history.folder}: was made by an older version; its weights are in History.weights")
    named: str | None = None
    try:
        function = prepare_of(_task(history))
        named = next((name for name, known in PREPARE.items() if known is function), None)
    except ConfigError:
        pass
    if named is None and isinstance(task, TaskSettings):
        named = task.prepare
    return ModelFacts(
        version=__version__,
        task=task,
        seed=history.settings.seed,
        classes=said["classes"],
        classifies=said.get("classifies", said.get("loss") == "cross_entropy"),
        inputs=said["inputs"],
        prepare=named,
        reconstructs=bool(said.get("reconstructs")),
    )


def _task(history: "History") -> Task:
    known = history.finished.task.task if history.finished is not None else history.task
    return known or task_from(history.settings.task)


def network_of(facts: ModelFacts, weights: dict[str, torch.Tensor], where: str, task: Task | None = None) -> nn.Module:
    """Return the network that the facts name, with these weights, in eval mode."""
    try:
        module = build_module(task or task_from(facts.task), stand_in(facts.inputs, facts.classes), facts.seed)
    except ConfigError as error:
        raise ConfigError(f"{where}: its network cannot be made again ({error}); give its task: task=…") from None
    if any(name.startswith("network.") for name in weights):
        count = sum(name.startswith("mean_") for name in weights)
        module = NormalisedInputs(
            module, [(weights[f"mean_{number}"], weights[f"deviation_{number}"]) for number in range(count)]
        )
    known = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    with torch.no_grad():
        for name, value in weights.items():
            if name not in known or known[name].shape != value.shape:
                raise ConfigError(f"{where}: weight {name!r} does not fit the network of the task")
            known[name].copy_(value)
    return module.eval()


def _facts(file: Path, said: str | None) -> ModelFacts:
    if said is None:
        raise InputFileError(f"{file}: was not exported by fedgs: it does not say what its inputs and outputs are")
    try:
        return ModelFacts.model_validate_json(said)
    except ValidationError:
        raise InputFileError(f"{file}: what it says of its inputs and outputs cannot be read") from None


def _module_call(module: nn.Module) -> Callable[[Any], Any]:
    return lambda prepared: call(module, prepared)


def _example(history: "History") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return prepared inputs of two samples, as arguments of the network."""
    one = stand_in(history.facts["inputs"], 1).inputs
    prepared = prepare_of(_task(history))(map_tree(lambda array: as_tensor(np.repeat(array, 2, axis=0)), one))
    if isinstance(prepared, dict):
        return (), prepared
    return (prepared if isinstance(prepared, tuple) else (prepared,)), {}


def _exported_program(history: "History") -> torch.export.ExportedProgram:
    arguments, named = _example(history)
    collection: Any = torch.export.ShapesCollection  # it has no types
    shapes = collection()
    for value in (*arguments, *named.values()):
        shapes[value] = {0: torch.export.Dim("batch")}
    try:
        return torch.export.export(history.model, arguments, named, dynamic_shapes=shapes)
    except Exception as error:  # whatever the tracing of a user's network raises
        raise OutputError(
            f"{history.name}: torch.export cannot trace this network ({str(error).splitlines()[0]}); "
            "export it as .safetensors"
        ) from None


def _write_safetensors(history: "History", said: str, file: Path) -> None:
    from safetensors.torch import save_file

    save_file({name: value.contiguous() for name, value in history.weights.items()}, file, {KEY: said})


def _write_pt2(history: "History", said: str, file: Path) -> None:
    torch.export.save(_exported_program(history), file, extra_files={KEY: said})


def _write_onnx(history: "History", said: str, file: Path) -> None:
    onnx = _onnx("onnx")
    _onnx("onnxscript")
    arguments, named = _example(history)
    names = list(named) or [f"input_{place}" for place in range(len(arguments))]
    program = torch.onnx.export(
        _exported_program(history), (), input_names=names, output_names=["output"], verbose=False, dynamo=True
    )
    assert program is not None
    model = program.model_proto
    onnx.helper.set_model_props(model, {KEY: said})
    onnx.save(model, file)


def _read_safetensors(file: Path, task: Task | None) -> "_Found":
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file

    try:
        with safe_open(file, "pt") as opened:
            said = (opened.metadata() or {}).get(KEY)
        weights = load_file(file)
    except SafetensorError as error:
        raise ValueError(str(error)) from None
    return said, lambda facts: _module_call(network_of(facts, weights, str(file), task))


def _read_pt2(file: Path, task: Task | None) -> "_Found":
    said = {KEY: ""}
    module = torch.export.load(file, extra_files=said).module()
    return said[KEY] or None, lambda facts: _module_call(module)


def _read_onnx(file: Path, task: Task | None) -> "_Found":
    runtime = _onnx("onnxruntime")
    try:
        session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    except Exception as error:  # the library's own classes, which share no base
        raise ValueError(str(error)) from None
    said = session.get_modelmeta().custom_metadata_map.get(KEY)
    names = [one.name for one in session.get_inputs()]

    def run(prepared: Any) -> Any:
        values = [value.numpy() for _, value in leaves(prepared)]
        return session.run(None, dict(zip(names, values, strict=True)))[0]

    return said, lambda facts: run


_Found = tuple[str | None, Callable[[ModelFacts], Callable[[Any], Any]]]
_READERS = {".safetensors": _read_safetensors, ".pt2": _read_pt2, ".onnx": _read_onnx}
_WRITERS = {".safetensors": _write_safetensors, ".pt2": _write_pt2, ".onnx": _write_onnx}


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep to themselves what the exporters of torch say of their own insides."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


def _onnx(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingDependencyError(f"ONNX files need {name}: pip install 'fedgs[onnx]'") from None


def _shapes(described: Any) -> list[tuple[list[int], str]]:
    return [(list(array.shape[1:]), str(array.dtype)) for _, array in leaves(stand_in(described, 1).inputs)]


def _shown(shapes: list[tuple[list[int], str]]) -> str:
    return " and ".join("×".join(map(str, shape)) or "one number" for shape, _ in shapes)
