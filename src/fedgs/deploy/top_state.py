"""What the top server keeps on disk.

    state/checkpoint-00000012.SHA256.safetensors   weights, memory of the server rule, round, run, target, queues
    state/metrics.jsonl                          a line a round (:mod:`fedgs.deploy.round_file`)
    state/model.safetensors                      the global model after the last round
    state/deployment.json, state/teams.jsonl     for the live page (:mod:`fedgs.deploy.team_file`)

The last three checkpoints are kept. Each has its SHA-256 in its name: content and check come to the disk in one step.
One that is torn, has another digest or holds a number that is not finite is left out, with a line in the log, and the
one before it is used. Where all are damaged the run ends: to begin anew is the user's decision.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgs.algorithms import State, join_state, split_state
from fedgs.deploy.logs import log
from fedgs.deploy.round_file import METRICS, RoundFile
from fedgs.deploy.run_spec import lasting
from fedgs.errors import CheckpointError
from fedgs.files import write_bytes
from fedgs.settings import Settings
from fedgs.tasks.facts import KEY as FACTS_KEY
from fedgs.tasks.facts import ModelFacts

KEPT = 3
"""Checkpoints."""
MODEL = "model.safetensors"
OLD = "checkpoint.safetensors"
"""The one checkpoint of earlier versions, which has no digest."""
_FORMAT, _WITH_METRICS = 3, 2
"""Checkpoints of the format before hold the metrics of all rounds."""


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
    queues: Mapping[str, float] = field(default_factory=dict)
    """With coverage: the turns that each device is behind its fair share, wherever it is."""
    parts: Mapping[str, Any] = field(default_factory=dict)
    """What each station had to do with the last round (:mod:`fedgs.deploy.team_file`); not in a checkpoint."""


def settings_digest(settings: Settings, network: str, classes: Sequence[str] = ()) -> str:
    """Return the digest of a run: a checkpoint is resumed by the same run only.

    More rounds and other stations are the same run. Settings with their default are left out: the next version of fedgs
    has more of them, and resumes the run.
    """
    text = json.dumps([lasting(settings, exclude_defaults=True), network, list(classes)], sort_keys=True)
    return blake2b(text.encode(), digest_size=16).hexdigest()


class Checkpoints:
    """The checkpoints of a run in a folder, and its metrics."""

    def __init__(self, folder: Path, digest: str) -> None:
        """``digest``: of the run (:func:`settings_digest`)."""
        self._folder, self._digest, self._rounds = folder, digest, RoundFile(folder)

    def save(self, state: TopState) -> None:
        """Write the checkpoint, then the line of its round; remove checkpoints that are not kept."""
        from safetensors.torch import save

        folder, rounds = self._folder, self._rounds
        if rounds.lines > len(state.metrics):
            rounds = self._rounds = RoundFile(folder)  # an earlier round: the file begins anew
        if state.metrics[rounds.lines : -1]:
            rounds.add(state.metrics[rounds.lines : -1])
        newest = state.metrics[rounds.lines :]
        tensors, numbers = split_state(state.server)
        named = {f"weights/{name}": value.contiguous() for name, value in state.weights.items()}
        named |= {f"server/{name}": value.contiguous() for name, value in tensors.items()}
        facts = {
            "format": _FORMAT,
            "digest": self._digest,
            "run": state.run,
            "round": state.round,
            "names": list(state.weights),
            "server": numbers,
            "target": None if state.target is None else state.target.tolist(),
            "metrics": rounds.stamp,
            "newest": list(newest),
            "queues": dict(state.queues),
        }
        content = save(named, {"fedgs": json.dumps(facts)})
        path = folder / f"checkpoint-{state.round:08d}.{sha256(content).hexdigest()}.safetensors"
        # A state from before a damaged checkpoint is the newest now, whatever the round of that one.
        later = [other for other in checkpoints(folder) if other.name > path.name and other.name != OLD]
        write_bytes(path, content, durable=True)
        for other in [*later, *[one for one in checkpoints(folder) if one not in later][KEPT:]]:
            other.unlink()
        rounds.add(newest)

    def load(self) -> TopState | None:
        """Return the state of the newest checkpoint that is whole; None where there is none at all."""
        folder, damaged = self._folder, dict[str, str]()
        for path in checkpoints(folder):
            try:
                state, metrics = _read(path, self._digest)
            except ValueError as error:
                if isinstance(error, CheckpointError):  # whole, but not of this run
                    raise
                damaged[path.name] = str(error)
                log.error("checkpoint is damaged; the one before is used", file=path.name, reason=str(error))
            else:
                before = [] if metrics is None else self._rounds.read(metrics)
                return replace(state, metrics=(*before, *state.metrics))
        if damaged:
            reasons = "; ".join(f"{name[:19]}… {reason}" for name, reason in damaged.items())
            raise CheckpointError(
                f"{folder}: all {len(damaged)} checkpoints are damaged ({reasons}); put one back from a copy, or begin "
                "anew with another --state"
            )
        if (folder / METRICS).exists():
            raise CheckpointError(
                f"{folder}: holds the metrics of a run, but none of its checkpoints; put one back from a copy, or "
                "begin anew with another --state"
            )
        return None


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, the newest first."""
    found = sorted(folder.glob("checkpoint-*.safetensors"), reverse=True)
    return [path for path in (*found, folder / OLD) if path.is_file()]


def _read(path: Path, digest: str) -> tuple[TopState, Mapping[str, Any] | None]:
    """Return the state in a file, and what it says of the metrics of earlier rounds; damages are a ValueError.

    None: these metrics are in it.
    """
    from safetensors import SafetensorError, safe_open

    try:
        if path.name != OLD and sha256(path.read_bytes()).hexdigest() != path.name.split(".")[1]:
            raise ValueError("does not have the SHA-256 of its name")
        with safe_open(path, "pt") as file:
            facts = json.loads((file.metadata() or {})["fedgs"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
        if facts["format"] not in (_FORMAT, _WITH_METRICS):
            raise CheckpointError(
                f"{path}: written by another version of fedgs (format {facts['format']}; this one reads up to "
                f"{_FORMAT}); choose another --state, or go on with the version that wrote it"
            )
        if facts["digest"] != digest:
            raise CheckpointError(f"{path}: belongs to a run with other settings; choose another --state")
        server = {name.removeprefix("server/"): value for name, value in tensors.items() if name.startswith("server/")}
        made = TopState(
            facts["run"],
            facts["round"],
            {name: tensors[f"weights/{name}"] for name in facts["names"]},  # in the model's order, not the file's
            join_state(server, facts["server"]),
            None if facts["target"] is None else np.array(facts["target"]),
            tuple(facts["metrics"] if facts["format"] == _WITH_METRICS else facts["newest"]),
            facts.get("queues", {}),
        )
    except (OSError, KeyError, TypeError, SafetensorError) as error:
        raise ValueError(f"cannot be read ({error})") from None
    if not all(bool(torch.isfinite(value).all()) for value in tensors.values()):
        raise ValueError("holds a number that is not finite")
    return made, facts["metrics"] if facts["format"] == _FORMAT else None


def save_model(
    folder: Path, state: TopState, facts: ModelFacts | None = None, frozen: Mapping[str, Tensor] | None = None
) -> Path:
    """Write the global model and its frozen weights, with what has to be known to use it: class names among them."""
    from safetensors.torch import save

    said = None if facts is None else {FACTS_KEY: facts.model_dump_json()}
    content = save({name: value.contiguous() for name, value in {**state.weights, **(frozen or {})}.items()}, said)
    return write_bytes(folder / MODEL, content, durable=True)
