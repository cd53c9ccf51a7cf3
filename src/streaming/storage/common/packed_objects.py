"""Objects that come packed, as `Content-Encoding` says: unpacked here, since readers know nothing of it.

Servers pack what they send, and tools store objects packed with that header beside them. What is asked for then has
another size than the server states, and no ranges: it is read to its end, into memory or a temporary file.
"""

from __future__ import annotations

import contextlib
import tempfile
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, Final

from streaming.errors import StorageError, TransferDamagedError
from streaming.storage.store import Content, ObjectFacts, Part

_CHUNK_BYTES: Final = 1 << 20
_IN_MEMORY_BYTES: Final = 1 << 24  # a longer object goes to a temporary file
_NO_PACKING: Final = frozenset({"", "identity", "aws-chunked"})  # the last is a form of uploads that some stores keep
_SAME: Final = {"x-gzip": "gzip", "x-compress": "compress", "zstandard": "zstd"}
_ENDINGS: Final = {"gzip": (".gz", ".tgz"), "br": (".br",), "zstd": (".zst", ".zstd"), "compress": (".z",)}
_MAX_RATIO: Final = 1100  # gzip reaches 1032
_FREE_BYTES: Final = 1 << 26  # any object may unpack to so many; beyond, more than the ratio is made to fill disks
_ZSTD_BYTES: Final = 1 << 10  # taken at a time, since four bytes may unpack to 128 KiB


def encodings_of(name: str, header: str | None) -> tuple[str, ...]:
    """Return how an object was packed, the last step first; nothing for one that came as it is.

    For a file that is named after its packing, such as `x.mds.gz`, the header only says once more what it is.

    >>> encodings_of("index.json", "gzip"), encodings_of("x.mds.gz", "gzip"), encodings_of("x", "identity")
    (('gzip',), (), ())
    """
    found = [word.strip().lower() for word in (header or "").split(",")]
    steps = [_SAME.get(word, word) for word in found if word not in _NO_PACKING]
    if steps and name.lower().endswith(_ENDINGS.get(steps[0], ("\0",))):
        del steps[0]
    return tuple(reversed(steps))


def check_comes_plain(name: str, header: str | None, *, shown: str) -> None:
    """Raise StorageError for an object that comes packed, from a store that cannot tell the size of what it holds."""
    if encodings_of(name, header):
        raise StorageError(
            f"{shown} comes with 'Content-Encoding: {header}', which this kind of store does not unpack; store it "
            "without that header"
        )


def unpacked(chunks: Iterable[bytes | memoryview], encodings: Iterable[str], *, shown: str) -> Iterator[bytes]:
    """Yield the object as it was before it was packed. `shown` names it in errors.

    Raises StorageError for a packing that is not known, TransferDamagedError for bytes that it did not make.
    """
    n_packed = 0

    def counted() -> Iterator[bytes]:
        nonlocal n_packed
        for chunk in chunks:
            n_packed += len(chunk)
            yield bytes(chunk)

    steps, whole = tuple(encodings), counted()
    for step in steps:
        if step not in _UNPACKERS:
            raise StorageError(
                f"{shown} comes with 'Content-Encoding: {step}', which cannot be unpacked (gzip, deflate, br and zstd "
                "can be); store it without that header, or have the server send it as it is"
            )
        whole = _one_step(whole, step, shown)
    n_unpacked = 0
    for piece in whole:
        n_unpacked += len(piece)
        if steps and n_unpacked > _MAX_RATIO * n_packed + _FREE_BYTES:
            raise _damaged(shown, ", ".join(steps), f"{n_packed} bytes unpack to more than {n_unpacked}, to fill disks")
        yield piece


def spooled(chunks: Iterable[bytes], offset: int, facts: Callable[[int], ObjectFacts], *, shown: str) -> Content:
    """Read an object of unknown size to its end, to learn its size; its content from `offset` on.

    `facts` makes the object's facts from that size. Raises TransferDamagedError if it is shorter than `offset`.
    """
    with contextlib.ExitStack() as on_error:
        file = on_error.enter_context(tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES))
        for chunk in chunks:
            file.write(chunk)
        n_bytes = file.tell()
        if offset > n_bytes:
            raise TransferDamagedError(
                f"{shown}: bytes from {offset} on were asked for, {n_bytes} there are; check who writes to it"
            )
        file.seek(offset)
        came = _chunks(file)
        weakref.finalize(came, on_error.pop_all().close)
    return Content(facts(n_bytes), offset, came)


