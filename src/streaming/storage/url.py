"""What a remote path means: the one parser of URLs.

A path without a scheme is a folder, taken as it stands (no `~`, no variables). Keys are taken as they stand too: no
percent-decoding, and `?` and `#` are ordinary characters, because they are in object names. `file://` is refused, as
the predecessor refuses it: write the path without it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final

from streaming.errors import NotYetError, OptionError

_SCHEME: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)
_PLANNED: Final = frozenset(
    {
        "abfs",
        "abfss",
        "alipan",
        "az",
        "azure",
        "azure-dl",
        "dbfs",
        "gcs",
        "gs",
        "hdfs",
        "hf",
        "http",
        "https",
        "oci",
        "oss",
        "r2",
        "sftp",
    }
)


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of this machine's file systems."""

    path: str  # absolute, without a trailing slash

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class Bucket:
    """A place in an object store: a bucket and what all names in it begin with."""

    scheme: str
    name: str
    prefix: str  # without slashes at its ends; "" is the whole bucket

    def __str__(self) -> str:
        return f"{self.scheme}://{self.name}/{self.prefix}".rstrip("/")


Location = Folder | Bucket


def parse_remote(remote: str) -> Location:
    """Where `remote` points; a relative folder is taken from the present working directory.

    Raises OptionError for what is no remote path, NotYetError for a scheme that a later version reads.

    >>> parse_remote("s3://bucket/some prefix/train/")
    Bucket(scheme='s3', name='bucket', prefix='some prefix/train')
    """
    if not remote or "\0" in remote:
        raise OptionError(f"Unsupported remote path: {remote!r}; give a folder or a URL such as 's3://bucket/prefix'")
    if remote.startswith("dbfs:"):
        raise _not_yet("dbfs", remote)
    found = _SCHEME.fullmatch(remote)
    if found is None:
        return Folder(os.path.abspath(remote))
    scheme, rest = found["scheme"].lower(), found["rest"]
    if scheme == "s3":
        name, _, prefix = rest.partition("/")
        if not name:
            raise OptionError(f"Unsupported remote path: {remote!r} names no bucket; write 's3://bucket/prefix'")
        return Bucket("s3", name, prefix.strip("/"))
    if scheme in _PLANNED:
        raise _not_yet(scheme, remote)
    hint = "; write the path of a folder without 'file://'" if scheme == "file" else "; give a folder or an s3:// URL"
    raise OptionError(f"Unsupported remote path: {remote!r} has the scheme {scheme!r}{hint}")


def join_remote(remote: str, *parts: str) -> str:
    """`remote` with `parts` below it, each separated by one slash; empty parts are left out.

    >>> join_remote("s3://bucket/data/", "train", "")
    's3://bucket/data/train'
    """
    joined = remote if len(remote) == 1 else remote.rstrip("/")
    for part in parts:
        if part:
            joined = f"{joined.rstrip('/')}/{part.strip('/')}"
    return joined


def _not_yet(scheme: str, remote: str) -> NotYetError:
    return NotYetError(
        f"{remote!r}: stores of the scheme {scheme!r} are not built yet; this version reads folders and s3:// "
        "(with S3_ENDPOINT_URL any S3-compatible endpoint)"
    )
