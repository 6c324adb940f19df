import io
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from femnist_files import CHARACTERS, WRITERS, big_picture, nist_trees, png
from PIL import Image

from fedgs.data.femnist import CLASSES, convert_femnist, load_femnist, recognise
from fedgs.errors import InputFileError

ALL = (*WRITERS, "f3100_00")
Written = dict[str, list[tuple[str, str]]]


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Written]:
    root = tmp_path / "sd19"
    return root, nist_trees(root)


def zipped(root: Path, out: Path, method: int = zipfile.ZIP_DEFLATED) -> Path:
    out.mkdir()
    for name in ("by_class", "by_write"):
        with zipfile.ZipFile(out / f"{name}.zip", "w", method) as archive:
            files = sorted((root / name).rglob("*"), reverse=True)
            for file in files:
                archive.write(file, file.relative_to(root))
    return out


def test_the_join(trees: tuple[Path, Written]) -> None:
    root, written = trees
    assert recognise(root) == "nist"
    root = root.rename(root.with_name("raw_data"))  # LEAF's name for it
    assert recognise(root.parent) == "nist"
    dataset = convert_femnist(root.parent).dataset
    assert dataset.client_names == ALL
    assert dataset.attributes["hsf"].tolist() == [0, 0, 4, 6]
    assert np.bincount(dataset.clients).tolist() == [4, 4, 4, 62]
    for number, writer in enumerate(ALL):
        mine = dataset.clients == number
        expected = [character for _, character in sorted(written[writer])]
        assert [CLASSES[label] for label in dataset.labels[mine]] == expected


def test_the_thumbnail_is_pillows(trees: tuple[Path, Written]) -> None:
    root, written = trees
    dataset = convert_femnist(root).dataset
    first, _ = sorted(written[WRITERS[0]])[0]
    image = Image.open(root / "by_write" / "hsf_0" / WRITERS[0] / first).convert("L")
    image.thumbnail((28, 28), Image.Resampling.LANCZOS)
    assert np.array_equal(dataset.inputs[0], np.asarray(image))
    # 128 to 28 is a mean of 4.57 pixels a side: the blot of rows 40..87 covers rows 8.75..19.25
    # and, faintly, three more on each side, as far as the filter reaches.
    assert np.all(dataset.inputs[0][:5] == 255)
    assert np.all(dataset.inputs[0][23:] == 255)
    assert dataset.inputs[0][9:19, 9:19].mean() < 200


def test_colour_and_one_bit_files_become_grey(trees: tuple[Path, Written]) -> None:
    root, _ = trees
    plain = convert_femnist(root).dataset
    for mode in ("RGB", "1"):
        for file in root.glob("*/*/*/**/*.png"):
            buffer = io.BytesIO()
            Image.open(file).convert(mode).save(buffer, "PNG")
            file.write_bytes(buffer.getvalue())
        assert np.array_equal(convert_femnist(root).dataset.inputs, plain.inputs)


def test_workers_zips_and_order_of_files_change_nothing(trees: tuple[Path, Written], tmp_path: Path) -> None:
    root, _ = trees
    plain = convert_femnist(root, workers=1).dataset
    moved = tmp_path / "moved"
    for file in sorted(root.rglob("*"), reverse=True):  # made in another order
        if file.is_file():
            place = moved / file.relative_to(root)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, place)
    others = [
        convert_femnist(moved, workers=1),
        convert_femnist(root, workers=2),
        convert_femnist(zipped(root, tmp_path / "zips"), workers=1),
        convert_femnist(zipped(root, tmp_path / "stored", zipfile.ZIP_STORED), workers=1),
    ]
    for other in others:
        assert np.array_equal(other.dataset.inputs, plain.inputs)
        assert np.array_equal(other.dataset.labels, plain.labels)
        assert other.dataset.client_names == plain.client_names


