"""The parser of remote paths."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streaming.errors import OptionError
from streaming.storage.url import Bucket, Folder, join_remote, parse_remote

ODD = {  # text after the authority → prefix: only slashes at the ends are removed
    "": "",
    "/": "",
    "/a": "a",
    "/a/b/": "a/b",
    "/a//": "a",
    "/some prefix/x": "some prefix/x",
    "/ümläut/日本": "ümläut/日本",
    "/100%25": "100%25",
    "/100%": "100%",
    "/a/../b": "a/../b",
    "/user@host:1/x": "user@host:1/x",
}
QUERIES = {"/what?#really": "what?#really", "/a?b=c&d": "a?b=c&d"}
BUCKETS = {
    f"{begin}{rest}": Bucket(scheme, name, prefix)
    for begin, scheme, name in (
        ("s3://bucket", "s3", "bucket"),
        ("S3://my.dotted-bucket", "s3", "my.dotted-bucket"),
        ("gs://bucket", "gs", "bucket"),
        ("gcs://bucket", "gcs", "bucket"),
        ("az://container", "az", "container"),
        ("azure://container", "azure", "container"),
        ("azure-dl://filesystem", "azure-dl", "filesystem"),
        ("abfs://filesystem@account.dfs.core.windows.net", "abfs", "filesystem@account.dfs.core.windows.net"),
        ("abfss://filesystem@account", "abfss", "filesystem@account"),
    )
    for rest, prefix in (ODD | QUERIES).items()
}
HOSTS = {
    f"{begin}{rest}": Bucket(scheme, name, prefix)
    for begin, scheme, name in (
        ("http://host", "http", "host"),
        ("https://host:8443", "https", "host:8443"),
        ("https://user:p%40ss@host", "https", "user:p%40ss@host"),
        ("http://[::1]:80", "http", "[::1]:80"),
    )
    for rest, prefix in ODD.items()
}
FOLDERS = ["/data", "/data/", "/some folder/ü", "/a/../b", "/data/s3:/x", "/", "/a?b#c", "/100%"]
REFUSED = [
    "",
    "file:///data",
    "file://data",
    "memory://x",
    "s3://",
    "s3:///a",
    "gs:///a",
    "azure://",
    "azure://account.blob.core.windows.net",
    "azure://account.blob.core.windows.net/",
    "https://",
    "https:///x",
    "https://user@/x",
    "https://host:port/x",
    "https://host/a?b",
    "https://host/a#b",
    "tape://host/a",
    "nonsense://x",
    "a\0b",
]


@pytest.mark.parametrize(("remote", "expected"), (BUCKETS | HOSTS).items())
def test_a_url_is_a_place_and_a_literal_prefix(remote: str, expected: Bucket) -> None:
    """Nothing is decoded; only slashes at the ends are removed."""
    assert parse_remote(remote) == expected


@pytest.mark.parametrize("remote", FOLDERS)
def test_a_path_without_scheme_is_a_folder(remote: str) -> None:
    """Its path is absolute and has no slash at the end."""
    assert parse_remote(remote) == Folder(os.path.abspath(remote))


def test_a_relative_folder_is_relative_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it means the same in a process with another working directory."""
    monkeypatch.chdir(tmp_path)
    assert parse_remote("some/data/") == Folder(f"{tmp_path}/some/data")
    assert parse_remote(".") == Folder(str(tmp_path))
    assert parse_remote("~/data") == Folder(f"{tmp_path}/~/data")
    assert parse_remote("s3:/bucket/a") == Folder(f"{tmp_path}/s3:/bucket/a")


@pytest.mark.parametrize("remote", REFUSED)
def test_a_malformed_remote_path_is_refused(remote: str) -> None:
    """The error is a ValueError that begins like the predecessor's."""
    with pytest.raises(OptionError, match="Unsupported remote path"):
        parse_remote(remote)


@pytest.mark.parametrize(
    ("remote", "name", "prefix"),
    [
        ("dbfs:/Volumes/a/b", "", "Volumes/a/b"),
        ("dbfs:/a", "", "a"),
        ("dbfs:///a", "", "a"),
        ("hf://datasets/org/name/a", "datasets", "org/name/a"),
        ("oci://bucket@space/a", "bucket@space", "a"),
        ("r2://bucket/a", "bucket", "a"),
        ("oss://bucket/a", "bucket", "a"),
        ("hdfs://name:8020/a", "name:8020", "a"),
        ("hdfs:///a", "", "a"),
        ("sftp://user:pw@host:22/a", "user:pw@host:22", "a"),
    ],
)
def test_every_scheme_of_the_table_is_parsed(remote: str, name: str, prefix: str) -> None:
    """No URL is taken for a folder, and `str` gives each back."""
    location = parse_remote(remote)
    assert location == Bucket(remote.partition(":")[0], name, prefix)
    assert parse_remote(str(location)) == location


def test_a_scheme_without_a_store_says_what_to_do_instead() -> None:
    """The one case is Alibaba's cloud drive, which the predecessor reads."""
    with pytest.raises(OptionError, match=r"alipan://… is not read\. .* WebDAV"):
        parse_remote("alipan:///a")


@pytest.mark.parametrize("remote", [*BUCKETS, *HOSTS, *FOLDERS])
def test_a_location_survives_the_round_trip(remote: str) -> None:
    """`str(location)` parses to the same location."""
    location = parse_remote(remote)
    assert parse_remote(str(location)) == location


@pytest.mark.parametrize(
    ("remote", "shown"),
    [
        ("https://me:SECRET@host:1/a", "https://host:1/a"),
        ("https://SECRET@host/a", "https://host/a"),
        ("abfs://box@acc.dfs.core.windows.net/a", "abfs://box@acc.dfs.core.windows.net/a"),
        ("s3://bucket/me:you@x", "s3://bucket/me:you@x"),
    ],
)
def test_messages_show_no_password(remote: str, shown: str) -> None:
    """`shown` and `repr` leave out user and password, but no text that only resembles them."""
    location = parse_remote(remote)
    assert (location.shown, repr(location)) == (shown, f"Bucket({shown!r})")


@pytest.mark.parametrize("remote", ["https://me:SECRET/x@host/a", "https://me:SECRET@host:port/a", "tape://a:SECRET@h"])
def test_errors_show_no_password(remote: str) -> None:
    """Even where it is uncertain which part of a URL is the password."""
    with pytest.raises(OptionError) as caught:
        parse_remote(remote)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (("s3://b/data", "train"), "s3://b/data/train"),
        (("s3://b/data/", "/train/", "x"), "s3://b/data/train/x"),
        (("/data", ""), "/data"),
        (("/data/",), "/data"),
        (("/", "a"), "/a"),
        (("dbfs:/", "a"), "dbfs:///a"),
        (("alipan:///", "a"), "alipan:///a"),
        (("hdfs:///a/", "b"), "hdfs:///a/b"),
    ],
)
def test_parts_are_joined_by_one_slash(parts: tuple[str, ...], expected: str) -> None:
    """Empty parts are left out."""
    assert join_remote(*parts) == expected
