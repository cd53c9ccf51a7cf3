"""One parser of remote paths, with its table of cases."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streaming.errors import NotYetError, OptionError
from streaming.storage.url import Bucket, Folder, join_remote, parse_remote

BUCKETS = {
    "s3://bucket": ("bucket", ""),
    "s3://bucket/": ("bucket", ""),
    "s3://bucket/a": ("bucket", "a"),
    "s3://bucket/a/b/": ("bucket", "a/b"),
    "s3://bucket/a//": ("bucket", "a"),
    "S3://bucket/a": ("bucket", "a"),
    "s3://my.dotted-bucket/a": ("my.dotted-bucket", "a"),
    "s3://bucket/some prefix/x": ("bucket", "some prefix/x"),
    "s3://bucket/ümläut/日本": ("bucket", "ümläut/日本"),
    "s3://bucket/100%25": ("bucket", "100%25"),
    "s3://bucket/what?#really": ("bucket", "what?#really"),
    "s3://bucket/a/../b": ("bucket", "a/../b"),
}
FOLDERS = ["/data", "/data/", "/some folder/ü", "/a/../b", "/data/s3:/x", "/"]
PLANNED = [
    "gs://bucket/a",
    "oci://bucket@space/a",
    "azure://account.blob/container/a",
    "azure-dl://system/a",
    "hf://datasets/org/name/a",
    "sftp://user@host:22/a",
    "dbfs:/Volumes/a/b",
    "dbfs:/a",
    "alipan:///a",
    "http://host/a",
    "https://host/a",
    "hdfs://host/a",
    "r2://bucket/a",
]
REFUSED = ["", "file:///data", "file://data", "s3://", "s3:///a", "tape://host/a", "nonsense://x", "a\0b"]


@pytest.mark.parametrize(("remote", "expected"), BUCKETS.items())
def test_a_bucket_is_a_name_and_a_prefix_as_they_stand(remote: str, expected: tuple[str, str]) -> None:
    """Nothing is decoded or normalised but the slashes at the ends."""
    assert parse_remote(remote) == Bucket("s3", *expected)


@pytest.mark.parametrize("remote", FOLDERS)
def test_a_path_without_scheme_is_a_folder(remote: str) -> None:
    """Absolute, without a slash at the end."""
    assert parse_remote(remote) == Folder(os.path.abspath(remote))


def test_a_relative_folder_is_taken_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So it means the same in a process that works elsewhere."""
    monkeypatch.chdir(tmp_path)
    assert parse_remote("some/data/") == Folder(f"{tmp_path}/some/data")
    assert parse_remote(".") == Folder(str(tmp_path))
    assert parse_remote("~/data") == Folder(f"{tmp_path}/~/data")


@pytest.mark.parametrize("remote", PLANNED)
def test_a_scheme_to_come_is_named(remote: str) -> None:
    """It is not taken for a folder, and the error names the scheme."""
    with pytest.raises(NotYetError, match=remote.partition(":")[0]):
        parse_remote(remote)


@pytest.mark.parametrize("remote", REFUSED)
def test_what_is_no_remote_path_is_refused(remote: str) -> None:
    """As a ValueError that begins as the predecessor's."""
    with pytest.raises(OptionError, match="Unsupported remote path"):
        parse_remote(remote)


@pytest.mark.parametrize("remote", [*BUCKETS, *FOLDERS])
def test_a_location_reads_back_as_itself(remote: str) -> None:
    """What a location is shown as means the same location."""
    location = parse_remote(remote)
    assert parse_remote(str(location)) == location


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (("s3://b/data", "train"), "s3://b/data/train"),
        (("s3://b/data/", "/train/", "x"), "s3://b/data/train/x"),
        (("/data", ""), "/data"),
        (("/data/",), "/data"),
        (("/", "a"), "/a"),
    ],
)
def test_parts_are_joined_by_one_slash(parts: tuple[str, ...], expected: str) -> None:
    """Empty parts leave no trace."""
    assert join_remote(*parts) == expected
