"""Reading bytes of a file, however few of them the system gives at once."""

from __future__ import annotations

import os
import tempfile
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.file_reads import read_at

_LARGE_BYTES: Final = (2 << 30) + 5
_LARGE_FILES: Final = os.environ.get("STREAMING_TEST_LARGE_FILES") == "1"


@given(
    content=st.binary(max_size=200),
    offset=st.integers(0, 220),
    n_bytes=st.integers(0, 220),
    call_bytes=st.integers(1, 220),
)
def test_all_bytes_come_however_few_a_call_gives(content: bytes, offset: int, n_bytes: int, call_bytes: int) -> None:
    """Those between the places that were named, and fewer only where the file ends."""
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        got = read_at(file.fileno(), n_bytes, offset, call_bytes=call_bytes)
    assert bytes(got) == content[offset : offset + n_bytes]


@pytest.mark.skipif(not _LARGE_FILES, reason="takes 2 GiB of memory: set STREAMING_TEST_LARGE_FILES=1")
def test_more_comes_than_the_system_gives_in_one_call() -> None:
    """A real file above the limit of one call: the last bytes are there."""
    with tempfile.TemporaryFile() as file:
        os.pwrite(file.fileno(), b"end", _LARGE_BYTES - 3)
        got = read_at(file.fileno(), _LARGE_BYTES, 0)
    assert len(got) == _LARGE_BYTES
    assert bytes(got[-3:]) == b"end"
