"""Asking the fetcher, from any process and thread.

1. A client is configuration and a job's name; it touches nothing before it is asked for what is not on disk.
2. A connection belongs to one process and one thread. A forked child drops its copies and connects anew; a pickled
   client arrives without any.
3. When the fetcher dies, a request starts another and is sent again, after the lists of this client.
4. Whatever is interrupted in the middle of an answer loses its connection, so answers never meet the wrong request.
5. Every wait has a deadline, which counts from the last time that anything moved, and its error says for what.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from streaming.cache.files import is_present
from streaming.errors import (
    CredentialsWantedError,
    DeadlineError,
    FetchError,
)
from streaming.fetch import protocol
from streaming.fetch.connection import Connection, Deadline
from streaming.fetch.credentials import CredentialProvider, Credentials, purse_of
from streaming.fetch.door import ANSWER_S, Door, NoneListensError
from streaming.fetch.meeting import log_tail
from streaming.fetch.protocol import (
    PROTOCOL,
    SLICE_S,
    VERSION,
    Announce,
    Answer,
    Check,
    Done,
    Failed,
    FileNeed,
    GiveCredentials,
    Hello,
    ListObjects,
    Put,
    ReadObject,
    ReadRanges,
    Reason,
    Request,
    Span,
    StreamConfig,
    Wait,
)
from streaming.fetch.providers import Providers
from streaming.storage.local import FolderStore
from streaming.storage.registry import registered_stores
from streaming.storage.url import Folder, parse_remote

_DEADLINE_S: Final = 120.0
_MAX_DEATHS: Final = 5  # of the fetcher, within one request
_TO_BE_TOLD: Final = "-"  # no life of the fetcher: a list that is to be sent again
_MAX_VANISHED: Final = 2  # times that a file may be gone again before its reader sees it
_MAX_EVICTED: Final = 100  # the same where a limit makes the fetcher delete


class WaitObserver(Protocol):
    """Hears of what a client waits for, each time in the thread that waits. Pickles with the client."""

    def pending(self) -> None:
        """What is waited for is not there yet; said about once a second."""
        ...

    def ended(self, request: Request, waited_s: float) -> None:
        """A request has been answered, or has failed."""
        ...


class FetchClient:
    """One process's way to the fetcher of its cache root. Thread-safe; pickles as configuration."""

    _held: Connection | None

    def __init__(
        self,
        root: str | None,
        streams: Sequence[StreamConfig],
        *,
        job: str | None = None,
        deadline_s: float = _DEADLINE_S,
        cache_limit: int | None = None,
        providers: Mapping[int, CredentialProvider] | None = None,
        observer: WaitObserver | None = None,
    ) -> None:
        """Starts nothing and connects to nothing. `root` is where lock, socket and log lie; None: outside any cache.

        `cache_limit`: the most bytes that may lie below the roots of all streams. `providers`: functions that give the
        credentials of some streams, by number; called in this process, in the thread that needs them.
        """
        self._cache_limit = cache_limit
        self._observer = observer
        self._root = None if root is None else os.path.abspath(root)
        self._job = os.urandom(8).hex() if job is None else job
        self._functions = {purse_of(self._job, number): each for number, each in (providers or {}).items()}
        self._streams = tuple(
            replace(_absolute(stream), purse=purse_of(self._job, number) if number in (providers or {}) else "")
            for number, stream in enumerate(streams)
        )
        self._deadline_s = max([deadline_s, *(stream.download_timeout + 30.0 for stream in self._streams)])
        self._begin()

    @property
    def root(self) -> str | None:
        """Where the fetcher is met."""
        return self._root

    @property
    def job(self) -> str:
        """What all processes of one job have in common; their lists live as long as one of them is connected."""
        return self._job

    # --- files of the cache

    def path(self, need: FileNeed) -> str:
        """Where the file lies, or will."""
        return os.path.join(self._streams[need.stream].local, need.name)

    def is_present(self, need: FileNeed) -> bool:
        """Whether the file is on disk, whole; asks nobody."""
        return is_present(self.path(need), need.n_bytes)

    def announce(self, reader: str, needs: Sequence[FileNeed], held: Sequence[FileNeed] = ()) -> None:
        """Say what `reader` needs next, in order of first use; replaces its last list.

        Without a limit it is silent if all is on disk. With one the list says also what is on disk, since what is
        needed last is deleted first, and `held` what must stay: files that the reader has open or will open soon.
        """
        if self._cache_limit is None and reader not in self._lists and all(map(self.is_present, needs)):
            return
        request = Announce(reader, tuple(needs), tuple(held))
        with self._lock:
            self._lists[reader] = _List(request)
        self._ask(request, f"{len(needs)} announced files to be noted")

    def wait(self, need: FileNeed, *, timeout_s: float | None = None) -> str:
        """The path of the file once it is there, whole. Sends nothing if it is.

        Raises what kept the file from coming, or DeadlineError: `timeout_s` seconds from now (None: when nothing has
        moved for the client's `deadline_s`).
        """
        path = self.path(need)
        n_vanished = 0
        while not self.is_present(need):
            if n_vanished > (_MAX_VANISHED if self._cache_limit is None else _MAX_EVICTED):
                raise FetchError(
                    f"{path} came {n_vanished} times and was gone or of another size each time; who else writes there?"
                )
            stream = self._streams[need.stream]
            shown = parse_remote(stream.remote).shown
            self._ask(Wait(need), f"{need.name} of {shown} to come to {stream.local}", timeout_s=timeout_s)
            n_vanished += 1
        return path

    def fetch_all(self, needs: Sequence[FileNeed], *, timeout_s: float | None = None) -> list[str]:
        """The paths of all these files, fetched several at once."""
        reader = f"all-{os.urandom(4).hex()}"
        try:
            self.announce(reader, needs)
            return [self.wait(need, timeout_s=timeout_s) for need in needs]
        finally:
            with self._lock:
                announced = self._lists.pop(reader, None)
            if announced is not None:
                with contextlib.suppress(FetchError, DeadlineError):
                    self._ask(Announce(reader, ()), "a list to be dropped")

    # --- bytes without their file

    def read_ranges(self, spans: Sequence[Span], reason: Reason, *, due_s: float = 0.0) -> list[memoryview | None]:
        """The bytes of all these spans, fetched at the same time; `due_s`: in how many seconds they are needed.

        None at a place: not granted, or the file is there, or will be in time: then `wait` for it. Only what is AHEAD
        may be refused. Raises what the store answers, as `wait` does.
        """
        return self.end_ranges(RangesTicket.of(spans, reason, due_s))

    def begin_ranges(self, spans: Sequence[Span], reason: Reason, *, due_s: float = 0.0) -> RangesTicket:
        """The same, begun now; `end_ranges` gives the bytes. What is never asked for is dropped with the job."""
        ticket = RangesTicket.of(spans, reason, due_s)
        self.have_come(ticket)
        return ticket

    def have_come(self, ticket: RangesTicket) -> bool:
        """Whether `end_ranges` has no need to wait."""
        if ticket.early is None:
            hurried = replace(ticket.request, is_patient=False)
            ticket.early = self._ask_until(hurried, "ranges to be begun", only_begin=True)
        return ticket.early is not None

    def end_ranges(self, ticket: RangesTicket) -> list[memoryview | None]:
        """The bytes that were begun, see `read_ranges`."""
        request = ticket.request
        done = ticket.early
        if done is None:
            remotes = {parse_remote(self._streams[span.need.stream].remote).shown for span in request.spans}
            done = self._ask(request, f"{len(request.spans)} ranges of {', '.join(sorted(remotes))} to come")
        parts: list[memoryview | None] = []
        payload, at = memoryview(done.payload), 0
        for n_bytes in done.value:
            parts.append(payload[at : at + n_bytes] if n_bytes >= 0 else None)
            at += max(0, n_bytes)
        return parts

    # --- objects of a remote

    def put(self, remote: str, path: str, name: str, *, attempts: int = 2, options: str = "{}") -> None:
        """Upload the file `path` as `remote/name`; done when the store has it whole."""
        location = parse_remote(remote)
        if isinstance(location, Folder):
            FolderStore(location.path).put(name, path)
        else:
            request = Put(_ticket(), str(location), os.path.abspath(path), name, attempts, options)
            self._ask(request, f"{path} to be uploaded to {location.shown}")

    def check(self, remote: str, *, options: str = "{}") -> None:
        """Raise now what would keep every upload to `remote` from succeeding; a missing folder is made."""
        location = parse_remote(remote)
        if isinstance(location, Folder):
            FolderStore(location.path).check_writable()
        else:
            self._ask(Check(_ticket(), str(location), options), f"{location.shown} to answer")

    def read_object(
        self, remote: str, name: str, *, attempts: int = 2, timeout_s: float = 60.0, options: str = "{}"
    ) -> bytes:
        """The bytes of a small object (up to 1 GiB)."""
        location = parse_remote(remote)
        if isinstance(location, Folder):
            return b"".join(FolderStore(location.path).get(name).chunks)
        request = ReadObject(_ticket(), str(location), name, attempts, timeout_s, options)
        return bytes(self._ask(request, f"{name} of {location.shown} to be read").payload)

    def list_objects(self, remote: str, *, prefix: str = "", options: str = "{}") -> list[str]:
        """The names, relative to `remote`, of all objects below the folder `prefix`, at any depth, sorted."""
        location = parse_remote(remote)
        if isinstance(location, Folder):
            return sorted(facts.name for facts in FolderStore(location.path).list(prefix))
        request = ListObjects(_ticket(), str(location), prefix, options)
        names: list[str] = self._ask(request, f"{location.shown} to be listed").value
        return names

    def progress(self) -> dict[str, Any]:
        """What the fetcher is doing, in numbers; starts one if there is none."""
        value: dict[str, Any] = self._ask(protocol.Progress(), "the fetcher's numbers").value
        return value

    def progress_if_any(self) -> dict[str, Any] | None:
        """The same of a fetcher that listens already; None if none does."""
        for _ in range(2):  # what this thread knew may have gone, and another have come
            try:
                answer = self._exchange(protocol.Progress(), "the fetcher's numbers", start=False)
            except NoneListensError:
                return None
            except ConnectionError:
                continue
            if isinstance(answer, Failed):
                raise answer.error
            return answer.value if isinstance(answer, Done) else None
        return None

    @property
    def n_launched(self) -> int:
        """Fetchers that this process has started, for tests and reports."""
        return self._door.n_launched

    # --- life

    @property
    def is_held(self) -> bool:
        """Whether a fetcher is kept alive by `hold`, so that something may be fetched."""
        held = self._held
        return held is not None and held.is_alive()

    def hold(self, *, start: bool = True) -> None:
        """Keep one idle connection until `close`, so that the fetcher and this job's lists outlive the workers.

        To be called again at each beginning: a connection that a fork or the fetcher's death took is made anew. With
        `start=False` only if a fetcher listens already, for a job that may need none.
        """
        if self.is_held:
            return
        self._held = None
        with contextlib.suppress(NoneListensError):
            self._held = self._open(start=start)

    def close(self) -> None:
        """End every connection of this process, and so what other threads wait for. A later request connects anew."""
        with self._lock:
            connections = list(self._connections)
            self._held = None
            self._lists.clear()
            self._n_closed += 1
        for connection in connections:
            connection.end()

    def __enter__(self) -> FetchClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        names = ("_root", "_streams", "_job", "_deadline_s", "_cache_limit", "_functions", "_observer")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def _begin(self) -> None:
        """The part that belongs to one process."""
        self._lock = threading.Lock()
        self._mine = threading.local()
        self._connections: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._held = None
        self._lists: dict[str, _List] = {}
        limit = -1 if self._cache_limit is None else self._cache_limit
        hello = Hello(PROTOCOL, VERSION, self._job, self._streams, limit, registered_stores())
        self._door = Door(self._root, hello)
        self._providers = Providers(self._functions)
        self._n_closed = 0
        self.n_sent = 0  # requests, for tests and reports
        _clients.add(self)

    def _forked(self) -> None:
        """In a forked child: the parent's connections, lists and locks (which nobody here releases) are not ours."""
        for connection in list(self._connections):
            connection.close()
        n_sent, n_launched = self.n_sent, self.n_launched
        self._begin()
        self.n_sent, self._door.n_launched = n_sent, n_launched

    # --- asking

    def _ask(self, request: Request, what: str, *, timeout_s: float | None = None) -> Done:
        """The answer to a request, whatever happens to the fetcher meanwhile; what it failed with is raised."""
        done = self._ask_until(request, what, timeout_s=timeout_s)
        assert done is not None
        return done

    def _ask_until(
        self, request: Request, what: str, *, timeout_s: float | None = None, only_begin: bool = False
    ) -> Done | None:
        """The same; with `only_begin` None as soon as the fetcher has taken it up."""
        began_s = time.monotonic()
        try:
            return self._answered(request, what, timeout_s=timeout_s, only_begin=only_begin)
        finally:
            if self._observer is not None:
                self._observer.ended(request, time.monotonic() - began_s)

    def _answered(self, request: Request, what: str, *, timeout_s: float | None, only_begin: bool) -> Done | None:
        """See `_ask_until`."""
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
                    place = self._door.place()
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
                raise DeadlineError(
                    f"waited {clock.waited_s():.0f} s for {what}: nothing has moved for {clock.limit_s:.0f} s; "
                    f"check the store and the network; the fetcher's log is {self._door.place().log}"
                    if clock.renewed
                    else f"waited {clock.waited_s():.0f} s, as long as asked for, for {what}"
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
                self.hold()
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
        connection = self._door.open(start=start)
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
                f"stopped, or the machine out of memory? Its log is {self._door.place().log}"
            ) from error


class RangesTicket:
    """Ranges that were begun, and their bytes if they came at once."""

    def __init__(self, request: ReadRanges) -> None:
        self.request = request
        self.early: Done | None = None

    @classmethod
    def of(cls, spans: Sequence[Span], reason: Reason, due_s: float) -> RangesTicket:
        """The ticket for these spans, not begun yet."""
        return cls(ReadRanges(_ticket(), reason.value, due_s, tuple(spans)))


class _List:
    """What a reader announced, and to which life of the fetcher; "" while it is on its way for the first time."""

    def __init__(self, request: Announce) -> None:
        self.request = request
        self.instance = ""


def _absolute(stream: StreamConfig) -> StreamConfig:
    """The configuration in words that mean the same in any working directory; a scheme we cannot read is refused."""
    local = os.path.abspath(stream.local)
    root = os.path.abspath(stream.root) if stream.root else local
    return replace(stream, remote=str(parse_remote(stream.remote)), local=local, root=root)


def _ticket() -> str:
    return os.urandom(8).hex()


def _after_fork() -> None:
    for client in list(_clients):
        client._forked()


_clients: weakref.WeakSet[FetchClient] = weakref.WeakSet()
os.register_at_fork(after_in_child=_after_fork)