def part_of_content(whole: Content, begin: int, end: int, *, shown: str) -> Part:
    """Cut a range out of an object that was unpacked. Raises TransferDamagedError if it is shorter."""
    data = bytearray()
    for chunk in whole.chunks:
        data += chunk[: end - begin - len(data)]
        if len(data) == end - begin:
            break
    if len(data) != end - begin:
        raise TransferDamagedError(
            f"{shown}: bytes {begin} to {end} were asked for, {len(data)} of {whole.facts.n_bytes} came"
        )
    return Part(whole.facts, bytes(data))


def _one_step(chunks: Iterator[bytes], encoding: str, shown: str) -> Iterator[bytes]:
    pieces, errors = _UNPACKERS[encoding]
    kinds: tuple[type[Exception], ...] = (EOFError, *errors())
    try:
        yield from pieces(chunks)
    except kinds as error:
        raise _damaged(shown, encoding, f"its bytes are not of that kind, or cut short ({error})") from None


def _damaged(shown: str, encoding: str, why: str) -> TransferDamagedError:
    return TransferDamagedError(f"{shown} comes with 'Content-Encoding: {encoding}', but {why}")


def _inflated(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield what gzip, zlib or plain deflate packed, of any number of members."""
    inflate: Any = None
    for chunk in chunks:
        rest = chunk
        while rest:
            if inflate is None:
                inflate = zlib.decompressobj(_window_bits(rest))
            piece = inflate.decompress(rest, _CHUNK_BYTES)
            if piece:
                yield piece
            rest = inflate.unconsumed_tail
            if inflate.eof:
                rest, inflate = inflate.unused_data.lstrip(b"\0"), None
    if inflate is not None:
        yield inflate.flush()
        if not inflate.eof:
            raise EOFError("the end is missing")


def _window_bits(beginning: bytes) -> int:
    """Tell gzip and zlib by their first bytes; HTTP's deflate is zlib, but some servers send it plain."""
    if beginning[:1] == b"\x1f":
        return 31
    is_zlib = beginning[0] & 0x0F == 8 and (len(beginning) < 2 or (beginning[0] * 256 + beginning[1]) % 31 == 0)
    return 15 if is_zlib else -15


def _from_brotli(chunks: Iterator[bytes]) -> Iterator[bytes]:
    import brotli

    decoder = brotli.Decompressor()
    for chunk in chunks:
        yield decoder.process(chunk, output_buffer_limit=_CHUNK_BYTES)
        while not decoder.can_accept_more_data():
            yield decoder.process(b"", output_buffer_limit=_CHUNK_BYTES)
    if not decoder.is_finished():
        raise EOFError("the end is missing")


def _from_zstd(chunks: Iterator[bytes]) -> Iterator[bytes]:
    import zstandard

    decoder: Any = None
    for chunk in chunks:
        rest = chunk
        while rest:
            if decoder is None:
                decoder = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()
            piece = decoder.decompress(rest[:_ZSTD_BYTES])
            if piece:
                yield piece
            rest = rest[_ZSTD_BYTES:]
            if decoder.eof:
                rest, decoder = decoder.unused_data + rest, None
    if decoder is not None:
        raise EOFError("the end is missing")


def _errors_brotli() -> tuple[type[Exception], ...]:
    import brotli

    return (brotli.error,)


def _errors_zstd() -> tuple[type[Exception], ...]:
    import zstandard

    return (zstandard.ZstdError,)


_Unpacker = tuple[Callable[[Iterator[bytes]], Iterator[bytes]], Callable[[], tuple[type[Exception], ...]]]
_UNPACKERS: Final[dict[str, _Unpacker]] = {
    "gzip": (_inflated, lambda: (zlib.error,)),
    "deflate": (_inflated, lambda: (zlib.error,)),
    "br": (_from_brotli, _errors_brotli),
    "zstd": (_from_zstd, _errors_zstd),
}


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK_BYTES):
        yield chunk
