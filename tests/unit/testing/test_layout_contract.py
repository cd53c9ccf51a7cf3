"""The contract of shard layouts: MDS keeps it, and each of its tests finds the layout that breaks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streaming.errors import OptionError, ShardDamagedError
from streaming.formats import mds
from streaming.formats.layout import LAYOUTS, Layout
from streaming.formats.schema import Schema, mds_schema
from streaming.testing import ExampleShard, LayoutContract

MDS = LAYOUTS["mds"]
COLUMNS = {
    "variable": {"text": "str", "number": "int", "array": "ndarray", "json": "json"},
    "fixed": {"number": "int", "point": "ndarray:float32:2"},
}


def written(columns: Mapping[str, str]) -> ExampleShard:
    """A shard of MDS, without a config, which no layout reads."""
    samples = [
        {
            "text": "é" * number,
            "number": number - 1,
            "array": np.arange(number + 1, dtype=np.int16),
            "json": {"n": [number]},
            "point": np.array([number, 0.5], np.float32),
        }
        for number in range(4)
    ]
    samples = [{name: sample[name] for name in columns} for sample in samples]
    records = list(map(mds.mds_encoder(columns), samples))
    data = mds.shard_head(b"{}", [len(record) for record in records]) + b"".join(records)
    return ExampleShard(schema=mds_schema(columns), samples=samples, data=data)


class TestMds(LayoutContract):
    """MDS keeps the contract, with and without columns of variable size."""

    @pytest.fixture
    def layout(self) -> Layout:
        return MDS

    @pytest.fixture(params=COLUMNS)
    def shard(self, request: pytest.FixtureRequest) -> ExampleShard:
        return written(COLUMNS[request.param])


class TestApart(LayoutContract):
    """A layout whose offsets are in the `.meta` file keeps it too: here the head of an MDS shard, cut off."""

    @pytest.fixture
    def layout(self) -> Layout:
        return replace(MDS, offsets_in="meta", record_offsets=apart_offsets, record_bounds=apart_bounds)

    @pytest.fixture
    def shard(self) -> ExampleShard:
        whole = written(COLUMNS["variable"])
        at = mds.header_bytes(whole.n_samples) + len(b"{}")
        return replace(whole, meta=whole.data[:at], data=whole.data[at:])


def apart_offsets(head: bytes | memoryview, n_samples: int, n_bytes: int) -> NDArray[np.uint32]:
    skipped = mds.header_bytes(n_samples) + len(b"{}")
    offsets = mds.record_offsets(head, n_samples, n_bytes + skipped)
    if offsets[0] < skipped:
        raise ShardDamagedError("the first sample begins before the data")
    return offsets - np.uint32(skipped)


def apart_bounds(offsets: bytes | memoryview, row: int, n_samples: int, n_bytes: int) -> tuple[int, int]:
    skipped = mds.header_bytes(n_samples) + len(b"{}")
    begin, end = mds.record_bounds(offsets, row, n_samples, n_bytes + skipped)
    if begin < skipped:
        raise ShardDamagedError("the sample begins before the data")
    return begin - skipped, end - skipped


def trusting_offsets(head: bytes | memoryview, n_samples: int, n_bytes: int) -> NDArray[np.uint32]:
    return np.frombuffer(head, "<u4", n_samples + 1, 4)


def short_sighted_offsets(head: bytes | memoryview, n_samples: int, n_bytes: int) -> NDArray[np.uint32]:
    return mds.record_offsets(head, n_samples, int.from_bytes(head[4 + 4 * n_samples :][:4], "little"))


def trusting_bounds(offsets: bytes | memoryview, row: int, n_samples: int, n_bytes: int) -> tuple[int, int]:
    return int.from_bytes(offsets[:4], "little"), int.from_bytes(offsets[4:8], "little")


def decoder_of(change: Callable[[Any, Any], Any], **fixed: Any) -> Any:
    """A `make_decoder` whose samples are changed, given the record."""

    def make_decoder(schema: Schema, /, **options: Any) -> mds.Decoder:
        decode = mds.mds_decoder(schema, **{**options, **fixed})
        return lambda record: change(decode(record), record)

    return make_decoder


def with_all_columns(schema: Schema, /, columns: Any = None, **options: Any) -> mds.Decoder:
    if columns is not None and not set(columns) <= set(schema.column_names):
        raise OptionError("no such column")
    return mds.mds_decoder(schema, **options)


def with_foreign_errors(schema: Schema, /, **options: Any) -> mds.Decoder:
    decode = mds.mds_decoder(schema, **options)

    def changed(record: Any) -> Any:
        try:
            return decode(record)
        except ShardDamagedError as error:
            raise ValueError from error

    return changed


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "offsets that are signed": (
        {"record_offsets": lambda *a: mds.record_offsets(*a).astype(np.int32)},
        "test_offsets_bound_all_records",
    ),
    "offsets that need more than the header": (
        {"header_bytes": lambda n: mds.header_bytes(n) - 4},
        "test_offsets_bound_all_records",
    ),
    "offsets of another row": (
        {"offset_bytes": lambda row: mds.offset_bytes(max(0, row - 1))},
        "test_offsets_of_one_sample_are_those_of_all",
    ),
    "a cut header that is believed": (
        {"record_offsets": lambda head, n, size: mds.record_offsets(bytes(head) + bytes(99), n, size)},
        "test_a_header_that_is_cut_is_an_error",
    ),
    "a size that nobody looks at": (
        {"record_offsets": short_sighted_offsets},
        "test_a_size_that_is_not_the_index_s_is_an_error",
    ),
    "offsets that are believed": (
        {"record_offsets": trusting_offsets},
        "test_damaged_offsets_never_lead_out_of_the_file",
    ),
    "bounds that are believed": ({"record_bounds": trusting_bounds}, "test_damaged_offsets_never_lead_out_of_the_file"),
    "columns in another order": (
        {"make_decoder": decoder_of(lambda sample, _: dict(reversed(sample.items())))},
        "test_records_decode_to_what_was_written",
    ),
    "a value of another type": (
        {"make_decoder": decoder_of(lambda sample, _: {**sample, "number": float(sample["number"])})},
        "test_records_decode_to_what_was_written",
    ),
    "columns that nobody wanted": ({"make_decoder": with_all_columns}, "test_columns_may_be_selected"),
    "arrays that look into the file": (
        {"make_decoder": decoder_of(lambda sample, _: sample, writable=False)},
        "test_samples_do_not_depend_on_the_bytes_that_they_came_from",
    ),
    "errors of another kind": ({"make_decoder": with_foreign_errors}, "test_damaged_records_raise_only_errors_of_ours"),
}


@pytest.mark.parametrize(("changes", "test"), BROKEN.values(), ids=list(BROKEN))
def test_a_layout_that_breaks_the_contract_is_found(changes: dict[str, Any], test: str) -> None:
    """By the test that is named after what it breaks."""
    check = getattr(LayoutContract(), test)
    shard = written(COLUMNS["variable"])
    check(MDS, shard)
    with pytest.raises((AssertionError, ShardDamagedError, ValueError, pytest.fail.Exception)):
        check(replace(MDS, **changes), shard)


def test_every_test_of_the_contract_is_broken_once() -> None:
    """No test that cannot fail."""
    tests = {name for name in vars(LayoutContract) if name.startswith("test_")}
    assert tests == {test for _, test in BROKEN.values()}
