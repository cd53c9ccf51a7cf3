"""Data sets of the Hugging Face hub, against a double of its HTTP interface."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from streaming.errors import (
    ObjectForbiddenError,
    ObjectMissingError,
    OptionError,
    StorageError,
    StoreBusyError,
    StoreUnreachableError,
    TransferDamagedError,
)
from streaming.storage.hub.place import hub_place
from streaming.storage.hub.store import HubStore, open_hub
from streaming.storage.settings import StoreSettings
from streaming.storage.store import Store
from streaming.storage.url import Bucket
from streaming.testing.store_contract import StoreContract
from support.fetcher_world import wait_until
from support.http_double import Reply
from support.hub_double import ContentNetwork, HubDouble, Repo

# The hub's library hands its HTTP client a file in a way that this client calls old.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def hub() -> Iterator[HubDouble]:
    with HubDouble.started() as hub, ContentNetwork.started() as network:
        hub.network, network.hub = network, hub
        hub.repos["org/name"] = Repo()
        yield hub


def opened(hub: HubDouble, path: str = "org/name/data", *, token: str | None = "hf_secret", **options: Any) -> HubStore:
    return open_hub(Bucket("hf", "datasets", path), StoreSettings(options, hub.variables(token=token), 20.0))


def files_of(hub: HubDouble, branch: str = "main", repo: str = "org/name") -> dict[str, bytes]:
    return hub.repos[repo].branches[branch]


class TestHubStore(StoreContract):
    """hf://."""

    @pytest.fixture
    def store(self, hub: HubDouble) -> Store:
        return opened(hub)

    def test_files_are_written_below_the_path(self, store: Store, hub: HubDouble, tmp_path: Path) -> None:
        """The repository has the names and bytes that were written, below the path of the URL."""
        contents = {"index.json": b"{}", "shards/0.mds": os.urandom(5000)}
        for name, content in contents.items():
            self.put(store, name, content, tmp_path)
        assert files_of(hub) == {f"data/{name}": content for name, content in contents.items()}

    def test_the_hubs_own_library_reads_what_was_put(self, store: Store, hub: HubDouble, tmp_path: Path) -> None:
        """So the double has the interface that the library uses."""
        self.put(store, "a", b"abc", tmp_path)
        self.put(store, "b", bytes(3000), tmp_path)
        api = huggingface_hub.HfApi(hub.url, token="hf_secret")
        assert api.list_repo_files("org/name", repo_type="dataset") == ["data/a", "data/b"]
        for name, content in {"data/a": b"abc", "data/b": bytes(3000)}.items():
            path = api.hf_hub_download("org/name", name, repo_type="dataset", local_dir=tmp_path / "got")
            assert Path(path).read_bytes() == content


def test_a_revision_is_read_and_written(hub: HubDouble, tmp_path: Path) -> None:
    """The main branch stays unchanged."""
    hub.repos["org/name"].branches |= {"v1": {"data/a": b"old"}, "refs/pr/3": {"data/a": b"proposed"}}
    assert opened(hub, "org/name@v1/data").get_range("a", 0, 3).data == b"old"
    (tmp_path / "file").write_bytes(b"new")
    opened(hub, "org/name@v1/data").put("b", str(tmp_path / "file"))
    assert files_of(hub, "v1") == {"data/a": b"old", "data/b": b"new"}
    assert files_of(hub) == {}


def test_urls_are_parsed() -> None:
    """They hold organisation, name, revision and path; a slash in a revision is %2F, except in references."""

    def place(path: str, name: str = "datasets") -> tuple[str, str, str]:
        found = hub_place(Bucket("hf", name, path), {}, {"HOME": "/nowhere"})
        return (found.repo, found.revision, found.path)

    assert place("o/n") == ("o/n", "main", "")
    assert place("o/n/a/b c") == ("o/n", "main", "a/b c")
    assert place("o/n@v1.0/a") == ("o/n", "v1.0", "a")
    assert place("o/n@some%2Fbranch/a") == ("o/n", "some/branch", "a")
    assert place("o/n@refs/convert/parquet/a/b") == ("o/n", "refs/convert/parquet", "a/b")
    assert place("o/n@refs/pr/7") == ("o/n", "refs/pr/7", "")
    assert place("o/n/a@b") == ("o/n", "main", "a@b")
    for wrong, name in (("o/n", "models"), ("o", "datasets"), ("", "datasets"), ("o@v/n", "datasets")):
        with pytest.raises(OptionError, match="hf://datasets/"):
            place(wrong, name)


