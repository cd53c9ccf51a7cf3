"""The listening side: a thread for each connection turns requests into calls. Decides nothing."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, Final

from streaming.errors import CredentialsWantedError, FetchError, StoreCannotError, StreamingError
from streaming.fetch.decide.transfers import Account, Transfer
from streaming.fetch.server.services import Services
from streaming.fetch.server.tickets import Tickets
from streaming.fetch.transfer.engine import Waiter
from streaming.fetch.transfer.log import log
from streaming.fetch.transfer.ranges import RangeRequest
from streaming.fetch.transfer.stores import Retrying, TransferProgress
from streaming.fetch.wire.credentials import Credentials
from streaming.fetch.wire.protocol import (
    MAX_OBJECT_BYTES,
    PROTOCOL,
    SLICE_S,
    VERSION,
    Announce,
    Answer,
    Check,
    Done,
    Failed,
    FileRequest,
    GiveCredentials,
    Head,
    Hello,
    ListObjects,
    Put,
    ReadObject,
    ReadRanges,
    Request,
    StoreRequest,
    StreamConfig,
    Wait,
    receive_request,
    send_answer,
)
from streaming.fetch.wire.rendezvous import peer_uid
from streaming.storage.registry import register_all
from streaming.storage.store import Store

_HELLO_S: Final = 10.0
"""Seconds for a peer to say who it is."""
_SEND_S: Final = 60.0
"""Seconds for a peer to take an answer."""
_STORE_S: Final = 60.0
"""Seconds for a store to say what it has, or to take an upload."""
_HEAD_S: Final = 10.0
"""Seconds for a store to say what it knows of what is in the cache; one that takes longer is taken as offline."""
_N_HEADS: Final = 16
"""Objects of one client that are asked about at once."""
_LIST_ATTEMPTS: Final = 2
_PAUSE_S: Final = 0.05
_N_STORE_REQUESTS: Final = 8
"""Uploads and the like at once; each upload holds 32 MiB."""
_N_RANGE_READERS: Final = 256
"""Batches of ranges waiting at once; they share the connections."""


class Server:
    """Owns the connections of clients."""

    def __init__(self, services: Services) -> None:
        self._services, self._engine, self._access = services, services.engine, services.access
        self._tickets, self._range_tickets = Tickets(_N_STORE_REQUESTS), Tickets(_N_RANGE_READERS)
        self._instance = os.urandom(8).hex()
        self._wake_from, self._wake = socket.socketpair()
        self._wake.setblocking(False)

    def serve(self, listener: socket.socket) -> None:
        """Answer all who connect to this socket, until nobody has been connected for long enough."""
        listener.setblocking(False)
        while not self._passed([listener]):
            try:
                peer, _ = listener.accept()
            except BlockingIOError:
                continue
            except OSError:  # gone again, or no descriptor left: the others keep waiting
                time.sleep(_PAUSE_S)
                continue
            try:
                threading.Thread(target=self.serve_peer, args=(peer,), name="client", daemon=True).start()
            except RuntimeError as error:  # the limit of processes: the client asks again
                log(f"a client was turned away: {error}; the limit of processes is low")
                peer.close()
                time.sleep(_PAUSE_S)

    def keep_time(self) -> None:
        """Do for ever what is due at some time; for a server whose peers are brought to it."""
        while True:
            self._passed([])

    def _passed(self, listeners: list[socket.socket]) -> bool:
        """Wait until something is due or somebody connects. Whether this is the end."""
        while True:
            is_over, pause_s, jobs_gone = self._engine.passed()
            for job in jobs_gone:
                self._tickets.forget(job)
                self._range_tickets.forget(job)
                self._access.credentials.forget(job)
            if is_over and listeners:
                return True
            # Without a listener nobody ends us: the end stays due, and the next peer is the next event.
            ready, _, _ = select.select([*listeners, self._wake_from], [], [], None if is_over else pause_s)
            if self._wake_from in ready:
                self._wake_from.recv(4096)
            if listeners and listeners[0] in ready:
                return False

    # --- one client

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
            facts = {"protocol": PROTOCOL, "version": VERSION, "instance": self._instance, "pid": os.getpid()}
            facts |= {"rules": asdict(self._services.rules), "n_transfers": self._services.limits.n_transfers}
            if hello.protocol != PROTOCOL:
                send_answer(peer, Done(facts))
                return
            register_all(hello.openers)
            self._engine.opened(hello)
            waiter = Waiter()
            try:
                send_answer(peer, Done(facts))
                self._converse(peer, hello, waiter)
            finally:
                self._engine.leave(waiter)
                self._engine.closed(hello.job)
                with contextlib.suppress(BlockingIOError):  # full: it will wake up anyway
                    self._wake.send(b"\0")

    def _converse(self, peer: socket.socket, hello: Hello, waiter: Waiter) -> None:
        given: Transfer | None = None
        while True:
            peer.settimeout(None)  # an idle client is a client
            try:
                request = receive_request(peer)
                if given is not None:
                    self._engine.opened_file(given)
                    given = None
                if isinstance(request, Wait):
                    transfer = _transfer(hello, request.file)
                    answer = self._engine.wait(waiter, transfer, slice_s=SLICE_S)
                    given = transfer if isinstance(answer, Done) else None
                else:
                    self._engine.leave(waiter)
                    answer = self._answer(request, hello)
            except StreamingError as error:
                answer = Failed(error)
            peer.settimeout(_SEND_S)
            send_answer(peer, answer)

    def _answer(self, request: Request, hello: Hello) -> Answer:
        if isinstance(request, Announce):
            files = [_transfer(hello, file) for file in request.files]
            self._engine.announce(hello.job, request.reader, files, [_transfer(hello, file) for file in request.held])
            keys = [config.credentials_key for config in hello.streams if config.credentials_key]
            return Done(self._access.credentials.due(keys))
        if isinstance(request, GiveCredentials):
            expires_s = float("inf") if request.expires_s is None else request.expires_s
            given = Credentials(json.loads(request.options), expires_s)
            self._access.credentials.put(request.credentials_key, given)
            return Done()
        if isinstance(request, ReadRanges):
            wanted = [RangeRequest(_transfer(hello, span.file), span) for span in request.spans]
            return self._range_tickets.answer(
                hello.job,
                request.ticket,
                lambda progress: self._services.ranges.read(hello.job, request.ask, wanted, progress),
                slice_s=SLICE_S if request.is_patient else 0.0,
            )
        if isinstance(request, Head):
            objects = [(_config(hello, stream), name) for stream, name in request.objects]
            return self._tickets.answer(
                hello.job, request.ticket, lambda progress: self._heads(objects, progress), slice_s=SLICE_S
            )
        if isinstance(request, Put | Check | ReadObject | ListObjects):
            return self._tickets.answer(
                hello.job, request.ticket, lambda progress: self._run(request, progress), slice_s=SLICE_S
            )
        if isinstance(request, Hello):
            raise FetchError("a connection greets once")
        return Done(self._numbers(hello))

    def _numbers(self, hello: Hello) -> dict[str, Any]:
        remotes = dict.fromkeys(config.remote for config in hello.streams)
        counters = self._access.counters
        total = counters.total()
        return {
            **self._engine.numbers(),
            **{name: total.get(name, 0) for name in ("files", "bytes", "failures")},
            "pid": os.getpid(),
            "threads": threading.active_count(),
            "ranges_are_idle": self._services.ranges.is_idle,
            "tickets": self._tickets.n_kept + self._range_tickets.n_kept,
            "stores": self._access.gates.numbers(),
            "total": total,
            "remotes": counters.of(remotes),
        }

    # --- work on stores

    def _heads(self, objects: Sequence[tuple[StreamConfig, str]], progress: TransferProgress) -> Done:
        """What the stores say of these objects. Raises CredentialsWantedError."""

        def head(config: StreamConfig, name: str) -> list[Any]:
            timeout_s = min(config.download_timeout, _HEAD_S)
            account = Account(config.options, config.credentials_key, config.download_retry, timeout_s)
            attempts = self._access.attempts(f"{config.remote.shown}/{name}", account, progress)
            try:
                facts = Retrying(self._access.paced(config.remote, account), attempts).head(name)
            except CredentialsWantedError:
                raise
            except StreamingError as error:
                return [type(error).__name__, str(error)]
            return [facts.n_bytes, facts.version, facts.modified_s]

        with ThreadPoolExecutor(_N_HEADS, thread_name_prefix="head") as threads:
            return Done(list(threads.map(lambda each: head(*each), objects)))

    def _run(self, request: StoreRequest, progress: TransferProgress) -> Done:
        """Do what concerns no file of the cache."""
        shown = request.remote.shown
        if isinstance(request, Check):
            account = Account(request.options, "", 1, _STORE_S)
            self._access.open(request.remote, account, for_uploads=True)  # refuses settings that no upload can honour
            with contextlib.suppress(StoreCannotError):  # a web server has no list
                next(iter(self._access.open(request.remote, account).list()), None)
            return Done()
        if isinstance(request, Put):
            account = Account(request.options, "", request.attempts, _STORE_S)
            attempts = self._access.attempts(
                f"{request.path} to {shown}", account, progress, patience_s=request.patience_s
            )
            store = Retrying(self._access.paced(request.remote, account, for_uploads=True), attempts)
            store.put(request.name, request.path, moved=progress.reached)
            return Done()
        if isinstance(request, ListObjects):
            account = Account(request.options, "", _LIST_ATTEMPTS, _STORE_S)
            attempts = self._access.attempts(f"the list of {shown}", account, progress)
            store = Retrying(self._access.paced(request.remote, account), attempts)
            return Done(sorted(facts.name for facts in store.list(request.prefix)))
        account = Account(request.options, request.credentials_key, request.attempts, request.timeout_s)
        attempts = self._access.attempts(f"{request.name} of {shown}", account, progress)
        store = Retrying(self._access.paced(request.remote, account), attempts)
        return attempts.repeat(lambda: _read(request, store, progress))


def _read(request: ReadObject, store: Store, progress: TransferProgress) -> Done:
    content = store.get(request.name)
    if content.facts.n_bytes > MAX_OBJECT_BYTES:
        shown = f"{request.name} of {request.remote.shown}"
        raise FetchError(f"{shown} has {content.facts.n_bytes} bytes; 1 GiB is the limit here")
    whole = bytearray()
    for chunk in content.chunks:
        whole += chunk
        progress.n_bytes += len(chunk)
    return Done(payload=whole)


def _transfer(hello: Hello, file: FileRequest) -> Transfer:
    return Transfer.of(file, _config(hello, file.stream))


def _config(hello: Hello, stream: int) -> StreamConfig:
    if not 0 <= stream < len(hello.streams):
        raise FetchError(f"stream {stream} of {len(hello.streams)} was asked for")
    return hello.streams[stream]
