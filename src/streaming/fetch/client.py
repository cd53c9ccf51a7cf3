"""What can be asked of the fetcher, from any process and thread.

A client is configuration and a name of a job; it touches nothing before it is asked for what is not on disk. A forked
child drops its copies of connections and connects anew; a pickled client arrives without any.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from streaming.cache.files import is_present
from streaming.errors import (
    DeadlineError,
    FetchError,
)
from streaming.fetch import protocol
from streaming.fetch.credentials import CredentialProvider, purse_of
from streaming.fetch.door import Door
from streaming.fetch.protocol import (
    PROTOCOL,
    VERSION,
    Announce,
    Check,
    Done,
    FileNeed,
    Hello,
    ListObjects,
    Put,
    ReadObject,
    ReadRanges,
    Reason,
    Span,
    StreamConfig,
    Wait,
)
from streaming.fetch.providers import Providers
from streaming.fetch.session import Session, WaitObserver
from streaming.storage.local import FolderStore
from streaming.storage.registry import registered_stores
from streaming.storage.url import Folder, parse_remote

_DEADLINE_S: Final = 120.0
_MAX_VANISHED: Final = 2  # times that a file may be gone again before its reader sees it
_MAX_EVICTED: Final = 100  # the same where a limit makes the fetcher delete


class FetchClient:
    """One process's way to the fetcher of its cache root. Thread-safe; pickles as configuration."""

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
        session = self._session
        if self._cache_limit is None and not session.has_list(reader) and all(map(self.is_present, needs)):
            return
        request = Announce(reader, tuple(needs), tuple(held))
        session.announce(request, f"{len(needs)} announced files to be noted")

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
            self._session.ask(Wait(need), f"{need.name} of {shown} to come to {stream.local}", timeout_s=timeout_s)
            n_vanished += 1
        return path

    def fetch_all(self, needs: Sequence[FileNeed], *, timeout_s: float | None = None) -> list[str]:
        """The paths of all these files, fetched several at once."""
        reader = f"all-{os.urandom(4).hex()}"
        try:
            self.announce(reader, needs)
            return [self.wait(need, timeout_s=timeout_s) for need in needs]
        finally:
            if self._session.forget(reader):
                with contextlib.suppress(FetchError, DeadlineError):
                    self._session.ask(Announce(reader, ()), "a list to be dropped")

    # --- bytes without their file

    def read_ranges(self, spans: Sequence[Span], reason: Reason, *, due_s: float = 0.0) -> list[memoryview | None]:
        """The bytes of all these spans, fetched at the same time; `due_s`: in how many seconds they are needed.

        None at a place: not granted, or the file is there, or will be in time: then `wait` for it. Only what is AHEAD
        may be refused. Raises what the store answers, as `wait` does.
        """
        return self.end_ranges(RangesTicket.of(spans, reason, due_s))

    def begin_ranges(
        self, spans: Sequence[Span], reason: Reason, *, due_s: float = 0.0, demand: float = 0.0
    ) -> RangesTicket:
        """The same, begun now; `end_ranges` gives the bytes. What is never asked for is dropped with the job."""
        ticket = RangesTicket.of(spans, reason, due_s, demand)
        self.have_come(ticket)
        return ticket

    def have_come(self, ticket: RangesTicket) -> bool:
        """Whether `end_ranges` has no need to wait."""
        if ticket.early is None:
            hurried = replace(ticket.request, is_patient=False)
            ticket.early = self._session.begin(hurried, "ranges to be begun")
        return ticket.early is not None

    def end_ranges(self, ticket: RangesTicket) -> list[memoryview | None]:
        """The bytes that were begun, see `read_ranges`."""
        request = ticket.request
        done = ticket.early
        if done is None:
            remotes = {parse_remote(self._streams[span.need.stream].remote).shown for span in request.spans}
            done = self._session.ask(request, f"{len(request.spans)} ranges of {', '.join(sorted(remotes))} to come")
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
            self._session.ask(request, f"{path} to be uploaded to {location.shown}")

    def check(self, remote: str, *, options: str = "{}") -> None:
        """Raise now what would keep every upload to `remote` from succeeding; a missing folder is made."""
        location = parse_remote(remote)
        if isinstance(location, Folder):
            FolderStore(location.path).check_writable()
        else:
            self._session.ask(Check(_ticket(), str(location), options), f"{location.shown} to answer")

    def read_object(
        self, remote: str, name: str, *, attempts: int = 2, timeout_s: float = 60.0, options: str = "{}"
    ) -> bytes:
        """The bytes of a small object (up to 1 GiB)."""
        location = parse_remote(remote)
        if isinstance(location, Folder):
            return b"".join(FolderStore(location.path).get(name).chunks)
        request = ReadObject(_ticket(), str(location), name, attempts, timeout_s, options)
        return bytes(self._session.ask(request, f"{name} of {location.shown} to be read").payload)

    def list_objects(self, remote: str, *, prefix: str = "", options: str = "{}") -> list[str]:
        """The names, relative to `remote`, of all objects below the folder `prefix`, at any depth, sorted."""
        location = parse_remote(remote)
        if isinstance(location, Folder):
            return sorted(facts.name for facts in FolderStore(location.path).list(prefix))
        request = ListObjects(_ticket(), str(location), prefix, options)
        names: list[str] = self._session.ask(request, f"{location.shown} to be listed").value
        return names

    def progress(self) -> dict[str, Any]:
        """What the fetcher is doing, in numbers; starts one if there is none."""
        value: dict[str, Any] = self._session.ask(protocol.Progress(), "the fetcher's numbers").value
        return value

    def progress_if_any(self) -> dict[str, Any] | None:
        """The same of a fetcher that listens already; None if none does."""
        done = self._session.ask_if_any(protocol.Progress(), "the fetcher's numbers")
        return None if done is None else done.value

    @property
    def n_launched(self) -> int:
        """Fetchers that this process has started, for tests and reports."""
        return self._session.door.n_launched

    @property
    def n_sent(self) -> int:
        """Requests that this process has sent, for tests and reports."""
        return self._session.n_sent

    # --- life

    @property
    def is_held(self) -> bool:
        """Whether a fetcher is kept alive by `hold`, so that something may be fetched."""
        return self._session.is_held

    def hold(self, *, start: bool = True) -> None:
        """Keep one idle connection until `close`, so that the fetcher and this job's lists outlive the workers.

        To be called again at each beginning: a connection that a fork or the fetcher's death took is made anew. With
        `start=False` only if a fetcher listens already, for a job that may need none.
        """
        self._session.hold(start=start)

    def close(self) -> None:
        """End every connection of this process, and so what other threads wait for. A later request connects anew."""
        self._session.close()

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
        limit = -1 if self._cache_limit is None else self._cache_limit
        hello = Hello(PROTOCOL, VERSION, self._job, self._streams, limit, registered_stores())
        door = Door(self._root, hello)
        self._session = Session(door, Providers(self._functions), self._deadline_s, self._observer)
        _clients.add(self)

    def _forked(self) -> None:
        parents = self._session
        parents.abandon()
        self._begin()
        self._session.n_sent, self._session.door.n_launched = parents.n_sent, parents.door.n_launched


class RangesTicket:
    """Ranges that were begun, and their bytes if they came at once."""

    def __init__(self, request: ReadRanges) -> None:
        self.request = request
        self.early: Done | None = None

    @classmethod
    def of(cls, spans: Sequence[Span], reason: Reason, due_s: float, demand: float = 0.0) -> RangesTicket:
        """The ticket for these spans, not begun yet."""
        return cls(ReadRanges(_ticket(), reason.value, due_s, demand, tuple(spans)))


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
