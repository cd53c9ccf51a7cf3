"""Values that a FaultProxy takes and gives: faults, rules and limits in; counts and logged requests out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from streaming.errors import OptionError

BodyPosition = int | float
"""A place in a body: an int counts bytes; a float from 0 to 1 is a fraction of the body's length."""

_FRAMING: Final = {"content-length", "transfer-encoding"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """How an answer deviates from the plain one. Everything that is set applies to the same request."""

    status: int | None = None
    """The proxy answers with this error in S3's form; the store never sees the request."""
    code: str | None = None
    """The `<Code>` of that error. None: the usual code of the status."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Added to any answer; they replace headers of the same names. Content-Length and Transfer-Encoding are refused."""
    reset: Literal["before", "after"] | None = None
    """Reset the connection instead of answering: before the store sees the request, or after it has answered."""
    stall_s: float = 0.0
    """Send nothing for this long, then continue. `FaultProxy.set_rules` ends every stall at once."""
    stall_after: BodyPosition | None = None
    """Where in the body to stall. None: before the request is served. At or beyond the body's end: no effect."""
    cut_after: BodyPosition | None = None
    """Where in the body to end the connection. At or beyond the body's end: no effect."""
    cut_by: Literal["close", "reset"] = "close"
    """`close` delivers every byte before the cut; `reset` may lose some of them."""
    flip_at: BodyPosition | None = None
    """Position of a byte that arrives with one bit inverted. At or beyond the body's end: no effect."""
    no_length: Literal["chunked", "close"] | None = None
    """Omit Content-Length: send the body in chunks, or end it by closing the connection."""
    ignore_range: bool = False
    """Answer 200 with the whole object. Impossible if the store behind the proxy checks a signature over Range."""
    etag: Literal["drop", "change"] | None = None
    """Omit the ETag, or send a different one."""

    def __post_init__(self) -> None:
        if self.status is not None and not 300 <= self.status <= 599:
            raise OptionError(f"status must be that of a redirect or an error, 300 to 599, got {self.status}")
        if not self.stall_s >= 0:
            raise OptionError(f"stall_s must be 0 or more, got {self.stall_s}")
        if framing := _FRAMING.intersection(map(str.lower, self.headers)):
            raise OptionError(f"headers must leave the framing to no_length and cut_after, got {sorted(framing)}")
        for name in ("stall_after", "cut_after", "flip_at"):
            at = getattr(self, name)
            if at is not None and not (at >= 0 and (isinstance(at, int) or at <= 1)):
                raise OptionError(f"{name} must be a number of bytes, or a share of the body as a float, got {at!r}")


@dataclass(frozen=True, slots=True)
class FaultRule:
    """Selects the requests that meet a fault. A request that one rule does not select is left to the next."""

    fault: Fault
    path: str = ""
    """Regular expression, searched for in the decoded path without its query: `/bucket/key`."""
    method: str | None = None
    ranged: bool | None = None
    """True: only requests with a Range header. False: only requests without one."""
    probability: float = 1.0
    skip: int = 0
    """Let this many matching requests pass first."""
    times: int | None = None
    """Select at most this many requests."""
    once_per_path: bool = False
    """Select only the first matching request of each path."""

    def __post_init__(self) -> None:
        try:
            re.compile(self.path)
        except re.error as error:
            raise OptionError(f"path={self.path!r} is no regular expression: {error}") from error
        if not 0 <= self.probability <= 1:
            raise OptionError(f"probability must be from 0 to 1, got {self.probability}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyLimits:
    """How slow the store is for all clients together. None: no limit."""

    latency_s: float = 0.0
    """Delay of each request before it is served."""
    bytes_per_s: float | None = None
    """Rate of all bodies in one direction together; connections with bytes to send get equal shares."""
    connection_bytes_per_s: float | None = None
    """Rate of the bodies of one connection in one direction."""
    requests_per_s: float | None = None
    """Requests above this rate are refused; a burst of one second's requests is allowed."""
    refusal_status: int = 429
    retry_after_s: int | None = 1
    """The Retry-After header of a refusal. None: no such header."""

    def __post_init__(self) -> None:
        if not self.latency_s >= 0:
            raise OptionError(f"latency_s must be 0 or more, got {self.latency_s}")
        for name in ("bytes_per_s", "connection_bytes_per_s", "requests_per_s"):
            rate = getattr(self, name)
            if rate is not None and not rate > 0:
                raise OptionError(f"{name} must be above 0, or None for no limit, got {rate}")


@dataclass(slots=True)
class ProxyCounts:
    """Counts since the start or the last `reset_counts()`."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    """By method and status, counted when the answer begins; status 0 stands for requests that got no answer."""
    requests_by_path: Counter[str] = field(default_factory=Counter)
    """Counted when a request arrives."""
    bytes_by_path: Counter[str] = field(default_factory=Counter)
    """Body bytes handed to the kernel; a client that disconnects may have received fewer."""
    fired: tuple[int, ...] = ()
    """For each rule, the requests it has selected since it was set."""
    n_connections: int = 0
    """Client connections accepted."""
    open_connections: int = 0
    peak_connections: int = 0
    """The largest number open at one time."""

    @property
    def n_requests(self) -> int:
        """Requests to all paths."""
        return self.requests_by_path.total()

    @property
    def n_bytes(self) -> int:
        """Body bytes sent for all paths."""
        return self.bytes_by_path.total()


@dataclass(slots=True)
class LoggedRequest:
    """One request and its progress so far; times are those of `time.monotonic()`, which all processes share."""

    connection: int
    method: str
    path: str
    """Decoded, without the query."""
    query: str
    headers: dict[str, str]
    """By lower-case name."""
    span: tuple[int, int | None] | None
    """The requested bytes: first and one beyond the last; (-n, None) for the last n; None without a single range."""
    began_s: float
    ended_s: float | None = None
    """None while the request is in progress."""
    status: int = 0
    n_bytes: int = 0
    """Body bytes sent so far."""
    rule: int | None = None
    """Index of the rule that selected the request."""
