"""SFTP against OpenSSH's server: the contract of all stores, and what is special."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from streaming.errors import (
    ObjectForbiddenError,
    ObjectMissingError,
    OptionError,
    StorageError,
    StoreUnreachableError,
    TransferDamagedError,
)
from streaming.storage.open_stores import Stores
from streaming.storage.settings import StoreSettings
from streaming.storage.sftp.connection import sftp_login
from streaming.storage.sftp.store import N_CONNECTIONS, SftpStore, open_sftp
from streaming.storage.store import Store
from streaming.storage.url import Bucket, parse_remote
from streaming.testing.sftp import SftpServer
from streaming.testing.store_contract import StoreContract
from support.servers import started

_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[SftpServer]:
    yield from started(SftpServer.started())


@pytest.fixture
def folder(server: SftpServer) -> Path:
    """A new folder below the server's own."""
    return Path(server.folder) / f"place-{next(_numbers)}"


def opened(
    server: SftpServer, folder: Path, *, variables: dict[str, str] | None = None, user: str = "", **options: Any
) -> SftpStore:
    place = Bucket("sftp", f"{user or server.user}@127.0.0.1:{server.port}", str(folder).strip("/"))
    environment = server.variables() if variables is None else variables
    return open_sftp(place, StoreSettings(options, {"HOME": "/nowhere"} | environment, timeout_s=20.0))


class TestSftpStore(StoreContract):
    """SFTP."""

    @pytest.fixture
    def store(self, server: SftpServer, folder: Path) -> Store:
        return opened(server, folder)

    def test_temporaries_are_not_objects(self, server: SftpServer, folder: Path) -> None:
        """Unfinished uploads of another writer are not listed."""
        folder.mkdir()
        (folder / ".a.0123456789abcdef.tmp").touch()
        assert list(opened(server, folder).list()) == []

    def test_links_to_files_are_files(self, server: SftpServer, folder: Path) -> None:
        """Links to folders are not followed: one to a parent folder would never end."""
        folder.mkdir()
        (folder / "a").write_bytes(b"abc")
        (folder / "b").symlink_to("a")
        (folder / "up").symlink_to(folder)
        (folder / "nowhere").symlink_to("nothing")
        assert {facts.name: facts.n_bytes for facts in opened(server, folder).list()} == {"a": 3, "b": 3}

    def test_a_folder_is_not_an_object(self, server: SftpServer, folder: Path) -> None:
        """Neither for `get` nor for `head`."""
        (folder / "sub").mkdir(parents=True)
        store = opened(server, folder)
        for ask in (store.get, store.head):
            with pytest.raises(ObjectMissingError, match="no file"):
                ask("sub")

    def test_a_put_of_the_same_size_within_a_second_is_another_version(
        self, server: SftpServer, folder: Path, tmp_path: Path
    ) -> None:
        """Although the server's times have whole seconds."""
        store, versions = opened(server, folder), set()
        for i in range(5):
            (tmp_path / "file").write_bytes(b"%d" % i)
            store.put("a", str(tmp_path / "file"))
            versions.add(store.head("a").version)
        assert len(versions) == 5

    def test_a_refused_put_leaves_nothing(self, server: SftpServer, folder: Path, tmp_path: Path) -> None:
        """If a folder has the object's name, the temporary is removed."""
        (folder / "a" / "b").mkdir(parents=True)
        (tmp_path / "file").write_bytes(b"abc")
        with pytest.raises(StorageError, match="Failure"):
            opened(server, folder).put("a", str(tmp_path / "file"))
        assert os.listdir(folder) == ["a"]


def test_many_threads_share_few_connections(server: SftpServer, folder: Path) -> None:
    """Each reads its own bytes, whole objects and ranges."""
    folder.mkdir()
    contents = [os.urandom(300_000 + i) for i in range(16)]
    for i, content in enumerate(contents):
        (folder / str(i)).write_bytes(content)
    store = opened(server, folder)

    def read(i: int) -> bool:
        content, name = contents[i % 16], str(i % 16)
        ranges = [store.get_range(name, at, at + 1000).data for at in range(0, 10_000, 1000)]
        return b"".join(store.get(name).chunks) == content and b"".join(ranges) == content[:10_000]

    with ThreadPoolExecutor(32) as pool:
        assert all(pool.map(read, range(64)))


