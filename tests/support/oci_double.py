"""A double of Oracle Object Storage's own HTTP interface, on loopback.

It is written after Oracle's documentation of the interface, and was never compared with a tenancy. It checks the
signature of each request with the public half of its key, and the age of its date.
"""

from __future__ import annotations

import base64
import email.utils
import itertools
import re
import time
import urllib.parse
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat

from support.http_double import HttpDouble, Reply, Request, ranged

NAMESPACE: Final = "tenancy-space"
BUCKET: Final = "bkt"
PASSPHRASE: Final = "a pass phrase"

_WORD: Final = re.compile(r'(\w+)="([^"]*)"')
_OBJECT: Final = re.compile(f"/n/{NAMESPACE}/b/{BUCKET}/o/([^/?]+)")


class OciDouble(HttpDouble):
    """One bucket of one tenancy."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.page_size = 1000
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.key_id = "ocid1.tenancy/ocid1.user/aa:bb"
        self._versions = itertools.count()

    def configure(
        self, folder: Path, *, session_token: str | None = None, passphrase: str | None = None
    ) -> dict[str, str]:
        """Write a configuration file into a new folder; return the environment that names it."""
        folder.mkdir()
        protection = BestAvailableEncryption(passphrase.encode()) if passphrase else NoEncryption()
        pem = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection)
        (folder / "key.pem").write_bytes(pem)
        lines = ["[DEFAULT]", "tenancy=ocid1.tenancy", "region=us-phoenix-1", f"key_file={folder}/key.pem"]
        if passphrase:
            lines.append(f"pass_phrase={passphrase}")
        if session_token is None:
            lines += ["user=ocid1.user", "fingerprint=aa:bb"]
        else:
            (folder / "token").write_text(f"{session_token}\n")
            lines.append(f"security_token_file={folder}/token")
            self.key_id = f"ST${session_token}"
        (folder / "config").write_text("\n".join(lines))
        return {"OCI_CONFIG_FILE": str(folder / "config"), "HOME": "/nowhere", "NO_PROXY": "127.0.0.1"}

    def write(self, name: str, content: bytes) -> None:
        """Store an object directly, like another client."""
        self.objects[name] = (content, f"etag-{next(self._versions)}")

    def answer(self, request: Request) -> Reply:
        wrong = self._wrong_signature(request)
        if wrong is not None:
            return _error(401, "NotAuthenticated", wrong)
        path = request.raw_path.partition("?")[0]
        if path == "/n":
            return Reply.json(NAMESPACE)
        if path == f"/n/{NAMESPACE}/b/{BUCKET}/o":
            return self._list(request)
        found = _OBJECT.fullmatch(path)
        if found is None:
            return _error(404, "BucketNotFound", "The bucket does not exist in that namespace.")
        return self._object(request, urllib.parse.unquote(found[1]))

    def _object(self, request: Request, name: str) -> Reply:
        if request.method == "PUT":
            self.write(name, request.body)
            return Reply(200, b"", {"ETag": self.objects[name][1]})
        if name not in self.objects:
            return _error(404, "ObjectNotFound", f"The object '{name}' was not found in the bucket '{BUCKET}'.")
        content, tag = self.objects[name]
        if request.method == "DELETE":
            del self.objects[name]
            return Reply(204)
        if request.headers.get("If-Match", tag) != tag:
            return _error(412, "IfMatchFailed", "The If-Match header does not match.")
        return ranged(request, content, {"ETag": tag})

    def _list(self, request: Request) -> Reply:
        names = sorted(name for name in self.objects if name.startswith(request.query.get("prefix", "")))
        names = [name for name in names if name >= request.query.get("start", "")]
        page = names[: self.page_size]
        told: dict[str, object] = {
            "objects": [{"name": n, "size": len(self.objects[n][0]), "etag": self.objects[n][1]} for n in page]
        }
        if len(names) > len(page):
            told["nextStartWith"] = names[len(page)]
        return Reply.json(told)

    def _wrong_signature(self, request: Request) -> str | None:
        words = dict(_WORD.findall(request.headers.get("Authorization") or ""))
        if words.get("keyId") != self.key_id or words.get("headers") != "date (request-target) host":
            return "The required information to complete authentication was not provided."
        date = request.headers["Date"]
        if abs(email.utils.parsedate_to_datetime(date).timestamp() - time.time()) > 300:
            return "The date is too far from the present."
        target = f"{request.method.lower()} {request.raw_path}"
        text = f"date: {date}\n(request-target): {target}\nhost: {request.headers['Host']}"
        try:
            self.key.public_key().verify(base64.b64decode(words["signature"]), text.encode(), PKCS1v15(), SHA256())
        except InvalidSignature:
            return "The signature is not valid."
        return None


def _error(status: int, code: str, message: str) -> Reply:
    return Reply.json({"code": code, "message": message}, status)
