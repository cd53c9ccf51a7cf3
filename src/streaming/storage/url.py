"""What a remote path means: the one parser of URLs.

A path without a scheme is a folder; `~` and variables in it are not expanded. Names in a store are not decoded: `%` is
an ordinary character, and so are `?` and `#`, because object names hold them. In URLs of hosts (`http`, `https`,
`sftp`) `?` and `#` are errors, and so is the scheme `file://`, as in the predecessor: write the path without it.
"""

from __future__ import annotations

import os
import re
from typing import Final

import msgspec
from msgspec.structs import replace

from streaming.errors import OptionError
from streaming.storage.schemes import Authority, Scheme, known_schemes, scheme_named

_URL: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)
_URL_BEGINS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_BARE: Final = re.compile(r"dbfs:(?P<rest>/.*)", re.DOTALL)  # the one scheme that needs no "//"
_ROOT: Final = re.compile(r"/+")
_SCHEME_ALONE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:///*|dbfs:/+")
_USER: Final = re.compile(r".*@", re.DOTALL)
_USER_AND_PASSWORD: Final = re.compile(r"[^@:]*:.*@", re.DOTALL)
_PORT: Final = re.compile(r"(?:[^:]|\[[0-9A-Fa-f:.]+\])+(?::\d{1,5})?")


class Folder(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A folder on this machine."""

    path: str  # absolute, without a trailing slash

    @property
    def shown(self) -> str:
        """The path, for messages."""
        return self.path

    def __str__(self) -> str:
        return self.path


class Bucket(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A place in an object store or on a host: its authority, and the prefix of all names in it.

    `str()` is a URL of the same place. `repr()` and `shown` leave out a host's user and every password.
    """

    scheme: str
    name: str  # the authority: a bucket, a host; "" where the scheme has none
    prefix: str  # without slashes at its ends; "" is the whole bucket

    @property
    def shown(self) -> str:
        """The URL for messages, without `user:password@`."""
        row = scheme_named(self.scheme)
        is_host = row is not None and row.authority is Authority.HOST
        return _url(self.scheme, (_USER if is_host else _USER_AND_PASSWORD).sub("", self.name), self.prefix)

    def __str__(self) -> str:
        return _url(self.scheme, self.name, self.prefix)

    def __repr__(self) -> str:
        return f"Bucket({self.shown!r})"


Location = Folder | Bucket


def parse_remote(remote: str) -> Location:
    """Parse a remote path. A relative folder is relative to the current working directory.

    Raises OptionError for a malformed path, and for a scheme that no store has.

    >>> parse_remote("s3://bucket/some prefix/train/")
    Bucket('s3://bucket/some prefix/train')
    """
    if not remote or "\0" in remote:
        raise OptionError(f"Unsupported remote path: {remote!r}; give a folder or a URL such as 's3://bucket/prefix'")
    if bare := _BARE.fullmatch(remote):
        scheme, rest = "dbfs", "/" + bare["rest"].lstrip("/")
    elif found := _URL.fullmatch(remote):
        scheme, rest = found["scheme"].lower(), found["rest"]
    else:
        return Folder(os.path.abspath(remote))
    row = scheme_named(scheme)
    if row is None:
        raise OptionError(f"Unsupported remote path: {scheme}://… has a scheme that no store has; {_hint(scheme)}")
    if row.opener is None:
        raise OptionError(f"Unsupported remote path: {scheme}://… is not read. {row.instead}")
    name, _, path = rest.partition("/")
    location = Bucket(scheme, name, path.strip("/"))
    if wrong := _wrong(row, location):
        # Nothing of a host is shown: in a malformed URL it is not certain where a password ends.
        shown = f"{scheme}://…" if row.authority is Authority.HOST else repr(location.shown)
        raise OptionError(f"Unsupported remote path: {shown} {wrong}; write it as in {row.example!r}")
    return location


def looks_like_url(text: str) -> bool:
    """Whether `text` is a URL rather than the path of a folder, or was meant as one.

    >>> looks_like_url("s3://bucket/folder"), looks_like_url("dbfs:/Volumes/x"), looks_like_url("/data/x")
    (True, True, False)
    """
    return _URL_BEGINS.match(text) is not None


def join_remote(remote: str, *parts: str) -> str:
    """Append `parts` to `remote`, with one slash between them; empty parts are left out.

    >>> join_remote("s3://bucket/data/", "train", "")
    's3://bucket/data/train'
    """
    joined = "/" if _ROOT.fullmatch(remote) else remote.rstrip("/")
    if _SCHEME_ALONE.fullmatch(remote):
        joined = remote.partition("/")[0] + "//"
    for part in parts:
        if part:
            joined = f"{joined if joined == '/' else joined + '/'}{part.strip('/')}"
    return joined


def location_below(location: Location, *parts: str) -> Location:
    """The place `parts` below a location; empty parts are left out."""
    below = "/".join(part.strip("/") for part in parts if part.strip("/"))
    if not below:
        return location
    if isinstance(location, Folder):
        return Folder(os.path.join(location.path, below))
    return replace(location, prefix=f"{location.prefix}/{below}" if location.prefix else below)


def _wrong(row: Scheme, location: Bucket) -> str | None:
    """Say what is wrong with a location of this scheme; None if nothing is."""
    name, prefix = location.name, location.prefix
    if row.authority is Authority.BUCKET and not name:
        return "names no bucket"
    if row.authority is Authority.HOST:
        if not _PORT.fullmatch(_USER.sub("", name)):
            return "names no host, or no port that is a number (in a password, write '/' as %2F and '@' as %40)"
        if {"?", "#"} & {*name, *prefix}:
            return "has '?' or '#' (what follows '?' in a signed URL goes into storage_options as 'query')"
    if row.authority is Authority.NONE and name:
        return f"names {name!r} where nothing may stand"
    if row.is_azure and "." in name and "@" not in name and not prefix:
        return "names an account, but no container"
    return None


def _url(scheme: str, name: str, prefix: str) -> str:
    if scheme == "dbfs":
        return f"dbfs:/{prefix}"
    if not name:
        return f"{scheme}:///{prefix}"
    return f"{scheme}://{name}/{prefix}" if prefix else f"{scheme}://{name}"


def _hint(scheme: str) -> str:
    if scheme == "file":
        return "write the path of a folder without 'file://'"
    return f"give a folder or one of {_all_schemes()}, or register a store for it (streaming.storage.register_store)"


def _all_schemes() -> str:
    return ", ".join(f"{scheme}://" for scheme in known_schemes())
