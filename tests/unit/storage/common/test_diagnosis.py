"""What an answer means."""

from __future__ import annotations

import pytest

from streaming.errors import (
    CredentialsExpiredError,
    ObjectForbiddenError,
    ObjectMissingError,
    StorageError,
    StoreBusyError,
    StoreMovedError,
    TransferDamagedError,
)
from streaming.storage.common.diagnosis import Access, Refusal, diagnose, read_refusal

SAS_OVER = "<AuthenticationErrorDetail>Signature not valid in the specified time frame</AuthenticationErrorDetail>"
ACCESS = Access("s3://bucket/prefix", "http://endpoint:9000", "the keys of somebody", has_credentials=True)


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
    diagnosis = diagnose(read_refusal(status, body), has_credentials=True)
    assert (diagnosis.kind, diagnosis.is_throttled) == (kind, False)


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
    diagnosis = diagnose(read_refusal(status, body, retry_after_s=wait_s), has_credentials=True)
    error = diagnosis.error("key", ACCESS)
    assert isinstance(error, StoreBusyError)
    assert (error.is_throttled, error.retry_after_s) == (True, wait_s)


@pytest.mark.parametrize("status", [301, 401, 403, 404, 412, 429, 500])
def test_every_error_names_what_where_and_as_whom(status: int) -> None:
    """And what to check."""
    said = str(diagnose(Refusal(status), has_credentials=True).error("some key", ACCESS))
    for words in ("s3://bucket/prefix/some key", "http://endpoint:9000", "the keys of somebody", str(status)):
        assert words in said
    assert said.rpartition(";")[2].strip()


def test_who_asks_without_credentials_has_none_to_renew() -> None:
    """A 401 is then a refusal like any other."""
    assert diagnose(Refusal(401), has_credentials=False).kind is ObjectForbiddenError
