r"""A store that is slow and broken on demand, and that counts: an HTTP proxy on loopback, in a process of its own.

    with S3Server.started() as server, FaultProxy.started(upstream=f"127.0.0.1:{server.port}") as proxy:
        proxy.set_rules(FaultRule(Fault(cut_after=0.5), path=r"shard\.00003", times=1))
        proxy.set_limits(ProxyLimits(latency_s=0.04, bytes_per_s=200e6))
        ...  # a client that uses proxy.endpoint
        assert proxy.counts().fired == (1,)

It forwards to `upstream` with the Host header that the client sent, so that signatures hold. Without an upstream it is
a read-only S3 store by itself: of folders, and of files and bytes under any number of keys. Bodies are streamed in both
directions. Needs the package `h11` (extra `testing`).

Not supported: TLS, HTTP/2, upgrades; its own store ignores a Range header with several ranges.
"""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from typing import IO, Any, Final

import streaming
from streaming.errors import DeadlineError, MissingExtraError, OptionError, StreamingError
from streaming.testing.faults import FaultRule, LoggedRequest, ProxyCounts, ProxyLimits

_ANSWER_S: Final = 30.0
_PACKAGE_FOLDER: Final = os.path.dirname(os.path.dirname(os.path.abspath(streaming.__file__)))


class FaultProxy:
    """One running proxy, made by `started`. Thread-safe, but unusable in forks of this process."""

    def __init__(self, host: str, control: Connection, log: IO[bytes], contents: IO[bytes], *, is_store: bool) -> None:
        self._control, self._log, self._contents, self._is_store = control, log, contents, is_store
        self._lock = threading.Lock()
        self.port: int = self._receive()
        self.endpoint = f"http://{host}:{self.port}"

    @classmethod
    @contextlib.contextmanager
    def started(
        cls, *, upstream: str | None = None, buckets: Mapping[str, str] | None = None, host: str = "127.0.0.1"
    ) -> Iterator[FaultProxy]:
        """A proxy before `upstream` (`host:port`), or a store of `buckets` (name → folder), listening on `host`.

        Its process dies with the thread that started it, so nothing is left behind whatever happens to this process.
        Raises MissingExtraError, and StreamingError at the end of the block if the proxy failed in between.
        """
        if importlib.util.find_spec("h11") is None:
            raise MissingExtraError(package="h11", extra="testing", purpose="a FaultProxy")
        if upstream is not None and buckets is not None:
            raise OptionError("a FaultProxy has an upstream, or buckets of its own, not both")
        settings = {
            "host": host,
            "upstream": None if upstream is None else _address(upstream),
            "folders": {name: os.path.abspath(folder) for name, folder in (buckets or {}).items()},
        }
        with contextlib.ExitStack() as stack:
            log, contents = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            ours, theirs = multiprocessing.Pipe()
            stack.enter_context(ours)
            with theirs:
                process = _launch(theirs.fileno(), contents.fileno(), log)
            stack.callback(process.wait)
            stack.callback(process.kill)
            ours.send({**settings, "contents": contents.fileno()})
            proxy = cls(host, ours, log, contents, is_store=upstream is None)
            yield proxy
            if text := proxy._log_tail():
                raise StreamingError(f"the proxy failed:\n{text}")

    # --- what happens to requests

    def set_rules(self, *rules: FaultRule, seed: int = 0) -> None:
        """Replace all rules from the next request on, and end all stalls. `seed` is for their probabilities.

        The first rule that selects a request decides its fault.
        """
        self._ask("state", "set_rules", rules=rules, seed=seed)

    def set_limits(self, limits: ProxyLimits) -> None:
        """Replace all limits, also for answers that are being sent."""
        self._ask("state", "set_limits", limits=limits)

    # --- what its own store holds

    def add_files(self, bucket: str, files: Mapping[str, str]) -> None:
        """Add objects to a bucket, or replace them: key → path. One file may have many keys."""
        self._add(bucket, {key: os.path.abspath(path) for key, path in files.items()})

    def add_bytes(self, bucket: str, contents: Mapping[str, bytes]) -> None:
        """Add objects to a bucket, or replace them: key → content."""
        extents = {}
        with self._lock:
            for key, content in contents.items():
                extents[key] = self._contents.seek(0, os.SEEK_END), len(content)
                self._contents.write(content)
            self._contents.flush()
        self._add(bucket, extents)

    def remove(self, bucket: str, key: str) -> None:
        """Remove an object that was added."""
        self._ask("origin", "remove", bucket=bucket, key=key)

    def _add(self, bucket: str, objects: Mapping[str, str | tuple[int, int]]) -> None:
        if not self._is_store:
            raise OptionError("this proxy has an upstream, so it serves no objects of its own")
        self._ask("origin", "add", bucket=bucket, objects=objects)

    # --- what has happened

    def counts(self) -> ProxyCounts:
        """All counts since the start or the last `reset_counts`."""
        counts: ProxyCounts = self._ask("state", "counts")
        return counts

    def log(self) -> list[LoggedRequest]:
        """The latest requests, oldest first; at most 100,000."""
        entries: list[LoggedRequest] = self._ask("state", "log")
        return entries

    def ranges(self) -> list[tuple[str, int, int | None]]:
        """The logged requests that had a Range header: path, first byte, one beyond the last; see LoggedRequest."""
        return [(entry.path, *entry.span) for entry in self.log() if entry.span is not None]

    def reset_counts(self) -> None:
        """Count from zero, and empty the log. Open connections still count as open."""
        self._ask("state", "reset_counts")

    def variables(self) -> dict[str, str]:
        """The environment that leads S3 clients here. Before an upstream, they need its keys in addition."""
        variables = {"S3_ENDPOINT_URL": self.endpoint, "NO_PROXY": "127.0.0.1,localhost"}
        keys = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_REGION": "us-east-1"}
        return {**variables, **keys} if self._is_store else variables

    # --- the process

    def _ask(self, target: str, method: str, **arguments: Any) -> Any:
        with self._lock:
            try:
                self._control.send((target, method, arguments))
            except OSError as error:
                raise StreamingError(f"the proxy's process is gone: {error}\n{self._log_tail()}") from error
            answer = self._receive()
        if isinstance(answer, Exception):
            raise StreamingError(f"the proxy could not do {method!r}: {answer!r}")
        return answer

    def _receive(self) -> Any:
        try:
            if self._control.poll(_ANSWER_S):
                return self._control.recv()
        except (EOFError, OSError) as error:
            raise StreamingError(f"the proxy's process has ended\n{self._log_tail()}") from error
        raise DeadlineError(f"the proxy said nothing for {_ANSWER_S:.0f} s\n{self._log_tail()}")

    def _log_tail(self) -> str:
        """The end of what its process has written, which is nothing unless it failed."""
        n_bytes = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), 4000, max(0, n_bytes - 4000)).decode(errors="replace")


def _launch(control: int, contents: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "streaming.testing.proxy_server.process", str(control), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd="/",
        env={**os.environ, "PYTHONPATH": _PACKAGE_FOLDER},
        pass_fds=[control, contents],
        start_new_session=True,
    )


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise OptionError(f"upstream must be host:port, got {text!r}")
    return host, int(port)
