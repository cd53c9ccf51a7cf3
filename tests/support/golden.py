"""The golden datasets: their files, and comparison of values with the expected ones (forms: golden/README.md)."""

from __future__ import annotations

import decimal
import hashlib
import io
import json
import math
import os
import struct
from collections import OrderedDict
from datetime import date, datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np
from PIL import Image

from streaming.formats import compression
from streaming.formats.index import ShardIndex, parse_index
from streaming.formats.layout import layout_of

ROOT = os.path.join(os.path.dirname(os.path.dirname(__file__)), "golden")


def names() -> list[str]:
    """The names of all golden datasets."""
    return sorted(name for name in os.listdir(ROOT) if os.path.isdir(os.path.join(ROOT, name)))


def expected(name: str) -> dict[str, Any]:
    """The samples that a reader must return for a dataset."""
    wanted: dict[str, Any] = load(name, "expected.json")
    return wanted


def load(*path: str) -> Any:
    """The parsed content of a JSON file of the golden data."""
    with open(os.path.join(ROOT, *path), encoding="utf-8") as file:
        return json.load(file)


def view_folder(name: str, view: dict[str, Any]) -> str:
    """The folder of the index that a view opens."""
    return os.path.join(ROOT, name, view["path"], view["split"] or "")


def read_file(*path: str) -> bytes:
    """The content of a file."""
    with open(os.path.join(*path), "rb") as file:
        return file.read()


def index_of(folder: str) -> ShardIndex:
    """The parsed index of a folder."""
    return parse_index(read_file(folder, "index.json"), where=os.path.join(folder, "index.json"))


def raw_shard(folder: str, index: ShardIndex, shard: int) -> bytes:
    """The uncompressed data file of a shard."""
    zip_name, algorithm = index.zip_name(shard), index.compression(shard)
    if zip_name is None or algorithm is None:
        return read_file(folder, index.raw_name(shard))
    return compression.decompress(algorithm, read_file(folder, zip_name), n_bytes=int(index.raw_bytes[shard]))


def read_samples(folder: str) -> list[dict[str, Any]]:
    """All samples of a folder, decoded by the layouts of their formats."""
    index = index_of(folder)
    samples = []
    for shard in range(index.n_shards):
        raw = raw_shard(folder, index, shard)
        layout = layout_of(index.schema(shard).format)
        offsets = layout.record_offsets(raw, int(index.samples[shard]), len(raw))
        decode = layout.make_decoder(index.schema(shard), allow_unsafe_types=True)
        samples += [decode(raw[a:b]) for a, b in pairwise(offsets.tolist())]
    return samples


