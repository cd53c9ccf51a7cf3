"""A double of a Databricks workspace's HTTP interface, on loopback: Files API, DBFS API, and log-in by OAuth.

It is written after Databricks' documentation of these interfaces, and after what Databricks' SDK sends and accepts; a
test runs the SDK against it. It was never compared with a workspace. Its clock advances a second with each write, as
the Files API distinguishes versions by size and second.
"""

from __future__ import annotations

import base64
import email.utils
from dataclasses import dataclass
from typing import Any, Final

from support.http_double import HttpDouble, Reply, Request, ranged

TOKEN: Final = "dapi-secret"
CLIENT_ID: Final = "client"
CLIENT_SECRET: Final = "client-secret"

_FILES: Final = "/api/2.0/fs/files"
_FOLDERS: Final = "/api/2.0/fs/directories"
_DBFS: Final = "/api/2.0/dbfs/"
_BLOCK_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class File:
    """A stored file."""

    content: bytes
    moment_s: int

    @property
    def headers(self) -> dict[str, str]:
        moment = email.utils.formatdate(self.moment_s, usegmt=True)
        return {"Last-Modified": moment, "Content-Type": "application/octet-stream"}


class DatabricksDouble(HttpDouble):
    """One workspace."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.files: dict[str, File] = {}
        self.folders: set[str] = {"/", "/Volumes/c/s/v"}
        self.page_size = 1000
        self.tokens = {TOKEN}
        self.n_moves, self.refused_moves = 0, set[int]()
        self._handles: dict[int, tuple[str, bytearray]] = {}
        self._moment_s = 1_600_000_000

    def variables(self) -> dict[str, str]:
        """The environment that leads here."""
        return {"DATABRICKS_HOST": self.url, "DATABRICKS_TOKEN": TOKEN, "NO_PROXY": "127.0.0.1", "HOME": "/nowhere"}

    def write(self, path: str, content: bytes) -> None:
        """Store a file directly, like another client."""
        self._moment_s += 1
        self.files[path] = File(content, self._moment_s)
        parts = path.split("/")
        self.folders |= {"/".join(parts[:n]) for n in range(2, len(parts))}

    def answer(self, request: Request) -> Reply:
        if request.path.startswith(("/oidc/", "/.well-known/")):
            return self._log_in(request)
        if request.headers.get("Authorization", "").removeprefix("Bearer ") not in self.tokens:
            return _error(403, "PERMISSION_DENIED", "Invalid access token.")
        if request.path.startswith(_FILES):
            return self._file(request, request.path.removeprefix(_FILES))
        if request.path.startswith(_FOLDERS):
            return self._folder(request, request.path.removeprefix(_FOLDERS))
        if request.path.startswith(_DBFS):
            call = request.path.removeprefix(_DBFS).replace("-", "_")
            fields = request.json() if request.method == "POST" else request.query
            reply: Reply = getattr(self, f"_dbfs_{call}")(fields)
            return reply
        return _error(404, "ENDPOINT_NOT_FOUND", f"No API found for {request.path}")

    def _log_in(self, request: Request) -> Reply:
        oidc = f"{self.url}/oidc"
        if request.path == "/.well-known/databricks-config":
            return Reply.json({"oidc_endpoint": oidc, "workspace_id": "7"})
        if request.path == "/oidc/.well-known/oauth-authorization-server":
            urls = {"authorization_endpoint": f"{oidc}/v1/authorize", "token_endpoint": f"{oidc}/v1/token"}
            return Reply.json(urls)
        if request.path == "/oidc/v1/token":
            basic = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
            if request.headers.get("Authorization") != f"Basic {basic}":
                return Reply.json({"error": "invalid_client", "error_description": "Client authentication failed"}, 401)
            token = f"oauth-{len(self.tokens)}"
            self.tokens.add(token)
            return Reply.json({"access_token": token, "token_type": "Bearer", "expires_in": 3600})
        return _error(404, "ENDPOINT_NOT_FOUND", "no such page")

    def _file(self, request: Request, path: str) -> Reply:
        if request.method == "PUT":
            if path.rpartition("/")[0] not in self.folders:
                return _error(404, "NOT_FOUND", "The directory being accessed is not found.")
            self.write(path, request.body)
            return Reply(204)
        file = self.files.get(path)
        if file is None:
            return _error(404, "NOT_FOUND", "The file being accessed is not found.")
        if request.method == "DELETE":
            del self.files[path]
            return Reply(204)
        since = request.headers.get("If-Unmodified-Since")
        if since is not None and file.moment_s > email.utils.parsedate_to_datetime(since).timestamp():
            return _error(412, "PRECONDITION_FAILED", "The file was modified.")
        return ranged(request, file.content, file.headers)

    def _folder(self, request: Request, path: str) -> Reply:
        if request.method == "PUT":
            parts = path.split("/")
            self.folders |= {"/".join(parts[:n]) for n in range(2, len(parts) + 1)}
            return Reply(204)
        entries = self._entries(path)
        if entries is None:
            return _error(404, "NOT_FOUND", "The directory being accessed is not found.")
        begin = int(request.query.get("page_token", "0"))
        told: dict[str, Any] = {"contents": entries[begin : begin + self.page_size]}
        if begin + self.page_size < len(entries):
            told["next_page_token"] = str(begin + self.page_size)
        return Reply.json(told)

    def _entries(self, path: str) -> list[dict[str, Any]] | None:
        if path not in self.folders:
            return None
        entries: list[dict[str, Any]] = [
            {"path": folder, "is_directory": True, "name": folder.rpartition("/")[2]}
            for folder in sorted(self.folders)
            if folder.rpartition("/")[0] == path and folder != "/"
        ]
        for name, file in sorted(self.files.items()):
            if name.rpartition("/")[0] == path:
                about = {"file_size": len(file.content), "last_modified": file.moment_s * 1000 + 123}
                entries.append({"path": name, "is_directory": False, **about})
        return entries

    def _dbfs_get_status(self, fields: Any) -> Reply:
        path = fields["path"]
        if path in self.files:
            return Reply.json(_status(path, self.files[path]))
        if path in self.folders:
            return Reply.json({"path": path, "is_dir": True, "file_size": 0, "modification_time": 0})
        return _error(404, "RESOURCE_DOES_NOT_EXIST", f"No file or directory exists on path {path}.")

    def _dbfs_list(self, fields: Any) -> Reply:
        path = fields["path"].rstrip("/")
        if path in self.files:
            return Reply.json({"files": [_status(path, self.files[path])]})
        if (path or "/") not in self.folders:
            return _error(404, "RESOURCE_DOES_NOT_EXIST", f"No file or directory exists on path {path}.")
        found = [_status(name, file) for name, file in self.files.items() if name.rpartition("/")[0] == path]
        below = [folder for folder in self.folders if folder != "/" and folder.rpartition("/")[0] == path]
        found += [{"path": folder, "is_dir": True, "file_size": 0, "modification_time": 0} for folder in below]
        return Reply.json({"files": found} if found else {})

    def _dbfs_read(self, fields: Any) -> Reply:
        file, offset, length = self.files.get(fields["path"]), int(fields["offset"]), int(fields["length"])
        if file is None:
            return _error(404, "RESOURCE_DOES_NOT_EXIST", "No file exists on this path.")
        if length > _BLOCK_BYTES:
            return _error(400, "MAX_READ_SIZE_EXCEEDED", "The read length exceeds 1 MB.")
        data = file.content[offset : offset + length]
        return Reply.json({"bytes_read": len(data), "data": base64.b64encode(data).decode()})

    def _dbfs_mkdirs(self, fields: Any) -> Reply:
        parts = fields["path"].split("/")
        self.folders |= {"/".join(parts[:n]) for n in range(2, len(parts) + 1)}
        return Reply.json({})

    def _dbfs_create(self, fields: Any) -> Reply:
        handle = len(self._handles) + 1
        self._handles[handle] = (fields["path"], bytearray())
        return Reply.json({"handle": handle})

    def _dbfs_add_block(self, fields: Any) -> Reply:
        data = base64.b64decode(fields["data"])
        if len(data) > _BLOCK_BYTES:
            return _error(400, "MAX_BLOCK_SIZE_EXCEEDED", "The block exceeds 1 MB.")
        self._handles[fields["handle"]][1].extend(data)
        return Reply.json({})

    def _dbfs_close(self, fields: Any) -> Reply:
        path, content = self._handles[fields["handle"]]
        self.write(path, bytes(content))
        return Reply.json({})

    def _dbfs_move(self, fields: Any) -> Reply:
        source, target = fields["source_path"], fields["destination_path"]
        self.n_moves += 1
        if self.n_moves in self.refused_moves:
            return _error(403, "PERMISSION_DENIED", f"move {self.n_moves} is refused")
        if target in self.files:
            return _error(400, "RESOURCE_ALREADY_EXISTS", f"A file or directory already exists at {target}.")
        self.files[target] = self.files.pop(source)
        return Reply.json({})

    def _dbfs_delete(self, fields: Any) -> Reply:
        self.files.pop(fields["path"], None)
        return Reply.json({})


def _status(path: str, file: File) -> dict[str, Any]:
    return {"path": path, "is_dir": False, "file_size": len(file.content), "modification_time": file.moment_s * 1000}


def _error(status: int, code: str, message: str) -> Reply:
    return Reply.json({"error_code": code, "message": message}, status)
