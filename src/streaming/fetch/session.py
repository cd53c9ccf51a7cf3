"""Requests of one process and their answers, whatever happens to the fetcher meanwhile.

1. A connection belongs to one process and one thread.
2. When the fetcher dies, a request starts another and is sent again, after the lists that the last one was told.
3. Whatever is interrupted in the middle of an answer loses its connection, so answers never meet the wrong request.
4. Every wait has a deadline, which counts from the last time that anything moved, and its error says for what.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import weakref
from typing import Final, Protocol

from streaming.errors import CredentialsWantedError, DeadlineError, FetchError
from streaming.fetch.connection import Connection, Deadline
from streaming.fetch.credentials import Credentials
from streaming.fetch.door import ANSWER_S, Door, NoneListensError
from streaming.fetch.meeting import log_tail
from streaming.fetch.protocol import SLICE_S, Announce, Answer, Done, Failed, GiveCredentials, Request
from streaming.fetch.providers import Providers

_MAX_DEATHS: Final = 5  # of the fetcher, within one request
_TO_BE_TOLD: Final = "-"  # no life of the fetcher: a list that is to be sent again


class WaitObserver(Protocol):
    """Hears of what a client waits for, each time in the thread that waits. Pickles with the client."""

    def pending(self) -> None:
        """What is waited for is not there yet; said about once a second."""
        ...

    def ended(self, request: Request, waited_s: float) -> None:
        """A request has been answered, or has failed."""
        ...


class Session:
    """Owns the connections of one process to its fetcher, and the lists that this is to know. Thread-safe."""

    _held: Connection | None

    def __init__(self, door: Door, providers: Providers, deadline_s: float, observer: WaitObserver | None) -> None:
        """Connects to nothing yet. `deadline_s`: how long nothing may move."""
        self.door = door
        self._providers, self._deadline_s, self._observer = providers, deadline_s, observer
        self._lock = threading.Lock()
        self._mine = threading.local()
        self._connections: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._held = None
        self._lists: dict[str, _List] = {}
        self._n_closed = 0
        self.n_sent = 0  # requests, for tests and reports

    # --- asking

    def ask(self, request: Request, what: str, *, timeout_s: float | None = None) -> Done:
        """The answer to a request; what it failed with is raised. `what`: for errors, what is waited for."""
        done = self._observed(request, what, timeout_s=timeout_s, only_begin=False)
        assert done is not None
        return done

    def begin(self, request: Request, what: str) -> Done | None:
        """The same if it is there at once; None as soon as the fetcher has taken it up."""
        return self._observed(request, what, timeout_s=None, only_begin=True)

    def ask_if_any(self, request: Request, what: str) -> Done | None:
        """The answer of a fetcher that listens already, at once; None if none does."""
        for _ in range(2):  # what this thread knew may have gone, and another have come
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
        """Tell the fetcher a reader's list, and each later one when it has died."""
        with self._lock:
            self._lists[request.reader] = _List(request)
        self.ask(request, what)

    def has_list(self, reader: str) -> bool:
        """Whether this reader has announced anything here."""
        return reader in self._lists

    def forget(self, reader: str) -> bool:
        """Tell no fetcher of this reader's list any more; whether there was one."""
        with self._lock:
            return self._lists.pop(reader, None) is not None

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
        """End every connection, and so what other threads wait for. A later request connects anew."""
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

    # --- inside

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
                    place = self.door.place()
                    raise FetchError(
                        f"the fetcher was lost {n_deaths} times while waiting for {what}; the end of its log "
                        f"{place.log}:\n{log_tail(place)}"
                    ) from error
                continue
            if isinstance(answer, Done):
                due = list(self._providers.due(answer.value or ())) if isinstance(request, Announce) else []
                for purse, credentials in due:
                    self._give(purse, credentials)
                if not due:
                    return answer
                continue  # what failed for want of them is to be begun now
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
            f"check the store and the network; the fetcher's log is {self.door.place().log}"
        )

    def _give(self, purse: str, credentials: Credentials) -> None:
        expires_s = None if credentials.expires_s == float("inf") else credentials.expires_s
        given = GiveCredentials(purse, json.dumps(dict(credentials.options)), expires_s)
        self._answered(given, "credentials to be noted", timeout_s=None, only_begin=False)
        with self._lock:  # files of lists that failed for want of them are to be begun now
            for known in self._lists.values():
                if known.instance:
                    known.instance = _TO_BE_TOLD

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
        """Lists that the fetcher of this life has not been told; to be told once, whichever thread comes first."""
        if not self._lists:
            return []
        with self._lock:
            stale = [known for known in self._lists.values() if known.instance not in ("", instance)]
            for known in stale:
                known.instance = instance
            return [known.request for known in stale]

    def _open(self, *, start: bool) -> Connection:
        connection = self.door.open(start=start)
        with self._lock:
            self._connections.add(connection)
        return connection

    def _send(self, connection: Connection, request: Request, what: str) -> Answer:
        self.n_sent += 1
        try:
            return connection.exchange(request)
        except TimeoutError as error:
            raise DeadlineError(
                f"the fetcher has not answered for {SLICE_S + ANSWER_S:.0f} s while waiting for {what}; is it "
                f"stopped, or the machine out of memory? Its log is {self.door.place().log}"
            ) from error


class _List:
    """What a reader announced, and to which life of the fetcher; "" while it is on its way for the first time."""

    def __init__(self, request: Announce) -> None:
        self.request = request
        self.instance = ""
