"""The listening side: a thread per connection that turns requests into calls. Decides nothing."""

from __future__ import annotations

import contextlib
import os
import random
import select
import socket
import threading
import time
from typing import Final

from streaming.errors import FetchError, StreamingError
from streaming.fetch.attempts import attempted
from streaming.fetch.engine import Engine, Errands
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
    Hello,
    ListObjects,
    Put,
    ReadObject,
    Request,
    StreamConfig,
    Wait,
    receive_request,
    send_answer,
)
from streaming.fetch.transfer import FileTask, Moved
from streaming.storage.connect import Stores

_HELLO_S: Final = 10.0  # for a peer to say who it is
_SEND_S: Final = 60.0  # for a peer to take an answer
_CHECK_S: Final = 60.0  # for a store to say what it has
_PAUSE_S: Final = 0.05


class Server:
    """Owns the listening socket and its connections."""

    def __init__(self, ear: socket.socket, engine: Engine, stores: Stores) -> None:
        self._ear, self._engine, self._stores = ear, engine, stores
        self._errands = Errands()
        self._instance = os.urandom(8).hex()
        self._wake_from, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        ear.setblocking(False)

    def serve(self) -> None:
        """Answer until nobody has been connected for long enough."""
        while True:
            is_over, pause_s = self._engine.passed()
            if is_over:
                return
            ready, _, _ = select.select([self._ear, self._wake_from], [], [], pause_s)
            if self._wake_from in ready:
                self._wake_from.recv(4096)
            if self._ear in ready:
                try:
                    peer, _ = self._ear.accept()
                except OSError:  # gone again, or no descriptor left: those who wait keep waiting
                    time.sleep(_PAUSE_S)
                    continue
                threading.Thread(target=self._serve_peer, args=(peer,), name="client", daemon=True).start()

    def _serve_peer(self, peer: socket.socket) -> None:
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
            send_answer(
                peer, Done({"protocol": PROTOCOL, "version": VERSION, "instance": self._instance, "pid": os.getpid()})
            )
            if hello.protocol == PROTOCOL:
                self._engine.opened(hello.job)
                try:
                    self._engine.roots([config.local for config in hello.streams])
                    self._converse(peer, hello)
                finally:
                    self._engine.closed(hello.job)
                    with contextlib.suppress(BlockingIOError):  # full: it will wake up anyway
                        self._wake.send(b"\0")

    def _converse(self, peer: socket.socket, hello: Hello) -> None:
        while True:
            peer.settimeout(None)  # an idle client is a client
            try:
                answer = self._answer(receive_request(peer), hello)
            except StreamingError as error:
                answer = Failed(error)
            peer.settimeout(_SEND_S)
            send_answer(peer, answer)

    def _answer(self, request: Request, hello: Hello) -> Answer:
        if isinstance(request, Announce):
            tasks = [FileTask.of(need, _config(hello, need.stream)) for need in request.needs]
            self._engine.announce(hello.job, request.reader, tasks)
            return Done()
        if isinstance(request, Wait):
            task = FileTask.of(request.need, _config(hello, request.need.stream))
            return self._engine.wait(task, slice_s=SLICE_S)
        if isinstance(request, Put | Check | ReadObject | ListObjects):
            return self._errands.answer(request.ticket, lambda moved: self._run(request, moved), slice_s=SLICE_S)
        if isinstance(request, Hello):
            raise FetchError("a connection greets once")
        return Done({**self._engine.numbers(), "pid": os.getpid(), "threads": threading.active_count()})

    def _run(self, errand: Errand, moved: Moved) -> Done:
        """Do what is no file of the cache."""
        rng = random.Random()
        if isinstance(errand, Put):
            return attempted(
                f"{errand.path} to {errand.remote}", errand.attempts, lambda _: self._put(errand, moved), rng=rng
            )
        if isinstance(errand, Check):
            self._stores.open_for_uploads(errand.remote)  # refuses settings that no upload can honour
            next(iter(self._stores.open(errand.remote, _CHECK_S).list()), None)
            return Done()
        if isinstance(errand, ReadObject):
            return attempted(
                f"{errand.name} of {errand.remote}", errand.attempts, lambda _: self._read(errand, moved), rng=rng
            )
        return Done(sorted(facts.name for facts in self._stores.open(errand.remote, _CHECK_S).list(errand.prefix)))

    def _put(self, errand: Put, moved: Moved) -> Done:
        moved.n_attempts += 1

        def read(n_bytes: int) -> None:
            moved.n_bytes = n_bytes

        self._stores.open_for_uploads(errand.remote).put(errand.name, errand.path, moved=read)
        return Done()

    def _read(self, errand: ReadObject, moved: Moved) -> Done:
        moved.n_attempts += 1
        content = self._stores.open(errand.remote, errand.timeout_s).get(errand.name)
        if content.facts.n_bytes > MAX_OBJECT_BYTES:
            raise FetchError(
                f"{errand.name} of {errand.remote} has {content.facts.n_bytes} bytes; 1 GiB is the limit here"
            )
        whole = bytearray()
        for chunk in content.chunks:
            whole += chunk
            moved.n_bytes += len(chunk)
        return Done(payload=whole)


def _config(hello: Hello, stream: int) -> StreamConfig:
    if not 0 <= stream < len(hello.streams):
        raise FetchError(f"stream {stream} of {len(hello.streams)} was asked for")
    return hello.streams[stream]
