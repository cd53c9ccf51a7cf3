"""A real SFTP server on loopback, for tests: OpenSSH's `sshd`, started and ended with a block.

    with SftpServer.started() as server:
        dataset = StreamingDataset(remote=server.url("train"), local=...)  # with server.variables() in the environment

Needs `sshd` and `ssh-keygen` (Debian: openssh-server). The server knows one key, made for it, and the user who runs
the test; what is stored lies below `folder`.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Final

from streaming.errors import DeadlineError
from streaming.testing.s3 import _die_with_parent, free_ports

_READY_S: Final = 30.0
_SEPARATION: Final = "/run/sshd"  # which sshd wants to exist where root starts it


class SftpServer:
    """One running server. Made by `started`."""

    def __init__(self, port: int, folder: str, secrets: str, log: str) -> None:
        self.port = port
        self.folder = folder
        self.user = getpass.getuser()
        self._secrets, self._log = secrets, log
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    @contextlib.contextmanager
    def started(cls) -> Iterator[SftpServer]:
        """A server and its empty folder, gone at the end. Raises FileNotFoundError if OpenSSH is not installed."""
        with tempfile.TemporaryDirectory(prefix="sftp-") as top:
            folder, secrets = os.path.join(top, "files"), os.path.join(top, "secrets")
            os.mkdir(folder)
            os.mkdir(secrets, mode=0o700)
            (port,) = free_ports(1)
            server = cls(port, folder, secrets, os.path.join(top, "log"))
            server._make_keys()
            server.start()
            try:
                yield server
            finally:
                server.stop()

    def start(self) -> None:
        """Listen (again); back when connections are answered."""
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [_program("sshd"), "-D", "-e", "-f", os.path.join(self._secrets, "config")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        self._wait_until_ready()

    def stop(self) -> None:
        """End the server and every connection to it."""
        if self._process is None:
            return
        self.cut()
        self._process.kill()
        self._process.wait()
        self._process = None

    def cut(self) -> None:
        """End every connection; the server goes on."""
        assert self._process is not None
        for child in _descendants(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, 9)

    def url(self, *parts: str) -> str:
        """The URL of a place in the server's folder."""
        return "/".join((f"sftp://{self.user}@127.0.0.1:{self.port}{self.folder}", *parts))

    def variables(self) -> dict[str, str]:
        """The environment with which this server is reached."""
        return {
            "COMPOSER_SFTP_KEY_FILE": os.path.join(self._secrets, "user"),
            "COMPOSER_SFTP_KNOWN_HOSTS_FILE": os.path.join(self._secrets, "known_hosts"),
        }

    def _make_keys(self) -> None:
        for name in ("host", "user"):
            path = os.path.join(self._secrets, name)
            subprocess.run([_program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
        shutil.copy(os.path.join(self._secrets, "user.pub"), os.path.join(self._secrets, "authorized"))
        with open(os.path.join(self._secrets, "host.pub")) as public:
            key = " ".join(public.read().split()[:2])
        self._write("known_hosts", f"[127.0.0.1]:{self.port} {key}\n")
        settings = {
            "ListenAddress": f"127.0.0.1:{self.port}",
            "HostKey": os.path.join(self._secrets, "host"),
            "AuthorizedKeysFile": os.path.join(self._secrets, "authorized"),
            "StrictModes": "no",  # the folder for temporary files is everybody's
            "PermitRootLogin": "prohibit-password",
            "UsePAM": "no",
            "PidFile": "none",
            "MaxStartups": "100",
            "Subsystem": "sftp internal-sftp",
        }
        self._write("config", "".join(f"{name} {value}\n" for name, value in settings.items()))
        if os.geteuid() == 0:
            os.makedirs(_SEPARATION, mode=0o755, exist_ok=True)

    def _write(self, name: str, text: str) -> None:
        with open(os.path.join(self._secrets, name), "w") as file:
            file.write(text)

    def _wait_until_ready(self) -> None:
        end_s = time.monotonic() + _READY_S
        while True:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection,
            ):
                if connection.recv(4) == b"SSH-":
                    return
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > end_s:
                with open(self._log, "rb") as log:
                    tail = log.read()[-2000:].decode(errors="replace")
                raise DeadlineError(f"sshd did not answer within {_READY_S:.0f} s:\n{tail}")
            time.sleep(0.05)


def _program(name: str) -> str:
    found = shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin")))
    if found is None:
        raise FileNotFoundError(f"{name} is not installed; install OpenSSH's server (Debian: openssh-server)")
    return found


def _descendants(pid: int) -> list[int]:
    """Processes that `pid` started, and theirs."""
    found = list[int]()
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{pid}/children") as children:
        for child in map(int, children.read().split()):
            found += [child, *_descendants(child)]
    return found
