"""Objects that come with `Content-Encoding`: unpacked, with sizes and ranges of what was packed, or refused by name."""

from __future__ import annotations

import contextlib
import gzip
import re
import urllib.parse
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from streaming import MDSWriter, StreamingDataset
from streaming.errors import StorageError, TransferDamagedError
from streaming.storage.common.packed_objects import encodings_of, unpacked
from streaming.storage.open_stores import Stores
from streaming.storage.store import Store
from streaming.storage.url import parse_remote
from streaming.testing.s3 import S3Server
from support.answers import AnswerServer, Question, Reply
from support.servers import started

CONTENT = bytes(range(256)) * 2000 + b"the end"
PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "GZIP": lambda data: gzip.compress(data[:1000]) + gzip.compress(data[1000:]),
    "deflate": zlib.compress,
    "Deflate": lambda data: _plain_deflate(data),
    "br": brotli.compress,
    "zstd": lambda data: zstandard.ZstdCompressor().compress(data),
    "gzip, br": lambda data: brotli.compress(gzip.compress(data)),
    "aws-chunked": lambda data: data,
    "identity": lambda data: data,
}
REMOTES: dict[str, dict[str, Any]] = {
    "s3://bucket/d": {"access_key_id": "me", "secret_access_key": "s", "region": "here"},
    "gs://bucket/d": {"token": "t"},
    "azure://bucket/d": {"account_name": "acc", "account_key": "QUFB"},
    "http://{host}/d": {},
}
ABOUT = {"ETag": '"1"', "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}


def _plain_deflate(data: bytes) -> bytes:
    deflate = zlib.compressobj(wbits=-15)
    return deflate.compress(data) + deflate.flush()


@pytest.fixture
def answers() -> Iterator[AnswerServer]:
    with AnswerServer.started() as server:
        yield server


def opened(answers: AnswerServer, remote: str) -> Store:
    """Open the store at this server."""
    options = REMOTES[remote]
    if "{host}" not in remote:
        options = {"endpoint": answers.url, **options}
    location = parse_remote(remote.format(host=answers.url.partition("://")[2]))
    return Stores({"HOME": "/nowhere", "NO_PROXY": "127.0.0.1"}).open(location, 20.0, options)


def serving(body: bytes, encoding: str, *, takes_ranges: bool) -> Callable[[Question], Reply]:
    """Serve one object as servers do: ranges are those of the packed bytes."""

    def reply(question: Question) -> Reply:
        headers = {**ABOUT, "Content-Encoding": encoding}
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", question.headers.get("range", ""))
        if not found or not takes_ranges:
            return Reply(200, headers, body)
        begin, end = int(found[1]), min(int(found[2] or len(body)) + 1, len(body))
        if begin >= len(body):
            return Reply(416, {"Content-Range": f"bytes */{len(body)}"})
        return Reply(206, {**headers, "Content-Range": f"bytes {begin}-{end - 1}/{len(body)}"}, body[begin:end])

    return reply


@pytest.mark.parametrize("takes_ranges", [True, False])
@pytest.mark.parametrize("encoding", PACKINGS)
@pytest.mark.parametrize("remote", REMOTES)
def test_a_packed_object_is_read_as_it_was(
    answers: AnswerServer, remote: str, encoding: str, takes_ranges: bool
) -> None:
    """Whole, from an offset, by range, and its size; whether or not the server serves ranges of what it packed."""
    if not takes_ranges and "http" not in remote:
        pytest.skip("object stores serve ranges")
    answers.reply = serving(PACKINGS[encoding](CONTENT), encoding, takes_ranges=takes_ranges)
    store = opened(answers, remote)
    got = store.get("x")
    assert (b"".join(got.chunks), got.facts.n_bytes) == (CONTENT, len(CONTENT))
    assert store.head("x").n_bytes == len(CONTENT)
    for offset in (5, len(CONTENT) - 3):
        assert b"".join(store.get("x", offset=offset, version=got.facts.version).chunks) == CONTENT[offset:]
        part = store.get_range("x", offset, offset + 3, version=got.facts.version)
        assert (part.data, part.facts) == (CONTENT[offset : offset + 3], got.facts)
    with pytest.raises(TransferDamagedError):
        store.get_range("x", len(CONTENT), len(CONTENT) + 2)


@pytest.mark.parametrize("remote", REMOTES)
def test_other_packings_are_refused_by_name(answers: AnswerServer, remote: str) -> None:
    """The error names header and object, and another try is no use."""
    answers.reply = serving(b"whatever it is", "compress", takes_ranges=True)
    store = opened(answers, remote)
    asks: list[Callable[[], object]] = [
        lambda: store.get("x"),
        lambda: store.get_range("x", 0, 3),
        lambda: store.head("x"),
    ]
    for ask in asks:
        with pytest.raises(StorageError, match=r"x comes with 'Content-Encoding: compress'") as refused:
            ask()
        assert type(refused.value) is StorageError


@pytest.mark.parametrize("remote", REMOTES)
@pytest.mark.parametrize("name", ["x.gz", "x.mds.gz", "x.TGZ"])
def test_a_file_named_after_its_packing_stays_as_it_is(answers: AnswerServer, remote: str, name: str) -> None:
    """Web servers say of any `.gz` file that it is packed; the index states the size of the file."""
    body = gzip.compress(CONTENT)
    answers.reply = serving(body, "gzip", takes_ranges=True)
    store = opened(answers, remote)
    assert b"".join(store.get(name).chunks) == body
    assert store.get_range(name, 2, 9).data == body[2:9]
    assert store.head(name).n_bytes == len(body)


@pytest.mark.parametrize("encoding", [name for name in PACKINGS if name not in ("aws-chunked", "identity")])
@given(n_bytes=st.integers(0, 3000), n_chunk=st.integers(1, 700), lost=st.integers(0, 30))
def test_any_cut_is_damage(encoding: str, n_bytes: int, n_chunk: int, lost: int) -> None:
    """Whole streams come whole, in whatever pieces; what is cut raises, and never gives fewer bytes in silence."""
    content = CONTENT[:n_bytes]
    packed = PACKINGS[encoding](content)
    packed = packed[: max(1, len(packed) - lost)]
    chunks = [packed[at : at + n_chunk] for at in range(0, len(packed), n_chunk)]
    came = unpacked(iter(chunks), encodings_of("x", encoding), shown="x")
    if not lost:
        assert b"".join(came) == content
        return
    with contextlib.suppress(TransferDamagedError):  # an empty gzip member and the like may lose what says nothing
        assert b"".join(came) == content


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd", "deflate"])
def test_a_bomb_ends_early(encoding: str) -> None:
    """Zeros that were packed twice fill neither memory nor disk; what unpacks to little may be of any ratio."""
    packed = PACKINGS[encoding](PACKINGS[encoding](bytes(1 << 28)))
    sizes: list[int] = []
    with pytest.raises(TransferDamagedError, match="to fill disks"):
        sizes.extend(len(piece) for piece in unpacked(iter([packed]), (encoding, encoding), shown="x"))
    packed = PACKINGS[encoding](PACKINGS[encoding](bytes(1 << 25)))
    assert sum(map(len, unpacked(iter([packed]), (encoding, encoding), shown="x"))) == 1 << 25


def test_a_data_set_is_read_from_packed_objects(tmp_path: Path, answers: AnswerServer) -> None:
    """Index, shards and side files, from S3 and the web."""
    with MDSWriter(out=str(tmp_path / "data"), columns={"i": "int"}, size_limit=500) as writer:
        for i in range(300):
            writer.write({"i": i})

    def reply(question: Question) -> Reply:
        name = urllib.parse.unquote(question.target.partition("?")[0]).rpartition("/")[2]
        return serving(gzip.compress((tmp_path / "data" / name).read_bytes()), "gzip", takes_ranges=True)(question)

    answers.reply = reply
    for number, (remote, options) in enumerate(REMOTES.items()):
        if "{host}" not in remote:
            options = {"endpoint": answers.url, **options}
        url = remote.format(host=answers.url.partition("://")[2])
        local = str(tmp_path / f"cache{number}")
        with StreamingDataset(remote=url, local=local, batch_size=4, storage_options=options) as data:
            assert int(data[7]["i"]) == 7
            assert [int(sample["i"]) for sample in data] == list(range(300))


def test_a_real_store_keeps_the_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What boto3 puts there with ContentEncoding is read as it was."""
    boto3 = pytest.importorskip("boto3")
    for server in started(S3Server.started()):
        variables = server.variables()
        client = boto3.client(
            "s3",
            endpoint_url=server.endpoint,
            aws_access_key_id=variables["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
            region_name="us-east-1",
        )
        location = parse_remote(server.url("packed"))
        bucket = server.url("packed").split("/")[2]
        client.put_object(Bucket=bucket, Key="packed/x", Body=gzip.compress(CONTENT), ContentEncoding="gzip")
        client.put_object(Bucket=bucket, Key="packed/plain", Body=CONTENT)
        store = Stores({**variables, "HOME": "/nowhere"}).open(location, 30.0)
        for name in ("x", "plain"):
            assert b"".join(store.get(name).chunks) == CONTENT
            assert store.head(name).n_bytes == len(CONTENT)
            assert store.get_range(name, 500_000, 500_009).data == CONTENT[500_000:500_009]
