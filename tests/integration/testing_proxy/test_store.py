"""A FaultProxy without an upstream is a read-only S3 store."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from streaming.testing import FaultProxy
from support.fetcher_world import content
from support.http_world import ask, ask_once, connected, run_obstore
from support.stores import contents

SMALL, LARGE = content("small", 1000), content("large", 40 << 20)


@pytest.mark.parametrize(
    ("asked", "status", "begin", "end"),
    [
        ("bytes=0-0", 206, 0, 1),
        ("bytes=10-99", 206, 10, 100),
        ("bytes=990-2000", 206, 990, 1000),
        ("bytes=999-", 206, 999, 1000),
        ("bytes=-3", 206, 997, 1000),
        ("bytes=-5000", 206, 0, 1000),
        ("bytes=0-1,5-6", 200, 0, 1000),
        ("lines=1-2", 200, 0, 1000),
    ],
)
def test_a_range_is_what_was_asked_for(origin: FaultProxy, asked: str, status: int, begin: int, end: int) -> None:
    """It is clipped to the object. Several ranges, and other units, are ignored, as servers may."""
    reply = ask_once(origin.port, "/bkt/small", Range=asked)
    assert (reply.status, reply.body) == (status, SMALL[begin:end])
    assert reply.headers["Content-Range"] == (f"bytes {begin}-{end - 1}/1000" if status == 206 else None)


def test_a_range_beyond_the_end_is_refused(origin: FaultProxy) -> None:
    """It gets 416, as does any range of an empty object."""
    assert ask_once(origin.port, "/bkt/small", Range="bytes=1000-1001").status == 416
    assert ask_once(origin.port, "/bkt/empty", Range="bytes=0-0").status == 416
    assert ask_once(origin.port, "/bkt/empty").body == b""


def test_conditions_are_honoured(origin: FaultProxy) -> None:
    """If-Match and If-None-Match are compared with the object's ETag."""
    with connected(origin.port) as connection:
        etag = ask(connection, "/bkt/small").headers["ETag"]
        assert ask(connection, "/bkt/small", If_Match=etag).status == 200
        assert ask(connection, "/bkt/small", If_Match='"other"').status == 412
        assert ask(connection, "/bkt/small", If_None_Match='"other"').status == 200
        reply = ask(connection, "/bkt/small", If_None_Match=etag)
        assert (reply.status, reply.body, reply.headers["ETag"]) == (304, b"", etag)
        assert ask(connection, "/bkt/small").status == 200  # the connection is still in step


def test_a_head_is_the_answer_without_its_body(origin: FaultProxy) -> None:
    """Length and ETag equal those of a GET."""
    with connected(origin.port) as connection:
        head, whole = ask(connection, "/bkt/small", "HEAD"), ask(connection, "/bkt/small")
        assert dict(head.headers) == dict(whole.headers)
        assert (head.body, len(whole.body)) == (b"", 1000)
        assert ask(connection, "/bkt", "HEAD").status == 200


def test_what_is_not_there_is_an_error_in_the_form_of_s3(origin: FaultProxy) -> None:
    """Missing keys and buckets, paths out of the folder, and writes."""
    for method, path, status, code in [
        ("GET", "/bkt/nothing", 404, "NoSuchKey"),
        ("GET", "/nowhere/nothing", 404, "NoSuchBucket"),
        ("GET", "/bkt/../../etc/passwd", 404, "NoSuchKey"),
        ("PUT", "/bkt/small", 405, "MethodNotAllowed"),
        ("GET", "/bkt?acl", 501, "NotImplemented"),
    ]:
        reply = ask_once(origin.port, path, method)
        assert (reply.status, f"<Code>{code}</Code>" in reply.body.decode()) == (status, True)


