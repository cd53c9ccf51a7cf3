"""Requests of one process and their answers, whatever happens to the fetcher meanwhile.

1. A connection belongs to one process and one thread.
2. When the fetcher dies, a request starts another and is sent again, after the lists that the last fetcher knew.
3. Whatever is interrupted in the middle of an answer loses its connection, so answers never meet the wrong request.
4. Every wait has a deadline, which counts from the last time that anything moved; its error says what was waited for.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any, Final, Protocol

from streaming.errors import CredentialsWantedError, DeadlineError, FetchError
from streaming.fetch.client.connector import ANSWER_S, Connector, NoneListensError
from streaming.fetch.client.providers import Providers
from streaming.fetch.wire.credentials import Credentials
from streaming.fetch.wire.protocol import SLICE_S, Announce, Answer, Connection, Done, Failed, GiveCredentials, Request
from streaming.fetch.wire.rendezvous import log_tail

_MAX_DEATHS: Final = 5
"""Deaths of the fetcher within one request before it counts as an error."""
_UNSENT: Final = "-"
"""The life of no fetcher: a list that is to be sent again."""


class WaitObserver(Protocol):
    """Hears of a client's waits, each time in the thread that waits. Pickles with the client."""

    def pending(self) -> None:
        """The work that is waited for is not done yet; called about once a second."""
        ...

    def ended(self, request: Request, waited_s: float) -> None:
        """A request has been answered, or has failed."""
        ...


class _SentList:
    """A reader's list, and the life of the fetcher that knows it; "" while it is sent for the first time."""

    def __init__(self, request: Announce) -> None:
        self.request = request
        self.instance = ""


