"""A real web server on loopback, for tests: nginx, which runs as long as a block.

    with WebServer.started() as server:
        server.put("folder/name", b"content")
        print(server.url("folder"))

Needs nginx (Debian: `apt-get install nginx`). It serves its folder under several paths, each with a habit that web
servers have: see `HABITS`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import urllib.parse
from collections.abc import Iterator
from typing import Final

from streaming.testing.program import Program, find_program, free_ports, request

USER: Final = "reader"
PASSWORD: Final = "a pass word"

HABITS: Final = {
    "plain": "dav_methods PUT DELETE; create_full_put_path on;",  # an ordinary web server, which accepts uploads
    "ignores-ranges": "max_ranges 0;",
    "no-length": "ssi on; ssi_types *;",  # pages made while they are sent: neither length nor version
    "weak-versions": 'etag off; add_header ETag "W/\\"1\\"";',
    "no-etag": "etag off;",
    "locked": "auth_basic 'data'; auth_basic_user_file users;",
    "forbidden": "deny all;",
    "no-head": "if ($request_method = HEAD) { return 405; }",
}

_CONFIGURATION: Final = """
daemon off; master_process off; pid nginx.pid; error_log error.log; worker_rlimit_nofile 4096;
events {{ worker_connections 1024; }}
http {{
  default_type application/octet-stream; access_log access.log; client_max_body_size 0; keepalive_requests 100000;
  client_body_temp_path temp; proxy_temp_path proxy; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
  server {{
    listen 127.0.0.1:{port};
    {tls}
    {locations}
    location /moved/ {{ rewrite ^/moved/(.*)$ /plain/$1 redirect; }}
    location /moved-for-good/ {{ rewrite ^/moved-for-good/(.*)$ /plain/$1 permanent; }}
    location /slow-down/ {{ add_header Retry-After 7 always; return 429; }}
    {more}
  }}
}}
"""


class WebServer:
    """One running server, made by `started`."""

    def __init__(self, port: int, folder: str, certificate: str | None) -> None:
        self.port = port
        self.folder = os.path.join(folder, "root")
        self.certificate = certificate

    @classmethod
    @contextlib.contextmanager
    def started(cls, *, is_encrypted: bool = False, more: str = "") -> Iterator[WebServer]:
        """Run a server for the block. Raises MissingProgramError.

        With `is_encrypted` it speaks TLS with a self-signed certificate for 127.0.0.1 (the file `certificate`). `more`
        is added to the server's block of nginx's configuration.
        """
        program = find_program("nginx", how="install nginx (Debian: apt-get install nginx)")
        openssl = find_program("openssl", how="install openssl") if is_encrypted else None
        (port,) = free_ports(1)

        def command(folder: str) -> list[str]:
            os.mkdir(os.path.join(folder, "root"))
            with open(os.path.join(folder, "users"), "w") as users:
                users.write(f"{USER}:{{PLAIN}}{PASSWORD}\n")
            if openssl is not None:
                _make_certificate(openssl, folder)
            locations = "\n    ".join(
                f"location /{name}/ {{ alias {folder}/root/; {habit} }}" for name, habit in HABITS.items()
            )
            tls = "ssl_certificate cert.pem; ssl_certificate_key key.pem;"
            text = _CONFIGURATION.format(
                port=f"{port} ssl" if openssl else port, tls=tls if openssl else "", locations=locations, more=more
            )
            with open(os.path.join(folder, "nginx.conf"), "w") as configuration:
                configuration.write(text)
            return [program, "-p", folder, "-c", "nginx.conf", "-e", "error.log"]

        with Program.started("the web server", command) as running:
            server = cls(port, running.folder, os.path.join(running.folder, "cert.pem") if is_encrypted else None)
            running.wait_until_ready(server._ask)
            yield server

    def url(self, *parts: str, habit: str = "plain") -> str:
        """The URL of a path, served with this habit."""
        scheme = "https" if self.certificate else "http"
        return "/".join((f"{scheme}://127.0.0.1:{self.port}", habit, *parts))

    def path(self, name: str) -> str:
        """The file that the server serves as `name`."""
        return os.path.join(self.folder, name)

    def put(self, name: str, content: bytes) -> None:
        """Write a file into the server's folder."""
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "wb") as file:
            file.write(content)

    def clear(self) -> None:
        """Delete all files."""
        shutil.rmtree(self.folder)
        os.mkdir(self.folder)

    def _ask(self) -> None:
        if self.certificate:
            import socket

            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
            return
        self.put("ready", b"ready")
        request(self.port, "GET", f"/plain/{urllib.parse.quote('ready')}")
        os.unlink(self.path("ready"))


def _make_certificate(openssl: str, folder: str) -> None:
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"]
    command += ["-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
