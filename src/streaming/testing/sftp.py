"""A real SFTP server on loopback, for tests: OpenSSH's `sshd`, which runs as long as a block.

    with SftpServer.started() as server:
        dataset = StreamingDataset(remote=server.url("train"), local=...)  # with server.variables() in the environment

Needs `sshd` and `ssh-keygen` (Debian: openssh-server). The server accepts one key, made for it, for the user who
runs the test. It stores files below `folder`.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from typing import Final

from streaming.testing.program import Program, find_program, free_ports

_HOW: Final = "install OpenSSH's server (Debian: `apt-get install openssh-server`)"
_SEPARATION: Final = "/run/sshd"  # must exist where root starts sshd


class SftpServer:
    """One running server, made by `started`."""

    def __init__(self, port: int, program: Program) -> None:
        self.port = port
        self.folder = os.path.join(program.folder, "files")
        self.user = getpass.getuser()
        self._program = program

    @classmethod
    @contextlib.contextmanager
    def started(cls) -> Iterator[SftpServer]:
        """Run a server with an empty folder for the block. Raises MissingProgramError."""
        (port,) = free_ports(1)
        sshd = find_program("sshd", how=_HOW)

        def command(folder: str) -> list[str]:
            _configure(folder, port)
            return [sshd, "-D", "-e", "-f", os.path.join(folder, "config")]

        with Program.started("sshd", command) as program:
            server = cls(port, program)
            program.wait_until_ready(server._greeted)
            try:
                yield server
            finally:
                server.cut()  # its children would outlive it

    def cut(self) -> None:
        """End every connection; the server keeps running."""
        for child in _descendants(self._program.process_id):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    def url(self, *parts: str) -> str:
        """The URL of a path in the server's folder."""
        return "/".join((f"sftp://{self.user}@127.0.0.1:{self.port}{self.folder}", *parts))

    def variables(self) -> dict[str, str]:
        """The environment that holds the key and the known hosts."""
        return {
            "COMPOSER_SFTP_KEY_FILE": os.path.join(self._program.folder, "user"),
            "COMPOSER_SFTP_KNOWN_HOSTS_FILE": os.path.join(self._program.folder, "known_hosts"),
        }

    def _greeted(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            if connection.recv(4) != b"SSH-":
                raise OSError("no greeting of SSH")


def _configure(folder: str, port: int) -> None:
    """Write keys for this one server, and its settings."""
    os.mkdir(os.path.join(folder, "files"))
    paths = {name: os.path.join(folder, name) for name in ("host", "user", "authorized", "known_hosts", "config")}
    for name in ("host", "user"):
        keygen = find_program("ssh-keygen", how=_HOW)
        subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", paths[name]], check=True)
    shutil.copy(f"{paths['user']}.pub", paths["authorized"])
    with open(f"{paths['host']}.pub") as public:
        key = " ".join(public.read().split()[:2])
    settings = {
        "ListenAddress": f"127.0.0.1:{port}",
        "HostKey": paths["host"],
        "AuthorizedKeysFile": paths["authorized"],
        "StrictModes": "no",  # everybody may write to the folder for temporary files
        "PermitRootLogin": "prohibit-password",
        "UsePAM": "no",
        "PidFile": "none",
        "MaxStartups": "100",
        "Subsystem": "sftp internal-sftp",
    }
    with open(paths["known_hosts"], "w") as file:
        file.write(f"[127.0.0.1]:{port} {key}\n")
    with open(paths["config"], "w") as file:
        file.write("".join(f"{name} {value}\n" for name, value in settings.items()))
    if os.geteuid() == 0:
        os.makedirs(_SEPARATION, mode=0o755, exist_ok=True)


def _descendants(pid: int) -> list[int]:
    """The process ids of all children and their children."""
    found = list[int]()
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{pid}/children") as children:
        for child in map(int, children.read().split()):
            found += [child, *_descendants(child)]
    return found
