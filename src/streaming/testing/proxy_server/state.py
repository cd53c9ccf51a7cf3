"""State that all connections share: rules, limits, counts and the log of requests."""

from __future__ import annotations

import asyncio
import random
import re
import time
import urllib.parse
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import h11

from streaming.testing.faults import Fault, FaultRule, LoggedRequest, ProxyCounts, ProxyLimits
from streaming.testing.proxy_server.pace import ByteRateLimiter, RequestRateLimiter

LOG_REQUESTS: Final = 100_000
_RANGE: Final = re.compile(r"\s*bytes=(\d*)-(\d*)\s*", re.ASCII)


class RuleBook:
    """Rules in order, with the number of requests that each has selected."""

    def __init__(self, rules: Sequence[FaultRule] = (), seed: int = 0) -> None:
        self.fired = [0] * len(rules)
        self.replaced = asyncio.Event()
        """Set when other rules take over, which ends stalls."""
        self._rules = [(rule, re.compile(rule.path)) for rule in rules]
        self._n_skipped = [0] * len(rules)
        self._met: list[set[str]] = [set() for _ in rules]
        self._rng = random.Random(seed)

    def match(self, method: str, path: str, *, ranged: bool) -> tuple[int, Fault] | None:
        """The first rule that selects this request, by index, and its fault. Counts the selection."""
        for number, (rule, pattern) in enumerate(self._rules):
            if (
                rule.method in (None, method)
                and rule.ranged in (None, ranged)
                and pattern.search(path) is not None
                and self._selects(number, rule, path)
            ):
                self.fired[number] += 1
                if rule.once_per_path:
                    self._met[number].add(path)
                return number, rule.fault
        return None

    def _selects(self, number: int, rule: FaultRule, path: str) -> bool:
        if self._n_skipped[number] < rule.skip:
            self._n_skipped[number] += 1
            return False
        if rule.times is not None and self.fired[number] >= rule.times:
            return False
        if path in self._met[number]:
            return False
        # Chance is drawn last, so requests that it does not decide have no influence on those that it does.
        return rule.probability == 1 or self._rng.random() < rule.probability


class ProxyState:
    """One per server process. Rules and limits may be replaced while connections are open."""

    def __init__(self) -> None:
        self.rules, self.limits = RuleBook(), ProxyLimits()
        self.request_rate = RequestRateLimiter()
        self.downlink, self.uplink = ByteRateLimiter(), ByteRateLimiter()
        self._counts = ProxyCounts()
        self._log: deque[LoggedRequest] = deque(maxlen=LOG_REQUESTS)
        self._n_ever = 0

    # --- commands of the parent process

    def set_rules(self, rules: Sequence[FaultRule], seed: int) -> None:
        """Replace all rules, which ends all stalls."""
        self.rules.replaced.set()
        self.rules = RuleBook(rules, seed)

    def set_limits(self, limits: ProxyLimits) -> None:
        """Replace all limits."""
        self.limits = limits

    def counts(self) -> ProxyCounts:
        """All counts."""
        return replace(self._counts, fired=tuple(self.rules.fired))

    def log(self) -> list[LoggedRequest]:
        """The latest requests."""
        return list(self._log)

    def reset_counts(self) -> None:
        """Count from zero, except that open connections are open; empty the log."""
        n_open = self._counts.open_connections
        self._counts = ProxyCounts(open_connections=n_open, peak_connections=n_open)
        self._log.clear()

    # --- reports of connections

    def connected(self) -> int:
        """Count a new client connection; return its number."""
        self._n_ever += 1
        counts = self._counts
        counts.n_connections += 1
        counts.open_connections += 1
        counts.peak_connections = max(counts.peak_connections, counts.open_connections)
        return self._n_ever

    def disconnected(self) -> None:
        """Count the end of a client connection."""
        self._counts.open_connections -= 1

    def begun(self, connection: int, request: h11.Request) -> LoggedRequest:
        """Log a request that has arrived; return the entry that the methods below update."""
        target = request.target.decode()
        if "://" in target.partition("?")[0]:  # as sent to a proxy, with scheme and host
            target = "/" + target.partition("://")[2].partition("/")[2]
        path, _, query = target.partition("?")
        headers = {name.decode().lower(): value.decode("latin-1") for name, value in request.headers.raw_items()}
        span, path = _requested_span(headers.get("range", "")), urllib.parse.unquote(path)
        entry = LoggedRequest(connection, request.method.decode(), path, query, headers, span, time.monotonic())
        self._log.append(entry)
        self._counts.requests_by_path[path] += 1
        return entry

    def answered(self, entry: LoggedRequest, status: int) -> None:
        """Count the head of an answer."""
        self._counts.requests[entry.method, status] += 1
        entry.status = status

    def sent(self, entry: LoggedRequest, n_bytes: int) -> None:
        """Count body bytes."""
        self._counts.bytes_by_path[entry.path] += n_bytes
        entry.n_bytes += n_bytes

    def ended(self, entry: LoggedRequest) -> None:
        """Note that a request is over, with or without an answer."""
        if not entry.status:
            self._counts.requests[entry.method, 0] += 1
        entry.ended_s = time.monotonic()


def _requested_span(value: str) -> tuple[int, int | None] | None:
    """The bytes that a Range header asks for, in the form of `LoggedRequest.span`."""
    found = _RANGE.fullmatch(value)
    if found is None or found[0].strip() in ("bytes=-", "bytes=-0"):
        return None
    first, last = found[1], found[2]
    if not first:
        return -int(last), None
    return int(first), int(last) + 1 if last else None
