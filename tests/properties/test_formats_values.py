"""Laws of samples: decoding inverts encoding, and no bytes make a decoder raise anything but a FormatError."""

from __future__ import annotations

import io
import math
import struct
from contextlib import suppress
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from PIL import Image

from streaming.errors import FormatError, ShardDamagedError, StreamingError
from streaming.formats.fields import table
from streaming.formats.mds import mds_decoder, mds_encoder
from streaming.formats.schema import mds_schema

DTYPES = [f"{kind}{bits}" for kind in ("uint", "int") for bits in (8, 16, 32, 64)] + ["float16", "float32", "float64"]
INTEGERS = {name: np.iinfo(name) for name in DTYPES if "int" in name}


def arrays(dtype: str, shape: Any = None) -> st.SearchStrategy[Any]:
    """Arrays of any content, with at least one axis and one element."""
    return npst.arrays(dtype, shape or npst.array_shapes(min_dims=1, max_dims=5, min_side=1, max_side=6))


def images(mode: str) -> st.SearchStrategy[Image.Image]:
    """Small images of random pixels."""
    bands = len(Image.new(mode, (1, 1)).getbands())

    def made(size: tuple[int, int], seed: int) -> Image.Image:
        pixels = np.random.default_rng(seed).bytes(size[0] * size[1] * bands)
        return Image.frombytes(mode, size, pixels)

    return st.builds(made, st.tuples(st.integers(1, 9), st.integers(1, 9)), st.integers(0, 1 << 30))


def jpeg_file(picture: Image.Image) -> bytes:
    """The picture as a JPEG file."""
    into = io.BytesIO()
    picture.save(into, "JPEG")
    return into.getvalue()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)

