"""Processes that are measured, with our library or the peer's. No benchmark itself."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import streaming

_SCRIPT: Final = Path(__file__).with_name("reader_tasks.py")
_ANSWER_S: Final = 900.0
_END_S: Final = 20.0


class Reader:
    """One process that does a task of `reader_tasks.py`. Made by `reading`."""

    def __init__(self, process: subprocess.Popen[bytes], complaints: Path) -> None:
        self._process, self._complaints = process, complaints

    def hear(self) -> dict[str, Any]:
        """What it says next."""
        assert self._process.stdout is not None
        end_s = time.monotonic() + _ANSWER_S
        while True:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, end_s - time.monotonic()))
            line = self._process.stdout.readline() if ready else b""
            if not line:
                why = "ended" if ready else f"said nothing for {_ANSWER_S:.0f} s"
                raise SystemExit(f"a measured process {why}:\n{self._complaints.read_text()[-4000:]}")
            if line.startswith(b"{"):  # the rest is what libraries print
                found: dict[str, Any] = json.loads(line)
                return found

    def go(self) -> None:
        """Let it begin the next part."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """By itself, else by force, with all that it started."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()


@contextlib.contextmanager
def reading(
    task: str, arguments: Mapping[str, Any], variables: Mapping[str, str], *, peer: str | None = None
) -> Iterator[Reader]:
    """A process that has begun `task` with our library; with `peer`, an interpreter, with the one installed there."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PYTHONPATH"))}
    if peer is None:
        environment["PYTHONPATH"] = str(Path(streaming.__file__).parents[1])
    with tempfile.NamedTemporaryFile(prefix="complaints-") as complaints:
        process = subprocess.Popen(
            [peer or sys.executable, "-P", str(_SCRIPT), task, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            env={**environment, **variables},
            start_new_session=True,
            bufsize=0,
        )
        reader = Reader(process, Path(complaints.name))
        try:
            yield reader
        finally:
            reader.end()


def version_of_peer(python: str) -> str:
    """Of the library `streaming` that an interpreter has; ends the benchmark if it has none."""
    code = "import streaming; print(streaming.__version__)"
    run = subprocess.run([python, "-P", "-c", code], capture_output=True, text=True, check=False, cwd="/")
    if run.returncode:
        raise SystemExit(f"{python} has no mosaicml-streaming:\n{run.stderr[-2000:]}")
    return run.stdout.split()[-1]
