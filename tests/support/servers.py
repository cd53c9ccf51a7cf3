"""Servers that tests share: started once, ended with their block."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

from streaming.testing.sftp import SftpServer


def started_sftp_server() -> Iterator[SftpServer]:
    """A real SFTP server; the test is skipped where OpenSSH is not installed, but fails where CI is set."""
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(SftpServer.started())
        except FileNotFoundError as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(f"no SFTP server: {error}")
        yield server
