"""Edge cases of single encodings that the laws do not reach."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zlib
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw
from PIL.JpegImagePlugin import JpegImageFile

from streaming.errors import (
    ColumnMissingError,
    ColumnSizeError,
    FormatError,
    OptionError,
    StreamingError,
    ValueDecodeError,
    ValueEncodeError,
    ValueRangeError,
    ValueTypeError,
)
from streaming.formats.fields import table
from streaming.formats.mds import mds_decoder, mds_encoder, shard_head
from streaming.formats.plugins import register_encoding, unregister_encoding
from streaming.formats.schema import Schema, mds_schema


def through(encoding: str, value: Any) -> Any:
    """The value after encoding and decoding."""
    codec = table.find(encoding)
    return codec.decode(codec.encode(value))


# --- numbers


@pytest.mark.parametrize(
    ("encoding", "value", "kept"),
    [
        ("uint8", True, 1),
        ("uint8", 3.0, 3),
        ("uint8", np.int64(7), 7),
        ("uint8", np.array(7), 7),
        ("uint8", Fraction(6, 2), 3),
        ("int", True, 1),
        ("float64", 3, 3.0),
        ("float64", np.float32(0.1), float(np.float32(0.1))),
        ("float32", 0.1, np.float32(0.1)),
        ("float16", Fraction(1, 4), 0.25),
        ("float32", float("-inf"), float("-inf")),
    ],
)
def test_harmless_conversions_are_accepted(encoding: str, value: Any, kept: Any) -> None:
    """The same number, given in another type."""
    assert through(encoding, value) == kept


@pytest.mark.parametrize(
    ("encoding", "value", "kind"),
    [
        ("uint8", np.int64(300), ValueRangeError),
        ("int64", 2.5, ValueEncodeError),
        ("int64", float("inf"), ValueEncodeError),
        ("int64", 1 + 2j, ValueTypeError),
        ("uint8", np.array([7]), ValueTypeError),
        ("uint8", np.str_("7"), ValueTypeError),
        ("float64", 2**53 + 1, ValueRangeError),
        ("float64", 10**400, ValueRangeError),
        ("float64", "1.5", ValueTypeError),
        ("float64", np.complex64(1), ValueTypeError),
        ("float16", np.float64(1e300), ValueRangeError),
    ],
)
def test_a_value_that_would_change_is_refused(encoding: str, value: Any, kind: type[Exception]) -> None:
    """A number that the column cannot hold, or a value that is no number."""
    with pytest.raises(kind):
        table.find(encoding).encode(value)


# --- arrays


def test_arrays_of_any_layout_are_stored_in_c_order() -> None:
    """Fortran order, strides and byte order do not show in the array that is read."""
    base = np.arange(24, dtype=np.int32).reshape(4, 6)
    for array in (base.T, np.asfortranarray(base), base[::2, ::-1], base.astype(">i4")):
        for encoding in ("ndarray", "ndarray:int32", f"ndarray:int32:{array.shape[0]},{array.shape[1]}"):
            found = through(encoding, array)
            assert np.array_equal(found, array)
            assert found.dtype == np.int32


def test_arrays_are_writable_copies_or_else_read_only_views() -> None:
    """Changing one array changes no other; with `writable=False` arrays are views of the record."""
    columns = {"x": "ndarray:int32:2", "y": "ndarray", "z": "ndarray:uint8"}
    sample: dict[str, Any] = {"x": np.array([1, 2], np.int32), "y": np.ones((2, 2)), "z": np.arange(5, dtype=np.uint8)}
    record = mds_encoder(columns)(sample)
    decode = mds_decoder(mds_schema(columns))
    first = decode(record)
    for array in first.values():
        array[:] = 9
    assert all(np.array_equal(found, sample[name]) for name, found in decode(record).items())
    for place in (record, memoryview(bytearray(record))):
        for array in mds_decoder(mds_schema(columns), writable=False)(place).values():
            assert not array.flags.writeable
            assert array.base is not None


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"\x08",
        bytes([8, 0xFC | 3]) + bytes(8),  # 63 axes in a few bytes
        bytes([8, 4 << 2 | 3]) + struct.pack("<4Q", *[2**62] * 4),  # a product far beyond 64 bits
        bytes([8, 2 << 2 | 3]) + struct.pack("<2Q", 0, 2**63),  # no elements, an absurd axis
        bytes([8, 1 << 2]) + b"\x03ab",  # too few bytes
        bytes([8, 1 << 2]) + b"\x01ab",  # too many
        bytes([7, 1 << 2]) + b"\x01a",  # no such dtype
    ],
)
def test_hostile_array_heads_are_refused(stored: bytes) -> None:
    """Nothing is allocated by the sizes that a head states."""
    with pytest.raises(ValueDecodeError):
        table.find("ndarray").decode(stored)


def test_a_masked_array_is_refused_and_many_axes_are_kept() -> None:
    """An array that could not be read back is not written; one of 32 axes is."""
    with pytest.raises(ValueEncodeError, match="mask"):
        table.find("ndarray").encode(np.ma.masked_array([1, 2], [True, False]))
    assert through("ndarray", np.ones((1,) * 32)).ndim == 32


# --- JSON


def test_json_nested_too_deep_is_refused_both_ways() -> None:
    """64 levels pass, 65 do not; brackets inside strings do not count."""
    deep: Any = "[" * 500 + '"'
    for _ in range(64):
        deep = [deep]
    assert through("json", deep) == deep
    with pytest.raises(ValueEncodeError, match="64"):
        table.find("json").encode([deep])
    with pytest.raises(ValueDecodeError, match="64"):
        table.find("json").decode(json.dumps([deep]).encode())
    with pytest.raises(ValueDecodeError):
        table.find("json").decode(b"[" * 1_000_000)


def test_json_keys_that_become_equal_are_refused() -> None:
    """1 and "1" in one dict would lose a value."""
    assert through("json", {1: "a", "2": "b"}) == {"1": "a", "2": "b"}
    with pytest.raises(ValueEncodeError, match="same text"):
        table.find("json").encode([{"x": {1: "a", "1": "b"}}])


# --- images


def jpeg(size: tuple[int, int] = (40, 30), seed: int = 1, quality: int = 60) -> bytes:
    """A JPEG file of noise, whose bytes would change if it were encoded again."""
    into = io.BytesIO()
    noise = np.random.default_rng(seed).integers(0, 255, (*size[::-1], 3), np.uint8)
    Image.fromarray(noise).save(into, "JPEG", quality=quality)
    return into.getvalue()


def test_opened_jpegs_are_stored_untouched(tmp_path: Any) -> None:
    """From a path or from memory, loaded or not, the stored bytes are the file's (a promise: no silent loss)."""
    file = jpeg()
    path = os.path.join(tmp_path, "x.jpg")
    with open(path, "wb") as out:
        out.write(file)
    encode = table.find("jpeg").encode
    with Image.open(path) as picture:
        assert encode(picture) == file
        picture.load()
        assert encode(picture) == file
    assert encode(Image.open(io.BytesIO(file))) == file
    assert encode(table.find("jpeg").decode(file)) == file
    assert table.find("list[jpeg]").encode([Image.open(io.BytesIO(file))])[12:] == file


