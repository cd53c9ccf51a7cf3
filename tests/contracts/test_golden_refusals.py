"""What the predecessor's MDS writer and reader refuse, ours refuse with the same builtin exceptions.

DIFFERENCES lists, with its reason, every case where we do otherwise on purpose.
"""

from __future__ import annotations

import ast
import builtins
import io
import json
import os
import pickle
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from PIL import Image, UnidentifiedImageError

from streaming.errors import StreamingError
from streaming.write.writers import MDSWriter
from support import golden

REFUSALS = golden.load("refusals.json")
VALUES = [case for case in REFUSALS["writer_value"] if case["class"] == "MDSWriter"]
READER_VALUES = [case for case in REFUSALS["reader_value"] if case["class"] == "MDSWriter"]

BIG_ENDIAN = "big-endian int32 array [1, 2, 3]"
KEPT = {"t": "ndarray", "dtype": "int32", "shape": [3], "hex": "010000000200000003000000"}

# (encoding, value) -> what ours does (an exception, or the form that is read back), and why.
DIFFERENCES: dict[tuple[str, str], tuple[type[Exception] | dict[str, Any], str]] = {
    ("ndarray", BIG_ENDIAN): (KEPT, "theirs comes back byte-swapped; ours is converted, so the values are kept"),
    ("ndarray:int32", BIG_ENDIAN): (KEPT, "theirs refuses; the values can be kept, as in plain ndarray"),
    ("uint8", "3.7"): (ValueError, "theirs stores 3"),
    ("uint8", "'7'"): (TypeError, "theirs stores the number 7 for a text"),
    ("int32", "numpy int64 2**40"): (OverflowError, "theirs wraps around to 0"),
    ("float16", "70000.0"): (OverflowError, "theirs stores infinity"),
    ("float32", "1e+300"): (OverflowError, "theirs stores infinity"),
    ("float32", "'1.5'"): (TypeError, "theirs stores the number 1.5 for a text"),
    ("float64", "'3.5'"): (TypeError, "theirs stores the number 3.5 for a text"),
    ("float64", "None"): (TypeError, "theirs stores NaN for None"),
    ("str_int", "True"): ({"t": "int", "v": "1"}, "theirs stores the text True, which no reader takes"),
    ("pil", "P image 7x5"): (OSError, "theirs drops the palette, so the colours change"),
    ("jpeg_array", "empty list"): (ValueError, "theirs writes what no reader takes; ours refuses to write it"),
}

ARGUMENTS: dict[str, list[dict[str, Any]]] = {
    "unknown compression": [{"compression": "lz4"}],
    "compression level out of range": [
        {"compression": name} for name in ("zstd:0", "zstd:23", "br:12", "gz:10", "bz2:0", "zstd:-1")
    ],
    "level for snappy": [{"compression": "snappy:1"}],
    "empty-string compression": [{"compression": ""}],
    "unknown hash": [{"hashes": ["crc32"]}],
    "hashes out of order": [{"hashes": ["sha1", "md5"]}],
    "same hash twice": [{"hashes": ["sha1", "sha1"]}],
    "negative size_limit": [{"size_limit": -1}],
    "size_limit 2**32": [{"size_limit": 2**32}],
    "size_limit 2**32-1": [{"size_limit": 2**32 - 1}],
    'size_limit "4gb"': [{"size_limit": "4gb"}],
    'size_limit "1.5kb"': [{"size_limit": "1.5kb"}],
    'size_limit "12q"': [{"size_limit": "12q"}],
    "size_limit 0": [{"size_limit": 0}],
    "unknown keyword": [{"colour": "red"}],
    "unknown encoding": [{"columns": {"v": "bfloat16"}}],
    "no columns": [{"columns": {}}],
    "ndarray of unknown dtype": [{"columns": {"v": f"ndarray:{dtype}"}} for dtype in ("bool", "complex64", "int")],
    "ndarray static shape with a zero": [{"columns": {"v": "ndarray:uint8:2,0"}}],
    "ndarray empty dtype field": [{"columns": {"v": "ndarray::2,3"}}],
    "ndarray empty shape field": [{"columns": {"v": "ndarray:uint8:"}}],
    "ndarray trailing colon": [{"columns": {"v": "ndarray:"}}],
    "ndarray three fields": [{"columns": {"v": "ndarray:uint8:2:3"}}],
    "parameter on a scalar encoding": [{"columns": {"v": "int:5"}}],
    "unknown name with a parameter": [{"columns": {"v": "nothing:5"}}],
    "upper-case name": [{"columns": {"v": "INT"}}],
}