def test_files_of_a_folder_and_of_any_name_are_objects(tmp_path: Path) -> None:
    """A folder is a bucket, one file can have many keys, and a file that changes is a new version."""
    inside, outside = tmp_path / "data", tmp_path / "secret"
    (inside / "a").mkdir(parents=True)
    (inside / "a" / "ü b+c").write_bytes(b"inside")
    outside.write_bytes(b"outside")
    with FaultProxy.started(buckets={"data": str(inside)}) as proxy, connected(proxy.port) as connection:
        assert ask(connection, "/data/a/%C3%BC%20b+c").body == b"inside"
        assert ask(connection, "/data/../secret").status == 404
        assert ask(connection, "/data//" + str(outside)).status == 404
        proxy.add_files("data", {f"copy/{number}": str(outside) for number in range(3)})
        replies = [ask(connection, f"/data/copy/{number}") for number in range(3)]
        assert {reply.body for reply in replies} == {b"outside"}
        outside.write_bytes(b"changed!")
        again = ask(connection, "/data/copy/0")
        assert again.body == b"changed!"
        assert again.headers["ETag"] != replies[0].headers["ETag"]


def test_bytes_are_objects_that_may_be_replaced_and_removed(origin: FaultProxy) -> None:
    """New content is a new version; a list shows the current objects."""
    origin.add_bytes("bytes", {"a": b"first", "b": b"", "c": LARGE})
    with connected(origin.port) as connection:
        before = ask(connection, "/bytes/a")
        assert before.body == b"first"
        assert ask(connection, "/bytes/b").body == b""
        assert ask(connection, "/bytes/c").body == LARGE
        assert ask(connection, "/bytes/c", Range="bytes=7-300006").body == LARGE[7:300_007]
        origin.add_bytes("bytes", {"a": b"other"})
        after = ask(connection, "/bytes/a", Range="bytes=1-2")
        assert (after.status, after.body) == (206, b"th")
        assert after.headers["ETag"] != before.headers["ETag"]
        assert ask(connection, "/bytes/a", If_Match=before.headers["ETag"]).status == 412
        for key in "ac":
            origin.remove("bytes", key)
        assert ask(connection, "/bytes/a").status == 404
        listed = ask(connection, "/bytes?list-type=2").body.decode()
    assert re.findall("<Key>(.*?)</Key>", listed) == ["b"]


def test_obstore_reads_and_lists(origin: FaultProxy) -> None:
    """Whole objects, ranges, versions, heads, pages of lists by prefix and folder, and odd names."""
    origin.add_bytes(
        "many", contents({f"p/{number:04}": number for number in range(2500)} | {"odd/ü &+%20": 3, "q": 1})
    )
    found = run_obstore(
        """
whole = obstore.get(store, "large")
digest = hashlib.sha256(whole.bytes()).hexdigest()
etag = whole.meta["e_tag"]
parts = obstore.get_ranges(store, "large", starts=[0, 1 << 20], ends=[10, (1 << 20) + 10], coalesce=0)
many = S3Store(
    "many", endpoint=os.environ["S3_ENDPOINT_URL"], client_options={"allow_http": True}
)
listed = [[meta["path"], meta["size"]] for page in obstore.list(many, "p") for meta in page]
folders = obstore.list_with_delimiter(many)
found = {
    "digest": digest,
    "head": obstore.head(store, "large")["size"],
    "parts": [bytes(part).hex() for part in parts],
    "same": len(obstore.get(store, "large", options={"if_match": etag}).bytes()),
    "other": said(lambda: obstore.get(store, "small", options={"if_match": "other"})),
    "missing": said(lambda: obstore.get(store, "nothing")),
    "listed": listed,
    "folders": [folders["common_prefixes"], [meta["path"] for meta in folders["objects"]]],
    "odd": [[meta["path"], len(obstore.get(many, meta["path"]).bytes())] for meta in next(obstore.list(many, "odd"))],
}
""",
        "bkt",
        origin.variables(),
    )
    assert found["digest"] == hashlib.sha256(LARGE).hexdigest()
    assert found["head"] == 40 << 20
    assert found["parts"] == [LARGE[at : at + 10].hex() for at in (0, 1 << 20)]
    assert found["same"] == 40 << 20
    assert found["other"].startswith("PreconditionError")
    assert found["missing"].startswith("FileNotFoundError")
    assert found["listed"] == [[f"p/{number:04}", number] for number in range(2500)]
    assert found["folders"] == [["odd", "p"], ["q"]]
    assert found["odd"] == [["odd/ü &+%20", 3]]
    n_lists = sum(entry.path == "/many" and "prefix=p" in entry.query for entry in origin.log())
    assert n_lists == 3
