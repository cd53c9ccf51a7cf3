"""Compression of whole files, by the names that an index uses: `br`, `bz2`, `gz`, `snappy`, `zstd`, with `:level`.

The caller of a decompression states how many bytes must come out. It produces no more than that, in pieces of bounded
size, so a small hostile file cannot fill memory or disk. Any other number of bytes is damage.
"""

from __future__ import annotations

import bz2
import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any, Final, cast

from streaming.errors import OptionError, ShardDamagedError, StreamingError

PIECE_BYTES: Final = 1 << 20

_Pieces = Callable[["_ChunkFile"], Iterator[bytes]]


@dataclass(frozen=True, slots=True)
class _Algorithm:
    """One compression algorithm.

    `compress` takes data and level. `pieces` yields about PIECE_BYTES at most at a time. `errors` are the kinds of
    exceptions that damaged data raise in it.
    """

    levels: range
    default: int
    compress: Callable[[bytes, int], bytes]
    pieces: _Pieces
    errors: Callable[[], tuple[type[Exception], ...]]


class _ChunkFile(io.RawIOBase):
    """Chunks as a file that can only be read forwards. `n_bytes` must come out when it is decompressed."""

    def __init__(self, chunks: Iterable[bytes], n_bytes: int) -> None:
        self.n_bytes = n_bytes
        self._chunks = iter(chunks)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        n = min(len(into), len(self._rest))
        into[:n] = self._rest[:n]
        self._rest = self._rest[n:]
        return n


def _read_pieces(file: Any) -> Iterator[bytes]:
    while piece := file.read(PIECE_BYTES):
        yield piece


def _compress_br(data: bytes, level: int) -> bytes:
    import brotli

    return brotli.compress(data, quality=level)  # type: ignore[no-any-return]


def _pieces_br(source: _ChunkFile) -> Iterator[bytes]:
    import brotli

    decoder = brotli.Decompressor()
    while not decoder.is_finished():
        fed = b"" if not decoder.can_accept_more_data() else source.read(1 << 16) or b""
        piece = decoder.process(fed, output_buffer_limit=PIECE_BYTES)
        if piece:
            yield piece
        elif not fed:
            raise EOFError("the Brotli stream is cut short")
    if source.read(1):
        raise EOFError("bytes follow the Brotli stream")


def _compress_gz(data: bytes, level: int) -> bytes:
    deflate = zlib.compressobj(level, zlib.DEFLATED, zlib.MAX_WBITS | 16)  # a gzip header with time 0: reproducible
    return deflate.compress(data) + deflate.flush()


def _pieces_gz(source: _ChunkFile) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=io.BufferedReader(source), mode="rb") as file:
        yield from _read_pieces(file)


def _compress_bz2(data: bytes, level: int) -> bytes:
    return bz2.compress(data, level)


def _pieces_bz2(source: _ChunkFile) -> Iterator[bytes]:
    with bz2.BZ2File(io.BufferedReader(source)) as file:
        yield from _read_pieces(file)


def _compress_zstd(data: bytes, level: int) -> bytes:
    import zstandard

    # The predecessor's reader needs the content size in the frame.
    return zstandard.ZstdCompressor(level=level, write_content_size=True).compress(data)


def _pieces_zstd(source: _ChunkFile) -> Iterator[bytes]:
    import zstandard

    whole = cast(IO[bytes], source)  # only its read() is called
    with zstandard.ZstdDecompressor().stream_reader(whole, read_across_frames=True, closefd=False) as file:
        yield from _read_pieces(file)


def _compress_snappy(data: bytes, level: int) -> bytes:
    import cramjam

    return bytes(cramjam.snappy.compress_raw(data))


def _pieces_snappy(source: _ChunkFile) -> Iterator[bytes]:
    import cramjam

    whole = source.readall()  # a raw Snappy block cannot be decoded in parts
    if whole:
        n_bytes = cramjam.snappy.decompress_raw_len(whole)
        if n_bytes != source.n_bytes:  # before it takes the memory
            raise EOFError(f"the Snappy block holds {n_bytes} bytes, the index states {source.n_bytes}")
        yield bytes(cramjam.snappy.decompress_raw(whole))