def exception_named(name: str) -> type[BaseException]:
    """The exception type that a case names."""
    others = {
        "JSONDecodeError": json.JSONDecodeError,
        "UnpicklingError": pickle.UnpicklingError,
        "UnidentifiedImageError": UnidentifiedImageError,
    }
    kind: type[BaseException] = others.get(name) or getattr(builtins, name)
    return kind


def image(mode: str, width: int, height: int) -> Image.Image:
    """An image with some structure, in any mode."""
    probe = Image.new(mode, (width, height))
    n_bytes = len(probe.tobytes())
    pixels = bytes(range(n_bytes)) if mode != "F" else np.arange(width * height, dtype="<f4").tobytes()
    made = Image.frombytes(mode, (width, height), pixels) if n_bytes else probe
    if mode == "P":
        made.putpalette([channel for i in range(256) for channel in (i, 255 - i, i // 2)])
    return made


def jpeg_file() -> bytes:
    """A small JPEG file."""
    into = io.BytesIO()
    image("RGB", 8, 8).save(into, "JPEG")
    return into.getvalue()


MADE: dict[str, Any] = {
    "uint8 array of shape (0, 3)": np.zeros((0, 3), np.uint8),
    "uint8 array of shape (0,)": np.zeros(0, np.uint8),
    "0-d uint8 array": np.array(7, np.uint8),
    "bool array": np.array([True]),
    "complex64 array": np.ones(2, np.complex64),
    "str array": np.array(["a"]),
    "object array": np.array([None]),
    BIG_ENDIAN: np.array([1, 2, 3], ">i4"),
    "a list": [1, 2],
    "numpy scalar float32 1.5": np.float32(1.5),
    "int8 array (wrong dtype)": np.ones(3, np.int8),
    "uint8 array of shape (3, 2) (wrong shape)": np.ones((3, 2), np.uint8),
    "uint8 array of shape (2, 3) (wrong shape)": np.ones((2, 3), np.uint8),
    "uint8 array of shape (4, 4, 3)": np.ones((4, 4, 3), np.uint8),
    "int64 array [0, 1, 2]": np.arange(3),
    "numpy int64 5": np.int64(5),
    "numpy int64 2**40": np.int64(2**40),
    "numpy float64 1.25": np.float64(1.25),
    "numpy float32 1.25": np.float32(1.25),
    "numpy float32 1.5": np.float32(1.5),
    "lone surrogate": "\ud800",
    "bytearray": bytearray(b"abc"),
    "memoryview": memoryview(b"abc"),
    "10**4299": 10**4299,
    "10**4300": 10**4300,
    "Decimal('NaN')": Decimal("NaN"),
    "Decimal('sNaN123')": Decimal("sNaN123"),
    "nan": float("nan"),
    "a set": {1, 2},
    "dict holding an array": {"a": np.arange(3)},
    "a lambda": lambda: None,
    "empty list": [],
    "a tuple of one image": (image("RGB", 8, 8),),
    "list of one JPEG as bytes": [jpeg_file()],
    "list of one PIL image": [image("RGB", 8, 8)],
    "list of one empty bytes": [b""],
    "bytes and bytearray JPEGs": [jpeg_file(), bytearray(jpeg_file())],
    "bytes ff fe": b"\xff\xfe",
    "empty bytes": b"",
}


def made(text: str) -> Any:
    """The value that a case describes."""
    if text in MADE:
        return MADE[text]
    if text.startswith('bytes "'):
        return text[7:-1].encode()
    mode, _, rest = text.partition(" image ")
    if rest:
        width, height = map(int, rest.split("x"))
        return image(mode, width, height)
    return ast.literal_eval(text)


def case_id(case: dict[str, Any]) -> str:
    """A readable name of a case."""
    return f"{case['encoding']} <- {case['value']}"


def write_one(folder: str, encoding: str | None, value: Any, text: str) -> None:
    """Write a data set of one sample whose column `v` holds the value."""
    columns = {} if encoding is None else {"v": encoding}
    sample = {"v": value}
    if text == "no columns at all, sample {}":
        sample = {}
    elif text == "sample without the column":
        sample = {"w": 1}
    elif text == "sample with an extra column":
        sample = {"v": 1, "extra": 2}
    with MDSWriter(columns=columns, out=folder) as writer:
        writer.write(sample)


def check_raises(kind: type[BaseException], work: Any) -> None:
    """`work` raises this builtin kind, as a kind of ours."""
    with pytest.raises(kind) as caught:
        work()
    assert isinstance(caught.value, StreamingError)
    assert str(caught.value)


@pytest.mark.parametrize("case", VALUES, ids=case_id)
def test_values_are_refused_or_kept_as_by_the_predecessor(case: dict[str, Any], tmp_path: Any) -> None:
    """The same builtin exception, or the same value read back; nothing is changed silently."""
    text, encoding = case["value"], case["encoding"]
    value = made(text) if "sample" not in text else None
    folder = os.path.join(tmp_path, "out")
    difference = DIFFERENCES.get((encoding, text))
    raises = exception_named(case["raises"]) if case["raises"] else None
    form: Any = case.get("reads_back")
    if difference is not None:
        raises, form = (None, difference[0]) if isinstance(difference[0], dict) else (difference[0], None)
    if raises is not None:
        check_raises(raises, lambda: write_one(folder, encoding, value, text))
        assert not os.path.exists(os.path.join(folder, "index.json"))
        return
    write_one(folder, encoding, value, text)
    (sample,) = golden.read_samples(folder)
    if isinstance(value, Image.Image):
        assert (sample["v"].mode, list(sample["v"].size), sample["v"].format) == (
            form["mode"],
            form["size"],
            form["format"],
        )
        if encoding != "jpeg" and value.mode == sample["v"].mode:
            assert sample["v"].tobytes() == value.tobytes()
    elif encoding == "jpeg_array":
        assert isinstance(value, list)
        assert [picture.fp.getvalue() for picture in sample["v"]] == [bytes(file) for file in value]
    else:
        golden.check_value(sample["v"], form, text)


@pytest.mark.parametrize("case", READER_VALUES, ids=case_id)
def test_unreadable_values_raise_what_the_predecessor_raises(case: dict[str, Any], tmp_path: Any) -> None:
    """A stored value that is not what its encoding says raises the same builtin exception when it is read."""
    text, encoding = case["value"], case["encoding"]
    folder = os.path.join(tmp_path, "out")
    difference = DIFFERENCES.get((encoding, text))
    if difference is not None and not isinstance(difference[0], dict):
        check_raises(difference[0], lambda: write_one(folder, encoding, made(text), text))
        return
    write_one(folder, encoding, made(text), text)
    if difference is not None:
        golden.check_value(golden.read_samples(folder)[0]["v"], difference[0], text)  # type: ignore[arg-type]
        return
    check_raises(exception_named(case["raises"]), lambda: golden.read_samples(folder))


@pytest.mark.parametrize(
    ("what", "raises"),
    dict.fromkeys(
        (case["what"], case["raises"]) for case in REFUSALS["writer_argument"] if case["class"] == "MDSWriter"
    ),
)
def test_arguments_are_refused_as_by_the_predecessor(what: str, raises: str | None, tmp_path: Any) -> None:
    """The same builtin exception at construction, and nothing is left on disk."""
    for i, arguments in enumerate(ARGUMENTS[what]):
        folder = os.path.join(tmp_path, str(i))
        given = {"columns": {"v": "int"}, "out": folder, **arguments}
        if raises is None:
            MDSWriter(**given).finish()
        else:
            check_raises(exception_named(raises), lambda given=given: MDSWriter(**given))
            assert not os.path.exists(folder)


def test_every_difference_is_a_real_case() -> None:
    """The table names only cases that exist, so that it cannot go stale."""
    cases = {(case["encoding"], case["value"]) for case in VALUES + READER_VALUES}
    assert set(DIFFERENCES) <= cases
