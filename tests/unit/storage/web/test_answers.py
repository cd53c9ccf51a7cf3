"""HTTP headers, and URLs."""

from __future__ import annotations

import email.utils

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.storage.web.answers import Body, body_of, condition_for, retry_after_s, url_of, version_of


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        (200, {"Content-Length": "10"}, Body(0, 10, 10)),
        (200, {}, Body(0, None, None)),
        (200, {"Content-Length": "ten"}, None),
        (206, {"Content-Range": "bytes 3-5/10", "Content-Length": "3"}, Body(3, 6, 10)),
        (206, {"Content-Range": "bytes 3-5/*"}, Body(3, 6, None)),
        (206, {"Content-Range": "bytes 5-3/10"}, None),
        (206, {"Content-Range": "bytes 3-10/10"}, None),
        (206, {"Content-Range": "lines 3-5/10"}, None),
        (206, {"Content-Type": "multipart/byteranges; boundary=x"}, None),
    ],
)
def test_headers_say_which_bytes_an_answer_brings(status: int, headers: dict[str, str], expected: Body | None) -> None:
    """Contradictory headers give None."""
    assert body_of(status, headers) == expected


def test_a_version_can_be_requested_unless_it_is_weak() -> None:
    """The version is an ETag, else a date."""
    assert version_of({"ETag": '"x"', "Last-Modified": "d"}) == '"x"'
    assert version_of({"Last-Modified": "d"}) == "d"
    assert version_of({}) is None
    assert condition_for('"x"') == {"If-Match": '"x"'}
    assert condition_for("d") == {"If-Unmodified-Since": "d"}
    assert condition_for('W/"x"') == condition_for(None) == {}


@given(wait_s=st.integers(0, 10**6), now_s=st.integers(0, 2 * 10**9))
def test_retry_after_is_seconds_or_a_date(wait_s: int, now_s: int) -> None:
    """Both forms give the same wait."""
    assert retry_after_s({"Retry-After": str(wait_s)}, now_s) == wait_s
    assert retry_after_s({"Retry-After": email.utils.formatdate(now_s + wait_s, usegmt=True)}, now_s) == wait_s


@pytest.mark.parametrize("said", ["", "soon", "-3", "1.5 s", "Wed, 99 Oct 2015"])
def test_a_senseless_wait_is_none(said: str) -> None:
    """A date in the past is no wait either."""
    assert retry_after_s({"Retry-After": said}, 0.0) is None
    assert retry_after_s({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 2e9) == 0.0


@pytest.mark.parametrize(
    ("base", "name", "query", "expected"),
    [
        ("https://h/a", "b", "", "https://h/a/b"),
        ("https://h", "b/c", "", "https://h/b/c"),
        ("https://h/a b", "c d", "", "https://h/a%20b/c%20d"),
        ("https://h/a%20b", "c%20d", "", "https://h/a%20b/c%2520d"),
        ("https://h/100%", "50%", "", "https://h/100%25/50%25"),
        ("https://h/ü", "日", "", "https://h/%C3%BC/%E6%97%A5"),
        ("https://h:1/a", "b?c#d", "?sig=x", "https://h:1/a/b%3Fc%23d?sig=x"),
        ("http://[::1]:8/a", "[b]", "", "http://[::1]:8/a/%5Bb%5D"),
        ("https://h/a", "", "", "https://h/a"),
    ],
)
def test_a_url_keeps_its_escapes_and_a_name_is_escaped(base: str, name: str, query: str, expected: str) -> None:
    """A base URL is written as in a browser; in a name every special character is literal."""
    assert url_of(base, name, query) == expected
