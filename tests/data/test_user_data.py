from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_sets import number_images

from fedgs.data import from_arrays, from_folder
from fedgs.errors import DataError, FedgsError, InputFileError


def picture(path: Path, value: int, size: tuple[int, int] = (4, 3), mode: str = "L") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, 0, 9)).save(path)


def test_arrays_are_grouped_by_client_name_and_keep_their_order() -> None:
    dataset = from_arrays(
        number_images(5),
        ["cat", "ant", "cat", "bee", "ant"],
        ["y", "x", "y", "x", "w"],
        test=[True, False, False, True, False],
    )
    assert dataset.classes == ("ant", "bee", "cat")
    assert dataset.client_names == ("w", "x", "y")
    assert dataset.inputs.reshape(5, 4).view("<u4").ravel().tolist() == [4, 1, 3, 0, 2]
    assert dataset.labels.tolist() == [0, 0, 1, 2, 2]
    assert dataset.test is not None
    assert dataset.test.tolist() == [False, False, True, True, False]


def test_grouped_arrays_are_not_copied() -> None:
    images = number_images(4)
    assert from_arrays(images, [0, 1, 2, 1], [0, 0, 5, 11]).inputs is images
    assert from_arrays(images, [0, 1, 2, 1], [0, 0, 5, 11]).client_names == ("00", "05", "11")
    assert from_arrays(images, [0, 1, 2, 1]).client_names == ("all",)


@pytest.mark.parametrize("given", [[0, 2], ["b", "a"]])
def test_names_and_attributes_follow_their_clients(given: list[object]) -> None:
    dataset = from_arrays(
        number_images(2), [0, 1], given, client_names=["b", "c", "a"], attributes={"line": [20, 30, 10.0]}
    )
    assert dataset.client_names == ("a", "b", "c")
    assert dataset.clients.tolist() == [0, 1]
    assert dataset.labels.tolist() == [1, 0]
    assert dataset.attributes["line"].tolist() == [10, 20, 30]


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16])
def test_floats_stay_what_they_are_to_the_bit(kind: type) -> None:
    images = np.array([0.0, 0.5, 1.0, 100 / 255], kind).reshape(2, 2, 1)
    assert from_arrays(images, [0, 1]).inputs is images
    turned = from_arrays(images, [0, 1], ["b", "a"]).inputs
    assert turned.dtype == kind
    assert turned.tobytes() == images[::-1].tobytes()


@pytest.mark.parametrize(
    "inputs",
    [
        np.zeros((2, 3, 32, 32), np.uint8),  # channels first
        np.full((2, 3, 3), 1.5),
        np.full((2, 3, 3), -70_000, np.int32),
        np.zeros((2, 3), np.uint8),
        np.arange(2),
    ],
)
def test_inputs_of_any_shape_and_type(inputs: np.ndarray) -> None:
    dataset = from_arrays(inputs, [0, 1])
    assert dataset.inputs is inputs
    assert dataset.classes == ("0", "1")


def test_more_classes_than_a_byte_has() -> None:
    dataset = from_arrays(np.zeros((2, 3, 3), np.uint8), [299, 4])
    assert dataset.classes == tuple(str(number) for number in range(300))
    assert dataset.labels.tolist() == [299, 4]
    assert from_arrays(np.zeros((1, 3), np.uint8), [255]).labels.dtype == np.uint8


@pytest.mark.parametrize("targets", [[-1, 0], [0.5, 1.0], [[0, 1], [1, 0]], [1 << 16, 0]])
def test_what_cannot_be_a_class_is_a_value(targets: list[object]) -> None:
    dataset = from_arrays(np.zeros((2, 3, 3), np.uint8), targets)
    assert dataset.classes == ()
    assert dataset.targets.tolist() == targets
    with pytest.raises(DataError, match="its targets are no classes"):
        _ = dataset.labels


