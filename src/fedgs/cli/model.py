"""``fedgs export`` and ``fedgs predict``: use what a run has learnt."""

import csv
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fedgs.simulation.exported import ExportedModel, Predictions
    from fedgs.tasks.facts import ModelFacts

SHOWN = 20
"""Rows of the table; --csv prints all."""


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A name that ends in .onnx, .pt2 or .safetensors.")],
) -> None:
    """Write the model of a run into one file, with its class names and the shape of its inputs."""
    from fedgs.simulation.history import load_history

    history = load_history(run)
    history.export(out)
    typer.echo(f"{out}: {out.stat().st_size / 1e6:.1f} MB; use it with: fedgs predict {shlex.quote(str(out))} FOLDER")


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The folder of a run, or an exported file.")],
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A folder of images, an image, an .npz or .npy file.")],
    as_csv: Annotated[bool, typer.Option("--csv", help="Print every sample as comma-separated values.")] = False,
) -> None:
    """Predict the class of each image, or the value of each sample."""
    from fedgs.simulation.exported import load_model

    found = load_model(model)
    names, inputs, truth = _read(found, data)
    said = found.predict(inputs)
    header, rows = _rows(names, said)
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
        return
    _print_table(header, rows)
    if said.classes and any(one is not None for one in truth):
        pairs = [(one, label) for one, label in zip(truth, said.labels, strict=True) if one is not None]
        right = sum(one == label for one, label in pairs)
        typer.echo(f"accuracy {100 * right / len(pairs):.1f} % of {len(pairs)} samples whose class is known")


def _read(model: "ExportedModel", data: Path) -> tuple[list[str], Any, list[str | None]]:
    """Return the samples' names, their inputs, and their classes where they are known."""
    from fedgs.data.user_data import SUFFIXES, all_images, read_image
    from fedgs.errors import InputFileError

    if not data.exists():
        raise InputFileError(f"{data}: no such file or folder")
    if data.is_file() and data.suffix.lower() not in SUFFIXES:
        return _read_arrays(data, model.facts)
    files = all_images(data) if data.is_dir() else [Path(data.name)]
    if not files:
        raise InputFileError(f"{data}: no image ({', '.join(SUFFIXES)}) in it")
    import numpy as np

    shape = _image_shape(model)
    root = data if data.is_dir() else data.parent
    images = np.stack([read_image(root / file, (shape[0], shape[1]), grey=len(shape) == 2) for file in files])
    known = [file.parent.name if file.parent.name in model.facts.classes else None for file in files]
    return [str(file) for file in files], images, known


def _image_shape(model: "ExportedModel") -> list[int]:
    from fedgs.errors import ConfigError

    described = model.facts.inputs
    shape = described[0] if isinstance(described, list) and described[1:] == ["uint8"] else []
    if len(shape) == 2 or (len(shape) == 3 and shape[2] == 3):
        return list(shape)
    raise ConfigError(f"{model.where}: does not take images but inputs like {described}; give an .npz or .npy file")


def _read_arrays(file: Path, facts: "ModelFacts") -> tuple[list[str], Any, list[str | None]]:
    import numpy as np

    from fedgs.data.arrays import rows_of
    from fedgs.data.npz import fields_in
    from fedgs.errors import InputFileError
    from fedgs.files import read_npz

    targets: Any = None
    if file.suffix == ".npy":
        try:
            inputs: Any = np.load(file)
        except (OSError, ValueError, EOFError) as error:
            raise InputFileError(f"{file}: cannot be read as an array ({error})") from None
    elif file.suffix == ".npz":
        arrays = read_npz(file)
        fields = fields_in(arrays)
        inputs, targets = fields.get("inputs"), fields.get("targets")
        if inputs is None:
            raise InputFileError(f"{file}: no array 'inputs' or 'images'; it holds {', '.join(sorted(arrays))}")
    else:
        raise InputFileError(f"{file}: give a folder of images, an image, an .npz or an .npy file")
    count = rows_of(inputs)
    known: list[str | None] = [None] * count
    one_class = isinstance(targets, np.ndarray) and targets.shape == (count,) and targets.dtype.kind in "iuU"
    if one_class and count and facts.classifies:
        number = targets.dtype.kind != "U" and targets.min() >= 0 and targets.max() < len(facts.classes)
        known = [facts.classes[one] if number else str(one) for one in targets]
    return [str(place) for place in range(count)], inputs, known


def _rows(names: list[str], said: "Predictions") -> tuple[list[str], list[list[str]]]:
    if said.errors is not None:
        return ["sample", "error"], [[name, f"{one:.6g}"] for name, one in zip(names, said.errors, strict=True)]
    if said.classes:
        sure = said.probabilities.max(1)
        return ["sample", "class", "probability"], [
            [name, label, f"{one:.4f}"] for name, label, one in zip(names, said.labels, sure, strict=True)
        ]
    values = said.outputs.reshape(len(said.outputs), -1)
    header = ["value"] if values.shape[1] == 1 else [f"value_{place}" for place in range(values.shape[1])]
    return ["sample", *header], [
        [name, *(f"{one:.6g}" for one in row)] for name, row in zip(names, values, strict=True)
    ]


def _print_table(header: list[str], rows: list[list[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD)
    for place, name in enumerate(header):
        table.add_column(name, justify="left" if place == 0 or name == "class" else "right", overflow="fold")
    for row in rows[:SHOWN]:
        table.add_row(*map(escape, row))
    Console().print(table)
    if len(rows) > SHOWN:
        typer.echo(f"the first {SHOWN} of {len(rows)} samples; --csv prints all")