def check_samples(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    """Fail unless these are the expected samples: same columns, same values, same types."""
    assert len(found) == len(wanted)
    for i, (sample, forms) in enumerate(zip(found, wanted)):
        assert set(sample) == set(forms), f"sample {i}"
        for column, form in forms.items():
            check_value(sample[column], form, f"sample {i}, column {column!r}")


def check_value(value: Any, form: dict[str, Any], where: str) -> None:
    """Fail unless `value` is what `form` describes, type and bits included."""
    kind = form["t"]
    check = _CHECKS.get(kind)
    assert check is not None, f"{where}: unknown form {kind}"
    check(value, form, where)


def _same(value: Any, wanted: Any, where: str) -> None:
    assert type(value) is type(wanted), f"{where}: {type(value)} instead of {type(wanted)}"
    assert value == wanted, f"{where}: {value!r} instead of {wanted!r}"


def _check_int(value: Any, form: dict[str, Any], where: str) -> None:
    _same(value, int(form["v"], 16 if form["v"].lstrip("-").startswith("0x") else 10), where)


def _check_np(value: Any, form: dict[str, Any], where: str) -> None:
    assert isinstance(value, np.generic), where
    assert value.dtype == np.dtype(form["dtype"]), where
    assert np.array(value, value.dtype.newbyteorder("<")).tobytes().hex() == form["hex"], where


def _check_float(value: Any, form: dict[str, Any], where: str) -> None:
    assert type(value) is float, f"{where}: {type(value)}"
    if form["v"] == "nan" and math.isnan(value):
        return  # the text 'nan' carries no payload
    assert struct.pack("<d", value).hex() == form["hex"], f"{where}: {value!r}"


def _check_complex(value: Any, form: dict[str, Any], where: str) -> None:
    assert type(value) is complex, where
    _check_float(value.real, form["re"], where)
    _check_float(value.imag, form["im"], where)


def _check_str(value: Any, form: dict[str, Any], where: str) -> None:
    if "v" in form:
        _same(value, form["v"], where)
    else:
        assert type(value) is str
        assert len(value) == form["chars"], where
        assert hashlib.sha256(value.encode()).hexdigest() == form["sha256"], where


def _check_bytes(value: Any, form: dict[str, Any], where: str) -> None:
    assert type(value).__name__ == form["t"], f"{where}: {type(value)}"
    _check_blob(bytes(value), form, where)


def _check_blob(blob: bytes, form: dict[str, Any], where: str) -> None:
    if "hex" in form:
        assert blob.hex() == form["hex"], where
    else:
        assert (len(blob), hashlib.sha256(blob).hexdigest()) == (form["nbytes"], form["sha256"]), where


def _check_decimal(value: Any, form: dict[str, Any], where: str) -> None:
    assert type(value) is decimal.Decimal, where
    assert str(value) == form["v"], where


def _check_array(value: Any, form: dict[str, Any], where: str) -> None:
    assert type(value) is np.ndarray, where
    assert value.dtype == np.dtype(form["dtype"]), where
    assert list(value.shape) == form["shape"], where
    assert value.flags.writeable, where
    _check_blob(value.astype(value.dtype.newbyteorder("<")).tobytes(), form, where)


def _check_image(value: Any, form: dict[str, Any], where: str) -> None:
    assert isinstance(value, Image.Image), where
    assert (value.mode, list(value.size), value.format) == (form["mode"], form["size"], form["format"]), where
    if "encoded_sha256" in form:
        file = value.fp  # type: ignore[attr-defined]
        assert isinstance(file, io.BytesIO), where
        stored = file.getvalue()
        assert (len(stored), hashlib.sha256(stored).hexdigest()) == (
            form["encoded_nbytes"],
            form["encoded_sha256"],
        ), where
    if form["format"] != "JPEG":  # JPEG pixels depend on the decoder
        assert hashlib.sha256(value.tobytes()).hexdigest() == form["pixels_sha256"], where
    if "channel_means" in form:
        pixels = np.asarray(value, np.float64).reshape(value.size[0] * value.size[1], -1)
        assert np.abs(pixels.mean(axis=0) - form["channel_means"]).max() < 1.5, where
    if "palette_sha256" in form:
        palette = value.getpalette(None) or b""
        assert hashlib.sha256(bytes(palette)).hexdigest() == form["palette_sha256"], where


def _check_items(value: Any, form: dict[str, Any], where: str) -> None:
    assert type(value).__name__ == form["t"], where
    assert len(value) == len(form["v"]), where
    for i, (item, item_form) in enumerate(zip(value, form["v"])):
        check_value(item, item_form, f"{where}[{i}]")


def _check_set(value: Any, form: dict[str, Any], where: str) -> None:
    assert type(value).__name__ == form["t"], where
    assert len(value) == len(form["v"]), where
    for item_form in form["v"]:
        assert any(_holds(item, item_form) for item in value), where


def _holds(value: Any, form: dict[str, Any]) -> bool:
    try:
        check_value(value, form, "")
    except AssertionError:
        return False
    return True


def _check_dict(value: Any, form: dict[str, Any], where: str) -> None:
    assert type(value) is {"dict": dict, "ordereddict": OrderedDict}[form["t"]], where
    assert len(value) == len(form["v"]), where
    for (key, item), (key_form, item_form) in zip(value.items(), form["v"]):
        check_value(key, key_form, f"{where}, key")
        check_value(item, item_form, f"{where}[{key!r}]")


_CHECKS: dict[str, Any] = {
    "int": _check_int,
    "bool": lambda value, form, where: _same(value, form["v"], where),
    "none": lambda value, form, where: _same(value, None, where),
    "np": _check_np,
    "float": _check_float,
    "complex": _check_complex,
    "str": _check_str,
    "bytes": _check_bytes,
    "bytearray": _check_bytes,
    "decimal": _check_decimal,
    "ndarray": _check_array,
    "image": _check_image,
    "list": _check_items,
    "tuple": _check_items,
    "set": _check_set,
    "frozenset": _check_set,
    "dict": _check_dict,
    "ordereddict": _check_dict,
    "date": lambda value, form, where: _same(value, date.fromisoformat(form["v"]), where),
    "datetime": lambda value, form, where: _same(value, datetime.fromisoformat(form["v"]), where),
    "timedelta": lambda value, form, where: _same(value, timedelta(*_numbers(form)), where),
    "range": lambda value, form, where: _same(value, range(*_numbers(form)), where),
}


def _numbers(form: dict[str, Any]) -> list[int]:
    return [item if isinstance(item, int) else int(item["v"]) for item in form["v"]]