class Session:
    """Owns the connections of one process to its fetcher, and the lists that the fetcher is to know. Thread-safe."""

    _held: Connection | None

    def __init__(
        self, connector: Connector, providers: Providers, deadline_s: float, observer: WaitObserver | None
    ) -> None:
        """Connects to nothing yet. `deadline_s`: how long nothing may move."""
        self.connector = connector
        self._providers, self._deadline_s, self._observer = providers, deadline_s, observer
        self._lock = threading.Lock()
        self._mine = threading.local()
        self._connections: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._held = None
        self._lists: dict[str, _SentList] = {}
        self._n_closed = 0
        self.facts: Mapping[str, Any] = {}
        """What the last fetcher said of itself; nothing before the first connection."""
        self.n_sent = 0
        """Requests sent, for tests and reports."""

    # --- requests

    def ask(self, request: Request, what: str, *, timeout_s: float | None = None) -> Done:
        """The answer to a request; an error in it is raised. `what` says in errors what is waited for."""
        done = self._observed(request, what, timeout_s=timeout_s, only_begin=False)
        assert done is not None
        return done

    def begin(self, request: Request, what: str) -> Done | None:
        """The answer if it is there at once; None as soon as the fetcher has taken the request up."""
        return self._observed(request, what, timeout_s=None, only_begin=True)

    def ask_if_any(self, request: Request, what: str) -> Done | None:
        """The answer of a fetcher that listens already; None if none does."""
        for _ in range(2):  # the fetcher that this thread knew may have gone, and another have come
            try:
                answer = self._exchange(request, what, start=False)
            except NoneListensError:
                return None
            except ConnectionError:
                continue
            if isinstance(answer, Failed):
                raise answer.error
            return answer if isinstance(answer, Done) else None
        return None

    # --- lists

    def announce(self, request: Announce, what: str) -> None:
        """Send a reader's list to the fetcher, and to each later one when it has died."""
        with self._lock:
            self._lists[request.reader] = _SentList(request)
        self.ask(request, what)

    def has_list(self, reader: str) -> bool:
        """Whether this reader has announced anything here."""
        return reader in self._lists

    # --- life

    @property
    def is_held(self) -> bool:
        """Whether `hold` keeps a fetcher alive."""
        held = self._held
        return held is not None and held.is_alive()

    def hold(self, *, start: bool) -> None:
        """Keep an idle connection until `close`, unless there is one; see `FetchClient.hold`."""
        if self.is_held:
            return
        self._held = None
        with contextlib.suppress(NoneListensError):
            self._held = self._open(start=start)

    def close(self) -> None:
        """End every connection, and so the waits of other threads. A later request connects anew."""
        with self._lock:
            connections = list(self._connections)
            self._held = None
            self._lists.clear()
            self._n_closed += 1
        for connection in connections:
            connection.end()

    def abandon(self) -> None:
        """In a forked child: the parent's connections are not ours, nor its locks, which nobody here releases."""
        for connection in list(self._connections):
            connection.close()

    # --- internals

    def _observed(self, request: Request, what: str, *, timeout_s: float | None, only_begin: bool) -> Done | None:
        began_s = time.monotonic()
        try:
            return self._answered(request, what, timeout_s=timeout_s, only_begin=only_begin)
        finally:
            if self._observer is not None:
                self._observer.ended(request, time.monotonic() - began_s)

    def _answered(self, request: Request, what: str, *, timeout_s: float | None, only_begin: bool) -> Done | None:
        clock = Deadline(self._deadline_s if timeout_s is None else timeout_s, renewed=timeout_s is None)
        n_deaths, n_closed, n_wanted = 0, self._n_closed, 0
        while True:
            try:
                answer = self._exchange(request, what)
            except ConnectionError as error:
                if n_closed != self._n_closed:
                    raise FetchError(f"the dataset was closed while waiting for {what}") from error
                n_deaths += 1
                if n_deaths >= _MAX_DEATHS:
                    rendezvous = self.connector.rendezvous()
                    raise FetchError(
                        f"the fetcher was lost {n_deaths} times while waiting for {what}; the end of its log "
                        f"{rendezvous.log}:\n{log_tail(rendezvous)}"
                    ) from error
                continue
            if isinstance(answer, Done):
                due = list(self._providers.due(answer.value or ())) if isinstance(request, Announce) else []
                for key, credentials in due:
                    self._give(key, credentials)
                if not due:
                    return answer
                continue  # transfers that failed for want of them are to begin now
            if isinstance(answer, Failed) and isinstance(answer.error, CredentialsWantedError):
                n_wanted += 1
                self._give(str(answer.error), self._providers.wanted(str(answer.error), n_wanted))
                continue
            if isinstance(answer, Failed):
                raise answer.error
            if only_begin:
                return None
            if self._observer is not None:
                self._observer.pending()
            clock.moved(answer.token)
            if clock.is_over():
                raise self._too_late(clock, what)

    def _too_late(self, clock: Deadline, what: str) -> DeadlineError:
        if not clock.renewed:
            return DeadlineError(f"waited {clock.waited_s():.0f} s, as long as asked for, for {what}")
        return DeadlineError(
            f"waited {clock.waited_s():.0f} s for {what}: nothing has moved for {clock.limit_s:.0f} s; "
            f"check the store and the network; the fetcher's log is {self.connector.rendezvous().log}"
        )

    def _give(self, key: str, credentials: Credentials) -> None:
        expires_s = None if credentials.expires_s == float("inf") else credentials.expires_s
        given = GiveCredentials(key, json.dumps(dict(credentials.options)), expires_s)
        self._answered(given, "credentials to be noted", timeout_s=None, only_begin=False)
        with self._lock:  # files of lists that failed for want of them are to begin now
            for known in self._lists.values():
                if known.instance:
                    known.instance = _UNSENT

    def _exchange(self, request: Request, what: str, *, start: bool = True) -> Answer:
        connection = getattr(self._mine, "connection", None)
        if connection is None or connection.closed:
            connection = self._mine.connection = self._open(start=start)
            if start and self._held is not None and not self._held.is_alive():
                self.hold(start=True)
        for announced in self._stale_lists(connection.instance):
            if announced is not request:  # else it goes out right now
                self._send(connection, announced, "lists to be noted again")
        answer = self._send(connection, request, what)
        if isinstance(request, Announce):
            with self._lock:
                if (kept := self._lists.get(request.reader)) is not None and kept.request is request:
                    kept.instance = connection.instance
        return answer

    def _stale_lists(self, instance: str) -> list[Announce]:
        """Lists that the fetcher of this life does not know. Each is returned once, to the first thread that asks."""
        if not self._lists:
            return []
        with self._lock:
            stale = [known for known in self._lists.values() if known.instance not in ("", instance)]
            for known in stale:
                known.instance = instance
            return [known.request for known in stale]

    def _open(self, *, start: bool) -> Connection:
        connection = self.connector.open(start=start)
        with self._lock:
            self._connections.add(connection)
            self.facts = connection.facts
        return connection

    def _send(self, connection: Connection, request: Request, what: str) -> Answer:
        self.n_sent += 1
        try:
            return connection.exchange(request)
        except TimeoutError as error:
            raise DeadlineError(
                f"the fetcher has not answered for {SLICE_S + ANSWER_S:.0f} s while waiting for {what}; is it "
                f"stopped, or the machine out of memory? Its log is {self.connector.rendezvous().log}"
            ) from error


class Deadline:
    """A limit on waiting, counted from the last change of a token if `renewed`, else from the beginning."""

    def __init__(self, limit_s: float, *, renewed: bool) -> None:
        self.limit_s, self.renewed = limit_s, renewed
        self._began = self._moved = time.monotonic()
        self._token = ""

    def moved(self, token: str) -> None:
        """The work that is waited for stands at this token."""
        if self.renewed and token != self._token:
            self._token, self._moved = token, time.monotonic()

    def is_over(self) -> bool:
        """Whether to give up."""
        return time.monotonic() - self._moved > self.limit_s

    def waited_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began