def test_tokens_are_looked_up_as_the_hubs_tools_do(tmp_path: Path) -> None:
    """An option, variables and a file are read, in this order; `repr` never shows the token."""

    def token(options: dict[str, str], environment: dict[str, str]) -> str | None:
        place = hub_place(Bucket("hf", "datasets", "o/n"), options, environment)
        assert place.token is None or place.token not in repr(place) + str(place) + place.shown_identity
        return place.token

    (tmp_path / ".cache" / "huggingface").mkdir(parents=True)
    (tmp_path / ".cache" / "huggingface" / "token").write_text("t-home\n")
    (tmp_path / "token").write_text("t-hf-home")
    home = {"HOME": str(tmp_path)}
    assert token({"token": "t-option"}, home | {"HF_TOKEN": "t-variable"}) == "t-option"
    assert token({}, home | {"HF_TOKEN": "t-variable"}) == "t-variable"
    assert token({}, home | {"HF_HOME": str(tmp_path)}) == "t-hf-home"
    assert token({}, home) == "t-home"
    assert token({}, {"HOME": "/nowhere"}) is None


def test_ranges_of_one_version_cost_one_request_to_the_hub(hub: HubDouble) -> None:
    """The hub allows few requests; the content network serves the rest. An expired link is renewed."""
    content = os.urandom(50_000)
    files_of(hub)["data/a"] = content
    store = opened(hub)
    version = store.get_range("a", 0, 10).facts.version
    for at in range(0, 50_000, 1000):
        assert store.get_range("a", at, at + 1000, version=version).data == content[at : at + 1000]
    assert len(hub.asked("GET", "/resolve/")) == 1
    assert hub.network is not None
    hub.network.end_links()
    assert store.get_range("a", 5, 9, version=version).data == content[5:9]
    assert len(hub.asked("GET", "/resolve/")) == 2


def test_a_new_version_is_never_served_from_an_old_link(hub: HubDouble) -> None:
    """A `get` without a version is sent to the hub."""
    files_of(hub)["data/a"] = bytes(2000)
    store = opened(hub)
    old = store.get_range("a", 0, 1).facts.version
    files_of(hub)["data/a"] = b"1" * 2000
    assert b"".join(store.get("a").chunks) == b"1" * 2000
    with pytest.raises(TransferDamagedError, match="changed"):
        store.get_range("a", 0, 1, version=old)


def test_only_the_hub_gets_the_token(hub: HubDouble) -> None:
    """The token is not sent to redirect targets outside the hub, but to those within."""
    hub.repos["org/name"].is_private = True
    files_of(hub)["data/a"] = bytes(2000)
    assert b"".join(opened(hub, "old-org/name/data").get("a").chunks) == bytes(2000)
    assert all(request.headers.get("Authorization") for request in hub.requests)
    assert hub.network is not None
    assert not any(request.headers.get("Authorization") for request in hub.network.requests)


def test_refusals_are_distinguished(hub: HubDouble) -> None:
    """Private and gated data sets, a wrong token, and a missing data set, revision or file are distinguished."""
    hub.repos |= {"org/private": Repo(is_private=True), "org/gated": Repo(is_gated=True)}
    cases: list[tuple[str, str | None, type[StorageError], str]] = [
        ("org/private", None, ObjectForbiddenError, "RepoNotFound.*no token"),
        ("org/gated", "hf_secret", ObjectForbiddenError, "GatedRepo"),
        ("org/name", "hf_wrong", ObjectForbiddenError, "Invalid credentials"),
        ("org/nothing", "hf_secret", ObjectMissingError, "RepoNotFound"),
        ("org/name@v9", "hf_secret", ObjectMissingError, "RevisionNotFound"),
        ("org/name", "hf_secret", ObjectMissingError, "EntryNotFound"),
    ]
    for path, token, kind, words in cases:
        store = opened(hub, path, token=token)
        for ask in (store.get, store.head):
            with pytest.raises(kind, match=words) as caught:
                ask("a")
            assert hub.url in str(caught.value)
            assert "hf_" not in str(caught.value)
    for path in ("org/nothing", "org/name@v9"):
        with pytest.raises(ObjectMissingError, match="no such data set"):
            list(opened(hub, path).list())


def test_a_hub_that_is_busy_says_for_how_long(hub: HubDouble) -> None:
    """The answer has seconds, the reset of a rate limit, or nothing; status 5xx means busy, too."""
    files_of(hub)["data/a"] = b"abc"
    store = opened(hub)
    cases: list[tuple[int, dict[str, str], float | None, bool]] = [
        (429, {"Retry-After": "7"}, 7.0, True),
        (429, {"RateLimit": '"resolvers";r=0;t=55'}, 55.0, True),
        (429, {}, None, True),
        (503, {"Retry-After": "3"}, 3.0, True),
        (500, {}, None, False),
    ]
    for status, headers, wait_s, is_throttled in cases:
        hub.faults.append(("/resolve/", Reply(status, b"no", headers)))
        with pytest.raises(StoreBusyError, match=str(status)) as caught:
            store.get("a")
        assert (caught.value.retry_after_s, caught.value.is_throttled) == (wait_s, is_throttled)
    assert store.get_range("a", 0, 3).data == b"abc"