def _errors_br() -> tuple[type[Exception], ...]:
    import brotli

    return (brotli.error,)


def _errors_std() -> tuple[type[Exception], ...]:
    return (OSError, zlib.error, ValueError)


def _errors_zstd() -> tuple[type[Exception], ...]:
    import zstandard

    return (zstandard.ZstdError,)


def _errors_snappy() -> tuple[type[Exception], ...]:
    import cramjam

    return (cramjam.DecompressionError, ValueError)


_ALGORITHMS: Final = {
    "br": _Algorithm(range(12), 11, _compress_br, _pieces_br, _errors_br),
    "bz2": _Algorithm(range(1, 10), 9, _compress_bz2, _pieces_bz2, _errors_std),
    "gz": _Algorithm(range(10), 9, _compress_gz, _pieces_gz, _errors_std),
    "snappy": _Algorithm(range(0), 0, _compress_snappy, _pieces_snappy, _errors_snappy),
    "zstd": _Algorithm(range(1, 23), 3, _compress_zstd, _pieces_zstd, _errors_zstd),
}

NAMES: Final = tuple(
    name
    for code, algorithm in _ALGORITHMS.items()
    for name in (code, *(f"{code}:{level}" for level in algorithm.levels))
)
"""All names: the codes, and the codes with a level."""

_KNOWN: Final = frozenset(NAMES)


def is_known(name: str) -> bool:
    """Whether `name` is one of NAMES."""
    return name in _KNOWN


def check_name(name: str | None) -> str | None:
    """The name of a writer's compression, None for no compression, which `''` means too. Raises OptionError."""
    if not name:
        return None
    if name not in _KNOWN:
        levels = ", ".join(
            f"{code}:{algorithm.levels[0]}…{algorithm.levels[-1]}" if algorithm.levels else code
            for code, algorithm in _ALGORITHMS.items()
        )
        raise OptionError(
            f"unknown compression {name!r}; known are {', '.join(_ALGORITHMS)} and, with a level, {levels}"
        )
    return name


def extension(name: str) -> str:
    """The extension of a compressed file's name, without the dot.

    >>> extension("zstd:7")
    'zstd'
    """
    return name.partition(":")[0]


def compress(name: str, data: bytes) -> bytes:
    """Compress `data` into one blob, the same bytes every time. Raises OptionError for an unknown name."""
    code, _, level = _checked(name).partition(":")
    algorithm = _ALGORITHMS[code]
    return algorithm.compress(data, int(level) if level else algorithm.default)


def decompress(name: str, data: bytes | memoryview, *, n_bytes: int) -> bytes:
    """Decompress a blob to `n_bytes`. Raises ShardDamagedError for any other number, or if `data` is no such blob."""
    whole = io.BytesIO()  # grows with the bytes that really come, whatever number an index states
    for piece in decompress_stream(name, [bytes(data)], n_bytes=n_bytes):
        whole.write(piece)
    return whole.getvalue()


def decompress_stream(name: str, chunks: Iterable[bytes], *, n_bytes: int) -> Iterator[bytes]:
    """Decompress a blob of `n_bytes` in pieces; needs memory for a few pieces only (snappy: for the whole blob).

    Raises ShardDamagedError as soon as more bytes come out, or at the end if there were fewer. Then the pieces before
    are not to be used either.
    """
    algorithm = _ALGORITHMS[_checked(name).partition(":")[0]]
    done = 0
    try:
        for piece in algorithm.pieces(_ChunkFile(chunks, n_bytes)):
            done += len(piece)
            if done > n_bytes:
                raise ShardDamagedError(f"{name} data holds more than the {n_bytes} bytes that the index states")
            yield piece
    except StreamingError:  # raised above, or by the iterator of the chunks
        raise
    except Exception as error:
        if not isinstance(error, (EOFError, *algorithm.errors())):
            raise
        raise ShardDamagedError(f"{name} data cannot be decompressed: {type(error).__name__} {error}") from error
    if done != n_bytes:
        raise ShardDamagedError(f"{name} data holds {done} bytes, the index states {n_bytes}")


def _checked(name: str) -> str:
    checked = check_name(name)
    if checked is None:
        raise OptionError("no compression was named")
    return checked