# Every encoding, with values that come back equal.
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bytes": st.binary(),
    "str": st.text(),
    "int": st.integers(-(2**63), 2**63 - 1),
    **{name: st.integers(int(info.min), int(info.max)).map(np.dtype(name).type) for name, info in INTEGERS.items()},
    **{f"float{bits}": st.floats(width=bits).map(np.dtype(f"float{bits}").type) for bits in (16, 32, 64)},
    "str_int": st.integers(),
    "str_float": st.floats(),
    "str_decimal": st.decimals(),
    "json": JSON,
    "pkl": JSON,
    "ndarray": st.sampled_from(DTYPES).flatmap(arrays),
    **{f"ndarray:{dtype}": arrays(dtype) for dtype in DTYPES},
    **{f"ndarray:{dtype}:3,1,2": arrays(dtype, (3, 1, 2)) for dtype in DTYPES},
    "pil": st.sampled_from(["L", "RGB", "RGBA", "LA", "CMYK", "YCbCr"]).flatmap(images),
    "png": st.sampled_from(["L", "RGB", "RGBA", "LA"]).flatmap(images),
    "list[pil]": st.lists(images("RGB"), max_size=3),
    "list[png]": st.lists(images("RGBA"), max_size=3),
    "jpeg_array": st.lists(images("RGB").map(jpeg_file), min_size=1, max_size=3),
}


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal in type and bits; NaNs are equal to themselves."""
    if isinstance(a, bytes) and isinstance(b, Image.Image):
        return a == b.fp.getvalue()  # type: ignore[attr-defined, no-any-return]
    if isinstance(a, Image.Image):
        return (a.mode, a.size, a.tobytes()) == (b.mode, b.size, b.tobytes())
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray):
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    if type(a) is not type(b):
        return False
    if isinstance(a, np.generic):
        return bool(a.tobytes() == b.tobytes())
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or struct.pack("<d", a) == struct.pack("<d", b)
    if isinstance(a, Decimal):
        return str(a) == str(b)
    return bool(a == b)


def test_every_encoding_has_a_law() -> None:
    """No encoding is left out of the round trip below; lossy JPEG and the alias are tested elsewhere."""
    covered = {name.partition(":")[0] for name in VALUES}
    known = set(table._BUILT_IN)
    assert known - covered == {"jpeg", "list[jpeg]", "jpegarray"}


@pytest.mark.parametrize("encoding", VALUES)
@given(data=st.data())
@settings(max_examples=25)
def test_what_is_written_is_read(encoding: str, data: st.DataObject) -> None:
    """decode(encode(x)) equals x in type and bits, between other columns, from bytes and from a memoryview."""
    value = data.draw(VALUES[encoding])
    columns = {"a": "str", "v": encoding, "z": "int16"}
    record = mds_encoder(columns)({"a": "é", "v": value, "z": -2})
    decode = mds_decoder(mds_schema(columns), allow_unsafe_types=True)
    for stored in (record, memoryview(record)):
        sample = decode(stored)
        assert list(sample) == ["a", "v", "z"]
        assert same(value, sample["v"])
        assert (sample["a"], sample["z"]) == ("é", -2)


@given(data=st.data(), chosen=st.sets(st.sampled_from(sorted(VALUES)), min_size=1, max_size=5))
@settings(max_examples=60)
def test_columns_select_without_changing(data: st.DataObject, chosen: set[str]) -> None:
    """Any selection of columns gives the same values as reading all columns, in stored order."""
    columns = {f"{i}-{encoding}": encoding for i, encoding in enumerate(sorted(chosen))}
    sample = {name: data.draw(VALUES[encoding]) for name, encoding in columns.items()}
    record = mds_encoder(columns)(sample)
    some = data.draw(st.sets(st.sampled_from(sorted(columns))))
    found = mds_decoder(mds_schema(columns), columns=some, allow_unsafe_types=True)(record)
    assert list(found) == sorted(some)
    assert all(same(sample[name], found[name]) for name in some)


@pytest.mark.parametrize("encoding", [name for name in sorted(table._BUILT_IN) if name != "pkl"])
@given(data=st.data())
@settings(max_examples=40)
def test_no_bytes_break_a_decoder(encoding: str, data: st.DataObject) -> None:
    """Any bytes give a value or a FormatError, nothing else."""
    codec = table.find(encoding)
    size = codec.size
    blob = data.draw(st.binary(min_size=size or 0, max_size=size or 80))
    for stored in (blob, memoryview(blob)):
        for read in filter(None, (codec.decode, codec.view)):
            with suppress(FormatError):
                read(stored)


@pytest.mark.parametrize("encoding", [name for name in VALUES if name != "pkl"])
@given(data=st.data())
@settings(max_examples=25)
def test_a_damaged_record_is_a_value_or_a_format_error(encoding: str, data: st.DataObject) -> None:
    """A record whose bytes were changed, cut or extended is decoded or raises FormatError."""
    columns = {"a": "str", "v": encoding}
    record = bytearray(mds_encoder(columns)({"a": "ab", "v": data.draw(VALUES[encoding])}))
    for _ in range(data.draw(st.integers(0, 3))):
        record[data.draw(st.integers(0, len(record) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(-len(record), 3))
    damaged = bytes(record[:cut]) if cut < 0 else bytes(record) + bytes(cut)
    decode = mds_decoder(mds_schema(columns))
    with suppress(FormatError):
        decode(damaged)


@given(n=st.integers(0, 200), lengths=st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=2))
def test_lengths_that_do_not_add_up_are_damage(n: int, lengths: list[int]) -> None:
    """A record is refused unless the lengths in its head and its fixed sizes add up to its own."""
    record = struct.pack("<2I", *lengths) + bytes(n)
    assume(sum(lengths) + 8 != n)
    with pytest.raises(ShardDamagedError):
        mds_decoder(mds_schema({"a": "bytes", "b": "bytes", "c": "int"}))(record)


@given(value=st.integers() | st.floats() | st.decimals() | st.booleans() | st.text() | st.none(), data=st.data())
@settings(max_examples=300)
def test_a_number_is_kept_or_refused(value: Any, data: st.DataObject) -> None:
    """A number column never stores another number than the given one, except for rounding in float columns."""
    name = data.draw(st.sampled_from(DTYPES))
    codec = table.find(name)
    try:
        found = codec.decode(codec.encode(value))
    except StreamingError:
        return
    if "int" in name:
        assert found == value
    elif math.isnan(value):
        assert math.isnan(found)
    elif found != value:
        assert math.isfinite(found)
        assert abs(float(found) - float(value)) <= max(abs(float(value)) * 2**-10, 2**-24)
