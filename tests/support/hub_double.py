"""A double of the Hugging Face hub's HTTP interface, on loopback.

It is written after the hub's documentation, and after what the hub's own library (`huggingface_hub`) sends and accepts;
tests run that library against it. It has datasets with branches, small files that it answers itself, large ones (from
`LARGE_BYTES` on) that it redirects to a content network by links that expire, uploads by git-lfs, commits, tokens, and
gated datasets. It does not have Xet storage.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from typing import Final

from support.http_double import HttpDouble, Reply, Request, ranged

LARGE_BYTES: Final = 1000
TOKEN: Final = "hf_secret"

_RESOLVE: Final = re.compile(r"/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
_API: Final = re.compile(r"/api/datasets/([^/]+/[^/]+)/(tree|preupload|commit)/([^/]+)/?(.*)")
_LFS: Final = re.compile(r"/datasets/([^/]+/[^/]+)\.git/info/lfs/objects/batch")


@dataclass
class Repo:
    """A dataset: branches of files."""

    branches: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"main": {}})
    is_private: bool = False
    is_gated: bool = False
    ignored: set[str] = field(default_factory=set)  # as if .gitignore listed them
    n_commits: int = 0


class HubDouble(HttpDouble):
    """The hub, and its content network on another port."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.repos: dict[str, Repo] = {}
        self.stored: dict[str, bytes] = {}  # by sha256
        self.network: ContentNetwork | None = None
        self.page_size = 1000
        self.may_commit = threading.Event()
        self.may_commit.set()

    def variables(self, *, token: str | None = TOKEN) -> dict[str, str]:
        """The environment that leads here, with uploads by git-lfs, which is all that this double has."""
        here = {"HF_ENDPOINT": self.url, "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1", "HOME": "/nowhere"}
        return here | ({"HF_TOKEN": token} if token else {})

    def replied(self, request: Request) -> Reply:
        if "/commit/" in request.path:
            self.may_commit.wait(30)
        return super().replied(request)

    def answer(self, request: Request) -> Reply:
        if found := _RESOLVE.fullmatch(request.path):
            return self._resolve(request, *found.groups())
        if found := _API.fullmatch(request.path):
            repo, verb, revision, path = found.groups()
            refusal = self._refused(request, repo)
            if refusal is not None:
                return refusal
            if revision not in self.repos[repo].branches:
                return _error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return {"tree": self._tree, "preupload": self._preupload, "commit": self._commit}[verb](
                request, self.repos[repo], revision, path
            )
        if found := _LFS.fullmatch(request.path):
            return self._refused(request, found[1]) or self._lfs_batch(request)
        if request.path.startswith("/lfs-upload/") and request.method == "PUT":
            oid = request.path.removeprefix("/lfs-upload/")
            if hashlib.sha256(request.body).hexdigest() != oid:
                return _error(400, "BadDigest", "the content is another one")
            self.stored[oid] = request.body
            return Reply()
        return _error(404, "NotFound", "Sorry, we can't find the page you are looking for.")

    def _refused(self, request: Request, name: str) -> Reply | None:
        repo = self.repos.get(name)
        told = request.headers.get("Authorization")
        if told not in (None, f"Bearer {TOKEN}"):
            return _error(401, "", "Invalid credentials in Authorization header")
        if repo is None or (repo.is_private and told is None):
            return _error(401 if told is None else 404, "RepoNotFound", "Repository not found")
        if repo.is_gated:
            return _error(403, "GatedRepo", f"Access to dataset {name} is restricted")
        if request.method not in ("GET", "HEAD") and told is None:
            return _error(401, "", "Invalid username or password.")
        return None

    def _resolve(self, request: Request, name: str, revision: str, path: str) -> Reply:
        if name.startswith("old-"):  # a renamed dataset
            return Reply(307, b"", {"Location": request.raw_path.replace("old-", "")})
        refusal = self._refused(request, name)
        if refusal is not None:
            return refusal
        repo = self.repos[name]
        if revision not in repo.branches:
            return _error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        content = repo.branches[revision].get(path)
        if content is None:
            return _error(404, "EntryNotFound", "Entry not found")
        if len(content) < LARGE_BYTES:
            return ranged(request, content, {"ETag": f'"{_git_oid(content)}"', "X-Repo-Commit": "0" * 40})
        oid = hashlib.sha256(content).hexdigest()
        self.stored[oid] = content
        assert self.network is not None
        facts = {"X-Linked-Size": str(len(content)), "X-Linked-ETag": f'"{oid}"', "X-Repo-Commit": "0" * 40}
        return Reply(302, b"moved", {"Location": self.network.link(oid), **facts})

    def _tree(self, request: Request, repo: Repo, revision: str, path: str) -> Reply:
        prefix = f"{path}/" if path else ""
        files = sorted((n, c) for n, c in repo.branches[revision].items() if n.startswith(prefix))
        if path and not files:
            return _error(404, "EntryNotFound", f"{path} does not exist on '{revision}'")
        folders = {n[: at.start()] for n, _ in files for at in re.finditer("/", n) if at.start() >= len(prefix)}
        entries = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": folder} for folder in sorted(folders)]
        entries += [_entry(n, c) for n, c in files]
        begin = int(request.query.get("cursor", "0"))
        end, headers = begin + self.page_size, {}
        if end < len(entries):
            headers["Link"] = f'<{self.url}{request.path}?recursive=true&cursor={end}>; rel="next"'
        return Reply.json(entries[begin:end], headers=headers)

    def _preupload(self, request: Request, repo: Repo, revision: str, _: str) -> Reply:
        return Reply.json(
            {
                "files": [
                    {
                        "path": file["path"],
                        "uploadMode": "lfs" if file["size"] >= LARGE_BYTES else "regular",
                        "shouldIgnore": file["path"] in repo.ignored,
                        "oid": None,
                    }
                    for file in request.json()["files"]
                ]
            }
        )

    def _lfs_batch(self, request: Request) -> Reply:
        objects = []
        for each in request.json()["objects"]:
            upload = {"upload": {"href": f"{self.url}/lfs-upload/{each['oid']}"}}
            objects.append(each if each["oid"] in self.stored else each | {"actions": upload})
        return Reply.json({"transfer": "basic", "objects": objects})

    def _commit(self, request: Request, repo: Repo, revision: str, _: str) -> Reply:
        files = dict(repo.branches[revision])
        for line in request.body.splitlines():
            part = json.loads(line)
            value = part["value"]
            if part["key"] == "header":
                continue
            if part["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif part["key"] == "lfsFile":
                files[value["path"]] = self.stored[value["oid"]]
            elif files.pop(value["path"], None) is None and part["key"] == "deletedFile":
                return _error(404, "EntryNotFound", "A file with this name doesn't exist")
        repo.branches[revision] = files
        repo.n_commits += 1
        name = next(name for name, each in self.repos.items() if each is repo)
        oid = f"{repo.n_commits:040x}"
        return Reply.json({"commitUrl": f"{self.url}/datasets/{name}/commit/{oid}", "commitOid": oid})


class ContentNetwork(HttpDouble):
    """The store of large objects, read by signed links that expire."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.hub: HubDouble | None = None
        self.period = 0

    def link(self, oid: str) -> str:
        """A link that is valid until `end_links`."""
        return f"{self.url}/objects/{oid}?Signature=s{self.period}"

    def end_links(self) -> None:
        """Refuse the links given so far."""
        self.period += 1

    def answer(self, request: Request) -> Reply:
        assert self.hub is not None
        if request.headers.get("Authorization"):
            return Reply(400, b"Only one auth mechanism allowed")
        if request.query.get("Signature") != f"s{self.period}":
            return Reply(403, b"Request has expired")
        content = self.hub.stored[request.path.removeprefix("/objects/")]
        return ranged(request, content, {"ETag": '"of-the-network"'})


def _entry(name: str, content: bytes) -> dict[str, object]:
    entry: dict[str, object] = {"type": "file", "path": name, "size": len(content), "oid": _git_oid(content)}
    if len(content) >= LARGE_BYTES:
        oid = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"oid": oid, "size": len(content), "pointerSize": 130}
    return entry


def _git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _error(status: int, code: str, message: str) -> Reply:
    headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
    return Reply.json({"error": message}, status, headers)
