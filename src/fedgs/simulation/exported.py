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
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import nn

from fedgs.data.arrays import leaves, map_tree, rows_of, take
from fedgs.errors import ConfigError, InputFileError, MissingDependencyError, OutputError
from fedgs.files import make_folder, write_bytes
from fedgs.imports import load_object
from fedgs.tasks.build import build_module, prepare_of
from fedgs.tasks.facts import KEY, PREPARE, ModelFacts, model_facts
from fedgs.tasks.prepare import NormalisedInputs, as_tensor, call, stand_in, statistics_of
from fedgs.tasks.task import Task, check_task, task_from

if TYPE_CHECKING:
    from fedgs.simulation.history import History

SUFFIXES = (".safetensors", ".pt2", ".onnx")
BATCH = 256


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
        >>> import fedgs, numpy as np, torch
        >>> x, y = np.random.rand(200, 4), np.arange(200) % 3
        >>> federation = fedgs.Federation.from_arrays(x, y, devices=np.arange(200) % 10, factories=2)
        >>> task = fedgs.classification(lambda: torch.nn.Linear(4, 3))
        >>> path = fedgs.run(task, federation, rounds=2, pick=2).export("mine.pt2")
        >>> model = fedgs.load_model("mine.pt2")
        >>> set(model.predict(x).labels) <= {"0", "1", "2"}
        True
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
        types = iter([np.dtype(name) for _, name in expected])
        inputs = map_tree(lambda array: self._as_stored(array, next(types)), inputs)
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

    def _as_stored(self, given: NDArray[Any], stored: np.dtype[Any]) -> NDArray[Any]:
        """Return inputs as the type that the model was trained on; floats may be rounded, all else must stay as it is.

        Fractions from 0 to 1 are no bytes, and whether 1.0 or True was meant as white nobody can see: they are refused.
        """
        if given.dtype.kind in "fc" and not np.isfinite(given).all():
            raise ConfigError(f"{self.where}: the inputs hold NaN or infinity; take these samples out")
        if given.dtype == stored:
            return given
        rounded = stored.kind in "fc" and np.can_cast(given.dtype, stored, "same_kind")
        unclear = stored == np.uint8 and given.dtype.kind in "fb" and given.max(initial=0) == 1
        if rounded or (given.dtype.kind in "biuf" and not unclear):
            with np.errstate(all="ignore"):
                found = given.astype(stored)
            if np.isfinite(found).all() if rounded else np.array_equal(found, given):
                return found
        raise ConfigError(
            f"{self.where}: was trained on inputs of {stored}, given are {given.dtype} that do not convert without "
            f"loss; give {stored}{' from 0 to 255' if stored == np.uint8 else ''}"
        )

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
        task: needed if the network of a folder or a .safetensors file cannot be imported by name.

    :class:`ExportedModel` has an example.
    """
    check_task(task)
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
        raise _unreadable(file, error) from None
    facts = _facts(file, said)
    return ExportedModel(facts, make(facts), str(file))


def read_weights(file: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any] | None]:
    """Return the weights of a .safetensors or .pt2 file by name, and what it says of itself where fedgs wrote it."""
    said: str | None
    try:
        if file.suffix == ".pt2":
            extra = {KEY: ""}
            weights, said = dict(_exported(file, extra).state_dict), extra[KEY]
        else:
            weights, said = _tensors(file)
    except (OSError, RuntimeError, ValueError, BadZipFile) as error:
        raise _unreadable(file, error) from None
    return weights, _facts(file, said).model_dump() if said else None


def export_model(history: "History", path: str | Path) -> Path:
    """Write the trained network of a run into a file; its suffix says how."""
    file = Path(path)
    if file.suffix not in SUFFIXES:
        raise OutputError(f"{file}: the name must end in {', '.join(SUFFIXES)}")
    said = facts_of(history).model_dump_json()
    make_folder(file.parent)
    with _quiet():
        content = _WRITERS[file.suffix](history, said)  # in memory: torch aborts where a disk is full
    return write_bytes(file, content)


def facts_of(history: "History") -> ModelFacts:
    """Return the facts of a run's model."""
    said = history.facts
    if "inputs" not in said:
        raise InputFileError(f"{history.folder}: was made by an older version; its weights are in History.weights")
    known: Task | None = None
    with suppress(ConfigError):
        known = _task(history)
    classifies = said.get("classifies", said.get("loss") == "cross_entropy")
    return model_facts(
        known,
        history.settings,
        said["classes"],
        said["inputs"],
        classifies,
        bool(said.get("reconstructs")),
        _normalisation(history),
    )


