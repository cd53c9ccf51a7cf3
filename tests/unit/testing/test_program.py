"""Server programs for tests are found, awaited and ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from streaming.errors import DeadlineError
from streaming.testing.program import MissingProgramError, Program, find_program, free_ports
from support.fetcher_world import wait_until
from support.servers import started

SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


def test_a_program_that_is_missing_says_how_to_get_it() -> None:
    """A program that is installed is found."""
    with pytest.raises(MissingProgramError, match="'no-such-program' is not installed; ask for it"):
        find_program("no-such-program", how="ask for it")
    assert os.access(find_program("sh", how=""), os.X_OK)


def test_without_its_program_a_test_is_skipped_but_fails_where_ci_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where CI is set, a missing program fails the test instead of skipping it."""

    @contextlib.contextmanager
    def missing() -> Iterator[None]:
        find_program("no-such-program", how="ask for it")
        yield

    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="ask for it"):
        list(started(missing()))
    monkeypatch.setenv("CI", "true")
    with pytest.raises(MissingProgramError):
        list(started(missing()))


def test_a_program_that_ends_is_not_waited_for() -> None:
    """The error quotes the end of its log."""

    def refuse() -> None:
        raise ConnectionRefusedError("nobody there")

    command = [sys.executable, "-c", "print('the reason why'); raise SystemExit(3)"]
    with (
        Program.started("the server", lambda _: command) as running,
        pytest.raises(DeadlineError, match=r"(?s)the server did not answer.*nobody there.*the reason why"),
    ):
        running.wait_until_ready(refuse)


def test_a_program_ends_with_its_block() -> None:
    """Its folder is deleted."""
    with Program.started("the server", lambda _: SLEEPER) as running:
        folder = running.folder
        (process,) = [child for child in psutil.Process().children() if child.cmdline() == SLEEPER]
        assert os.path.isdir(folder)
    assert not process.is_running()
    assert not os.path.exists(folder)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel is asked for it")
def test_a_program_ends_with_a_process_that_is_killed() -> None:
    """Even if the parent is killed by SIGKILL."""
    program = (
        "import sys, time\n"
        "from streaming.testing.program import Program\n"
        f"with Program.started('the server', lambda _: {SLEEPER!r}):\n"
        "    print('started', flush=True)\n"
        "    time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"started\n"
        (server,) = psutil.Process(process.pid).children()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        wait_until("the server has ended", lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE)


def test_free_ports_differ() -> None:
    """The ports 10,000 above them are free too."""
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(20_000 <= port < 45_000 for port in ports)
