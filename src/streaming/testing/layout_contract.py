"""What every shard layout must do, as tests that anyone's format can run. Needs pytest.

class TestMyLayout(LayoutContract):
    @pytest.fixture
    def layout(self) -> Layout:
        return MY_LAYOUT

    @pytest.fixture
    def shard(self) -> ExampleShard:
        return ExampleShard(schema=..., samples=[...], data=my_shard_of(...))
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streaming.errors import OptionError, ShardDamagedError, StreamingError
from streaming.formats.layout import Layout
from streaming.formats.schema import Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleShard:
    """A shard as a writer leaves it, and the samples that were written: at least three, with at least two columns."""

    schema: Schema
    samples: Sequence[Mapping[str, Any]]
    data: bytes
    meta: bytes = b""
    """The `.meta` file, for layouts that keep their offsets there."""

    @property
    def n_samples(self) -> int:
        """How many samples were written."""
        return len(self.samples)


class LayoutContract:
    """Derive from this, in a class whose name begins with Test, and give the fixtures `layout` and `shard`."""

    @pytest.fixture
    def layout(self) -> Layout:
        """The layout that is tested."""
        raise NotImplementedError

    @pytest.fixture
    def shard(self) -> ExampleShard:
        """A shard in this layout."""
        raise NotImplementedError

    def assert_same(self, found: Mapping[str, Any], written: Mapping[str, Any]) -> None:
        """Compare a decoded sample with what was written. Override it where values are neither arrays nor have `==`."""
        assert list(found) == list(written)
        for name, value in written.items():
            assert type(found[name]) is type(value), name
            np.testing.assert_equal(found[name], value, err_msg=name)

    def test_offsets_bound_all_records(self, layout: Layout, shard: ExampleShard) -> None:
        """One more than samples, in order, within the file; read from the header alone or the whole file."""
        file = _offsets_file(layout, shard)
        header = file[: layout.header_bytes(shard.n_samples)]
        offsets = _offsets(layout, shard)
        assert offsets.dtype == np.uint32
        assert offsets.shape == (shard.n_samples + 1,)
        assert _are_in_order(offsets, len(shard.data))
        for head in (header, memoryview(header), file, memoryview(file)):
            assert np.array_equal(layout.record_offsets(head, shard.n_samples, len(shard.data)), offsets)

    def test_offsets_of_one_sample_are_those_of_all(self, layout: Layout, shard: ExampleShard) -> None:
        """They lie within the header, so that very long ones need not be read whole."""
        file, offsets = _offsets_file(layout, shard), _offsets(layout, shard)
        for row in range(shard.n_samples):
            begin, end = layout.offset_bytes(row)
            assert 0 <= begin < end <= layout.header_bytes(shard.n_samples)
            for stored in (file[begin:end], memoryview(file)[begin:end]):
                bounds = layout.record_bounds(stored, row, shard.n_samples, len(shard.data))
                assert bounds == (offsets[row], offsets[row + 1])

    def test_a_header_that_is_cut_is_an_error(self, layout: Layout, shard: ExampleShard) -> None:
        """At any byte."""
        header = _offsets_file(layout, shard)[: layout.header_bytes(shard.n_samples)]
        for n_bytes in range(len(header)):
            with pytest.raises(ShardDamagedError):
                layout.record_offsets(header[:n_bytes], shard.n_samples, len(shard.data))

    def test_a_size_that_is_not_the_index_s_is_an_error(self, layout: Layout, shard: ExampleShard) -> None:
        """A data file that is shorter than the offsets say is found before any record is read."""
        header = _offsets_file(layout, shard)[: layout.header_bytes(shard.n_samples)]
        for n_bytes in (0, len(shard.data) - 1):
            with pytest.raises(ShardDamagedError):
                layout.record_offsets(header, shard.n_samples, n_bytes)

    def test_damaged_offsets_never_lead_out_of_the_file(self, layout: Layout, shard: ExampleShard) -> None:
        """Whichever byte of the header is wrong: an error, or offsets that still are in order and within the file."""
        file, n_bytes = _offsets_file(layout, shard), len(shard.data)
        for at in range(layout.header_bytes(shard.n_samples)):
            for flipped in (0x01, 0x80, 0xFF):
                damaged = file[:at] + bytes([file[at] ^ flipped]) + file[at + 1 :]
                with contextlib.suppress(ShardDamagedError):
                    assert _are_in_order(layout.record_offsets(damaged, shard.n_samples, n_bytes), n_bytes)
                for row in range(shard.n_samples):
                    begin, end = layout.offset_bytes(row)
                    with contextlib.suppress(ShardDamagedError):
                        first, last = layout.record_bounds(damaged[begin:end], row, shard.n_samples, n_bytes)
                        assert 0 <= first <= last <= n_bytes

    def test_records_decode_to_what_was_written(self, layout: Layout, shard: ExampleShard) -> None:
        """With the columns in the order of the schema; from bytes or a view."""
        decode = layout.make_decoder(shard.schema)
        for record, written in _records(layout, shard):
            for stored in (record, memoryview(record)):
                sample = decode(stored)
                assert tuple(sample) == shard.schema.column_names
                self.assert_same(sample, {name: written[name] for name in shard.schema.column_names})

    def test_columns_may_be_selected(self, layout: Layout, shard: ExampleShard) -> None:
        """Each alone, or none; one that does not exist is an error before anything is decoded."""
        for columns in ((), *((name,) for name in shard.schema.column_names)):
            decode = layout.make_decoder(shard.schema, columns=columns)
            for record, written in _records(layout, shard):
                self.assert_same(decode(record), {name: written[name] for name in columns})
        with pytest.raises(OptionError):
            layout.make_decoder(shard.schema, columns=["no such column"])

    def test_samples_do_not_depend_on_the_bytes_that_they_came_from(self, layout: Layout, shard: ExampleShard) -> None:
        """Unless `writable=False` allows it, since the file may be unmapped."""
        decode = layout.make_decoder(shard.schema)
        for record, written in _records(layout, shard):
            memory = bytearray(record)
            sample = decode(memoryview(memory))
            memory[:] = bytes(len(memory))
            self.assert_same(sample, {name: written[name] for name in shard.schema.column_names})
        decode = layout.make_decoder(shard.schema, writable=False)
        for record, written in _records(layout, shard):
            self.assert_same(decode(record), {name: written[name] for name in shard.schema.column_names})

    def test_damaged_records_raise_only_errors_of_ours(self, layout: Layout, shard: ExampleShard) -> None:
        """A record that is cut anywhere, too long, or wrong in any byte gives some sample, or a StreamingError."""
        decode = layout.make_decoder(shard.schema)
        for record, _ in _records(layout, shard):
            damaged = [record[:n_bytes] for n_bytes in range(len(record))] + [record + b"\0"]
            damaged += [record[:at] + bytes([record[at] ^ 0xFF]) + record[at + 1 :] for at in range(len(record))]
            for stored in damaged:
                with contextlib.suppress(StreamingError):
                    decode(stored)


def _offsets_file(layout: Layout, shard: ExampleShard) -> bytes:
    return shard.data if layout.offsets_in == "data" else shard.meta


def _offsets(layout: Layout, shard: ExampleShard) -> NDArray[np.uint32]:
    return layout.record_offsets(_offsets_file(layout, shard), shard.n_samples, len(shard.data))


def _are_in_order(offsets: NDArray[np.uint32], n_bytes: int) -> bool:
    return bool(np.all(offsets[:-1] <= offsets[1:])) and int(offsets[-1]) <= n_bytes


def _records(layout: Layout, shard: ExampleShard) -> list[tuple[bytes, Mapping[str, Any]]]:
    """The bytes of each record, and the sample that was written there."""
    offsets = _offsets(layout, shard).tolist()
    return [(shard.data[begin:end], sample) for begin, end, sample in zip(offsets, offsets[1:], shard.samples)]