def test_a_store_outlives_its_connections(server: SftpServer, folder: Path) -> None:
    """A transfer that is cut raises an error, and can be resumed from where it stopped."""
    folder.mkdir()
    content = os.urandom(30 << 20)
    (folder / "a").write_bytes(content)
    store = opened(server, folder)
    whole = store.get("a")
    got = bytearray(next(whole.chunks))
    server.cut()
    with pytest.raises(StoreUnreachableError, match="connection broke"):
        got.extend(itertools.chain.from_iterable(whole.chunks))
    assert len(got) < len(content)
    for chunk in store.get("a", offset=len(got), version=whole.facts.version).chunks:
        got += chunk
    assert got == content


def test_a_connection_that_was_cut_at_rest_is_replaced(server: SftpServer, folder: Path) -> None:
    """At most the call that finds it broken fails, with an error that is worth another attempt."""
    folder.mkdir()
    (folder / "a").write_bytes(b"abc")
    store = opened(server, folder)
    for _ in range(3):
        assert store.head("a").n_bytes == 3
        server.cut()
        with contextlib.suppress(StoreUnreachableError):
            store.head("a")


@pytest.mark.usefixtures("server")  # skips this test, too, without OpenSSH
def test_a_server_that_is_gone_is_unreachable(tmp_path: Path) -> None:
    """The error has the address."""
    with SftpServer.started() as brief:
        known = tmp_path / "known"
        known.write_text(Path(brief.variables()["COMPOSER_SFTP_KNOWN_HOSTS_FILE"]).read_text())
        store = opened(brief, Path(brief.folder), known_hosts=str(known))
        assert list(store.list()) == []
    for _ in range(2):
        with pytest.raises(StoreUnreachableError, match=str(brief.port)):
            store.head("a")


def test_a_file_that_is_cut_while_it_is_read_ends_early(server: SftpServer, folder: Path) -> None:
    """No bytes are invented, and the connection stays usable."""
    folder.mkdir()
    (folder / "a").write_bytes(bytes(20 << 20))
    store = opened(server, folder)
    chunks = store.get("a").chunks
    n_bytes = len(next(chunks))
    os.truncate(folder / "a", 1 << 20)
    n_bytes += sum(map(len, chunks))
    assert 1 << 20 <= n_bytes < 20 << 20
    assert store.get_range("a", 0, 10).data == bytes(10)
    with pytest.raises(TransferDamagedError, match="cut"):
        store.get_range("a", 0, 2 << 20)


def test_dropped_contents_hold_no_connection(server: SftpServer, folder: Path) -> None:
    """There may be more of them than connections, dropped before the first byte or in the middle."""
    folder.mkdir()
    (folder / "a").write_bytes(bytes(5 << 20))
    store = opened(server, folder)
    for _ in range(2):
        held: list[Any] = [store.get("a") for _ in range(N_CONNECTIONS)]
        for content in held[:3]:
            next(content.chunks)
        held.clear()
        content = None
    assert store.head("a").n_bytes == 5 << 20


def test_an_unknown_host_is_refused(server: SftpServer, folder: Path, tmp_path: Path) -> None:
    """It is refused before a key or password is sent, and is not worth another attempt."""
    variables = server.variables()
    (tmp_path / "known").write_text("")
    for known in ({"COMPOSER_SFTP_KNOWN_HOSTS_FILE": str(tmp_path / "known")}, {"HOME": str(tmp_path)}):
        asked = {"COMPOSER_SFTP_KEY_FILE": variables["COMPOSER_SFTP_KEY_FILE"]} | known
        with pytest.raises(StorageError, match="known hosts") as caught:
            opened(server, folder, variables=asked).head("a")
        assert not isinstance(caught.value, ConnectionError)


