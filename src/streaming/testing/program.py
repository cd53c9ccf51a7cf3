"""Server programs for tests, on loopback, which end with the test whatever happens.

A program is searched for in the virtual environment first (in `bin`, and in `tools`, where `make` puts what npm
installs), then on PATH.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from streaming.errors import DeadlineError, StreamingError

_READY_S: Final = 30.0
_PDEATHSIG: Final = 1
_libc: Final = ctypes.CDLL(None) if sys.platform == "linux" else None


class MissingProgramError(StreamingError, FileNotFoundError):
    """A program that a test server needs is not installed. The message says how to install it."""


class Program:
    """One running program and its folder, made by `started`."""

    def __init__(self, title: str, process: subprocess.Popen[bytes], folder: str, log_path: str) -> None:
        self.folder = folder
        self._title, self._process, self._log_path = title, process, log_path

    @classmethod
    @contextlib.contextmanager
    def started(
        cls, title: str, command: Callable[[str], Sequence[str]], *, environment: Mapping[str, str] | None = None
    ) -> Iterator[Program]:
        """Run `command(folder)` in a new temporary folder until the block, or this process, ends."""
        with tempfile.TemporaryDirectory(prefix="server-") as folder:
            log_path = os.path.join(folder, "server.log")
            with open(log_path, "wb") as log:
                process = subprocess.Popen(
                    list(command(folder)),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=folder,
                    env={**os.environ, **(environment or {})},
                    start_new_session=True,
                    preexec_fn=_die_with_parent,
                )
            try:
                yield cls(title, process, folder, log_path)
            finally:
                process.kill()
                process.wait()

    @property
    def process_id(self) -> int:
        """The program's process id."""
        return self._process.pid

    def wait_until_ready(self, ask: Callable[[], object]) -> None:
        """Wait until `ask` no longer raises.

        Raises DeadlineError, with the end of the log, after 30 s or if the program has ended.
        """
        end_s = time.monotonic() + _READY_S
        while True:
            try:
                ask()
                return
            except (OSError, http.client.HTTPException) as error:
                if self._process.poll() is not None or time.monotonic() > end_s:
                    with open(self._log_path, "rb") as log:
                        tail = log.read()[-2000:].decode(errors="replace")
                    raise DeadlineError(
                        f"{self._title} did not answer within {_READY_S:.0f} s: {error}\n{tail}"
                    ) from error
            time.sleep(0.05)


def find_program(name: str, *, how: str) -> str:
    """The path of a program. Raises MissingProgramError, whose message ends with `how` to install it."""
    for folder in ("bin", "tools/node_modules/.bin"):
        path = os.path.join(sys.prefix, folder, name)
        if os.access(path, os.X_OK):
            return path
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise MissingProgramError(f"the program {name!r} is not installed; {how}")
    return found


def free_ports(n: int) -> list[int]:
    """Unused ports on loopback; the ports 10,000 above them, which some servers take for gRPC, are unused too."""
    rng, found = random.Random(), list[int]()
    while len(found) < n:
        port = rng.randrange(20_000, 45_000)
        if port not in found and _is_free(port) and _is_free(port + 10_000):
            found.append(port)
    return found


def request(port: int, method: str, path: str, content: bytes = b"", headers: Mapping[str, str] | None = None) -> bytes:
    """Send one request to a server on this machine; return the answer's body. Raises OSError for a status above 299."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request(method, path, content, dict(headers or {}))
        answer = connection.getresponse()
        body = answer.read()
    if answer.status >= 300:
        raise OSError(f"{method} {path}: {answer.status} {body[:300]!r}")
    return body


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _die_with_parent() -> None:
    """Called in the child: have the kernel kill it when this process ends, even if this process is killed."""
    if _libc is not None:
        _libc.prctl(_PDEATHSIG, signal.SIGKILL)