def test_a_cut_body_is_an_error(hub: HubDouble) -> None:
    """The bytes so far are good; the rest is read by offset."""
    content = os.urandom(3 << 20)
    files_of(hub)["data/a"] = content
    store = opened(hub)
    assert hub.network is not None
    hub.network.faults.append(("/objects/", Reply(cut_after=2 << 20)))
    whole, got = store.get("a"), bytearray()
    with pytest.raises(TransferDamagedError, match="broke"):
        deque(map(got.extend, whole.chunks))
    got += b"".join(store.get("a", offset=len(got), version=whole.facts.version).chunks)
    assert got == content
    hub.network.faults.append(("/objects/", Reply(cut_after=10)))
    with pytest.raises(TransferDamagedError, match="broke"):
        store.get_range("a", 0, 100)


def test_a_list_follows_its_pages(hub: HubDouble) -> None:
    """Whatever their number."""
    files_of(hub).update({f"data/{i:03}": bytes(i) for i in range(95)} | {"other": b""})
    hub.page_size = 10
    assert {facts.name: facts.n_bytes for facts in opened(hub).list()} == {f"{i:03}": i for i in range(95)}


def test_list_and_head_agree_on_versions(hub: HubDouble) -> None:
    """For small files and for large ones."""
    files_of(hub).update({"data/small": b"abc", "data/large": bytes(5000)})
    store = opened(hub)
    assert sorted(store.list(), key=str) == sorted((store.head("small"), store.head("large")), key=str)


def test_simultaneous_puts_are_few_commits(hub: HubDouble, tmp_path: Path) -> None:
    """The hub allows few commits; each file is there when its `put` returns."""
    (tmp_path / "file").write_bytes(bytes(2000))
    store = opened(hub)
    hub.may_commit.clear()
    with ThreadPoolExecutor(20) as pool:
        puts = [pool.submit(store.put, str(i), str(tmp_path / "file")) for i in range(20)]
        wait_until("all are ready", lambda: len(hub.asked("POST", "/preupload/")) >= 20)
        hub.may_commit.set()
        for put in puts:
            put.result()
    assert set(files_of(hub)) == {f"data/{i}" for i in range(20)}
    assert hub.repos["org/name"].n_commits <= 10


def test_a_file_that_the_hub_ignores_is_an_error(hub: HubDouble, tmp_path: Path) -> None:
    """A .gitignore of the data set can exclude a file, which must not be lost silently."""
    hub.repos["org/name"].ignored.add("data/a")
    (tmp_path / "file").write_bytes(b"abc")
    with pytest.raises(StorageError):
        opened(hub).put("a", str(tmp_path / "file"))


def test_a_refused_upload_is_a_storage_error(hub: HubDouble, tmp_path: Path) -> None:
    """Without a token, to a missing data set, and if the hub is busy at the commit."""
    (tmp_path / "file").write_bytes(b"abc")
    with pytest.raises(ObjectForbiddenError, match="401"):
        opened(hub, token=None).put("a", str(tmp_path / "file"))
    with pytest.raises(ObjectMissingError):
        opened(hub, "org/nothing").put("a", str(tmp_path / "file"))
    hub.faults.append(("/commit/", Reply(429, b"slow down", {"Retry-After": "9"})))
    with pytest.raises(StoreBusyError) as caught:
        opened(hub).put("a", str(tmp_path / "file"))
    assert caught.value.retry_after_s == 9.0


def test_an_absent_server_is_unreachable() -> None:
    """The error has the address."""
    settings = StoreSettings({"endpoint": "http://127.0.0.1:9"}, {"NO_PROXY": "*"}, timeout_s=5.0)
    with pytest.raises(StoreUnreachableError, match=r"127\.0\.0\.1:9"):
        open_hub(Bucket("hf", "datasets", "o/n"), settings).head("a")


def test_an_unknown_option_is_refused(hub: HubDouble) -> None:
    """The error lists the existing ones. A malformed endpoint is refused, too."""
    with pytest.raises(OptionError, match="takes no 'tokn'"):
        opened(hub, tokn="x")
    with pytest.raises(OptionError, match="http"):
        opened(hub, endpoint="huggingface.co")
