"""Checkpoints: the state after a round as a folder of two files, complete or not there at all.

    checkpoints/round-000120/state.json          numbers, text, and digests of both files
    checkpoints/round-000120/state.safetensors   global model, optimisers of stations, server rule, averaged model

A folder is written under another name and renamed when both files are on the disk, so a process killed at any moment
leaves either a whole checkpoint or one that is never looked at. The last two are kept. One that is torn all the
same (a full disk, a broken copy) or that belongs to another run is refused, and the one before it is taken.
"""

import json
import os
import shutil
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

from torch import Tensor

from fedgs.algorithms.rule import join_state, split_state
from fedgs.algorithms.run_state import RunState
from fedgs.errors import CheckpointError, OutputError
from fedgs.files import sync_folder, write_bytes
from fedgs.training.layout import Layout

FORMAT = 3
KEEP = 2
OTHERS = "other settings, data, network or frozen weights"
NUMBERS, TENSORS = "state.json", "state.safetensors"


class _ForeignError(CheckpointError):
    """A whole checkpoint of another run, or of this one with other data."""


def save_checkpoint(folder: Path, state: RunState, layout: Layout, identity: str) -> Path:
    """Write the checkpoint of a state into ``folder`` and remove those before the one before it.

    ``identity`` stands for the run (settings and federation); only a run of the same identity takes it up again.
    """
    from safetensors.torch import save

    final = folder / f"round-{state.round:06d}"
    tensors, numbers = _take_apart(state, layout)
    payload = save(tensors)
    facts = {
        "format": FORMAT,
        "identity": identity,
        "round": state.round,
        "digest": _digest(payload),
        "plan": state.plan,
        "server": numbers,
        "metrics": list(state.metrics),
        "clock": list(state.clock),
    }
    facts["check"] = _digest(json.dumps(facts, sort_keys=True).encode())
    temporary = folder / f".{final.name}.{os.getpid()}"
    try:
        folder.mkdir(exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        write_bytes(temporary / TENSORS, payload, durable=True)
        write_bytes(temporary / NUMBERS, json.dumps(facts).encode(), durable=True)
        if final.exists():  # a torn one of the same round, or the same state once more
            final.rename(folder / f".{final.name}.old")
        os.rename(temporary, final)
        sync_folder(folder)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise OutputError(f"{final}: the checkpoint cannot be written ({error.strerror or error})") from None
    shutil.rmtree(folder / f".{final.name}.old", ignore_errors=True)
    # Only those up to this round: a foreign one with a higher number must not push the good ones out.
    for old in [path for path in list_checkpoints(folder) if path.name <= final.name][:-KEEP]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, oldest first; unfinished ones are not among them."""
    return sorted(path for path in folder.glob("round-*") if path.is_dir())


def load_newest(
    folder: Path,
    layout: Layout,
    identity: str,
    refused: Callable[[str], None] = lambda line: None,
    changes: Callable[[], str] = str,
) -> RunState | None:
    """Return the state of the newest good checkpoint; None where there is none at all.

    ``refused`` is called with a line for each one that is skipped. Where all are of another run, the error alone says
    so, with what ``changes`` finds to have changed.
    """
    for leftover in folder.glob(".round-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    state, errors = None, list[CheckpointError]()
    for path in reversed(list_checkpoints(folder)):
        try:
            state = load_checkpoint(path, layout, identity)
            break
        except CheckpointError as error:
            errors.append(error)
    if errors and state is None and all(isinstance(error, _ForeignError) for error in errors):
        changed = changes()
        raise CheckpointError(
            f"{folder.parent}: was begun with {OTHERS}{f' ({changed})' if changed else ''}; restore them, or begin a "
            "new run in another folder"
        )
    for one in errors:
        refused(str(one))
    if errors and state is None:
        raise CheckpointError(f"{folder}: no checkpoint can be used; the oldest: {errors[-1]}")
    return state


def load_checkpoint(path: Path, layout: Layout, identity: str) -> RunState:
    """Read one checkpoint, or say why it cannot be used."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        facts = json.loads((path / NUMBERS).read_text(encoding="utf-8"))
        payload = (path / TENSORS).read_bytes()
        if facts["format"] != FORMAT:
            raise CheckpointError(
                f"{path}: written by another version of fedgs (format {facts['format']}, this one reads {FORMAT}); "
                "begin the run anew, or go on with the version that wrote it"
            )
        if _digest(payload) != facts["digest"]:
            raise CheckpointError(f"{path}: torn, the tensors are not those that were written; it is skipped")
        check = facts.pop("check")
        if _digest(json.dumps(facts, sort_keys=True).encode()) != check:
            raise CheckpointError(f"{path}: torn, the numbers are not those that were written; it is skipped")
        if facts["identity"] != identity:
            raise _ForeignError(f"{path}: belongs to a run with {OTHERS}; skipped")
        return _put_together(facts, load(payload), layout)
    except OSError as error:
        raise CheckpointError(f"{path}: torn, {Path(error.filename or path).name} cannot be read") from None
    except (ValueError, KeyError, TypeError, SafetensorError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path}: torn, it does not hold a state ({type(error).__name__}: {error})") from None


def weight_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the model's weights in a checkpoint, by name."""
    from safetensors import safe_open

    with safe_open(path / TENSORS, "numpy") as tensors:
        names = [name for name in tensors.keys() if name.startswith("weights/")]  # noqa: SIM118
        return {name.removeprefix("weights/"): tuple(tensors.get_slice(name).get_shape()) for name in names}


def _take_apart(state: RunState, layout: Layout) -> tuple[dict[str, Tensor], dict[str, int]]:
    tensors = {f"weights/{name}": tensor for name, tensor in layout.named(state.weights).items()}
    if state.average is not None:
        tensors |= {f"average/{name}": tensor for name, tensor in layout.named(state.average).items()}
    tensors |= {f"stations/{entry}": value.detach().cpu().contiguous() for entry, value in state.stations.items()}
    tensors |= {f"confusion/{test}": matrix.clone() for test, matrix in state.confusion.items()}
    if state.local is not None:
        tensors["local"] = state.local.detach().cpu().contiguous()
    remembered, numbers = split_state(state.server)
    return tensors | {f"server/{name}": tensor.cpu().contiguous() for name, tensor in remembered.items()}, numbers


def _put_together(facts: dict[str, Any], tensors: dict[str, Tensor], layout: Layout) -> RunState:
    def under(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

    return RunState(
        round=facts["round"],
        weights=layout.flatten(under("weights/")),
        plan=facts["plan"],
        server=dict(join_state(under("server/"), facts["server"])),
        stations=under("stations/"),
        local=tensors.get("local"),
        average=layout.flatten(average) if (average := under("average/")) else None,
        metrics=tuple(facts["metrics"]),
        clock=tuple(facts["clock"]),
        confusion={name.partition("/")[2]: value for name, value in tensors.items() if name.startswith("confusion/")},
    )


def _digest(payload: bytes) -> str:
    return blake2b(payload, digest_size=16).hexdigest()
