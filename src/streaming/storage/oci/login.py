"""Credentials for the interface of Oracle's Object Storage: `~/.oci/config`, and the signature of a request.

Oracle's SDK is half a gigabyte of generated code, of which only this signature is needed. `cryptography` (extra `oci`)
makes it; a test compares it with the SDK's.
"""

from __future__ import annotations

import base64
import configparser
import email.utils
import os
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from streaming.errors import OptionError
from streaming.storage.common.extras import import_extra


@dataclass(frozen=True, slots=True)
class OciLogin:
    """A profile of the configuration file, and its key. Its `repr` shows no secret."""

    region: str
    key_id: str
    key: Any = field(repr=False)  # an object of cryptography
    shown: str

    def signed(self, method: str, url: str, now_s: float) -> dict[str, str]:
        """Return the headers that sign a request sent at `now_s`, a time of the wall clock."""
        from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
        from cryptography.hazmat.primitives.hashes import SHA256

        parts = urllib.parse.urlsplit(url)
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        date = email.utils.formatdate(now_s, usegmt=True)
        text = f"date: {date}\n(request-target): {method.lower()} {target}\nhost: {parts.netloc}"
        signature = base64.b64encode(self.key.sign(text.encode(), PKCS1v15(), SHA256())).decode()
        words = {
            "algorithm": "rsa-sha256",
            "headers": "date (request-target) host",
            "keyId": self.key_id,
            "signature": signature,
            "version": "1",
        }
        return {"Date": date, "Authorization": "Signature " + ",".join(f'{name}="{it}"' for name, it in words.items())}


def oci_login(options: Mapping[str, Any], environment: Mapping[str, str]) -> OciLogin:
    """Read the profile that options or environment name. Raises OptionError or MissingExtraError."""
    home = environment.get("HOME") or os.path.expanduser("~")
    path = environment.get("OCI_CONFIG_FILE") or os.path.join(home, ".oci", "config")
    profile = options.get("profile") or environment.get("OCI_CLI_PROFILE") or "DEFAULT"
    config = configparser.ConfigParser(interpolation=None)
    try:
        if not config.read(_expanded(path, home)):
            raise OptionError(
                f"oci:// has no credentials: {path} cannot be read; set OCI_ACCESS_KEY_ID and OCI_SECRET_ACCESS_KEY (a "
                "customer secret key), or make that file (`oci setup config`)"
            )
        found = dict(config[profile])
    except (configparser.Error, KeyError, UnicodeDecodeError) as error:
        raise OptionError(f"{path} has no profile {profile!r} that can be read: {error}") from error
    missing = [name for name in ("tenancy", "region", "key_file") if not found.get(name)]
    if missing:
        raise OptionError(f"profile {profile!r} of {path} lacks {', '.join(missing)}")
    region = options.get("region") or environment.get("OCI_REGION") or found["region"]
    key = _key(_expanded(found["key_file"], home), found.get("pass_phrase"))
    return OciLogin(region, _key_id(found, home, path), key, f"the profile {profile!r} of {path}")


def _key_id(found: Mapping[str, str], home: str, path: str) -> str:
    """Return the key's id: a session's token, or user and fingerprint."""
    if token_file := found.get("security_token_file"):
        return f"ST${_read(_expanded(token_file, home)).decode().strip()}"
    if not found.get("user") or not found.get("fingerprint"):
        raise OptionError(f"{path} names neither user and fingerprint nor a security_token_file")
    return f"{found['tenancy']}/{found['user']}/{found['fingerprint']}"


def _key(path: str, passphrase: str | None) -> Any:
    keys = import_extra(
        "cryptography.hazmat.primitives.serialization",
        package="cryptography",
        extra="oci",
        purpose="oci:// with a configuration file",
    )
    try:
        return keys.load_pem_private_key(_read(path), passphrase.encode() if passphrase else None)
    except (ValueError, TypeError) as error:
        raise OptionError(f"the key {path} of the OCI configuration cannot be used: {error}") from error


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise OptionError(f"a file that the OCI configuration names cannot be read: {error}") from error


def _expanded(path: str, home: str) -> str:
    return os.path.join(home, path[2:]) if path.startswith("~/") else path