def test_the_users_known_hosts_are_trusted(server: SftpServer, folder: Path, tmp_path: Path) -> None:
    """They are read from the home folder that the environment names."""
    folder.mkdir()
    (folder / "a").write_bytes(b"abc")
    (tmp_path / ".ssh").mkdir()
    known = Path(server.variables()["COMPOSER_SFTP_KNOWN_HOSTS_FILE"]).read_text()
    (tmp_path / ".ssh" / "known_hosts").write_text(known)
    variables = {"HOME": str(tmp_path), "COMPOSER_SFTP_KEY_FILE": server.variables()["COMPOSER_SFTP_KEY_FILE"]}
    assert opened(server, folder, variables=variables).head("a").n_bytes == 3


def test_a_host_with_another_key_is_refused(server: SftpServer, folder: Path, tmp_path: Path) -> None:
    """The host may be another machine."""
    known = Path(server.variables()["COMPOSER_SFTP_KNOWN_HOSTS_FILE"]).read_text().split()
    other = Path(server.variables()["COMPOSER_SFTP_KEY_FILE"] + ".pub").read_text().split()[1]
    (tmp_path / "known").write_text(" ".join((*known[:2], other)) + "\n")
    with pytest.raises(StorageError, match="another key"):
        opened(server, folder, known_hosts=str(tmp_path / "known")).head("a")


def test_a_refused_log_in_names_the_user(server: SftpServer, folder: Path) -> None:
    """For another user, and for a password where none is accepted; no message contains the password."""
    with pytest.raises(ObjectForbiddenError, match="'nobody-here'"):
        opened(server, folder, user="nobody-here").head("a")
    known = {"COMPOSER_SFTP_KNOWN_HOSTS_FILE": server.variables()["COMPOSER_SFTP_KNOWN_HOSTS_FILE"]}
    store = opened(server, folder, variables=known, user=f"{server.user}:se@cret")
    with pytest.raises(ObjectForbiddenError, match="a password") as caught:
        store.head("a")
    assert "cret" not in str(caught.value)


def test_a_key_that_cannot_be_read_is_a_wrong_setting(server: SftpServer, folder: Path) -> None:
    """The error has the name of the variable."""
    with pytest.raises(OptionError, match="COMPOSER_SFTP_KEY_FILE"):
        opened(server, folder, key_file="/nowhere/key").head("a")


def test_options_win_over_the_url_and_it_over_the_system() -> None:
    """This holds for user, password, key and known hosts."""
    variables = {"COMPOSER_SFTP_KEY_FILE": "k", "COMPOSER_SFTP_KNOWN_HOSTS_FILE": "h", "HOME": "/home/me"}

    def login(name: str, **options: Any) -> Any:
        return sftp_login(Bucket("sftp", name, "p"), StoreSettings(options, variables, timeout_s=1.0))

    plain = login("u:p%40q@host:2222")
    assert (plain.user, plain.password, plain.host, plain.port) == ("u", "p@q", "host", 2222)
    assert (plain.key_file, plain.known_hosts_file, plain.home) == ("k", "h", "/home/me")
    assert "p@q" not in repr(plain) + str(plain)
    given = login("u:p@[::1]", user="v", password="w", key_file="l", known_hosts="i")
    assert (given.user, given.password, given.host, given.port) == ("v", "w", "::1", 22)
    assert (given.key_file, given.known_hosts_file) == ("l", "i")
    for wrong in ("host:0", "host:70000", "host:"):
        with pytest.raises(OptionError, match="port"):
            login(wrong)


def test_an_unknown_option_is_refused(server: SftpServer, folder: Path) -> None:
    """An option of a wrong type is refused as well."""
    with pytest.raises(OptionError, match=r"takes no 'passwort'; it takes .*known_hosts"):
        opened(server, folder, passwort="x")
    with pytest.raises(OptionError, match="key_file"):
        opened(server, folder, key_file=7)


def test_the_table_opens_it(server: SftpServer, folder: Path) -> None:
    """The URL of the scheme is opened."""
    folder.mkdir()
    (folder / "a").write_bytes(b"abc")
    remote = server.url(os.path.basename(folder))
    assert Stores(server.variables()).open(parse_remote(remote), 20.0).head("a").n_bytes == 3
