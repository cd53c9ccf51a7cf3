"""What can be asked of the fetcher, from any process and thread.

A client is configuration and the name of a job. It touches nothing before it is asked for something that is not on
disk. A forked child drops its copies of connections and connects anew; a pickled client arrives without any.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from streaming.cache.files import is_present
from streaming.errors import FetchError, StreamingError
from streaming.fetch.client.connector import Connector
from streaming.fetch.client.providers import Providers
from streaming.fetch.client.session import Session, WaitObserver
from streaming.fetch.decide.ranges import RangeRules
from streaming.fetch.decide.transfers import FetchLimits
from streaming.fetch.wire.credentials import CredentialProvider, credentials_key_of
from streaming.fetch.wire.protocol import (
    PROTOCOL,
    VERSION,
    Announce,
    AskStatus,
    Check,
    Done,
    FileRequest,
    Head,
    Hello,
    ListObjects,
    Put,
    RangeAsk,
    ReadObject,
    ReadRanges,
    Span,
    StreamConfig,
    Wait,
    error_of,
)
from streaming.fork_safety import members
from streaming.storage.local import FolderStore
from streaming.storage.registry import registered_stores
from streaming.storage.store import ObjectFacts
from streaming.storage.url import Folder, Location

_DEADLINE_S: Final = 120.0
_MAX_SHOWN: Final = 3
"""Remotes that a message names."""
_MAX_VANISHED: Final = 2
"""Times that a file may be gone again before its reader sees it."""
_MAX_EVICTED: Final = 100
"""The same where a limit makes the fetcher delete."""


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
        """Starts nothing and connects to nothing. `root` has the lock, socket and log; None: outside any cache.

        `cache_limit`: the most bytes that may lie below the roots of all streams. `providers`: functions that give the
        credentials of streams, by number, called in this process, in the thread that needs them.
        """
        self._cache_limit = cache_limit
        self._observer = observer
        self._root = None if root is None else os.path.abspath(root)
        self._job = _new_name() if job is None else job
        providers = providers or {}
        self._functions = {credentials_key_of(self._job, number): each for number, each in providers.items()}
        self._streams = tuple(
            _absolute(stream, credentials_key_of(self._job, number) if number in providers else "")
            for number, stream in enumerate(streams)
        )
        self._deadline_s = max([deadline_s, *(stream.download_timeout + 30.0 for stream in self._streams)])
        self._begin()

    @property
    def root(self) -> str | None:
        """The cache root at which the fetcher is met."""
        return self._root

    @property
    def job(self) -> str:
        """The name that all processes of one job share. Its lists live as long as one of them is connected."""
        return self._job

    # --- files of the cache

    def path(self, file: FileRequest) -> str:
        """Where the file lies, or will."""
        return os.path.join(self._streams[file.stream].local, file.name)

    def is_present(self, file: FileRequest) -> bool:
        """Whether the file is on disk, whole. Asks nobody."""
        return is_present(self.path(file), file.n_bytes)

    def announce(self, reader: str, files: Sequence[FileRequest], held: Sequence[FileRequest] = ()) -> None:
        """Announce what `reader` needs next, in order of first use, in place of its last list.

        Without a limit nothing is sent if all files are on disk. With one the list also names files that are on disk,
        since what is needed last is evicted first, and those `held`, which the reader has open or will open soon.
        """
        session = self._session
        if self._cache_limit is None and not session.has_list(reader) and all(map(self.is_present, files)):
            return
        request = Announce(reader, tuple(files), tuple(held))
        session.announce(request, f"{len(files)} announced files to be noted")

    def wait(self, file: FileRequest, *, timeout_s: float | None = None) -> str:
        """Wait until the file is on disk, whole, and return its path. Sends nothing if it is.

        Raises what kept the file from coming, or DeadlineError: after `timeout_s` seconds, or (None) when nothing has
        moved for the client's `deadline_s`.
        """
        path = self.path(file)
        n_vanished = 0
        while not self.is_present(file):
            if n_vanished > (_MAX_VANISHED if self._cache_limit is None else _MAX_EVICTED):
                raise FetchError(
                    f"{path} came {n_vanished} times and was gone or of another size each time; who else writes there?"
                )
            stream = self._streams[file.stream]
            what = f"{file.name} of {stream.remote.shown} to come to {stream.local}"
            self._session.ask(Wait(file), what, timeout_s=timeout_s)
            n_vanished += 1
        return path

    def head(self, objects: Sequence[tuple[int, str]]) -> list[ObjectFacts | StreamingError]:
        """What the stores say of these objects, each a name in the folder of a stream; an error where they say nothing.

        Raises what keeps the fetcher from asking.
        """
        found: dict[tuple[int, str], ObjectFacts | StreamingError] = {}
        for stream, name in objects:
            remote = self._streams[stream].remote
            if isinstance(remote, Folder):
                try:
                    found[stream, name] = FolderStore(remote.path).head(name)
                except StreamingError as error:
                    found[stream, name] = error
        asked = tuple(each for each in objects if each not in found)
        if asked:
            shown = ", ".join(sorted({self._streams[stream].remote.shown for stream, _ in asked})[:_MAX_SHOWN])
            answers = self._session.ask(Head(_new_name(), asked), f"{shown} to say what they have").value
            for each, answer in zip(asked, answers, strict=True):
                found[each] = error_of(*answer) if isinstance(answer[0], str) else ObjectFacts(each[1], *answer)
        return [found[each] for each in objects]

    # --- bytes without their file

    def begin_ranges(self, spans: Sequence[Span], ask: RangeAsk) -> RangesTicket:
        """Begin to fetch the bytes of all these spans at the same time; `end_ranges` gives them.

        Bytes that are never asked for are dropped with the job.
        """
        ticket = RangesTicket(ReadRanges(_new_name(), ask, tuple(spans)))
        self.poll_ranges(ticket)
        return ticket

    def poll_ranges(self, ticket: RangesTicket) -> bool:
        """Ask the fetcher whether the bytes have come, so that `end_ranges` has no need to wait."""
        if ticket.early is None:
            hurried = msgspec.structs.replace(ticket.request, is_patient=False)
            ticket.early = self._session.begin(hurried, "ranges to be begun")
        return ticket.early is not None

    def end_ranges(self, ticket: RangesTicket) -> list[memoryview | None]:
        """Wait for the bytes that were begun, one item for each span.

        None stands for a span that was not granted: its file is on disk, or is to be waited for. Raises what the store
        answers, as `wait` does. Sets `ticket.is_late`.
        """
        request, done = ticket.request, ticket.early
        if done is None:
            remotes = {self._streams[span.file.stream].remote.shown for span in request.spans}
            done = self._session.ask(request, f"{len(request.spans)} ranges of {', '.join(sorted(remotes))} to come")
        ticket.is_late = done.value["is_late"]
        parts: list[memoryview | None] = []
        payload, at = memoryview(done.payload), 0
        for n_bytes in done.value["sizes"]:
            parts.append(payload[at : at + n_bytes] if n_bytes >= 0 else None)
            at += max(0, n_bytes)
        return parts

    # --- objects of a remote

    def put(
        self,
        remote: Location,
        path: str,
        name: str,
        *,
        attempts: int = 2,
        options: str = "{}",
        patience_s: float = 0.0,
    ) -> None:
        """Upload the file `path` as `remote/name`. Returns when the store has it whole.

        What may pass is tried again in `attempts` at least, and until `patience_s` have passed since the first failure.
        """
        if isinstance(remote, Folder):
            FolderStore(remote.path).put(name, path)
        else:
            request = Put(_new_name(), remote, os.path.abspath(path), name, attempts, options, patience_s)
            self._session.ask(request, f"{path} to be uploaded to {remote.shown}")

    def check(self, remote: Location, *, options: str = "{}") -> None:
        """Raise now what would keep every upload to `remote` from succeeding. A missing folder is made."""
        if isinstance(remote, Folder):
            FolderStore(remote.path).check_writable()
        else:
            self._session.ask(Check(_new_name(), remote, options), f"{remote.shown} to answer")

    def read_object(
        self,
        remote: Location,
        name: str,
        *,
        attempts: int = 2,
        timeout_s: float = 60.0,
        options: str = "{}",
        stream: int | None = None,
    ) -> bytes:
        """The bytes of a small object, up to 1 GiB. `stream`: the one whose credentials are used."""
        if isinstance(remote, Folder):
            return b"".join(FolderStore(remote.path).get(name).chunks)
        key = "" if stream is None else self._streams[stream].credentials_key
        request = ReadObject(_new_name(), remote, name, attempts, timeout_s, options, key)
        return bytes(self._session.ask(request, f"{name} of {remote.shown} to be read").payload)

    def list_objects(self, remote: Location, *, prefix: str = "", options: str = "{}") -> list[str]:
        """The names, relative to `remote`, of all objects below the folder `prefix`, at any depth, sorted."""
        if isinstance(remote, Folder):
            return sorted(facts.name for facts in FolderStore(remote.path).list(prefix))
        request = ListObjects(_new_name(), remote, prefix, options)
        names: list[str] = self._session.ask(request, f"{remote.shown} to be listed").value
        return names

    # --- the fetcher

    def status(self) -> dict[str, Any]:
        """What the fetcher is doing, in numbers. Starts one if there is none."""
        value: dict[str, Any] = self._session.ask(AskStatus(), "the fetcher's numbers").value
        return value

    def status_if_any(self) -> dict[str, Any] | None:
        """The numbers of a fetcher that listens already; None if none does."""
        done = self._session.ask_if_any(AskStatus(), "the fetcher's numbers")
        return None if done is None else done.value

    @property
    def rules(self) -> RangeRules:
        """The rules by which the fetcher decides on ranges; before the first connection those of this version."""
        said = self._session.facts.get("rules")
        return RangeRules() if said is None else RangeRules(**said)

    @property
    def n_transfers(self) -> int:
        """How many whole files the fetcher moves at once."""
        return int(self._session.facts.get("n_transfers", FetchLimits().n_transfers))

    @property
    def n_launched(self) -> int:
        """Fetchers that this process has started, for tests and reports."""
        return self._session.connector.n_launched

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

        To be called again at each beginning: a connection lost by a fork or by the fetcher's death is made anew. With
        `start=False` it is kept only if a fetcher listens already, for a job that may need none.
        """
        self._session.hold(start=start)

    def close(self) -> None:
        """End every connection of this process, and so the waits of other threads. A later request connects anew."""
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
        """Make the part that belongs to one process."""
        limit = -1 if self._cache_limit is None else self._cache_limit
        hello = Hello(PROTOCOL, VERSION, self._job, self._streams, limit, registered_stores())
        connector = Connector(self._root, hello)
        self._session = Session(connector, Providers(self._functions), self._deadline_s, self._observer)
        _clients.add(self)

    def _forked(self) -> None:
        parents = self._session
        parents.abandon()
        self._begin()
        self._session.n_sent, self._session.connector.n_launched = parents.n_sent, parents.connector.n_launched


class RangesTicket:
    """Ranges that were begun, and their bytes if they came at once."""

    def __init__(self, request: ReadRanges) -> None:
        self.request = request
        self.early: Done | None = None
        self.is_late = False
        """Whether the bytes count against the reader's budget for late shards; known when they have come."""


def _absolute(stream: StreamConfig, credentials_key: str) -> StreamConfig:
    """The configuration in words that mean the same in any working directory."""
    local = os.path.abspath(stream.local)
    root = os.path.abspath(stream.root) if stream.root else local
    return msgspec.structs.replace(stream, local=local, root=root, credentials_key=credentials_key)


def _new_name() -> str:
    return os.urandom(8).hex()


def _after_fork() -> None:
    for client in members(_clients):
        client._forked()


_clients: weakref.WeakSet[FetchClient] = weakref.WeakSet()
os.register_at_fork(after_in_child=_after_fork)
