"""The table of schemes: how a URL of each is parsed, which function opens it, and which options it takes.

A new store is a new row. Openers are named, not imported: ranks and workers parse URLs, and must not load a client.
"""

from __future__ import annotations

import enum
import importlib.metadata
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from streaming.storage.registry import registered_stores

ENTRY_POINTS: Final = "streaming.stores"  # the group of entry points by which packages add stores


class Authority(enum.Enum):
    """What a URL has between `//` and the path."""

    BUCKET = "bucket"  # a name, which may hold any character
    HOST = "host"  # as on the web: `user:password@` may precede it, `?` and `#` cannot follow
    ANY = "any"  # a name, a host or nothing
    NONE = "none"  # nothing: the URL has three slashes after the colon, or one


@dataclass(frozen=True, slots=True)
class Scheme:
    """A row of the table."""

    authority: Authority
    example: str
    opener: str | None  # "package.module:name" of an Opener; None: not supported, see `instead`
    options: frozenset[str] | None = frozenset()  # the options it takes; None: its opener checks them
    is_azure: bool = False  # the container may stand in the authority or behind a host (see azure_place)
    is_shared: bool = False  # one client serves all prefixes of a bucket or host
    instead: str = ""  # why there is no opener, and what to do


_TRANSPORT: Final = frozenset({"proxy", "no_proxy", "ca_bundle", "connect_timeout", "read_timeout"})
_KEYS: Final = frozenset({"endpoint", "access_key_id", "secret_access_key", "session_token", "region", "anonymous"})
_S3: Final = _TRANSPORT | _KEYS | {"requester_pays", "profile", "virtual_hosted_style"}
_ALIKE: Final = _TRANSPORT | _KEYS | {"virtual_hosted_style"}
_GCS: Final = _TRANSPORT | {
    "endpoint",
    "access_key_id",
    "secret_access_key",
    "anonymous",
    "token",
    "service_account_file",
    "service_account_key",
}
_AZURE: Final = _TRANSPORT | {
    "endpoint",
    "account_name",
    "account_key",
    "sas_token",
    "token",
    "tenant_id",
    "client_id",
    "client_secret",
    "anonymous",
}
_WEB: Final = _TRANSPORT | {"headers", "user", "password", "token", "query"}
_SFTP: Final = frozenset({"user", "password", "key_file", "key_passphrase", "known_hosts", "connect_timeout"})

_HUB: Final = _TRANSPORT | {"endpoint", "token"}
_DATABRICKS: Final = _TRANSPORT | {"endpoint", "token", "client_id", "client_secret", "profile"}

_S3_OPENER: Final = "streaming.storage.buckets.s3:open_s3"
_OSS_OPENER: Final = "streaming.storage.buckets.s3_services:open_oss"
_R2_OPENER: Final = "streaming.storage.buckets.s3_services:open_r2"
_GCS_OPENER: Final = "streaming.storage.buckets.gcs:open_gcs"
_AZURE_OPENER: Final = "streaming.storage.buckets.azure:open_azure"
_WEB_OPENER: Final = "streaming.storage.web.store:open_web"
_HUB_OPENER: Final = "streaming.storage.hub.store:open_hub"
_DATABRICKS_OPENER: Final = "streaming.storage.databricks.store:open_databricks"
_OCI_OPENER: Final = "streaming.storage.oci.store:open_oci"
_SFTP_OPENER: Final = "streaming.storage.sftp.store:open_sftp"
_HDFS_OPENER: Final = "streaming.storage.filesystems.hdfs:open_hdfs"
_FSSPEC_OPENER: Final = "streaming.storage.filesystems.fsspec:open_filesystem"

_NO_ALIPAN: Final = (
    "Alibaba's cloud drive has no published interface for programs: what there is follows its web page, and cannot be "
    "tested. Copy the data to a store (Alibaba's own for programs is oss://), or serve the drive by WebDAV and read it "
    "as http://"
)

