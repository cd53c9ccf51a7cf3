"""A second reader of MDS, made from the specification alone, and the proof that both read the same.

It shares nothing with the package: what both agree on is the format, not a common mistake. It knows only what the
golden data need, and takes uncompressed shards.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from PIL import Image

from support import golden

DTYPE = {8: "<u1", 9: "<i1", 16: "<u2", 17: "<i2", 18: "<f2", 32: "<u4", 33: "<i4", 34: "<f4"}
DTYPE |= {64: "<u8", 65: "<i8", 66: "<f8"}


def read_array(data: bytes, config: list[str]) -> Any:
    """`ndarray`, `ndarray:dtype`, `ndarray:dtype:shape`."""
    if not config:
        return read_array(data[1:], [np.dtype(DTYPE[data[0]]).name])
    dtype = np.dtype(config[0]).newbyteorder("<")
    if len(config) == 2:
        return np.frombuffer(data, dtype).reshape([int(n) for n in config[1].split(",")])
    n_axes, word = data[0] >> 2, f"<u{1 << (data[0] & 3)}"
    shape = np.frombuffer(data, word, n_axes, 1)
    return np.frombuffer(data[1 + shape.nbytes :], dtype).reshape(shape.tolist())


def read_pil(data: bytes) -> Image.Image:
    """u32 width, height, length of mode; mode; pixels."""
    width, height, n_mode = struct.unpack("<3I", data[:12])
    return Image.frombytes(data[12 : 12 + n_mode].decode(), (width, height), data[12 + n_mode :])


def read_file(data: bytes) -> Image.Image:
    """An image file."""
    return Image.open(io.BytesIO(data))


def read_list(data: bytes, read: Any) -> list[Any]:
    """u32 count, count u32 lengths, the items."""
    n = struct.unpack_from("<I", data)[0]
    lengths = struct.unpack_from(f"<{n}I", data, 4)
    items, at = [], 4 + 4 * n
    for length in lengths:
        items.append(read(data[at : at + length]))
        at += length
    return items


READ: dict[str, Any] = {
    "bytes": bytes,
    "str": bytes.decode,
    "int": lambda data: struct.unpack("<q", data)[0],
    "str_int": lambda data: int(data.decode()),
    "str_float": lambda data: float(data.decode()),
    "str_decimal": lambda data: Decimal(data.decode()),
    "json": json.loads,
    "pkl": pickle.loads,
    "pil": read_pil,
    "jpeg": read_file,
    "png": read_file,
    "jpeg_array": lambda data: read_list(data, read_file),
    "jpegarray": lambda data: read_list(data, read_file),
    "list[pil]": lambda data: read_list(data[4:], read_pil),
    "list[jpeg]": lambda data: read_list(data[4:], read_file),
    "list[png]": lambda data: read_list(data[4:], read_file),
}


def read_value(data: bytes, encoding: str) -> Any:
    """One value."""
    name, *config = encoding.split(":")
    if name == "ndarray":
        return read_array(data, config).copy()
    return READ[name](data) if name in READ else np.frombuffer(data, np.dtype(name).newbyteorder("<"))[0]


def read_shard(raw: bytes, info: dict[str, Any]) -> list[dict[str, Any]]:
    """All samples of a shard."""
    n = struct.unpack_from("<I", raw)[0]
    offsets = struct.unpack_from(f"<{n + 1}I", raw, 4)
    samples = []
    for begin, end in pairwise(offsets):
        sizes = info["column_sizes"]
        lengths = list(struct.unpack_from(f"<{sum(not size for size in sizes)}I", raw, begin))
        at, sample = begin + 4 * len(lengths), {}
        for name, encoding, size in zip(info["column_names"], info["column_encodings"], sizes):
            length = size or lengths.pop(0)
            sample[name] = read_value(raw[at : at + length], encoding)
            at += length
        assert at == end
        samples.append(sample)
    return samples


@pytest.mark.parametrize("name", [name for name in golden.names() if name.startswith("mds-")])
def test_a_reader_made_from_the_specification_reads_the_golden_data(name: str) -> None:
    """Every uncompressed MDS set, value by value."""
    (view,) = golden.expected(name)["views"]
    folder = golden.view_folder(name, view)
    samples = []
    for info in golden.load(os.path.join(folder, "index.json"))["shards"]:
        samples += read_shard(golden.read_file(folder, info["raw_data"]["basename"]), info)
    golden.check_samples(samples, view["samples"])
