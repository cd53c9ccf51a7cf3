"""What headers say, which way a URL takes, what an answer means."""

from __future__ import annotations

import email.utils

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.errors import (
    CredentialsExpiredError,
    ObjectForbiddenError,
    ObjectMissingError,
    StorageError,
    StoreBusyError,
    StoreMovedError,
    TransferDamagedError,
)
from streaming.storage.http_answers import Body, body_of, condition_for, retry_after_s, url_of, version_of
from streaming.storage.meaning import Answer, Asked, meaning_of, read_answer
from streaming.storage.proxies import is_excluded, proxy_for

SAS_OVER = "<AuthenticationErrorDetail>Signature not valid in the specified time frame</AuthenticationErrorDetail>"
ASKED = Asked("s3://bucket/prefix", "http://endpoint:9000", "the keys of somebody", has_credentials=True)


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
def test_an_answer_says_what_it_brings_or_contradicts_itself(
    status: int, headers: dict[str, str], expected: Body | None
) -> None:
    """Nothing is guessed."""
    assert body_of(status, headers) == expected


def test_a_version_can_be_asked_for_unless_it_is_weak() -> None:
    """An ETag, else a date."""
    assert version_of({"ETag": '"x"', "Last-Modified": "d"}) == '"x"'
    assert version_of({"Last-Modified": "d"}) == "d"
    assert version_of({}) is None
    assert condition_for('"x"') == {"If-Match": '"x"'}
    assert condition_for("d") == {"If-Unmodified-Since": "d"}
    assert condition_for('W/"x"') == condition_for(None) == {}


@given(wait_s=st.integers(0, 10**6), now_s=st.integers(0, 2 * 10**9))
def test_retry_after_is_seconds_or_a_date(wait_s: int, now_s: int) -> None:
    """Both mean the same wait."""
    assert retry_after_s({"Retry-After": str(wait_s)}, now_s) == wait_s
    assert retry_after_s({"Retry-After": email.utils.formatdate(now_s + wait_s, usegmt=True)}, now_s) == wait_s


@pytest.mark.parametrize("said", ["", "soon", "-3", "1.5 s", "Wed, 99 Oct 2015"])
def test_a_wait_that_makes_no_sense_is_none(said: str) -> None:
    """Nor is a past date a wait."""
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
    """A URL is written as in a browser; a name stands for itself."""
    assert url_of(base, name, query) == expected


@pytest.mark.parametrize(
    ("url", "options", "environment", "expected"),
    [
        ("http://h/x", {}, {}, None),
        ("http://h/x", {}, {"HTTP_PROXY": "http://p:1"}, "http://p:1"),
        ("http://h/x", {}, {"http_proxy": "p:1", "HTTP_PROXY": "q:1"}, "http://p:1"),
        ("https://h/x", {}, {"HTTP_PROXY": "http://p:1"}, None),
        ("https://h/x", {}, {"HTTPS_PROXY": "http://p:1"}, "http://p:1"),
        ("https://h/x", {}, {"ALL_PROXY": "http://p:1"}, "http://p:1"),
        ("http://h/x", {}, {"HTTP_PROXY": "http://p:1", "NO_PROXY": "h"}, None),
        ("http://h/x", {"proxy": "http://o:1"}, {"HTTP_PROXY": "http://p:1", "NO_PROXY": "h"}, "http://o:1"),
        ("http://h/x", {"proxy": "http://o:1", "no_proxy": "h"}, {}, None),
    ],
)
def test_the_way_is_direct_or_through_a_proxy(
    url: str, options: dict[str, str], environment: dict[str, str], expected: str | None
) -> None:
    """Options first, then the variables that everybody reads."""
    assert proxy_for(url, options, environment) == expected


