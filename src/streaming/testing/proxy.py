r"""A store that is slow and broken on demand, and that counts: an HTTP proxy on loopback, in a process of its own.

    with S3Server.started() as server, FaultProxy.started(upstream=f"127.0.0.1:{server.port}") as proxy:
        proxy.set_rules(Rule(Fault(cut_after=0.5), path=r"shard\.00003", times=1))
        proxy.set_limits(Limits(latency_s=0.04, bytes_per_s=200e6))
        ...  # a client that is led to proxy.endpoint
        assert proxy.counts().fired == (1,)

It forwards to `upstream`, with the Host header as the client sent it, so that signatures hold. Without an upstream it
is a read-only S3 store by itself: of folders, of single files under any number of keys, and of made-up objects that
need no disk. Bodies are streamed in both directions. Needs nothing but the standard library.

Not built: TLS, HTTP/2, upgrades; of several ranges in one request none is honoured by the store of our own.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import IO, Any, Final

import streaming
from streaming.errors import DeadlineError, OptionError, StreamingError
from streaming.testing.faults import Counts, Fault, Limits, LoggedRequest, Rule, Spot
from streaming.testing.proxy_server.origin import synthetic_bytes

__all__ = ["Counts", "Fault", "FaultProxy", "Limits", "LoggedRequest", "Rule", "Spot", "synthetic_bytes"]

_ANSWER_S: Final = 30.0
_PACKAGE_FOLDER: Final = os.path.dirname(os.path.dirname(os.path.abspath(streaming.__file__)))


class FaultProxy:
    """One running proxy. Made by `started`. Thread-safe; of this process alone, not of its forks."""

    def __init__(self, host: str, control: socket.socket, log: IO[bytes], *, is_store: bool) -> None:
        self._control, self._log, self._is_store = control, log, is_store
        self._answers = control.makefile("rb")
        self._lock = threading.Lock()
        self.port: int = self._next_answer()["port"]
        self.endpoint = f"http://{host}:{self.port}"

    @classmethod
    @contextlib.contextmanager
    def started(
        cls, *, upstream: str | None = None, buckets: Mapping[str, str] | None = None, host: str = "127.0.0.1"
    ) -> Iterator[FaultProxy]:
        """A proxy before `upstream` (`host:port`), or a store of `buckets` (name → folder), listening on `host`.

        It dies with the thread that started it, so that nothing is left behind whatever happens to this process.
        StreamingError at the end of the block if the proxy itself failed in between.
        """
        settings = {
            "host": host,
            "upstream": None if upstream is None else _address(upstream),
            "folders": {name: os.path.abspath(folder) for name, folder in (buckets or {}).items()},
            "parent": os.getpid(),
        }
        if upstream is not None and buckets is not None:
            raise OptionError("a FaultProxy has an upstream, or buckets of its own, not both")
        with contextlib.ExitStack() as stack:
            log = stack.enter_context(tempfile.TemporaryFile())
            ours, theirs = socket.socketpair()
            stack.enter_context(ours).settimeout(_ANSWER_S)
            with theirs:
                process = _launched({**settings, "control": theirs.fileno()}, theirs.fileno(), log)
            stack.callback(process.wait)
            stack.callback(process.kill)
            proxy = cls(host, ours, log, is_store=upstream is None)
            stack.callback(proxy._answers.close)
            yield proxy
            if said := proxy._said():
                raise StreamingError(f"the proxy failed:\n{said}")

    # --- what happens to requests

    def set_rules(self, *rules: Rule, seed: int = 0) -> None:
        """Replace all rules, from the next request on. A request meets the first that applies. `seed` is for chance."""
        self._ask("rules", rules=[asdict(rule) for rule in rules], seed=seed)

    def set_limits(self, limits: Limits) -> None:
        """Replace all limits, at once."""
        self._ask("limits", limits=asdict(limits))

    # --- what there is to serve, without an upstream

    def add_files(self, bucket: str, files: Mapping[str, str]) -> None:
        """More objects of a bucket: key → path. One file may have many keys."""
        self._add(bucket, {key: os.path.abspath(path) for key, path in files.items()}, {})

    def add_synthetic(self, bucket: str, sizes: Mapping[str, int]) -> None:
        """More objects of a bucket, whose bytes are made up: key → size. `synthetic_bytes` says what they are."""
        self._add(bucket, {}, dict(sizes))

    def _add(self, bucket: str, files: dict[str, str], synthetic: dict[str, int]) -> None:
        if not self._is_store:
            raise OptionError("this proxy has an upstream, so it serves no objects of its own")
        self._ask("objects", bucket=bucket, files=files, synthetic=synthetic)

    # --- what has happened

    def counts(self) -> Counts:
        """Everything that is counted."""
        return Counts.from_json(self._ask("counts"))

    def log(self) -> list[LoggedRequest]:
        """The latest requests, oldest first; 100,000 at most."""
        return [LoggedRequest.from_json(entry) for entry in self._ask("log")]

    def ranges(self) -> list[tuple[str, int, int | None]]:
        """Of the requests in the log that had a Range: path, first byte, one beyond the last; see LoggedRequest."""
        return [(entry.path, *entry.span) for entry in self.log() if entry.span is not None]

    def reset_counts(self) -> None:
        """Count anew, and empty the log; connections that are open stay counted as open."""
        self._ask("reset_counts")

    def variables(self) -> dict[str, str]:
        """The environment that leads S3 clients here. For a proxy, the keys are still to be those of the store."""
        led = {"S3_ENDPOINT_URL": self.endpoint, "NO_PROXY": "127.0.0.1,localhost"}
        keys = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_REGION": "us-east-1"}
        return {**led, **keys} if self._is_store else led

    # --- the process

    def _ask(self, what: str, **arguments: Any) -> Any:
        with self._lock:
            try:
                self._control.sendall(json.dumps({"do": what, **arguments}).encode() + b"\n")
            except OSError as error:
                raise StreamingError(f"the proxy's process is gone: {error}\n{self._said()}") from error
            answer = self._next_answer()
        if "error" in answer:
            raise StreamingError(f"the proxy could not do {what!r}: {answer['error']}")
        return answer.get("result")

    def _next_answer(self) -> dict[str, Any]:
        try:
            line = self._answers.readline()
        except TimeoutError as error:
            raise DeadlineError(f"the proxy said nothing for {_ANSWER_S:.0f} s\n{self._said()}") from error
        if not line:
            raise StreamingError(f"the proxy's process has ended\n{self._said()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _said(self) -> str:
        """What its process had to complain about."""
        n_bytes = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), 4000, max(0, n_bytes - 4000)).decode(errors="replace")


def _launched(settings: dict[str, Any], control: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "streaming.testing.proxy_server.process", json.dumps(settings)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd="/",
        env={**os.environ, "PYTHONPATH": _PACKAGE_FOLDER},
        pass_fds=[control],
        start_new_session=True,
    )


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise OptionError(f"upstream must be host:port, got {text!r}")
    return host, int(port)
