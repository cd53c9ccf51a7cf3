"""Laws of shards: they keep to the size limit, no record is lost, and the offsets lead to every record."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.errors import ShardDamagedError
from streaming.formats.mds import header_bytes, mds_config, offset_bytes, record_bounds, record_offsets
from streaming.formats.schema import mds_schema
from streaming.write.builder import FinishedShard, ShardBuilder

CONFIG = mds_config(mds_schema({"a": "bytes"}), compression=None, hashes=(), size_limit=None)
RECORDS = st.lists(st.binary(max_size=300), max_size=40)


def built(records: list[bytes], size_limit: int | None) -> list[FinishedShard]:
    """The shards of these records."""
    builder = ShardBuilder(CONFIG, size_limit)
    shards = [builder.add(record) for record in records]
    return [shard for shard in [*shards, builder.finish()] if shard is not None]


def records_of(shard: FinishedShard) -> list[bytes]:
    """The records of a shard, found by its offsets."""
    offsets = record_offsets(shard.data, shard.n_samples, len(shard.data))
    return [shard.data[a:b] for a, b in pairwise(offsets.tolist())]


@given(records=RECORDS, size_limit=st.none() | st.integers(1, 3000))
@settings(max_examples=150)
def test_shards_hold_all_records_in_order_and_keep_to_the_limit(records: list[bytes], size_limit: int | None) -> None:
    """No record is lost, moved or split; only a shard of one record may exceed the limit; no shard is empty."""
    shards = built(records, size_limit)
    assert [record for shard in shards for record in records_of(shard)] == records
    assert [shard.basename for shard in shards] == [f"shard.{i:05}.mds" for i in range(len(shards))]
    for shard in shards:
        assert shard.n_samples >= 1
        assert size_limit is None or len(shard.data) <= size_limit or shard.n_samples == 1
    if size_limit is None:
        assert len(shards) <= 1


@given(records=RECORDS, size_limit=st.integers(1, 3000))
@settings(max_examples=150)
def test_shards_are_as_full_as_they_can_be(records: list[bytes], size_limit: int) -> None:
    """The first record of the next shard would not have fitted into the shard before."""
    shards = built(records, size_limit)
    for shard, after in pairwise(shards):
        assert len(shard.data) + 4 + len(records_of(after)[0]) > size_limit


@given(records=st.lists(st.binary(max_size=50), min_size=1, max_size=20), data=st.data())
@settings(max_examples=150)
def test_the_head_alone_holds_the_places_of_records(records: list[bytes], data: st.DataObject) -> None:
    """The first `header_bytes` of a shard are enough, as bytes or memoryview; fewer are damage."""
    (shard,) = built(records, None)
    needed = header_bytes(shard.n_samples)
    whole = record_offsets(shard.data, shard.n_samples, len(shard.data))
    for head in (shard.data[:needed], memoryview(shard.data)[:needed]):
        assert np.array_equal(record_offsets(head, shard.n_samples, len(shard.data)), whole)
    with pytest.raises(ShardDamagedError):
        record_offsets(shard.data[: data.draw(st.integers(0, needed - 1))], shard.n_samples, len(shard.data))


@given(
    n=st.integers(0, 6),
    offsets=st.lists(st.integers(0, 120), min_size=7, max_size=7),
    stated=st.integers(0, 6),
    n_bytes=st.integers(0, 120),
)
@settings(max_examples=300)
def test_offsets_that_pass_lie_inside_the_file(n: int, offsets: list[int], stated: int, n_bytes: int) -> None:
    """Any head is refused, or its offsets ascend from behind the head to the end of the file."""
    head = np.array([n, *offsets], "<u4").tobytes()
    try:
        found = record_offsets(head, stated, n_bytes)
    except ShardDamagedError:
        return
    assert stated == n
    assert found.tolist() == offsets[: n + 1] == sorted(offsets[: n + 1])
    assert found[0] >= header_bytes(n)
    assert found[-1] == n_bytes


@given(records=st.lists(st.binary(max_size=50), min_size=1, max_size=20))
@settings(max_examples=100)
def test_the_two_offsets_of_a_row_are_as_good_as_the_table(records: list[bytes]) -> None:
    """For every row the eight bytes of its own offsets lead to the same record as the whole table."""
    (shard,) = built(records, None)
    offsets = record_offsets(shard.data, shard.n_samples, len(shard.data)).tolist()
    for row in range(shard.n_samples):
        begin, end = offset_bytes(row)
        bounds = record_bounds(shard.data[begin:end], row, shard.n_samples, len(shard.data))
        assert bounds == (offsets[row], offsets[row + 1])


@given(begin=st.integers(0, 120), end=st.integers(0, 120), n=st.integers(1, 6), n_bytes=st.integers(0, 120))
@settings(max_examples=300)
def test_two_offsets_that_pass_lie_inside_the_file(begin: int, end: int, n: int, n_bytes: int) -> None:
    """Any two offsets are refused, or ascend from behind the head to at most the end of the file."""
    try:
        record_bounds(np.array([begin, end], "<u4").tobytes(), 0, n, n_bytes)
    except ShardDamagedError:
        return
    assert header_bytes(n) <= begin <= end <= n_bytes
