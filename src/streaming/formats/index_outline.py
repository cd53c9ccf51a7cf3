"""Tells an index from what is none, such as a login page or half a file, without numpy: for who only passes it on."""

from __future__ import annotations

from typing import Final

import msgspec

from streaming.errors import IndexFormatError, IndexSyntaxError


class _File(msgspec.Struct):
    hashes: dict[str, str] = {}


class _Shard(msgspec.Struct):
    raw_data: _File | None = None
    zip_data: _File | None = None

    @property
    def is_hashed(self) -> bool:
        """Whether a hash covers the shard in one of its forms."""
        return any(file is not None and bool(file.hashes) for file in (self.raw_data, self.zip_data))


class IndexOutline(msgspec.Struct):
    """An index, of which no more is known than that it lists shards."""

    shards: list[msgspec.Raw]
    version: int

    @property
    def is_hashed(self) -> bool:
        """Whether there is a hash of each shard. False for shards that cannot be read."""
        try:
            return all(_shard_decoder.decode(shard).is_hashed for shard in self.shards)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False


_decoder: Final = msgspec.json.Decoder(IndexOutline)
_shard_decoder: Final = msgspec.json.Decoder(_Shard)


def outline_of(text: bytes, *, where: str) -> IndexOutline:
    """Raise IndexFormatError, which names `where`, unless the text is JSON with a list of shards and a version."""
    try:
        return _decoder.decode(text)
    except msgspec.ValidationError as error:
        raise IndexFormatError(f"{where} is JSON, but no index ({error}){_begin(text)}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise IndexSyntaxError(
            f"{where} is not JSON ({error}); it may be cut or no index at all{_begin(text)}"
        ) from error


def _begin(text: bytes) -> str:
    """What the text begins with, which often tells a page of a web server."""
    return f"; it has {len(text):,} bytes and begins with {text[:40]!r}" if text else "; it is empty"
