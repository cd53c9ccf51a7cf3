"""Parses the `hashes` of very many files from their JSON texts to two columns.

To parse a dictionary for each file would take most of the time of opening a dataset. But the texts of one writer's
files have one form, `{"sha1": "…", "xxh64": "…"}`, and differ only in hex digits at fixed places. These digits are cut
out of all texts at once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec import Raw

from streaming.formats.shard_tables import Texts

# Neither a key nor a digest holds a quote, so a match begins at the end of a key.
_DIGEST: Final = re.compile(rb'"\s*:\s*"([0-9A-Fa-f]*)"')
_HEX: Final = b"0123456789abcdefABCDEF"
_decoder: Final = msgspec.json.Decoder(dict[str, str])


class BadHashesError(Exception):
    """The text of file number `i` is not an object of hashes."""

    def __init__(self, i: int, text: bytes) -> None:
        super().__init__(f"must be an object of names without commas and hex digests, found {text.decode()[:80]}")
        self.i = i


def hash_columns(texts: Sequence[Raw]) -> tuple[list[str], Texts]:
    """The names of each file's hashes, and their digests, both joined by commas. Raises BadHashesError."""
    columns = _columns_alike(texts) if texts else None
    if columns is not None:
        return columns
    each = [_read(i, text) for i, text in enumerate(texts)]
    return list(map(",".join, each)), Texts.of([",".join(hashes.values()) for hashes in each])


def _read(i: int, text: Raw) -> dict[str, str]:
    try:
        hashes = _decoder.decode(text)
    except msgspec.DecodeError as error:
        raise BadHashesError(i, bytes(text)) from error
    digests = "".join(hashes.values()).encode()
    if "," in "".join(hashes) or digests.translate(None, _HEX):
        raise BadHashesError(i, bytes(text))
    return hashes


def _columns_alike(texts: Sequence[Raw]) -> tuple[list[str], Texts] | None:
    """The columns if all texts have the form of the first one, else None."""
    n, first, hashes = len(texts), bytes(texts[0]), _read(0, texts[0])
    places = [found.span(1) for found in _DIGEST.finditer(first)]
    is_plain = b"\\" not in first and [first[begin:end].decode() for begin, end in places] == list(hashes.values())
    if not is_plain or set(map(len, texts)) != {len(first)}:
        return None
    rows = np.frombuffer(b"".join(texts), np.uint8).reshape(n, len(first))
    is_form = np.ones(len(first), np.bool_)
    for begin, end in places:
        is_form[begin:end] = False
    cut = [rows[:, begin : end + 1] for begin, end in places]  # with the quote after each, which becomes a comma
    columns = np.concatenate([rows[:, :0], *cut], axis=1)[:, :-1]
    digests = columns.tobytes()
    if (rows != rows[0]).any(axis=0)[is_form].any() or digests.translate(None, _HEX) != b'"' * (n * (len(places) - 1)):
        return None
    ends = np.arange(1, n + 1, dtype=np.int64) * columns.shape[1]
    return [",".join(hashes)] * n, Texts(digests.replace(b'"', b","), ends)