def test_an_edited_jpeg_is_encoded_again(tmp_path: Any) -> None:
    """Pixels drawn in place, a draft, or another file under its name: the image is stored, not the file."""
    file = jpeg()
    path = os.path.join(tmp_path, "x.jpg")
    with open(path, "wb") as out:
        out.write(file)
    encode = table.find("jpeg").encode
    with Image.open(path) as original, Image.open(path) as drawn:
        ImageDraw.Draw(drawn).rectangle((0, 0, 20, 20), fill=(255, 0, 0))
        assert isinstance(drawn, JpegImageFile)
        stored = encode(drawn)
        assert stored != file
        assert Image.open(io.BytesIO(stored)).getpixel((5, 5)) != original.getpixel((5, 5))
    smaller = Image.open(io.BytesIO(file))
    smaller.draft("RGB", (10, 10))
    assert Image.open(io.BytesIO(encode(smaller))).size == smaller.size != (40, 30)
    with Image.open(path) as loaded:
        loaded.load()
        with open(path, "wb") as out:
            out.write(jpeg(seed=2))
        assert np.abs(np.asarray(Image.open(io.BytesIO(encode(loaded))), int) - np.asarray(loaded, int)).mean() < 20


@pytest.mark.parametrize("size", [(2**31, 2**31), (2**32 - 1, 1), (0, 5), (3, 3)])
def test_raw_images_must_have_the_pixels_they_claim(size: tuple[int, int]) -> None:
    """A size that the bytes do not match is refused before anything is allocated."""
    with pytest.raises(ValueDecodeError):
        table.find("pil").decode(struct.pack("<III", *size, 3) + b"RGB" + bytes(12))


