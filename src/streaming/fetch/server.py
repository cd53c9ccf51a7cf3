"""The listening side: a thread per connection that turns requests into calls. Decides nothing."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import socket
import threading
import time
from typing import Any, Final

from streaming.errors import FetchError, StoreCannotError, StreamingError
from streaming.fetch.attempts import Patience, attempted
from streaming.fetch.credentials import Credentials
from streaming.fetch.errands import Errands
from streaming.fetch.meeting import peer_uid
from streaming.fetch.protocol import (
    MAX_OBJECT_BYTES,
    PROTOCOL,
    SLICE_S,
    VERSION,
    Announce,
    Answer,
    Check,
    Done,
    Errand,
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
    StreamConfig,
    Wait,
    receive_request,
    send_answer,
)
from streaming.fetch.ranges import Wanted
from streaming.fetch.services import Services
from streaming.fetch.task import FileTask, Moved
from streaming.storage.registry import register_all
from streaming.storage.url import parse_remote

_HELLO_S: Final = 10.0  # for a peer to say who it is
_SEND_S: Final = 60.0  # for a peer to take an answer
_CHECK_S: Final = 60.0  # for a store to say what it has
_LIST_ATTEMPTS: Final = 2
_PAUSE_S: Final = 0.05
_N_UPLOADS: Final = 8  # and the like at once; each upload holds 32 MiB
_N_RANGE_READERS: Final = 256  # waiting at once; what they share is the connections


class Server:
    """Owns the connections of clients."""

    def __init__(self, services: Services) -> None:
        self._services, self._engine, self._stores = services, services.engine, services.stores
        self._errands, self._range_errands = Errands(_N_UPLOADS), Errands(_N_RANGE_READERS)
        self._instance = os.urandom(8).hex()
        self._wake_from, self._wake = socket.socketpair()
        self._wake.setblocking(False)

    def serve(self, ear: socket.socket) -> None:
        """Answer all who come by this listening socket, until nobody has been connected for long enough."""
        ear.setblocking(False)
        while not self._passed([ear]):
            try:
                peer, _ = ear.accept()
            except BlockingIOError:
                continue
            except OSError:  # gone again, or no descriptor left: those who wait keep waiting
                time.sleep(_PAUSE_S)
                continue
            threading.Thread(target=self.serve_peer, args=(peer,), name="client", daemon=True).start()

    def keep_time(self) -> None:
        """Do for ever what is due at some time; for a server whose peers are brought to it."""
        while True:
            self._passed([])

    def _passed(self, ears: list[socket.socket]) -> bool:
        """Wait until something is due, or one of `ears` is called; whether this is the end."""
        while True:
            is_over, pause_s, jobs_gone = self._engine.passed()
            for job in jobs_gone:
                self._errands.forget(job)
                self._range_errands.forget(job)
                self._services.means.wallet.forget(job)
            if is_over and ears:
                return True
            # Without an ear nobody ends us: what is over stays over, and the next peer is the next event.
            ready, _, _ = select.select([*ears, self._wake_from], [], [], None if is_over else pause_s)
            if self._wake_from in ready:
                self._wake_from.recv(4096)
            if ears and ears[0] in ready:
                return False

    def serve_peer(self, peer: socket.socket) -> None:
        """Converse with one client until it ends."""
        with contextlib.suppress(OSError), peer:
            if peer_uid(peer) != os.geteuid():
                return
            peer.settimeout(_HELLO_S)
            try:
                hello = receive_request(peer)
            except StreamingError as error:
                send_answer(peer, Failed(error))
                return
            if not isinstance(hello, Hello):
                return
            facts = Done({"protocol": PROTOCOL, "version": VERSION, "instance": self._instance, "pid": os.getpid()})
            if hello.protocol != PROTOCOL:
                send_answer(peer, facts)
            else:
                register_all(hello.openers)
                self._engine.opened(hello)
                try:
                    send_answer(peer, facts)
                    self._converse(peer, hello)
                finally:
                    self._engine.closed(hello.job)
                    with contextlib.suppress(BlockingIOError):  # full: it will wake up anyway
                        self._wake.send(b"\0")

    def _converse(self, peer: socket.socket, hello: Hello) -> None:
        given: FileTask | None = None
        while True:
            peer.settimeout(None)  # an idle client is a client
            try:
                request = receive_request(peer)
                if given is not None:
                    self._engine.opened_file(given)
                    given = None
                answer = self._answer(request, hello)
                if isinstance(request, Wait) and isinstance(answer, Done):
                    given = _task(hello, request.need)
            except StreamingError as error:
                answer = Failed(error)
            peer.settimeout(_SEND_S)
            send_answer(peer, answer)

    def _answer(self, request: Request, hello: Hello) -> Answer:
        if isinstance(request, Announce):
            tasks = [_task(hello, need) for need in request.needs]
            self._engine.announce(hello.job, request.reader, tasks, [_task(hello, need) for need in request.held])
            return Done(self._services.means.wallet.wanted([config.purse for config in hello.streams if config.purse]))
        if isinstance(request, GiveCredentials):
            expires_s = float("inf") if request.expires_s is None else request.expires_s
            self._services.means.wallet.put(request.purse, Credentials(json.loads(request.options), expires_s))
            return Done()
        if isinstance(request, Wait):
            return self._engine.wait(_task(hello, request.need), slice_s=SLICE_S)
        if isinstance(request, ReadRanges):
            slice_s = SLICE_S if request.is_patient else 0.0
            wanted = [Wanted(_task(hello, span.need), span) for span in request.spans]
            return self._range_errands.answer(
                hello.job,
                request.ticket,
                lambda moved: self._services.ranges.read(
                    hello.job, wanted, Reason(request.reason), request.due_s, request.demand, moved
                ),
                slice_s=slice_s,
            )
        if isinstance(request, Put | Check | ReadObject | ListObjects):
            return self._errands.answer(
                hello.job, request.ticket, lambda moved: self._run(request, moved), slice_s=SLICE_S
            )
        if isinstance(request, Hello):
            raise FetchError("a connection greets once")
        return Done(self._numbers(hello))

    def _numbers(self, hello: Hello) -> dict[str, Any]:
        remotes = list(dict.fromkeys(config.remote for config in hello.streams))
        tally, lanes = self._services.tally, self._services.means.lanes
        total = tally.total()
        return {
            **self._engine.numbers(),
            **{name: total.get(name, 0) for name in ("files", "bytes", "failures")},
            "pid": os.getpid(),
            "threads": threading.active_count(),
            "ranges_are_idle": self._services.ranges.is_idle,
            "tickets": self._errands.n_kept + self._range_errands.n_kept,
            "stores": lanes.numbers(),
            "total": total,
            "remotes": tally.of(remotes),
        }

    def _run(self, errand: Errand, moved: Moved) -> Done:
        """Do what is no file of the cache."""
        options = json.loads(errand.options)
        if isinstance(errand, Check):
            self._stores.open_for_uploads(errand.remote, options)  # refuses settings that no upload can honour
            with contextlib.suppress(StoreCannotError):  # a web server has no list
                next(iter(self._stores.open(errand.remote, _CHECK_S, options).list()), None)
            return Done()
        shown = parse_remote(errand.remote).shown
        if isinstance(errand, ListObjects):
            what, n_attempts = f"the list of {shown}", _LIST_ATTEMPTS
        else:
            what = f"{errand.path} to {shown}" if isinstance(errand, Put) else f"{errand.name} of {shown}"
            n_attempts = errand.attempts

        def attempt(_: int) -> Done:
            moved.n_attempts += 1
            if isinstance(errand, ListObjects):
                return self._list(errand, options, moved)
            if isinstance(errand, Put):
                return self._put(errand, options, moved)
            return self._read(errand, options, moved)

        lane = self._services.means.lanes.lane(errand.remote)
        return attempted(what, Patience(n_attempts), lane, attempt, rng=random.Random())

    def _list(self, errand: ListObjects, options: dict[str, Any], moved: Moved) -> Done:
        names = []
        for facts in self._stores.open(errand.remote, _CHECK_S, options).list(errand.prefix):
            names.append(facts.name)
            moved.n_bytes += 1  # a long list comes in many answers: whoever waits sees that it moves
        return Done(sorted(names))

    def _put(self, errand: Put, options: dict[str, Any], moved: Moved) -> Done:
        def read(n_bytes: int) -> None:
            moved.n_bytes = n_bytes

        self._stores.open_for_uploads(errand.remote, options).put(errand.name, errand.path, moved=read)
        return Done()

    def _read(self, errand: ReadObject, options: dict[str, Any], moved: Moved) -> Done:
        content = self._stores.open(errand.remote, errand.timeout_s, options).get(errand.name)
        if content.facts.n_bytes > MAX_OBJECT_BYTES:
            raise FetchError(
                f"{errand.name} of {parse_remote(errand.remote).shown} has {content.facts.n_bytes} bytes; 1 GiB is the "
                "limit here"
            )
        whole = bytearray()
        for chunk in content.chunks:
            whole += chunk
            moved.n_bytes += len(chunk)
        return Done(payload=whole)


def _task(hello: Hello, need: FileNeed) -> FileTask:
    return FileTask.of(need, _config(hello, need.stream))


def _config(hello: Hello, stream: int) -> StreamConfig:
    if not 0 <= stream < len(hello.streams):
        raise FetchError(f"stream {stream} of {len(hello.streams)} was asked for")
    return hello.streams[stream]