def _normalisation(history: "History") -> dict[str, list[float]]:
    if history.settings.data.normalise == "none":
        return {}
    return statistics_of(history.weights)


def _task(history: "History") -> Task:
    known = history.finished.task.task if history.finished is not None else history.task
    return known or task_from(history.settings.task)


def network_of(facts: ModelFacts, weights: dict[str, torch.Tensor], where: str, task: Task | None = None) -> nn.Module:
    """Return the network that the facts name, with these weights, in eval mode."""
    try:
        module = build_module(task or task_from(facts.task), stand_in(facts.inputs, facts.classes), facts.seed)
    except ConfigError as error:
        raise ConfigError(f"{where}: its network cannot be made again ({error}); give its task: task=…") from None
    if facts.normalisation:  # not of every input: whole numbers have none
        places = [int(name.rpartition("_")[2]) for name in facts.normalisation]
        pairs = [(weights.get(f"mean_{place}"), weights.get(f"deviation_{place}")) for place in range(max(places) + 1)]
        module = NormalisedInputs(module, [None if one is None or two is None else (one, two) for one, two in pairs])
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


def _safetensors(history: "History", said: str) -> bytes:
    from safetensors.torch import save

    return save({name: value.contiguous() for name, value in history.weights.items()}, {KEY: said})


def _pt2(history: "History", said: str) -> bytes:
    content = BytesIO()
    torch.export.save(_exported_program(history), content, extra_files={KEY: said})
    return content.getvalue()


def _onnx_model(history: "History", said: str) -> bytes:
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
    found: bytes = model.SerializeToString()
    return found


def _tensors(file: Path) -> tuple[dict[str, torch.Tensor], str | None]:
    """Return the tensors of a safetensors file, and what fedgs wrote beside them."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}, (opened.metadata() or {}).get(KEY)  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(str(error)) from None


def _unreadable(file: Path, error: Exception) -> InputFileError:
    return InputFileError(f"{file}: cannot be read as a model ({(str(error) or type(error).__name__).splitlines()[0]})")


def _read_safetensors(file: Path, task: Task | None) -> "_Found":
    weights, said = _tensors(file)
    return said, lambda facts: _module_call(network_of(facts, weights, str(file), task))


def _read_pt2(file: Path, task: Task | None) -> "_Found":
    said = {KEY: ""}
    module = _exported(file, said).module()
    return said[KEY] or None, lambda facts: _module_call(module)


def _exported(file: Path, said: dict[str, Any]) -> torch.export.ExportedProgram:
    with _quiet():
        return torch.export.load(file, extra_files=said)


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
_WRITERS = {".safetensors": _safetensors, ".pt2": _pt2, ".onnx": _onnx_model}


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep to themselves what the exporters of torch say of their own insides."""
    logs = [logging.getLogger(name) for name in ("torch.onnx", "torch.export")]
    before = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in zip(logs, before, strict=True):
            log.setLevel(level)


def _onnx(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingDependencyError(f"ONNX files need {name}: pip install 'fedgs[onnx]'") from None


def _shapes(described: Any) -> list[tuple[list[int], str]]:
    return [(list(array.shape[1:]), str(array.dtype)) for _, array in leaves(stand_in(described, 1).inputs)]


def _shown(shapes: list[tuple[list[int], str]]) -> str:
    return " and ".join("×".join(map(str, shape)) or "one number" for shape, _ in shapes)
