"""A model as a file: its named weights and buffers, in safetensors, written whole or not at all."""

from pathlib import Path

from torch import Tensor

from fedgs.errors import CheckpointError
from fedgs.files import write_bytes
from fedgs.training.layout import Layout

MODEL = "model.safetensors"


def save_model(path: Path, weights: Tensor, layout: Layout) -> None:
    """Write the named weights of a model as one safetensors file, in one step."""
    from safetensors.torch import save

    write_bytes(path, save(layout.named(weights)), durable=True)


def load_model(path: Path, layout: Layout) -> Tensor:
    """Read the flat weights of a file that :func:`save_model` wrote."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return layout.flatten(load_file(path))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read as a model ({error})") from None


def model_file(path: str | Path) -> Path:
    """Return the model file that a path names: itself, or that of the run in this folder."""
    return Path(path) / MODEL if Path(path).is_dir() else Path(path)
