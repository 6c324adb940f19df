"""What the top server keeps: one checkpoint file, replaced after each round in one step, and a line a round.

state/checkpoint.safetensors   weights, memory of the server rule, round, run, target; never half written
state/metrics.jsonl            a line a round, cut back to the checkpoint when the server starts again
state/model.safetensors        the global model after the last round
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedgs.algorithms import State, join_state, split_state
from fedgs.errors import CheckpointError
from fedgs.files import write_bytes, write_text
from fedgs.settings import Settings

CHECKPOINT, METRICS, MODEL = "checkpoint.safetensors", "metrics.jsonl", "model.safetensors"
_FORMAT = 2


@dataclass(frozen=True)
class TopState:
    """Everything that decides how a run goes on."""

    run: str
    round: int
    """Rounds done."""
    weights: Mapping[str, Tensor]
    server: State
    target: NDArray[np.float64] | None = None
    """P_real as known now; None: not yet."""
    metrics: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    """One line a round, from round 0 on."""


def settings_digest(settings: Settings, network: str, stations: int) -> str:
    """Return the digest of a run: a checkpoint is resumed by the same run only. More rounds are the same run."""
    values = settings.model_dump(
        exclude={"training": {"rounds"}, "eval": True, "checkpoint": True, "tensorboard": True}
    )
    text = json.dumps([values, network, stations], sort_keys=True)
    return blake2b(text.encode(), digest_size=16).hexdigest()


def save_state(folder: Path, state: TopState, digest: str) -> None:
    """Write the checkpoint, then the line of its round."""
    from safetensors.torch import save

    tensors, numbers = split_state(state.server)
    named = {f"weights/{name}": value.contiguous() for name, value in state.weights.items()}
    named |= {f"server/{name}": value.contiguous() for name, value in tensors.items()}
    facts = {
        "format": _FORMAT,
        "digest": digest,
        "run": state.run,
        "round": state.round,
        "names": list(state.weights),
        "server": numbers,
        "target": None if state.target is None else state.target.tolist(),
        "metrics": list(state.metrics),
    }
    write_bytes(folder / CHECKPOINT, save(named, {"fedgs": json.dumps(facts)}), durable=True)
    write_text(folder / METRICS, "".join(json.dumps(line) + "\n" for line in state.metrics))


def load_state(folder: Path, digest: str) -> TopState | None:
    """Read the checkpoint; None where there is none."""
    from safetensors import SafetensorError, safe_open

    path = folder / CHECKPOINT
    if not path.exists():
        return None
    try:
        with safe_open(path, "pt") as file:
            facts = json.loads((file.metadata() or {})["fedgs"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
        if facts["format"] != _FORMAT:
            raise CheckpointError(
                f"{path}: written by another version of fedgs (format {facts['format']}, this one reads {_FORMAT}); "
                "choose another --state, or go on with the version that wrote it"
            )
        if facts["digest"] != digest:
            raise CheckpointError(f"{path}: belongs to a run with other settings or stations; choose another --state")
        server = {name.removeprefix("server/"): value for name, value in tensors.items() if name.startswith("server/")}
        return TopState(
            facts["run"],
            facts["round"],
            {name: tensors[f"weights/{name}"] for name in facts["names"]},  # in the model's order, not the file's
            join_state(server, facts["server"]),
            None if facts["target"] is None else np.array(facts["target"]),
            tuple(facts["metrics"]),
        )
    except CheckpointError:
        raise
    except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); move it away to begin anew") from None


def save_model(folder: Path, state: TopState) -> Path:
    """Write the global model."""
    from safetensors.torch import save

    content = save({name: value.contiguous() for name, value in state.weights.items()})
    return write_bytes(folder / MODEL, content, durable=True)


def shown_score(line: Mapping[str, Any]) -> str:
    """Return the score of a round's line as people read it; "" where the model was not tested."""
    if "loss" not in line:
        return ""
    name, value = next((key, value) for key, value in line.items() if key != "round")  # the score comes first
    return f"{name} {value:.2%}" if name == "accuracy" else f"{name} {value:.4g}"
