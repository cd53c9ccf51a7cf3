"""Real processes around a fetcher."""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from streaming.fetch.client import FetchClient
from streaming.fetch.wire.protocol import FileRequest
from support.fetching import stream_config

PATIENCE_S = 120.0  # no test depends on it: it only ends those that hang


def content(name: str, n_bytes: int) -> bytes:
    """Pseudo-random bytes that follow from the name."""
    return hashlib.shake_128(name.encode()).digest(n_bytes)


def filled(folder: Path, n: int, n_bytes: int) -> list[FileRequest]:
    """Write files `0` … into a new folder; return their needs, as of stream 0."""
    folder.mkdir(parents=True)
    for i in range(n):
        (folder / str(i)).write_bytes(content(str(i), n_bytes))
    return [FileRequest(0, str(i), n_bytes) for i in range(n)]


def client_of(remote: str | Path, local: Path, **config: Any) -> FetchClient:
    """A client of one stream, with the stream's cache as root."""
    return FetchClient(str(local), [stream_config(str(remote), str(local), **config)])


def temporaries(root: Path) -> list[Path]:
    """Half-written files below a cache folder."""
    return [path for path in root.rglob(".*.tmp") if ".streaming" not in path.parts]


def fetchers_of(root: Path) -> list[psutil.Process]:
    """The running fetchers of this cache."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            command = process.cmdline()
            if any("streaming.fetch.server.process" in word for word in command) and any(
                f'"{root}"' in w for w in command
            ):
                found.append(process)
    return found


def wait_until(what: str, true: Callable[[], object]) -> None:
    """Return when `true()` is true; fail after PATIENCE_S."""
    end_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end_s, f"not within {PATIENCE_S} s: {what}"
        time.sleep(0.02)


@contextlib.contextmanager
def processes(
    method: str, target: Callable[..., None], arguments: Sequence[tuple[Any, ...]]
) -> Iterator[list[multiprocessing.process.BaseProcess]]:
    """Start a process for each tuple of arguments; kill those that still run at the end of the block."""
    context = multiprocessing.get_context(method)
    started: list[multiprocessing.process.BaseProcess] = []
    try:
        for each in arguments:
            process = context.Process(target=_with_stacks, args=(target, *each))  # type: ignore[attr-defined]
            process.start()
            started.append(process)
        yield started
    finally:
        for process in started:
            process.kill()
            process.join()


def _with_stacks(target: Callable[..., None], *arguments: Any) -> None:
    """Call it in a process that prints where its threads are when it gets SIGUSR1."""
    faulthandler.register(signal.SIGUSR1, file=sys.__stderr__ or sys.stderr, all_threads=True)
    target(*arguments)


def run_all(method: str, target: Callable[..., None], arguments: Sequence[tuple[Any, ...]]) -> None:
    """Run a process for each tuple of arguments to its end; fail unless all exit with 0."""
    with processes(method, target, arguments) as started:
        end_s = time.monotonic() + PATIENCE_S
        for process in started:
            process.join(max(end_s - time.monotonic(), 0))
        codes = [process.exitcode for process in started]
        for process in started:
            if process.exitcode is None and process.pid:
                os.kill(process.pid, signal.SIGUSR1)  # its stacks are in what the test printed
                process.join(1)
        assert codes == [0] * len(started), f"exit codes {codes}; None has not ended within {PATIENCE_S} s"


def as_bytes(parts: Sequence[memoryview | None]) -> list[bytes | None]:
    """The given ranges as bytes, for comparison."""
    return [None if part is None else bytes(part) for part in parts]


def read_and_compare(client: FetchClient, needs: Sequence[FileRequest], contents: Sequence[bytes]) -> None:
    """Wait for these files, and compare every byte."""
    for need, expected in zip(needs, contents):
        assert Path(client.wait(need)).read_bytes() == expected


def read_and_delete(
    client: FetchClient, needs: Sequence[FileRequest], contents: Sequence[bytes], over: Any, n_read: Any, i: int
) -> None:
    """Fetch, compare and delete these files again and again until `over` is set; count them in `n_read[i]`."""
    while not over.is_set():
        client.announce(f"reader-{os.getpid()}", needs)
        for need, expected in zip(needs, contents):
            path = client.wait(need)
            assert Path(path).read_bytes() == expected
            os.unlink(path)
            n_read[i] += 1