@pytest.mark.parametrize(
    ("host", "port", "excluded", "expected"),
    [
        ("a.example.com", None, "example.com", True),
        ("a.example.com", None, ".example.com", True),
        ("a.example.com", None, "*.example.com", True),
        ("example.com", None, "example.com", True),
        ("badexample.com", None, "example.com", False),
        ("A.Example.com", None, "x, a.example.COM ", True),
        ("h", 8080, "h:8080", True),
        ("h", 8081, "h:8080", False),
        ("10.1.2.3", None, "10.0.0.0/8", True),
        ("11.1.2.3", None, "10.0.0.0/8", False),
        ("h", None, "10.0.0.0/8", False),
        ("h", None, "*", True),
        ("h", None, "", False),
        ("127.0.0.1", 80, "localhost,127.0.0.1", True),
    ],
)
def test_a_list_of_exceptions_covers_a_host_or_not(host: str, port: int | None, excluded: str, expected: bool) -> None:
    """Names, suffixes, ports, networks."""
    assert is_excluded(host, port, excluded) is expected


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (404, "<Code>NoSuchKey</Code>", ObjectMissingError),
        (404, "<Code>NoSuchBucket</Code>", ObjectMissingError),
        (410, "", ObjectMissingError),
        (403, "<Code>AccessDenied</Code>", ObjectForbiddenError),
        (403, "<Code>SignatureDoesNotMatch</Code>", ObjectForbiddenError),
        (400, "<Code>ExpiredToken</Code>", CredentialsExpiredError),
        (403, "<Code>AccessDenied</Code><Message>Request has expired</Message>", CredentialsExpiredError),
        (403, f"<Code>AuthenticationFailed</Code>{SAS_OVER}", CredentialsExpiredError),
        (
            401,
            '{"error": {"message": "Invalid Credentials", "errors": [{"reason": "authError"}]}}',
            CredentialsExpiredError,
        ),
        (301, "<Code>PermanentRedirect</Code>", StoreMovedError),
        (400, "<Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region>", StoreMovedError),
        (412, "", TransferDamagedError),
        (416, "<Code>InvalidRange</Code>", TransferDamagedError),
        (408, "", StoreBusyError),
        (400, "<Code>RequestTimeout</Code>", StoreBusyError),
        (500, "<html>", StoreBusyError),
        (503, "", StoreBusyError),
        (418, "", StorageError),
    ],
)
def test_each_answer_is_of_one_kind(status: int, body: str, kind: type[StorageError]) -> None:
    """And none of these is a request to slow down."""
    meaning = meaning_of(read_answer(status, body), has_credentials=True)
    assert (meaning.kind, meaning.is_throttled) == (kind, False)


@pytest.mark.parametrize(
    ("status", "body", "wait_s"),
    [
        (429, "", None),
        (429, "", 7.0),
        (503, "<Code>SlowDown</Code>", None),
        (503, "<Code>ServiceUnavailable</Code>", None),
        (503, "<Code>ServerBusy</Code>", None),
        (503, "", 3.0),
        (403, '{"errors": [{"reason": "rateLimitExceeded"}]}', None),
        (403, '{"errors": [{"reason": "userRateLimitExceeded"}]}', None),
        (400, "<Code>ThrottlingException</Code>", None),
    ],
)
def test_a_request_to_slow_down_is_known_in_every_dialect(status: int, body: str, wait_s: float | None) -> None:
    """With how long to wait, where it is said."""
    meaning = meaning_of(read_answer(status, body, retry_after_s=wait_s), has_credentials=True)
    error = meaning.error("key", ASKED)
    assert isinstance(error, StoreBusyError)
    assert (error.is_throttled, error.retry_after_s) == (True, wait_s)


@pytest.mark.parametrize("status", [301, 401, 403, 404, 412, 429, 500])
def test_every_error_names_what_where_and_as_whom(status: int) -> None:
    """And what to check."""
    said = str(meaning_of(Answer(status), has_credentials=True).error("some key", ASKED))
    for words in ("s3://bucket/prefix/some key", "http://endpoint:9000", "the keys of somebody", str(status)):
        assert words in said
    assert said.rpartition(";")[2].strip()


def test_who_asks_without_credentials_has_none_to_renew() -> None:
    """A 401 is then a refusal like any other."""
    assert meaning_of(Answer(401), has_credentials=False).kind is ObjectForbiddenError
