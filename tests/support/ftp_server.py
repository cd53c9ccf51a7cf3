"""A real FTP server on loopback: pyftpdlib, in a process of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from streaming.testing.program import Program, free_ports

USER: Final = "user"
PASSWORD: Final = "secret"


class FtpServer:
    """One running server, made by `started`."""

    def __init__(self, port: int, folder: Path) -> None:
        self.port, self.folder = port, folder

    @classmethod
    @contextlib.contextmanager
    def started(cls) -> Iterator[FtpServer]:
        """Run a server for the block, with an empty folder that one user may write to."""
        (port,) = free_ports(1)

        def command(folder: str) -> list[str]:
            os.mkdir(os.path.join(folder, "files"))
            program = [sys.executable, "-W", "ignore", "-m", "pyftpdlib", "-i", "127.0.0.1", "-p", str(port), "-w"]
            return [*program, "-d", os.path.join(folder, "files"), "-u", USER, "-P", PASSWORD]

        with Program.started("pyftpdlib", command) as program:
            server = cls(port, Path(program.folder) / "files")
            program.wait_until_ready(server._greeted)
            yield server

    def _greeted(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            if connection.recv(3) != b"220":
                raise OSError("no greeting of FTP")