def test_leaf_compat_doubles_all_first_images_but_the_first(trees: tuple[Path, Written]) -> None:
    root, _ = trees
    plain, doubled = (convert_femnist(root, leaf_compat=compat).dataset for compat in (False, True))
    assert np.bincount(doubled.clients).tolist() == [4, 5, 5, 63]
    assert len(doubled) == len(plain) + len(ALL) - 1
    second = np.flatnonzero(doubled.clients == 1)
    assert np.array_equal(doubled.inputs[second[0]], doubled.inputs[second[1]])
    assert np.array_equal(doubled.inputs[second[1:]], plain.inputs[plain.clients == 1])


def test_of_equal_images_the_first_class_counts(trees: tuple[Path, Written]) -> None:
    root, written = trees
    name, character = sorted(written[WRITERS[0]])[0]
    content = (root / "by_write" / "hsf_0" / WRITERS[0] / name).read_bytes()
    (root / "by_class" / "30" / "hsf_0").mkdir(exist_ok=True)
    (root / "by_class" / "30" / "hsf_0" / "hsf_0_00000.png").write_bytes(content)
    assert CHARACTERS.index(character) > 0  # or the test would show nothing
    assert convert_femnist(root).dataset.labels[0] == 0


def writer_file(root: Path) -> Path:
    return sorted((root / "by_write" / "hsf_0" / WRITERS[0]).rglob("*.png"))[1]


def spoil(root: Path, content: bytes) -> None:
    writer_file(root).write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda root: spoil(root, b""), "{file}: not a readable PNG"),
        (lambda root: spoil(root, writer_file(root).read_bytes()[:80]), "{file}: not a readable PNG"),
        (lambda root: spoil(root, png(np.full((20, 20), 255, np.uint8))), "{file}: 20x20 pixels"),
        (lambda root: spoil(root, png(np.full((128, 64), 255, np.uint8))), "{file}: 64x128 pixels"),
        # train_30 is not to be looked at
        (lambda root: spoil(root, png(big_picture("only in train"))), "{file}: no file of by_class has the same"),
        (lambda root: [shutil.rmtree(root / "by_class" / code) for code in ("4a", "7a")],
         r"by_class: 2 of 62 classes have no hsf images, first 4a \(J\), 7a \(z\)"),
        (lambda root: (root / "by_write" / "hsf_1" / "f0500_01" / "c0500_01").mkdir(parents=True),
         "f0500_01: this writer has no images"),
        (lambda root: (root / "by_write" / "hsf_0" / "stray.png").write_bytes(png(big_picture("stray"))),
         r"stray.png: expected by_write/hsf_N"),
    ],
)  # fmt: skip
def test_damaged_trees(
    trees: tuple[Path, Written], cache: Path, damage: Callable[[Path], object], message: str
) -> None:
    root, _ = trees
    name = writer_file(root).name
    damage(root)
    with pytest.raises(InputFileError, match=message.replace("{file}", name)):
        load_femnist(root)
    assert not cache.exists()


def test_broken_zips(trees: tuple[Path, Written], tmp_path: Path, cache: Path) -> None:
    root, _ = trees
    folder = zipped(root, tmp_path / "zips", zipfile.ZIP_STORED)
    archive = folder / "by_write.zip"
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputFileError, match=r"by_write.zip: not a readable zip"):
        load_femnist(folder)
    archive.write_bytes(whole.replace(b"IHDR", b"IHDX", 1))
    with pytest.raises(InputFileError, match=r"by_write.zip:hsf_.*png: its checksum in the zip is wrong"):
        load_femnist(folder)
    assert not cache.exists()


def test_a_changed_tree_is_converted_again(trees: tuple[Path, Written], cache: Path) -> None:
    root, _ = trees
    assert len(load_femnist(root)) == 74
    deep = sorted((root / "by_write" / "hsf_4").rglob("*.png"))
    deep[0].unlink()
    assert len(load_femnist(root)) == 73
    before = load_femnist(root).inputs.copy()
    other = deep[1].read_bytes()
    deep[1].write_bytes(deep[2].read_bytes())  # replaced in place: no folder changes
    assert not np.array_equal(load_femnist(root).inputs, before)
    deep[1].write_bytes(other)
    shutil.rmtree(root / "by_write" / "hsf_4")
    assert len(load_femnist(root)) == 70
    assert len({folder.name for folder in cache.iterdir()}) >= 4
