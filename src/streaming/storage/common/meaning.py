"""What a store's refusal means: from status and error code to the kinds of `streaming.errors`. Pure.

All stores that speak HTTP are judged here, so that the same answer means the same whoever's client received it.
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
class Asked:
    """Where a store is asked, and as whom; for messages, so without secrets."""

    place: str  # the URL of what names are below
    endpoint: str
    identity: str  # completes "asked with …"
    has_credentials: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """What a store said instead of what was asked for."""

    status: int
    code: str = ""  # of its error body
    message: str = ""
    region: str = ""  # where it says that the bucket is
    retry_after_s: float | None = None

    @property
    def shown(self) -> str:
        """As much of it as helps."""
        said = ": ".join(text for text in (self.code, self.message.strip()) if text)
        return f"the store answered {self.status}{f' ({said})' if said else ''}"


def read_answer(
    status: int, body: str, *, headers: Mapping[str, str] | None = None, retry_after_s: float | None = None
) -> Answer:
    """The answer with this status, whose body (or its beginning) says why; else headers, as the Hugging Face hub's."""
    headers = headers or {}
    message = " ".join(text for text in (_first(_MESSAGE_IN, body), _first(_DETAIL_IN, body)) if text)
    code = _first(_CODE_IN, body) or headers.get("X-Error-Code", "")
    message = message or headers.get("X-Error-Message", "")
    return Answer(status, code, message, _first(_REGION_IN, body), retry_after_s)


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return next((group for group in found.groups() if group), "") if found else ""


@dataclass(frozen=True, slots=True)
class Meaning:
    """The kind of an error, what happened, and what to check."""

    kind: type[StorageError]
    what: str
    check: str
    is_throttled: bool = False
    retry_after_s: float | None = None

    def error(self, name: str, asked: Asked) -> StorageError:
        """The error to raise for the object `name`."""
        shown = f"{asked.place.rstrip('/')}/{name}" if name else asked.place
        error = self.kind(f"{shown}: {self.what}. Asked at {asked.endpoint} with {asked.identity}; {self.check}")
        if isinstance(error, StoreBusyError):
            error.is_throttled, error.retry_after_s = self.is_throttled, self.retry_after_s
        return error


def meaning_of(answer: Answer, *, has_credentials: bool) -> Meaning:
    """What this answer means for who asked."""
    status, code = answer.status, answer.code
    if status == 429 or code in _THROTTLED or (status == 503 and answer.retry_after_s is not None):
        check = "ask it less often: fewer jobs at once, larger shards"
        return Meaning(StoreBusyError, f"{answer.shown}: it asks to slow down", check, True, answer.retry_after_s)
    if code in _MOVED or status in (301, 302, 303, 307, 308):
        return _moved(answer)
    if code in _EXPIRED or (status in (400, 401, 403) and _EXPIRED_WORDS.search(answer.message)):
        return Meaning(CredentialsExpiredError, f"{answer.shown}: these credentials have expired", "renew them")
    if code in _NO_BUCKET:
        return Meaning(
            ObjectMissingError,
            f"{answer.shown}: there is no such bucket",
            "check the bucket's name and the endpoint",
        )
    if status in (404, 410):
        check = "check the path; without the right to list, a store hides what it has"
        return Meaning(ObjectMissingError, answer.shown, check)
    if status in (401, 403, 407):
        return _forbidden(answer, has_credentials)
    if status in (412, 416):
        return Meaning(
            TransferDamagedError,
            f"{answer.shown}: the object changed while it was read, or is shorter than its index says",
            "check who writes to it",
        )
    if status in (405, 501):
        return Meaning(StoreCannotError, f"{answer.shown}: it does no such thing", "check that it takes uploads")
    if status == 408 or status >= 500 or code in _BUSY:
        return Meaning(StoreBusyError, answer.shown, "the store is broken or overloaded; try later")
    return Meaning(StorageError, answer.shown, "check the path and the endpoint")


def _moved(answer: Answer) -> Meaning:
    where = f", namely {answer.region!r}" if answer.region else ""
    return Meaning(
        StoreMovedError,
        f"{answer.shown}: the bucket is in another region{where}, or behind another endpoint",
        "set AWS_REGION, or `region` in storage_options, to the bucket's region; else check the endpoint",
    )


def _forbidden(answer: Answer, has_credentials: bool) -> Meaning:
    if answer.status == 407:
        return Meaning(StoreUnreachableError, f"{answer.shown}: the proxy wants a user", "check the proxy's URL")
    if answer.code == "RequestTimeTooSkewed":
        return Meaning(ObjectForbiddenError, answer.shown, "check this machine's clock")
    if answer.status == 401 and has_credentials:  # no store says more; renewing is worth one try
        return Meaning(
            CredentialsExpiredError, f"{answer.shown}: it does not take these credentials", "check or renew them"
        )
    return Meaning(ObjectForbiddenError, answer.shown, "check these credentials and the bucket's policy")


def unreachable(what: str) -> Meaning:
    """No answer came."""
    return Meaning(StoreUnreachableError, what, CHECK_NETWORK)


def broken_off() -> Meaning:
    """An answer ended too soon."""
    return Meaning(TransferDamagedError, "the connection broke before all bytes had come", CHECK_NETWORK)
