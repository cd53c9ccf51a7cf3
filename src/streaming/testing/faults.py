"""What a FaultProxy is told, and what it tells: faults, rules, limits and counts. Values only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from streaming.errors import OptionError

Spot = int | float
"""A place in a body: an int counts bytes, a float from 0 to 1 is a share of the whole length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What a request meets instead of the plain answer. All that is set happens, to the same request."""

    status: int | None = None
    """Answered by the proxy, with an error in the form of S3; the store never hears of the request."""
    code: str | None = None
    """The `<Code>` of that error; None: the usual one of the status."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Put into the answer, whoever made it, in place of its own of these names."""
    reset: Literal["before", "after"] | None = None
    """Break the connection without a byte of an answer: before the store hears of the request, or when it is done."""
    stall_s: float = 0.0
    """Send nothing for so long, then go on."""
    stall_after: Spot | None = None
    """Where in the body; None: before the head; at the end of the body or beyond: no effect."""
    cut_after: Spot | None = None
    """End the connection here in the body; at its end or beyond: no effect."""
    cut_by: Literal["close", "reset"] = "close"
    """Orderly, so that all bytes before arrive; or by a reset, which may take some of them along."""
    flip_at: Spot | None = None
    """One bit of the byte here arrives changed; at the end of the body or beyond: no effect."""
    no_length: Literal["chunked", "close"] | None = None
    """No Content-Length: the body comes in chunks, or ends with the connection."""
    ignore_range: bool = False
    """Answer 200 with the whole object. A store behind the proxy must not check a signature over Range."""
    etag: Literal["drop", "change"] | None = None
    """Leave the ETag out, or give another one."""

    def __post_init__(self) -> None:
        if self.status is not None and not 400 <= self.status <= 599:
            raise OptionError(f"status must be that of an error, 400 to 599, got {self.status}")
        if not self.stall_s >= 0:
            raise OptionError(f"stall_s must be 0 or more, got {self.stall_s}")
        for name in ("stall_after", "cut_after", "flip_at"):
            spot = getattr(self, name)
            if spot is not None and not (spot >= 0 and (isinstance(spot, int) or spot <= 1)):
                raise OptionError(f"{name} must be a number of bytes, or a share of the body as a float, got {spot!r}")


@dataclass(frozen=True, slots=True)
class Rule:
    """Which requests meet a fault. Those that it does not meet are left to the next rule."""

    fault: Fault
    path: str = ""
    """A regular expression, looked for in the decoded path without its query: `/bucket/key`."""
    method: str | None = None
    ranged: bool | None = None
    """Only requests with Range, or only those without."""
    probability: float = 1.0
    times: int | None = None
    """Only the next so many."""
    once_per_path: bool = False
    """Only the first of each path."""

    def __post_init__(self) -> None:
        try:
            re.compile(self.path)
        except re.error as error:
            raise OptionError(f"path={self.path!r} is no regular expression: {error}") from error
        if not 0 <= self.probability <= 1:
            raise OptionError(f"probability must be from 0 to 1, got {self.probability}")

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Rule:
        """The rule that `asdict` gave."""
        return cls(**{**found, "fault": Fault(**found["fault"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How slow the store is, for all requests together. None: no limit."""

    latency_s: float = 0.0
    """Added to each request, before the first byte of its answer."""
    bytes_per_s: float | None = None
    """Of all bodies of one direction together; connections that want bytes get equal shares."""
    connection_bytes_per_s: float | None = None
    """Of the bodies of one connection and direction."""
    requests_per_s: float | None = None
    """Above it requests are refused; a second's worth may come at once."""
    refusal_status: int = 429
    retry_after_s: int | None = 1
    """The Retry-After of a refusal; None: it has none."""

    def __post_init__(self) -> None:
        if not self.latency_s >= 0:
            raise OptionError(f"latency_s must be 0 or more, got {self.latency_s}")
        for name in ("bytes_per_s", "connection_bytes_per_s", "requests_per_s"):
            rate = getattr(self, name)
            if rate is not None and not rate > 0:
                raise OptionError(f"{name} must be above 0, or None for no limit, got {rate}")


@dataclass(frozen=True, slots=True)
class Counts:
    """What has happened since the start or the last `reset_counts()`."""

    requests: dict[tuple[str, int], int]
    """By method and status, once the answer has begun; status 0: it ended without an answer."""
    requests_by_path: dict[str, int]
    """Counted when they come."""
    bytes_by_path: dict[str, int]
    """Of bodies, handed to the kernel for the client; a client that hangs up may have seen less."""
    fired: tuple[int, ...]
    """How many requests each rule has met since it was set."""
    n_connections: int
    """Of clients, ever opened."""
    open_connections: int
    peak_connections: int
    """Most that were open at once."""

    @property
    def n_requests(self) -> int:
        """All of them."""
        return sum(self.requests_by_path.values())

    @property
    def n_bytes(self) -> int:
        """Of all bodies."""
        return sum(self.bytes_by_path.values())

    def to_json(self) -> dict[str, Any]:
        """What `from_json` takes."""
        return {**asdict(self), "requests": [[*key, n] for key, n in self.requests.items()]}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Counts:
        """The counts that `to_json` gave."""
        requests = {(method, status): n for method, status, n in found["requests"]}
        return cls(**{**found, "requests": requests, "fired": tuple(found["fired"])})


@dataclass(slots=True)
class LoggedRequest:
    """One request, as far as it has come; times are those of `time.monotonic()`, the same in all processes."""

    connection: int
    method: str
    path: str
    query: str
    span: tuple[int, int | None] | None
    """Bytes asked for by Range: first, and one beyond the last; (-n, None) for the last n; None: no single range."""
    began_s: float
    ended_s: float | None = None
    """None: it still goes on."""
    status: int = 0
    n_bytes: int = 0
    """Of the answer's body, so far."""
    rule: int | None = None
    """Number of the rule that it met."""

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> LoggedRequest:
        """The request that `asdict` gave."""
        return cls(**{**found, "span": found["span"] and tuple(found["span"])})
