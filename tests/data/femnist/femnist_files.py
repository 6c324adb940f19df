"""Small FEMNIST files in exactly the public layouts. The characters are drawn here; none is a real one."""

import hashlib
import io
import json
import string
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedgs.rng import stream

CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
Samples = tuple[NDArray[np.uint8], NDArray[np.int64]]
Written = dict[str, list[tuple[str, str]]]
Row = tuple[str | None, int | None, int | None, bytes | None]
"""writer_id, hsf_id, character and PNG bytes."""
WRITERS = ("f0000_14", "f0001_41", "f2100_70")


def pictures(count: int, *name: str | int) -> NDArray[np.uint8]:
    """White paper with a random black blot in the middle: no two are the same."""
    images = np.full((count, 28, 28), 255, np.uint8)
    images[:, 8:20, 8:20] = stream(0, "pictures", *name).integers(0, 256, (count, 12, 12))
    return images


def labels(count: int, *name: str | int) -> NDArray[np.int64]:
    return stream(0, "labels", *name).integers(0, 62, count)


def leaf_file(path: Path, people: dict[str, Samples], **changes: object) -> Path:
    content: dict[str, object] = {
        "users": list(people),
        "num_samples": [len(y) for _, y in people.values()],
        "user_data": {
            user: {"x": (x.reshape(len(x), -1) / 255).tolist(), "y": y.tolist()} for user, (x, y) in people.items()
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content | changes))
    return path


def png(image: NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def big_picture(*name: str | int) -> NDArray[np.uint8]:
    """An image as SD19 has them: 128x128, black on white."""
    image = np.full((128, 128), 255, np.uint8)
    image[40:88, 40:88] = stream(0, "big", *name).integers(0, 2, (48, 48)) * 255
    return image


def nist_trees(root: Path, per_writer: int = 4) -> Written:
    """Make by_class and by_write with all 62 classes and three writers; return (file, character) of each writer."""
    written: Written = {}
    for number, character in enumerate(CHARACTERS):  # a fourth writer, so that every class has an image
        _put(root, "f3100_00", "hsf_6", "c3100_00", number, character, written)
    for writer, part in zip(WRITERS, ("hsf_0", "hsf_0", "hsf_4"), strict=True):
        for number in range(per_writer):
            kind = "d" if number % 2 else "u"
            character = CHARACTERS[int(labels(per_writer, writer)[number])]
            _put(root, writer, part, kind + writer[1:], number, character, written)
    # What must be left out: the training copies and the lists.
    train = root / "by_class" / "30" / "train_30"
    train.mkdir()
    (train / "train_30_00000.png").write_bytes(png(big_picture("only in train")))
    (root / "by_class" / "30" / "hsf_0.mit").write_text("hsf_0/hsf_0_00000.png 30\n")
    return written


def _put(
    root: Path,
    writer: str,
    part: str,
    kind: str,
    number: int,
    character: str,
    written: Written,
) -> None:
    content = png(big_picture(writer, number))
    code = f"{ord(character):02x}"
    by_class = root / "by_class" / code / part
    by_write = root / "by_write" / part / writer / kind
    by_class.mkdir(parents=True, exist_ok=True)
    by_write.mkdir(parents=True, exist_ok=True)
    (by_class / f"{part}_{hashlib.md5(content).hexdigest()[:5]}.png").write_bytes(content)
    name = f"{kind}_{number:05d}.png"
    (by_write / name).write_bytes(content)
    written.setdefault(writer, []).append((f"{kind}/{name}", character))


def parquet_file(path: Path, rows: list[Row], row_group_size: int = 3) -> Path:
    """Rows as Hugging Face stores them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table(
        {
            "image": pa.array([{"bytes": row[3], "path": None} for row in rows], image),
            "writer_id": pa.array([row[0] for row in rows], pa.string()),
            "hsf_id": pa.array([row[1] for row in rows], pa.int64()),
            "character": pa.array([row[2] for row in rows], pa.int64()),
        }
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=row_group_size)
    return path


def hdf5_file(path: Path, clients: dict[str, Samples], column: bool = False) -> Path:
    """The layout of fed_emnist; ``column`` stores the label as (n, 1)."""
    import h5py

    with h5py.File(path, "w") as file:
        examples = file.create_group("examples")
        for client, (x, y) in clients.items():
            group = examples.create_group(client)
            group["pixels"] = (x / 255).astype(np.float32)
            group["label"] = y.astype(np.int32).reshape(-1, 1) if column else y.astype(np.int32)
    return path


def user(name: str, count: int, doubled: bool = True) -> Samples:
    """A writer as LEAF leaves them: the first image twice."""
    x, y = pictures(count, name), labels(count, name)
    return (np.insert(x, 0, x[0], 0), np.insert(y, 0, y[0])) if doubled else (x, y)


def rows(writer: str, partition: int, count: int) -> list[Row]:
    drawn = zip(pictures(count, writer), labels(count, writer), strict=True)
    return [(writer, partition, int(label), png(image)) for image, label in drawn]


def clients(part: str, count: int, prefix: str = "") -> dict[str, Samples]:
    return {prefix + name: (pictures(count, name, part), labels(count, name, part)) for name in reversed(WRITERS)}


def npz_arrays() -> dict[str, np.ndarray]:
    """Three writers, not in the order of their names, the second sample of each a copy of the first."""
    pick = np.array([0, 0, 1, 2, 3, 3, 4, 5, 6, 6, 7, 8])
    return {
        "images": pictures(9, "npz")[pick],
        "labels": labels(9, "npz")[pick].astype(np.uint8),
        "writers": np.repeat(np.int32([0, 1, 2]), 4),
        "writer_names": np.array([WRITERS[2], WRITERS[0], WRITERS[1]]),
        "writer_hsf": np.uint8([4, 0, 1]),
        "leaf_dup": np.tile([False, True, False, False], 3),
        "classes": np.array(list(CHARACTERS)),
    }