_BUCKET, _HOST, _NONE = Authority.BUCKET, Authority.HOST, Authority.NONE
_BUILT_IN: Final[Mapping[str, Scheme]] = {
    "s3": Scheme(_BUCKET, "s3://bucket/prefix", _S3_OPENER, _S3, is_shared=True),
    "gs": Scheme(_BUCKET, "gs://bucket/prefix", _GCS_OPENER, _GCS, is_shared=True),
    "gcs": Scheme(_BUCKET, "gcs://bucket/prefix", _GCS_OPENER, _GCS, is_shared=True),
    "azure": Scheme(_BUCKET, "azure://container/prefix", _AZURE_OPENER, _AZURE, is_azure=True),
    "azure-dl": Scheme(_BUCKET, "azure-dl://filesystem/prefix", _AZURE_OPENER, _AZURE, is_azure=True),
    "az": Scheme(_BUCKET, "az://container/prefix", _AZURE_OPENER, _AZURE, is_azure=True),
    "abfs": Scheme(_BUCKET, "abfs://filesystem@account.dfs…/prefix", _AZURE_OPENER, _AZURE, is_azure=True),
    "abfss": Scheme(_BUCKET, "abfss://filesystem@account.dfs…/prefix", _AZURE_OPENER, _AZURE, is_azure=True),
    "http": Scheme(_HOST, "http://host/folder", _WEB_OPENER, _WEB),
    "https": Scheme(_HOST, "https://host/folder", _WEB_OPENER, _WEB),
    "oci": Scheme(_BUCKET, "oci://bucket@namespace/prefix", _OCI_OPENER, _ALIKE | {"profile"}, is_shared=True),
    "oss": Scheme(_BUCKET, "oss://bucket/prefix", _OSS_OPENER, _ALIKE, is_shared=True),
    "r2": Scheme(_BUCKET, "r2://bucket/prefix", _R2_OPENER, _ALIKE, is_shared=True),
    "sftp": Scheme(_HOST, "sftp://user@host/folder", _SFTP_OPENER, _SFTP, is_shared=True),
    "hf": Scheme(_BUCKET, "hf://datasets/organisation/name/folder", _HUB_OPENER, _HUB),
    "hdfs": Scheme(Authority.ANY, "hdfs://namenode/folder", _HDFS_OPENER, None, is_shared=True),
    "dbfs": Scheme(_NONE, "dbfs:/Volumes/catalog/schema/volume", _DATABRICKS_OPENER, _DATABRICKS),
    "alipan": Scheme(_NONE, "alipan:///folder", None, instead=_NO_ALIPAN),
}
_NOT_TAKEN: Final = frozenset({"file", "local", "memory"})  # folders are plain paths; memory ends with its process


def scheme_named(name: str) -> Scheme | None:
    """Return the row of a scheme: registered by the user, built in, or of an installed package; None if unknown."""
    registered = registered_stores().get(name)
    if registered is not None:
        return _foreign(name, registered)
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    for found in importlib.metadata.entry_points(group=ENTRY_POINTS, name=name):
        return _foreign(name, found.value)
    return _of_fsspec(name)


def known_schemes() -> list[str]:
    """Return the names of all schemes that can be opened, sorted; without those of fsspec."""
    built_in = {name for name, scheme in _BUILT_IN.items() if scheme.opener is not None}
    brought = {found.name for found in importlib.metadata.entry_points(group=ENTRY_POINTS)}
    return sorted({*built_in, *brought, *registered_stores()})


def _of_fsspec(name: str) -> Scheme | None:
    """Return a row for any other scheme of fsspec, if that is installed."""
    if name in _NOT_TAKEN or importlib.util.find_spec("fsspec") is None:
        return None
    from fsspec.registry import known_implementations

    if name not in known_implementations:
        return None
    return Scheme(Authority.ANY, f"{name}://place/folder", _FSSPEC_OPENER, None)


def _foreign(name: str, opener: str) -> Scheme:
    return Scheme(Authority.ANY, f"{name}://place/folder", opener, None)
