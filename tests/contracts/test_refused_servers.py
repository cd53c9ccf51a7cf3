"""Servers that are not who they should be are refused, by every kind of store: certificates and host keys."""

from __future__ import annotations

import contextlib
import datetime
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from streaming.errors import StorageError, StoreUnreachableError
from streaming.storage.open_stores import Stores
from streaming.storage.store import Store
from streaming.storage.url import parse_remote
from streaming.testing.program import find_program

REMOTES: dict[str, dict[str, Any]] = {
    "s3://bucket/d": {"access_key_id": "me", "secret_access_key": "s", "region": "here"},
    "gs://bucket/d": {"token": "t"},
    "azure://bucket/d": {"account_name": "acc", "account_key": "QUFB"},
    "hf://datasets/org/name/d": {"token": "t"},
    "dbfs:/Volumes/a/b/c/d": {"token": "t"},
    "https://{host}/d": {"token": "t"},
}


@dataclass(frozen=True)
class Encrypted:
    """A server with a certificate; `bundle` holds the authority that signed it, and `asked` what arrived."""

    url: str
    bundle: Path
    asked: list[str]


def _openssl(folder: Path, *arguments: str) -> None:
    command = [find_program("openssl", how="install openssl"), *arguments]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def _certificate(folder: Path, name: str, address: str, *, days: tuple[int, int], signed: bool) -> None:
    """Make `name.pem` with its key, for an address; signed by the authority in `ca.pem`, or by itself."""
    if not (folder / "ca.pem").exists():
        _openssl(folder, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "9", "-subj", "/CN=an authority",
                 "-keyout", "ca.key", "-out", "ca.pem")  # fmt: skip
    (folder / f"{name}.ext").write_text(f"subjectAltName=IP:{address}\nbasicConstraints=critical,CA:FALSE\n")
    _openssl(folder, "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={address}", "-keyout", f"{name}.key",
             "-out", f"{name}.csr")  # fmt: skip
    now = datetime.datetime.now(datetime.UTC)
    begins, ends = (f"{now + datetime.timedelta(days=n):%Y%m%d%H%M%SZ}" for n in days)
    (folder / "index.txt").write_text("")
    (folder / "ca.cnf").write_text(
        "[ca]\ndefault_ca=it\n[it]\nnew_certs_dir=.\ndatabase=index.txt\nrand_serial=yes\ndefault_md=sha256\n"
        "policy=any\n[any]\ncommonName=supplied\n"
    )
    by = ("-cert", "ca.pem", "-keyfile", "ca.key") if signed else ("-selfsign", "-keyfile", f"{name}.key")
    _openssl(folder, "ca", "-batch", "-config", "ca.cnf", *by, "-in", f"{name}.csr", "-out", f"{name}.pem", "-notext",
             "-startdate", begins, "-enddate", ends, "-extfile", f"{name}.ext")  # fmt: skip


CERTIFICATES: dict[str, dict[str, Any]] = {
    "good": {"address": "127.0.0.1", "days": (-1, 5), "signed": True},
    "of another host": {"address": "127.0.0.2", "days": (-1, 5), "signed": True},
    "expired": {"address": "127.0.0.1", "days": (-9, -2), "signed": True},
    "not yet valid": {"address": "127.0.0.1", "days": (2, 9), "signed": True},
    "signed by itself": {"address": "127.0.0.1", "days": (-1, 5), "signed": False},
}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Encrypted]]:
    """A running server for each certificate."""
    folder = tmp_path_factory.mktemp("certificates")
    with contextlib.ExitStack() as stack:
        found = {}
        for number, (name, about) in enumerate(CERTIFICATES.items()):
            _certificate(folder, f"c{number}", **about)
            found[name] = stack.enter_context(_serving(folder, f"c{number}"))
        yield found


@contextlib.contextmanager
def _serving(folder: Path, name: str) -> Iterator[Encrypted]:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_HEAD(self) -> None:
            self.do_GET()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")

    class Listener(HTTPServer):
        def get_request(self) -> Any:
            connection, address = self.socket.accept()
            connection.settimeout(30)
            return context.wrap_socket(connection, server_side=True), address  # raises OSError if it is refused

        def handle_error(self, *_: object) -> None:
            pass

    listener = Listener(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield Encrypted(f"https://127.0.0.1:{listener.server_address[1]}", folder / "ca.pem", asked)
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()


def opened(remote: str, server: Encrypted, *, trusts: bool) -> Store:
    """Open the store at the server, trusting its authority or not."""
    options = dict(REMOTES[remote])
    if "{host}" not in remote:
        options["endpoint"] = server.url
    if trusts:
        options["ca_bundle"] = str(server.bundle)
    location = parse_remote(remote.format(host=server.url.partition("://")[2]))
    return Stores({"HOME": "/nowhere", "NO_PROXY": "127.0.0.1"}).open(location, 30.0, options)


@pytest.mark.parametrize("name", CERTIFICATES)
@pytest.mark.parametrize("remote", REMOTES)
def test_a_wrong_certificate_is_refused(servers: dict[str, Encrypted], remote: str, name: str) -> None:
    """Nothing is sent, neither names nor credentials, and the error names the certificate; a good one is taken."""
    server = servers[name]
    store = opened(remote, server, trusts=True)
    asks: list[Callable[[], object]] = [lambda: store.get("x"), lambda: store.head("x")]
    for ask in asks:
        if name == "good":
            with pytest.raises(StorageError) as answered:
                ask()
            assert not isinstance(answered.value, StoreUnreachableError), answered.value
        else:
            with pytest.raises(StoreUnreachableError, match=r"(?i)certificate"):
                ask()
    assert bool(server.asked) is (name == "good")
    server.asked.clear()


@pytest.mark.parametrize("remote", REMOTES)
def test_an_unknown_authority_is_refused(servers: dict[str, Encrypted], remote: str) -> None:
    """Without `ca_bundle`, a certificate that no authority of the system signed is not taken."""
    store = opened(remote, servers["good"], trusts=False)
    with pytest.raises(StoreUnreachableError, match=r"(?i)certificate"):
        store.get("x")
    assert servers["good"].asked == []
