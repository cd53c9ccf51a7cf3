"""A real Azure Blob server on loopback, for tests: Azurite, which runs as long as a block.

    with AzureServer.started() as server:
        server.put("prefix/name", b"content")

Needs Azurite (`npm install azurite`). It keeps everything in memory, and checks signatures.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import hmac
import urllib.parse
from collections.abc import Iterator
from typing import Final

from streaming.testing.program import Program, find_program, free_ports, request

ACCOUNT: Final = "streaming"
CONTAINER: Final = "box"

_VERSION: Final = "2021-08-06"


def account_key(account: str) -> str:
    """The key that the server accepts for this account."""
    return base64.b64encode(hashlib.sha256(account.encode()).digest()).decode()


class AzureServer:
    """One running server, made by `started`; its accounts, `ACCOUNT` and `other`, each have an empty container."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.container = CONTAINER
        self.accounts = (ACCOUNT, "other")

    @classmethod
    @contextlib.contextmanager
    def started(cls) -> Iterator[AzureServer]:
        """Run a server for the block. Raises MissingProgramError."""
        program = find_program("azurite-blob", how="npm install azurite, or `make tools`")
        (port,) = free_ports(1)
        server = cls(port)
        options = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]
        command = [program, "--blobHost", "127.0.0.1", "--blobPort", str(port), *options]
        accounts = ";".join(f"{account}:{account_key(account)}" for account in server.accounts)
        with Program.started(
            "the Azure server", lambda _: command, environment={"AZURITE_ACCOUNTS": accounts}
        ) as running:
            first, *others = server.accounts
            running.wait_until_ready(lambda: server._make_container(first))
            for account in others:
                server._make_container(account)
            yield server

    def endpoint(self, account: str = ACCOUNT) -> str:
        """The URL of an account's containers."""
        return f"http://127.0.0.1:{self.port}/{account}"

    def variables(self, account: str = ACCOUNT) -> dict[str, str]:
        """The environment that leads Azure clients here."""
        return {
            "AZURE_STORAGE_ENDPOINT": self.endpoint(account),
            "AZURE_ACCOUNT_NAME": account,
            "AZURE_ACCOUNT_ACCESS_KEY": account_key(account),
            "NO_PROXY": "127.0.0.1,localhost",
        }

    def put(self, key: str, content: bytes, *, account: str = ACCOUNT) -> None:
        """Store a blob."""
        self._request("PUT", f"/{self.container}/{key}", account, content, {"x-ms-blob-type": "BlockBlob"})

    def get(self, key: str, *, account: str = ACCOUNT) -> bytes:
        """The content of a blob."""
        return self._request("GET", f"/{self.container}/{key}", account)

    def signed_query(self, permissions: str, *, hours: float = 1.0, account: str = ACCOUNT) -> str:
        """A shared access signature for the container that expires in `hours` (negative: has expired)."""
        ends = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ")
        place = f"/blob/{account}/{self.container}"
        fields = [permissions, "", ends, place, "", "", "", _VERSION, "c", "", "", "", "", "", "", ""]
        query = {"sv": _VERSION, "sr": "c", "se": ends, "sp": permissions, "sig": _signature(account, fields)}
        return urllib.parse.urlencode(query)

    def _make_container(self, account: str) -> None:
        self._request("PUT", f"/{self.container}", account, query={"restype": "container"})

    def _request(
        self,
        method: str,
        path: str,
        account: str,
        content: bytes = b"",
        headers: dict[str, str] | None = None,
        query: dict[str, str] | None = None,
    ) -> bytes:
        """Send one request signed with the shared key. No client library is loaded into the test's process."""
        now = datetime.datetime.now(datetime.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        signed = {"x-ms-date": now, "x-ms-version": _VERSION, **(headers or {})}
        path = f"/{account}{urllib.parse.quote(path)}"
        n_bytes = str(len(content)) if content else ""
        lines = [method, "", "", n_bytes, "", "", "", "", "", "", "", ""]
        lines += [f"{name}:{signed[name]}" for name in sorted(signed)]
        lines += [f"/{account}{path}", *(f"{name}:{value}" for name, value in sorted((query or {}).items()))]
        signed["Authorization"] = f"SharedKey {account}:{_signature(account, lines)}"
        full_path = f"{path}?{urllib.parse.urlencode(query)}" if query else path
        return request(self.port, method, full_path, content, signed)


def _signature(account: str, lines: list[str]) -> str:
    key = base64.b64decode(account_key(account))
    return base64.b64encode(hmac.digest(key, "\n".join(lines).encode(), "sha256")).decode()
