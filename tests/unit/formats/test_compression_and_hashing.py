"""Names, interoperability and reproducibility of compression and hashes."""

from __future__ import annotations

import bz2
import gzip
import hashlib

import pytest
import xxhash
import zstandard

from streaming.errors import OptionError, ShardDamagedError, StorageError
from streaming.formats import compression, hashing
from streaming.formats.compression import NAMES, decompress

BLOB = b"some text, some text, some text" * 50


def test_there_are_exactly_the_names_of_the_format() -> None:
    """58 names: five codes and their levels."""
    assert len(NAMES) == len(set(NAMES)) == 58
    assert {"br", "br:0", "br:11", "bz2:1", "bz2:9", "gz:0", "snappy", "zstd:1", "zstd:22"} <= set(NAMES)


@pytest.mark.parametrize("name", ["", "lz4", "zstd:0", "zstd:23", "gz:10", "snappy:1", "ZSTD", "zstd:", "zstd:03"])
def test_other_names_are_refused(name: str) -> None:
    """They are no names of a compression, neither for writing nor in an index."""
    with pytest.raises(OptionError):
        compression.compress(name, b"")
    assert not compression.is_known(name)


def test_zstd_frames_state_their_content_size() -> None:
    """The predecessor's reader fails on frames that do not."""
    zipped = compression.compress("zstd:7", BLOB)
    assert zstandard.frame_content_size(zipped) == len(BLOB)
    assert zstandard.frame_content_size(compression.compress("zstd", b"")) == 0


def test_zstd_reads_several_frames_skippable_frames_and_checksums() -> None:
    """All that the format allows is read, even in chunks of one byte."""
    skippable = (0x184D2A53).to_bytes(4, "little") + (5).to_bytes(4, "little") + b"hello"
    summed = zstandard.ZstdCompressor(write_checksum=True).compress(BLOB)
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(BLOB)
    zipped = skippable + summed + skippable + unsized + skippable
    assert decompress("zstd", zipped, n_bytes=2 * len(BLOB)) == BLOB * 2
    singles = [zipped[i : i + 1] for i in range(len(zipped))]
    assert b"".join(compression.decompress_stream("zstd", singles, n_bytes=2 * len(BLOB))) == BLOB * 2
    broken = summed[:-1] + bytes([summed[-1] ^ 1])
    with pytest.raises(ShardDamagedError):
        decompress("zstd", broken, n_bytes=len(BLOB))


def test_gzip_and_bzip2_read_several_members() -> None:
    """Concatenated members are one file."""
    assert decompress("gz", gzip.compress(BLOB) + gzip.compress(b"!"), n_bytes=len(BLOB) + 1) == BLOB + b"!"
    assert decompress("bz2", bz2.compress(BLOB) + bz2.compress(b"!"), n_bytes=len(BLOB) + 1) == BLOB + b"!"


def test_gzip_holds_no_time() -> None:
    """So the same shard has the same bytes tomorrow."""
    assert compression.compress("gz", BLOB)[4:8] == bytes(4)
    assert gzip.decompress(compression.compress("gz", BLOB)) == BLOB


@pytest.mark.parametrize("code", ["br", "bz2", "gz", "snappy", "zstd"])
def test_an_error_of_the_chunks_iterator_is_not_damage(code: str) -> None:
    """It comes through unchanged."""

    def broken() -> object:
        yield compression.compress(code, BLOB)[:9]
        raise StorageError("the line went dead")

    with pytest.raises(StorageError, match="line went dead"):
        list(compression.decompress_stream(code, broken(), n_bytes=len(BLOB)))  # type: ignore[arg-type]


@pytest.mark.parametrize("code", ["br", "gz", "snappy", "zstd"])
def test_bytes_after_the_end_are_damage(code: str) -> None:
    """No writer makes a file in which other bytes follow the compressed ones."""
    with pytest.raises(ShardDamagedError):
        decompress(code, compression.compress(code, BLOB) + b"rubbish", n_bytes=len(BLOB))


@pytest.mark.parametrize("name", sorted(hashing.KNOWN))
def test_hashes_are_those_of_their_libraries(name: str) -> None:
    """Whole and in pieces, lowercase hex."""
    made = getattr(xxhash, name, None) or getattr(hashlib, name)
    assert hashing.digest(name, BLOB) == made(BLOB).hexdigest()
    pieces = hashing.hasher(name)
    for i in range(0, len(BLOB), 100):
        pieces.update(memoryview(BLOB)[i : i + 100])
    assert pieces.hexdigest() == made(BLOB).hexdigest()
    assert hashing.is_hash(name)


def test_there_are_exactly_the_hashes_of_the_format() -> None:
    """Twelve from hashlib, five from xxhash."""
    assert len(hashing.KNOWN) == 17
    for name in ("crc32", "shake_128", "", "SHA1"):
        assert not hashing.is_hash(name)
        with pytest.raises(OptionError, match="unknown hash"):
            hashing.hasher(name)


def test_the_fastest_hash_is_chosen() -> None:
    """A fast non-cryptographic one if there is one; unknown names are skipped."""
    assert hashing.fastest(["sha256", "md5", "xxh64", "xxh3_64"]) == "xxh3_64"
    assert hashing.fastest(["sha256", "md5", "sha1"]) == "sha1"
    assert hashing.fastest(["crc32"]) is None
    assert hashing.fastest([]) is None


def test_a_snappy_block_of_another_size_is_refused_before_it_is_decoded() -> None:
    """Its decoder takes all the memory at once. This block states 600 bytes, and cannot be decoded."""
    with pytest.raises(ShardDamagedError, match="holds 600 bytes, the index states 100"):
        decompress("snappy", b"\xd8\x04" + bytes(12), n_bytes=100)
