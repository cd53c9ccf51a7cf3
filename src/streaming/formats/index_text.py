"""The text of an `index.json`, a bounded part at a time.

A parsed index of 10⁵ shards is hundreds of megabytes of small objects, and building them all at once is several times
slower than a part at a time. The text is cut where one shard object ends and the next begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import orjson

PART_BYTES: Final = 1 << 16  # what is parsed at once should fit into the cache of a processor

_OPEN: Final = re.compile(rb'"shards"\s*:\s*\[')
_BETWEEN: Final = re.compile(rb"\}(\s*,\s*)\{")


def parts(text: bytes, *, part_bytes: int = PART_BYTES) -> Iterator[Any]:
    """The parsed document, once for each part of its shards; the last one has every key after `shards` as well.

    Raises orjson.JSONDecodeError where the text is not JSON. Cuts are guesses (`}, {`), but never wrong: what is
    before a cut parses as a whole document when closed with `]}` only if the cut lies between two elements of the
    list; otherwise the rest is parsed at once.
    """
    opening = _OPEN.search(text, 0, 1 << 16)
    if opening is None or len(text) <= part_bytes:
        yield orjson.loads(text)
        return
    head, start = text[: opening.end()], opening.end()
    while len(text) - start > part_bytes:
        cut = _BETWEEN.search(text, start + part_bytes)
        if cut is None:
            break
        try:
            part = orjson.loads(b"".join((head, text[start : cut.start(1)], b"]}")))
        except orjson.JSONDecodeError:
            break
        yield part
        start = cut.end(1)
    yield orjson.loads(b"".join((head, text[start:])))
