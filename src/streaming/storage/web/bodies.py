"""Answers of HTTP as what a store gives: checked against what was asked for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from streaming.errors import TransferDamagedError
from streaming.storage.store import Content, ObjectFacts, Part
from streaming.storage.web.answers import body_of
from streaming.storage.web.client import HttpAnswer


def content_of(answer: HttpAnswer, facts: ObjectFacts, offset: int, *, shown: str) -> Content:
    """The object from `offset` on, also if it came whole."""
    body = body_of(answer.status, answer.headers)
    if body is None or body.begin not in (0, offset) or body.end not in (None, facts.n_bytes):
        raise _damaged(answer, f"{shown}: bytes from {offset} on were asked for, others came")
    return Content(facts, offset, skipped(iter(answer), offset - body.begin))


def part_of(answer: HttpAnswer, facts: ObjectFacts, begin: int, end: int, *, shown: str) -> Part:
    """The bytes asked for, also if the object came whole; for stores that send small objects so, if any."""
    body = body_of(answer.status, answer.headers)
    if body is None or body.begin not in (0, begin) or (body.end is not None and body.end < end):
        raise _damaged(answer, f"{shown}: bytes {begin} to {end} were asked for, others of {facts.n_bytes} came")
    data = answer.read()[begin - body.begin : end - body.begin]
    if len(data) != end - begin:
        raise _damaged(answer, f"{shown}: bytes {begin} to {end} were asked for, {len(data)} came")
    return Part(facts, data)


def skipped(chunks: Iterator[bytes], n_bytes: int) -> Iterator[bytes]:
    """The same bytes without the first ones."""
    if not n_bytes:
        yield from chunks
        return
    for chunk in chunks:
        if n_bytes < len(chunk):
            yield from itertools.chain((chunk[n_bytes:],), chunks)
            return
        n_bytes -= len(chunk)


def _damaged(answer: HttpAnswer, what: str) -> TransferDamagedError:
    answer.close()
    return TransferDamagedError(f"{what}; check who writes to it")