ONE = np.zeros((1, 3, 3), np.uint8)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((np.zeros((2, 3, 3), np.uint8), [0]), {}, "2 rows of inputs, 1 rows of targets"),
        ((ONE, [0], [0.5]), {}, "clients must be"),
        ((np.uint8(3), [0]), {}, r"inputs have shape \(\)"),
        ((ONE, [-1]), {"classes": ["a", "b"]}, "label -1 is negative"),
        ((ONE, [0.5]), {"classes": ["a", "b"]}, "labels are float64 .1,.; one class number or class name a sample"),
        ((ONE, [300]), {"classes": ["a", "b"]}, "label 300 has no class; there are 2"),
        ((ONE, ["c"]), {"classes": ["a", "b"]}, "label 'c' is not among the 2 classes"),
        ((ONE, [0]), {"classes": ["a", "a"]}, "the class 'a' is there twice"),
        ((ONE, [0], [1]), {"client_names": ["a"]}, "outside the 1 client names"),
        ((ONE, [0], ["x"]), {"client_names": ["a"]}, "client 'x' is not among the 1 client names"),
        ((ONE, [0]), {"test": [True, False]}, r"test mask has 2 entries \(bool\) for 1 samples"),
        ((ONE, [0]), {"test": [0.3]}, r"test mask has 1 entries \(float64\) for 1 samples"),
        ((ONE, [0]), {"attributes": {"line": [1, 2]}}, "attribute 'line' has 2 values for 1 clients"),
        ((ONE, [0]), {"attributes": {"line": 3}}, "attribute 'line' has 1 values for 1 clients; give a list"),
        *(((ONE, [0]), {"attributes": {"line": value}}, "attribute 'line' must be whole numbers")
          for value in ([0.5], ["blue"], [np.nan], [2**40])),
    ],
)  # fmt: skip
def test_bad_arrays(arguments: tuple[object, ...], options: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_arrays(*arguments, **options)  # type: ignore[arg-type]


def test_folder_by_device_and_class(tmp_path: Path) -> None:
    for device, name, value in [("cam2", "nut", 3), ("cam1", "nut", 1), ("cam1", "bolt", 2), ("cam2", "screw", 4)]:
        picture(tmp_path / device / name / "1.png", value)
    picture(tmp_path / ".cache" / "nut" / "1.png", 9)
    (tmp_path / "notes.txt").write_text("not an image")
    dataset = from_folder(tmp_path, name="parts")
    assert dataset.client_names == ("cam1", "cam2")
    assert dataset.classes == ("bolt", "nut", "screw")
    assert dataset.inputs.shape == (4, 3, 4)
    assert dataset.inputs[:, 0, 0].tolist() == [2, 1, 3, 4]
    assert dataset.labels.tolist() == [0, 1, 1, 2]


def test_folder_by_class_in_colour(tmp_path: Path) -> None:
    for number, name in enumerate(("nut", "bolt")):
        picture(tmp_path / name / "1.png", number, mode="RGB")
    dataset = from_folder(tmp_path)
    assert dataset.client_names == ("all",)
    assert dataset.inputs.shape == (2, 3, 4, 3)
    assert from_folder(tmp_path, grey=True, size=(6, 5)).inputs.shape == (2, 6, 5)


def test_one_photo_in_colour_is_not_lost_among_grey_ones(tmp_path: Path) -> None:
    for number, mode in enumerate(("L", "RGB", "L")):
        picture(tmp_path / "nut" / f"{number}.png", number, mode=mode)
    assert from_folder(tmp_path).inputs.shape == (3, 3, 4, 3)
    (tmp_path / "nut" / "1.png").unlink()
    assert from_folder(tmp_path).inputs.shape == (2, 3, 4)


def test_kinds_of_images(tmp_path: Path) -> None:
    """Those that cannot be read are refused: to pass over them would be to train on a part of the data."""
    kinds = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")
    for number, suffix in enumerate(kinds):
        picture(tmp_path / "nut" / f"{number}{suffix.upper() if number % 2 else suffix}", 40 * number)
    found = from_folder(tmp_path, grey=True).inputs[:, 0, 0].astype(int)
    assert np.abs(found - 40 * np.arange(len(kinds))).max() <= 2  # JPEG rounds
    (tmp_path / "nut" / "photo.HEIC").write_bytes(b"")
    with pytest.raises(InputFileError, match=r"nut/photo\.HEIC: .HEIC images cannot be read; convert them \(\.png, "):
        from_folder(tmp_path)


def test_images_that_no_memory_holds(tmp_path: Path) -> None:
    for number in range(3):
        picture(tmp_path / "nut" / f"{number}.png", number)
    with pytest.raises(InputFileError, match=r"3 images of 2000000×1000000 pixels need 6,000.0 GB, .* data.size=64"):
        from_folder(tmp_path, size=(1_000_000, 2_000_000))
    Image.fromarray(np.zeros((14_000, 14_000), bool)).save(tmp_path / "nut" / "3.png")
    with pytest.raises(InputFileError, match=r"3\.png: not a readable image .*decompression bomb"):
        from_folder(tmp_path, size=(8, 8))


def test_folder_by_factory_device_and_class(tmp_path: Path) -> None:
    for place in ("harbour/cam1/nut", "harbour/cam2/bolt", "airport/cam1/nut"):
        picture(tmp_path / place / "1.png", 1)
    dataset = from_folder(tmp_path)
    assert dataset.client_names == ("airport-cam1", "harbour-cam1", "harbour-cam2")
    assert dataset.attributes["factory"].tolist() == [0, 1, 1]
    (tmp_path / "station").mkdir()
    with pytest.raises(InputFileError, match="station: a factory without any image"):
        from_folder(tmp_path)


def test_bad_folders(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="none: no such folder"):
        from_folder(tmp_path / "none")
    with pytest.raises(InputFileError, match=r"no image .* put them there as device/class/photo\.png, factory/device"):
        from_folder(tmp_path)
    picture(tmp_path / "a" / "nut" / "1.png", 1)
    picture(tmp_path / "b" / "nut" / "2.png", 1, size=(5, 5))
    with pytest.raises(InputFileError, match=r"b/nut/2\.png: 5×5 pixels, the first image has 4×3"):
        from_folder(tmp_path)
    assert len(from_folder(tmp_path, size=(4, 4))) == 2
    (tmp_path / "b" / "nut" / "2.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    with pytest.raises(InputFileError, match=r"b/nut/2\.png: not a readable image"):
        from_folder(tmp_path)
    (tmp_path / "b" / "nut" / "2.png").unlink()
    with pytest.raises(InputFileError, match="b: a device without any image"):
        from_folder(tmp_path)
    picture(tmp_path / "b" / "nut" / "2.png", 1)
    (tmp_path / "b" / "bolt").mkdir()
    with pytest.raises(InputFileError, match="b/bolt: a class without any image"):
        from_folder(tmp_path)
    assert from_folder(tmp_path, classes=["bolt", "nut"]).labels.tolist() == [1, 1]
    (tmp_path / "b" / "bolt").rmdir()
    picture(tmp_path / "b" / "3.png", 1)
    with pytest.raises(FedgsError, match=r"every image must lie at the same depth, as device/class/photo\.png"):
        from_folder(tmp_path)


@pytest.mark.parametrize("wide", [True, False])
def test_sixteen_bit_images_are_scaled(tmp_path: Path, wide: bool) -> None:
    values = np.array([[0, 257, 128 * 257, 65535]])
    (tmp_path / "nut").mkdir()
    array = values.astype(np.uint16 if wide else np.int32)
    Image.fromarray(array).save(tmp_path / "nut" / "1.png", "PNG" if wide else "TIFF")
    assert from_folder(tmp_path).inputs.tolist() == [[[0, 1, 128, 255]]]
    Image.fromarray(np.full((2, 2), 0.5, np.float32)).save(tmp_path / "nut" / "1.png", "TIFF")
    with pytest.raises(InputFileError, match=r"nut/1\.png: not a readable image .its pixels are float32 from 0.5"):
        from_folder(tmp_path)
