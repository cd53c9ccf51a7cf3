"""The diagnosis of refusals."""

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
def test_each_refusal_has_one_kind(status: int, body: str, kind: type[StorageError]) -> None:
    """None of these is a request to slow down."""
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
def test_a_request_to_slow_down_is_recognized_in_every_dialect(status: int, body: str, wait_s: float | None) -> None:
    """The error has the time to wait, if the store states one."""
    diagnosis = diagnose(read_refusal(status, body, retry_after_s=wait_s), has_credentials=True)
    error = diagnosis.error("key", ACCESS)
    assert isinstance(error, StoreBusyError)
    assert (error.is_throttled, error.retry_after_s) == (True, wait_s)


@pytest.mark.parametrize("status", [301, 401, 403, 404, 412, 429, 500])
def test_every_error_names_object_endpoint_and_credentials(status: int) -> None:
    """And it says what to check."""
    said = str(diagnose(Refusal(status), has_credentials=True).error("some key", ACCESS))
    for words in ("s3://bucket/prefix/some key", "http://endpoint:9000", "the keys of somebody", str(status)):
        assert words in said
    assert said.rpartition(";")[2].strip()


def test_requests_without_credentials_have_none_to_renew() -> None:
    """For them a 401 is a refusal like any other."""
    assert diagnose(Refusal(401), has_credentials=False).kind is ObjectForbiddenError