def test_an_image_of_too_many_pixels_is_refused() -> None:
    """A small file that claims billions of pixels is not decoded."""
    into = io.BytesIO()
    Image.new("1", (10, 10)).save(into, "PNG")
    file = bytearray(into.getvalue())
    file[16:24] = struct.pack(">II", 60_000, 60_000)
    file[29:33] = zlib.crc32(file[12:29]).to_bytes(4, "big")
    with pytest.raises(ValueDecodeError, match="pixels"):
        table.find("png").decode(bytes(file))


def test_postscript_is_refused() -> None:
    """Pillow would pass it to another program."""
    for stored in (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"\xc5\xd0\xd3\xc6" + bytes(40)):
        for encoding in ("jpeg", "png"):
            with pytest.raises(ValueDecodeError, match="PostScript"):
                table.find(encoding).decode(stored)


def test_no_format_is_opened_that_opens_what_is_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An IPTC file that holds PostScript would run `gs`; so would whatever Pillow may learn to open one day."""
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\nexit 1\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"
    fields = [((3, 60), b"\1\0"), ((3, 20), b"\0\n"), ((3, 30), b"\0\n"), ((3, 120), b"\5"), ((8, 10), script)]
    stored = b"".join(bytes([0x1C, *tag]) + struct.pack(">H", len(data)) + data for tag, data in fields) + bytes(5)
    for encoding in ("jpeg", "png"):
        with pytest.raises(ValueDecodeError, match="no image"):
            table.find(encoding).decode(stored).load()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "JPEG2000", "PPM", "ICO", "AVIF"])
@pytest.mark.parametrize("encoding", ["jpeg", "png"])
def test_stored_files_of_every_usual_format_are_opened(encoding: str, file_format: str) -> None:
    """Whatever the column is called: writers store the bytes that they are given."""
    into = io.BytesIO()
    try:
        Image.new("RGB", (16, 16), "red").save(into, file_format)
    except (OSError, KeyError) as error:
        pytest.skip(f"this Pillow writes no {file_format}: {error}")
    found = table.find(encoding).decode(into.getvalue())
    assert found.size == (16, 16)
    assert found.convert("RGB").getpixel((8, 8))[0] > 200


@pytest.mark.parametrize("mode", ["P", "PA"])
def test_raw_images_with_a_palette_are_refused(mode: str) -> None:
    """The format cannot hold it, and other colours would come back in silence."""
    image = Image.new("RGB", (4, 4), "red").convert("P").convert(mode)
    for encoding, value in (("pil", image), ("list[pil]", [image])):
        with pytest.raises(ValueEncodeError, match="palette"):
            table.find(encoding).encode(value)
    if mode == "P":
        assert through("png", image).convert("RGB").getpixel((0, 0)) == (255, 0, 0)


@pytest.mark.parametrize("mode", ["P", "PA"])
def test_raw_images_without_a_palette_of_their_own_are_kept(mode: str) -> None:
    """As they are when they have been read from such a column, so that what was read can be written again."""
    first = Image.frombytes(mode, (2, 3), bytes(range(6 * len(mode))))
    second = through("pil", first)
    assert second == first
    assert through("pil", second) == second


def test_a_photo_of_a_phone_is_stored_as_it_is(tmp_path: Path) -> None:
    """A JPEG file with more pictures in it, unless a later one of them is meant."""
    first, second = (Image.new("RGB", (40, 60), colour) for colour in ("red", "blue"))
    exif = Image.Exif()
    exif[0x0112] = 6
    first.save(tmp_path / "phone.jpg", "MPO", save_all=True, append_images=[second], exif=exif)
    encode = table.find("jpeg").encode
    with Image.open(tmp_path / "phone.jpg") as photo:
        assert encode(photo) == (tmp_path / "phone.jpg").read_bytes()
        photo.seek(1)
        assert through("jpeg", photo).getpixel((5, 5))[2] > 200


# --- records


def test_errors_name_the_column() -> None:
    """In a sample of many columns, the message says which one is wrong."""
    encode = mds_encoder({"a": "int", "b": "uint8"})
    with pytest.raises(ValueRangeError, match="column 'b'"):
        encode({"a": 1, "b": 256})
    with pytest.raises(ColumnMissingError, match="'b'"):
        encode({"a": 1})
    with pytest.raises(ColumnSizeError, match="column 'a'"):
        encode({"a": b"123", "b": 1})
    with pytest.raises(ValueDecodeError, match="column 's'"):
        mds_decoder(mds_schema({"s": "str", "t": "int"}))(struct.pack("<Iq", 1, 0)[:4] + b"\xff" + bytes(8))


def test_unknown_names_are_refused_when_the_decoder_is_made() -> None:
    """A column that is not there is an OptionError, an encoding that does not exist a FormatError."""
    with pytest.raises(OptionError, match="'b'"):
        mds_decoder(mds_schema({"a": "int"}), columns=["b"])
    unknown = Schema("mds", ("a", "b"), ("int", "mine"), (8, None))
    with pytest.raises(FormatError, match="mine"):
        mds_decoder(unknown)
    assert mds_decoder(unknown, columns=["a"])(bytes(4 + 8)) == {"a": 0}


def test_errors_survive_a_pickle() -> None:
    """Worker processes send their errors by pickle."""
    bad = [("str", b"\xff"), ("json", b"{"), ("png", b""), ("str_int", b"x"), ("ndarray", b""), ("pkl", b"x")]
    for encoding, stored in bad:
        with pytest.raises(ValueDecodeError) as caught:
            table.find(encoding).decode(stored)
        again = pickle.loads(pickle.dumps(caught.value))
        assert (type(again), str(again)) == (type(caught.value), str(caught.value))
    with pytest.raises(UnicodeEncodeError) as text:
        table.find("str").encode("\ud800")
    assert str(pickle.loads(pickle.dumps(text.value))) == str(text.value)
    with pytest.raises(KeyError) as name:
        table.find("nothing:5")
    assert str(pickle.loads(pickle.dumps(name.value))) == str(name.value)


def test_a_shard_of_more_than_4_gib_is_refused() -> None:
    """Offsets are 32 bits: they must never wrap."""
    shard_head(b"", [2**31, 2**31 - 20])
    with pytest.raises(ValueRangeError, match="size_limit"):
        shard_head(b"", [2**31, 2**31])


# --- encodings of users


class Upper:
    """Text in capitals, of the size that its parameter fixes."""

    size: int | None = None

    def __init__(self, size: int | None = None) -> None:
        self.size = size

    @classmethod
    def from_str(cls, text: str) -> Upper:
        """With `name:5`, five bytes."""
        return cls(int(text))

    def encode(self, obj: Any) -> bytes:
        """The bytes of the text in capitals."""
        return str(obj).upper().encode()

    def decode(self, data: bytes) -> Any:
        """The text."""
        assert type(data) is bytes
        return data.decode()


@pytest.fixture
def upper() -> Iterator[None]:
    """The encoding `upper`, registered for one test."""
    register_encoding("upper", Upper)
    yield
    unregister_encoding("upper")


@pytest.mark.usefixtures("upper")
def test_registered_encodings_work_like_built_in_ones() -> None:
    """By name, and with a parameter that fixes their size."""
    columns = {"a": "upper", "b": "upper:3"}
    assert mds_schema(columns).column_sizes == (None, 3)
    record = mds_encoder(columns)({"a": "hello", "b": "abc"})
    for stored in (record, memoryview(record)):
        assert mds_decoder(mds_schema(columns))(stored) == {"a": "HELLO", "b": "ABC"}
    with pytest.raises(ColumnSizeError):
        mds_encoder(columns)({"a": "hello", "b": "abcd"})


def test_an_invalid_encoding_cannot_be_registered() -> None:
    """It is refused when it is registered, not when the first sample is read."""
    for name, encoding in (("", Upper), ("a:b", Upper), ("x", object())):
        with pytest.raises(OptionError):
            register_encoding(name, encoding)  # type: ignore[arg-type]
    with pytest.raises(StreamingError):
        table.find("upper")


EMPTY_OR_SCALAR: list[tuple[Any, str]] = [
    (np.float32(3), "Attempting to encode a scalar with NDArray encoding"),
    (np.bool_(True), "Attempting to encode a scalar with NDArray encoding"),
    (np.array(3), "Attempting to encode a scalar with NDArray encoding"),
    (np.zeros(0), "a numpy array with 0 elements"),
    (np.zeros((2, 0, 3), np.uint8), "a numpy array with 0 elements"),
]


@pytest.mark.parametrize(("value", "words"), EMPTY_OR_SCALAR, ids=repr)
@pytest.mark.parametrize("form", ["ndarray", "ndarray:{}", "ndarray:{}:3"])
def test_arrays_that_cannot_be_held_are_refused_in_the_words_of_the_predecessor(
    value: Any, words: str, form: str
) -> None:
    """And in its kind, a ValueError, whatever the column says of dtype and shape."""
    dtype = "float32" if value.dtype == bool else value.dtype.name
    if value.dtype == bool and form != "ndarray":
        pytest.skip("no column holds arrays of this dtype")
    with pytest.raises(ValueError, match=words):
        mds_encoder({"a": form.format(dtype)})({"a": value})
