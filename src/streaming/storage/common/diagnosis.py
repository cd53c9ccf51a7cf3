"""What a store's refusal means: from status and error code to the kinds of `streaming.errors`. Pure.

Every store that speaks HTTP is judged here, so one answer means one thing, whichever client received it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from streaming.errors import (
    CredentialsExpiredError,
    ObjectForbiddenError,
    ObjectMissingError,
    StorageError,
    StoreBusyError,
    StoreCannotError,
    StoreMovedError,
    StoreUnreachableError,
    TransferDamagedError,
)
from streaming.storage.common.redaction import without_secrets

CHECK_NETWORK: Final = "check the endpoint, the network, and proxies (HTTP_PROXY, HTTPS_PROXY, NO_PROXY)"

_NO_BUCKET: Final = frozenset(
    {"BucketNotFound", "NoSuchBucket", "ContainerNotFound", "FilesystemNotFound", "AccountNotFound"}
)
_EXPIRED: Final = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"})
_EXPIRED_WORDS: Final = re.compile(r"\bexpired\b|not valid in the specified time frame", re.IGNORECASE)
_THROTTLED: Final = frozenset(
    {
        "BandwidthLimitExceeded",
        "RequestLimitExceeded",
        "ServerBusy",
        "ServiceUnavailable",  # S3's other name for SlowDown
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
        "TooManyRequestsException",
        "rateLimitExceeded",
        "userRateLimitExceeded",
    }
)
_BUSY: Final = frozenset({"InternalError", "OperationTimedOut", "RequestTimeout", "backendError"})
# Error bodies are XML (S3, Azure, Google) or JSON (Google, others).
_CODE_IN: Final = re.compile(r"<Code>([^<]{1,100})</Code>|\"(?:reason|error_code|code)\":\s*\"([^\"]{1,100})\"")
_MESSAGE_IN: Final = re.compile(r"<Message>([^<\n]{1,300})|\"message\":\s*\"([^\"]{1,300})\"")
_DETAIL_IN: Final = re.compile(r"<AuthenticationErrorDetail>([^<\n]{1,300})")
_REGION_IN: Final = re.compile(r"<Region>([^<]{1,40})</Region>")
_MOVED: Final = frozenset(
    {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect", "TemporaryRedirect"}
)


@dataclass(frozen=True, slots=True)
class Access:
    """Where a store is reached, and as whom. Holds no secrets: it is for messages."""

    place: str  # the URL that names are relative to
    endpoint: str
    identity: str  # completes "asked with …"
    has_credentials: bool


@dataclass(frozen=True, slots=True)
class Refusal:
    """An HTTP answer that is an error: its status, and what its body says."""

    status: int
    code: str = ""
    message: str = ""
    region: str = ""  # where the bucket is, if the store says so
    retry_after_s: float | None = None

    @property
    def shown(self) -> str:
        """For messages: status, code and message."""
        said = ": ".join(text for text in (self.code, self.message.strip()) if text)
        return f"the store answered {self.status}{f' ({said})' if said else ''}"


def read_refusal(
    status: int, body: str, *, headers: Mapping[str, str] | None = None, retry_after_s: float | None = None
) -> Refusal:
    """Read the reason from (the beginning of) a body in XML or JSON, else from headers of the Hugging Face hub."""
    headers = headers or {}
    message = " ".join(text for text in (_first(_MESSAGE_IN, body), _first(_DETAIL_IN, body)) if text)
    code = _first(_CODE_IN, body) or headers.get("X-Error-Code", "")
    message = message or headers.get("X-Error-Message", "")
    return Refusal(status, code, message, _first(_REGION_IN, body), retry_after_s)


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return next((group for group in found.groups() if group), "") if found else ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """An error to raise: its kind, what happened, and what the user should check."""

    kind: type[StorageError]
    what: str
    check: str
    is_throttled: bool = False
    retry_after_s: float | None = None
    is_beyond_end: bool = False

    def error(self, name: str, access: Access) -> StorageError:
        """Make the error for the object `name`; "" is the whole place."""
        shown = f"{access.place.rstrip('/')}/{name}" if name else access.place
        what = without_secrets(self.what)  # servers and clients repeat URLs that were signed
        error = self.kind(f"{shown}: {what}. Asked at {access.endpoint} with {access.identity}; {self.check}")
        if isinstance(error, StoreBusyError):
            error.is_throttled, error.retry_after_s = self.is_throttled, self.retry_after_s
        if isinstance(error, TransferDamagedError):
            error.is_beyond_end = self.is_beyond_end
        return error


def diagnose(refusal: Refusal, *, has_credentials: bool) -> Diagnosis:
    """Say what a refusal means for a request with or without credentials."""
    status, code = refusal.status, refusal.code
    if status == 429 or code in _THROTTLED or (status == 503 and refusal.retry_after_s is not None):
        check = "ask it less often: fewer jobs at once, larger shards"
        return Diagnosis(StoreBusyError, f"{refusal.shown}: it asks to slow down", check, True, refusal.retry_after_s)
    if code in _MOVED or status in (301, 302, 303, 307, 308):
        return _moved(refusal)
    if code in _EXPIRED or (status in (400, 401, 403) and _EXPIRED_WORDS.search(refusal.message)):
        return Diagnosis(CredentialsExpiredError, f"{refusal.shown}: these credentials have expired", "renew them")
    if code in _NO_BUCKET:
        return Diagnosis(
            ObjectMissingError,
            f"{refusal.shown}: there is no such bucket",
            "check the bucket's name and the endpoint",
        )
    if status in (404, 410):
        check = "check the path; without the right to list, a store hides what it has"
        return Diagnosis(ObjectMissingError, refusal.shown, check)
    if status in (401, 403, 407):
        return _forbidden(refusal, has_credentials)
    if status in (412, 416):
        return Diagnosis(
            TransferDamagedError,
            f"{refusal.shown}: the object changed while it was read, or is shorter than its index says",
            "check who writes to it",
            is_beyond_end=status == 416,
        )
    if status in (405, 501):
        return Diagnosis(StoreCannotError, f"{refusal.shown}: it does no such thing", "check that it takes uploads")
    if status == 408 or status >= 500 or code in _BUSY:
        return Diagnosis(StoreBusyError, refusal.shown, "the store is broken or overloaded; try later")
    return Diagnosis(StorageError, refusal.shown, "check the path and the endpoint")


def _moved(refusal: Refusal) -> Diagnosis:
    where = f", namely {refusal.region!r}" if refusal.region else ""
    return Diagnosis(
        StoreMovedError,
        f"{refusal.shown}: the bucket is in another region{where}, or behind another endpoint",
        "set AWS_REGION, or `region` in storage_options, to the bucket's region; else check the endpoint",
    )


def _forbidden(refusal: Refusal, has_credentials: bool) -> Diagnosis:
    if refusal.status == 407:
        return Diagnosis(StoreUnreachableError, f"{refusal.shown}: the proxy wants a user", "check the proxy's URL")
    if refusal.code == "RequestTimeTooSkewed":
        return Diagnosis(ObjectForbiddenError, refusal.shown, "check this machine's clock")
    if refusal.status == 401 and has_credentials:  # no store says more; renewing is worth one try
        return Diagnosis(
            CredentialsExpiredError, f"{refusal.shown}: it does not take these credentials", "check or renew them"
        )
    return Diagnosis(ObjectForbiddenError, refusal.shown, "check these credentials and the bucket's policy")


def unreachable(what: str) -> Diagnosis:
    """Diagnose that no answer came; `what` says why."""
    return Diagnosis(StoreUnreachableError, what, CHECK_NETWORK)


def broken_off() -> Diagnosis:
    """Diagnose that an answer ended before all of its bytes had come."""
    return Diagnosis(TransferDamagedError, "the connection broke before all bytes had come", CHECK_NETWORK)
