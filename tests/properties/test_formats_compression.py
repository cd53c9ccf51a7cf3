"""Laws of compression: decompressing inverts compressing, and never yields more bytes than stated."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.errors import ShardDamagedError
from streaming.formats import compression
from streaming.formats.compression import NAMES, PIECE_BYTES

CODES = ("br", "bz2", "gz", "snappy", "zstd")
BLOBS = st.binary(max_size=2000) | st.builds(
    lambda part, n: part * n, st.binary(min_size=1, max_size=9), st.integers(1, 900)
)


def chunked(blob: bytes, sizes: list[int]) -> list[bytes]:
    """The blob in chunks of these sizes and a last chunk; some may be empty."""
    chunks = []
    for size in sizes:
        chunks.append(blob[:size])
        blob = blob[size:]
    return [*chunks, blob]


@pytest.mark.parametrize("name", NAMES)
@given(blob=BLOBS, sizes=st.lists(st.integers(0, 200), max_size=4))
@settings(max_examples=8)
def test_decompressing_inverts_compressing(name: str, blob: bytes, sizes: list[int]) -> None:
    """Whole or in chunks of any size, under every name; compressing twice gives the same bytes."""
    zipped = compression.compress(name, blob)
    assert compression.compress(name, blob) == zipped
    assert compression.decompress(name, zipped, n_bytes=len(blob)) == blob
    assert compression.decompress(name, memoryview(zipped), n_bytes=len(blob)) == blob
    assert b"".join(compression.decompress_stream(name, chunked(zipped, sizes), n_bytes=len(blob))) == blob


@pytest.mark.parametrize("code", CODES)
@given(blob=BLOBS, n_bytes=st.integers(0, 3000))
@settings(max_examples=30)
def test_another_size_than_stated_is_damage(code: str, blob: bytes, n_bytes: int) -> None:
    """More or fewer bytes than the index states raise ShardDamagedError."""
    zipped = compression.compress(code, blob)
    if n_bytes == len(blob):
        n_bytes += 1
    with pytest.raises(ShardDamagedError):
        compression.decompress(code, zipped, n_bytes=n_bytes)


@pytest.mark.parametrize("code", CODES)
@given(blob=BLOBS, data=st.data())
@settings(max_examples=40)
def test_damaged_blobs_are_damage(code: str, blob: bytes, data: st.DataObject) -> None:
    """A blob whose bytes were changed or cut gives the stated number of bytes or a ShardDamagedError, nothing else."""
    zipped = bytearray(compression.compress(code, blob))
    for _ in range(data.draw(st.integers(0, 3))):
        if zipped:
            zipped[data.draw(st.integers(0, len(zipped) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(zipped[: data.draw(st.integers(0, len(zipped)))])
    with suppress(ShardDamagedError):
        assert len(compression.decompress(code, cut, n_bytes=len(blob))) == len(blob)


@pytest.mark.parametrize("code", CODES)
def test_a_bomb_stops_at_the_stated_size(code: str) -> None:
    """A small file that holds 200 MB yields no more than the stated size."""
    bomb = compression.compress(code, bytes(200_000_000 if code != "br" else 50_000_000))
    pieces: list[bytes] = []
    with pytest.raises(ShardDamagedError, match=r"more than|states"):
        pieces.extend(compression.decompress_stream(code, [bomb], n_bytes=3 * PIECE_BYTES))
    assert sum(map(len, pieces)) <= 3 * PIECE_BYTES
