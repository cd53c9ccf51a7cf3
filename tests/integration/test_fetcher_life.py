"""How the fetcher begins, is found, is shared and ends."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import resource
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from streaming.errors import FetchError
from streaming.fetch.client import FetchClient
from streaming.fetch.wire.protocol import PROTOCOL, Done, FileRequest, receive_request, send_answer
from streaming.fetch.wire.rendezvous import Rendezvous, connect, private_rendezvous, rendezvous_in_root
from streaming.testing import FaultProxy, FaultRule, ProxyLimits
from support.fetcher_world import (
    PATIENCE_S,
    client_of,
    content,
    fetchers_of,
    filled,
    processes,
    read_and_compare,
    run_all,
    wait_until,
)
from support.fetching import fetch_all, stream_config
from support.stores import STOPPED, fill, gets

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user, so to be root")


# --- start and end


def test_it_starts_on_need_and_ends_with_its_last_client(tmp_path: Path) -> None:
    """Nothing runs before the first need; two clients share one; it leaves no socket behind."""
    needs, cache = filled(tmp_path / "source", 3, 1000), tmp_path / "cache"
    first, second = client_of(tmp_path / "source", cache), client_of(tmp_path / "source", cache)
    assert not cache.exists()
    read_and_compare(first, needs, [content(str(i), 1000) for i in range(3)])
    assert first.status()["pid"] == second.status()["pid"]
    assert (first.n_launched, second.n_launched) == (1, 0)
    first.close()
    wait_until("one is left", lambda: second.status()["connections"] == 1)
    second.close()
    wait_until("the fetcher has ended", lambda: not fetchers_of(cache))
    assert not list(cache.rglob("*.sock"))
    assert oct(next(cache.glob(".streaming/*")).stat().st_mode & 0o777) == "0o700"


def test_what_is_on_disk_costs_no_message_and_no_process(tmp_path: Path) -> None:
    """Announcing, waiting, looking whether to hold: silent."""
    needs, cache = filled(tmp_path / "cache", 50, 100), tmp_path / "cache"
    client = client_of(tmp_path / "source", cache)
    client.announce("rank0", needs)
    client.hold(start=False)
    assert fetch_all(client, needs) == [str(cache / need.name) for need in needs]
    assert (client.n_sent, client.n_launched) == (0, 0)
    assert fetchers_of(cache) == []


def test_it_sheds_what_its_starter_was_like(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits, affinity, working directory, session, parent; modules of the working directory are not loaded."""
    cache = tmp_path / "cache"
    for name in ("json.py", "socket.py", "obstore.py"):
        (tmp_path / name).write_text("raise RuntimeError('the wrong one')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    filled(tmp_path / "source", 1, 10)
    with client_of(tmp_path / "source", cache) as client:
        client.hold(start=False)
        run_all("fork", _start_limited, [(client,)])
        (fetcher,) = fetchers_of(cache)
        soft, hard = fetcher.rlimit(psutil.RLIMIT_NOFILE)
        assert soft == hard == resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        assert fetcher.cpu_affinity() == psutil.Process().cpu_affinity()
        assert fetcher.cwd() == "/"
        assert os.getsid(fetcher.pid) != os.getsid(0)
        assert fetcher.ppid() not in (os.getpid(), *(child.pid for child in psutil.Process().children()))
        for number in (signal.SIGINT, signal.SIGHUP):  # Ctrl-C and a closed terminal are not for it
            os.kill(fetcher.pid, number)
        assert client.status()["pid"] == fetcher.pid


def _start_limited(client: FetchClient) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    assert client.status()
    assert client.n_launched == 1


def test_of_many_who_start_at_once_one_does(tmp_path: Path) -> None:
    """One process, one launch, and everybody is answered."""
    client, n = client_of(tmp_path / "source", tmp_path / "cache"), 16
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(n), context.Queue()
    run_all("fork", _start_at_once, [(client, barrier, answers)] * n)
    got = [answers.get() for _ in range(n)]
    assert len({pid for pid, _ in got}) == 1
    assert sum(launched for _, launched in got) == 1


def _start_at_once(client: FetchClient, barrier: Any, answers: Any) -> None:
    barrier.wait(PATIENCE_S)
    pid = client.status()["pid"]
    barrier.wait(PATIENCE_S)
    answers.put((pid, client.n_launched))


def test_a_client_that_comes_at_its_end_is_answered(tmp_path: Path) -> None:
    """By a new one, whatever moment it meets."""
    client = client_of(tmp_path / "source", tmp_path / "cache")
    pids = set()
    for pause_s in (1.99, 2.01):
        pids.add(client.status()["pid"])
        client.close()
        time.sleep(pause_s)
    assert client.status()["pid"]
    client.close()
    assert len(pids) >= 1


# --- processes and threads


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_parent_that_used_it_may_make_children_that_do(tmp_path: Path, method: str) -> None:
    """Each connects anew; the parent's connection is untouched."""
    needs = filled(tmp_path / "source", 12, 5000)
    contents = [content(str(i), 5000) for i in range(12)]
    with client_of(tmp_path / "source", tmp_path / "cache") as client:
        read_and_compare(client, needs[:2], contents[:2])
        run_all(method, read_and_compare, [(client, needs[i::3], contents[i::3]) for i in range(3)])
        read_and_compare(client, needs, contents)
        assert client.n_launched == 1
        wait_until("the children have gone", lambda: client.status()["connections"] == 1)
        assert client.status()["files"] == 12


def test_forks_may_come_while_other_threads_read(tmp_path: Path) -> None:
    """No child inherits a half-read answer or a held lock."""
    needs, cache = filled(tmp_path / "source", 400, 200), tmp_path / "cache"
    contents = [content(str(i), 200) for i in range(400)]
    errors: list[BaseException] = []

    def read(begin: int) -> None:
        try:
            read_and_compare(client, needs[begin:160:4], contents[begin:160:4])
            for _ in range(100):
                client.status()
        except BaseException as error:
            errors.append(error)

    with client_of(tmp_path / "source", cache) as client:
        threads = [threading.Thread(target=read, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        run_all("fork", read_and_compare, [(client, needs[i::20], contents[i::20]) for i in range(20)])
        for thread in threads:
            thread.join()
        assert errors == []
        assert client.n_launched <= 1


def test_a_connection_of_the_rank_keeps_lists_alive_between_workers(tmp_path: Path, store: FaultProxy) -> None:
    """The list of a worker that has gone is still fetched, as long as one process of its job is connected."""
    store.set_limits(ProxyLimits(latency_s=0.1))
    cache = tmp_path / "cache"
    contents = fill(store, "d", 500, 100)
    needs = [FileRequest(0, str(i), 100) for i in range(500)]
    with client_of("s3://bkt/d", cache) as client:
        client.hold()
        run_all("fork", _announce, [(client, needs)])
        wait_until("the list of the dead worker was fetched", lambda: all(map(client.is_present, needs)))
        assert client.status()["files"] == 500
        read_and_compare(client, needs, contents)


def _announce(client: FetchClient, needs: list[FileRequest]) -> None:
    client.announce("worker0", needs)


def test_the_list_of_a_dead_job_dies_with_it(tmp_path: Path, store: FaultProxy) -> None:
    """While the fetcher goes on for another job."""
    store.set_limits(ProxyLimits(latency_s=0.1))
    cache = tmp_path / "cache"
    fill(store, "d", 3000, 10)
    needs = [FileRequest(0, str(i), 10) for i in range(3000)]
    with client_of("s3://bkt/d", cache) as other:
        other.hold()
        with processes("fork", _announce_and_stay, [(str(cache), needs)]):
            wait_until("some of its list has come", lambda: other.status()["files"] > 10)
        wait_until("its list was dropped", lambda: other.status()["known"] == 0)
        wait_until("what moved has come", lambda: other.status()["moving"] == 0)
        n_gets = gets(store).total()
        assert n_gets < 2900
        store.set_limits(ProxyLimits())
        for need in needs[-100:]:  # the end of the list, which had not its turn: nothing else comes meanwhile
            other.wait(need)
        assert gets(store).total() == n_gets + 100


def _announce_and_stay(root: str, needs: list[FileRequest]) -> None:
    client = client_of("s3://bkt/d", Path(root))
    client.announce("worker0", needs)
    time.sleep(60)


def test_clients_come_and_go_without_a_trace(tmp_path: Path) -> None:
    """No descriptor, thread or registered object is left of those that were closed or just dropped."""
    needs = filled(tmp_path / "source", 1, 10)
    with client_of(tmp_path / "source", tmp_path / "cache") as held:
        held.hold()
        held.status()
        gc.collect()
        gc.collect()  # what other tests left to the collector
        n_open, n_threads = len(os.listdir("/proc/self/fd")), threading.active_count()
        for i in range(600):
            client = client_of(tmp_path / "source", tmp_path / "cache")
            if i % 3 == 0:
                client.status()
                client.hold()
            if i % 2 == 0:
                client.close()
            del client
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) <= n_open
        assert threading.active_count() <= n_threads  # those of earlier tests may have ended
        assert needs


def test_a_thread_takes_its_connection_with_it(tmp_path: Path) -> None:
    """A thousand threads one after another do not leave a thousand sockets."""
    with client_of(tmp_path / "source", tmp_path / "cache") as client:
        client.status()
        gc.collect()
        n_open = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            thread = threading.Thread(target=client.status)
            thread.start()
            thread.join()
        assert len(os.listdir("/proc/self/fd")) == n_open


def test_closing_ends_what_others_wait_for(tmp_path: Path, store: FaultProxy) -> None:
    """At once, with an error that says what was waited for; a forked child's closing does not."""
    fill(store, "d", 1, 400_000)
    store.set_rules(FaultRule(STOPPED))
    errors: list[Exception] = []
    client = client_of("s3://bkt/d", tmp_path)

    def wait() -> None:
        try:
            client.wait(FileRequest(0, "0", 400_000))
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until("it waits", lambda: client.status()["moving"] == 1)
    run_all("fork", FetchClient.close, [(client,)])
    assert client.status()["connections"] == 2
    began_s = time.monotonic()
    client.close()
    thread.join()
    assert time.monotonic() - began_s < 2
    assert [type(error) for error in errors] == [FetchError]
    assert "0 of s3://bkt/d" in str(errors[0])


def test_a_pickled_client_is_its_configuration(tmp_path: Path) -> None:
    """The same job, no connection, no secret of the environment."""
    client = client_of(tmp_path / "source", tmp_path / "cache")
    with client:
        pid = client.status()["pid"]
        copy = pickle.loads(pickle.dumps(client))
        assert copy.job == client.job
        assert (copy.n_sent, len(copy._session._connections)) == (0, 0)
        with copy:
            assert copy.status()["pid"] == pid


# --- places


@pytest.mark.parametrize("temporary_folder", ["usual", "unwritable"])
def test_a_root_may_be_longer_than_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temporary_folder: str
) -> None:
    """The socket lies in the root all the same."""
    if temporary_folder == "unwritable":
        monkeypatch.setattr(tempfile, "tempdir", "/proc/nowhere")
    cache = tmp_path / ("x" * 120) / ("y" * 120) / ("z" * 120)
    needs = filled(tmp_path / "source", 2, 100)
    with client_of(tmp_path / "source", cache) as client:
        read_and_compare(client, needs, [content(str(i), 100) for i in range(2)])
        assert len(list(cache.rglob("*.sock"))) == 1


def test_who_cannot_meet_in_the_root_meets_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file where the folder should be: all clients still find one fetcher, in the machine's private folder."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / ".streaming").write_text("not a folder")
    needs = filled(tmp_path / "source", 2, 100)
    with (
        client_of(tmp_path / "source", tmp_path / "cache") as one,
        client_of(tmp_path / "source", tmp_path / "cache") as two,
    ):
        read_and_compare(one, needs, [content(str(i), 100) for i in range(2)])
        assert one.status()["pid"] == two.status()["pid"]
    assert [path.suffix for path in sorted((tmp_path / "run" / "streaming").glob("*.lock"))] == [".lock"]


def test_a_client_without_a_root_litters_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a writer's."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    with FetchClient(None, []) as client:
        assert client.status()["connections"] == 1
    assert os.listdir(tmp_path) == ["run"]


@ROOT_ONLY
def test_a_folder_of_another_user_is_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Squatted in the root: another place. Squatted everywhere: an error that names them."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temp"))
    (tmp_path / "temp").mkdir()
    place = rendezvous_in_root(str(tmp_path / "cache"), os.environ)
    os.chown(place.folder, 65534, 65534)
    with client_of(tmp_path / "source", tmp_path / "cache") as client:
        assert client.status()
    assert not Path(place.socket).exists()
    for folder in (tmp_path / "run" / "streaming", tmp_path / "temp" / f"streaming-{os.geteuid()}"):
        folder.mkdir(parents=True, exist_ok=True)
        os.chown(folder, 65534, 65534)
    with pytest.raises(FetchError, match="no place to meet"):
        private_rendezvous(None, os.environ)


@ROOT_ONLY
def test_a_socket_planted_by_another_user_counts_as_none(tmp_path: Path) -> None:
    """Whatever it would answer; our own fetcher takes its place."""
    place = rendezvous_in_root(str(tmp_path), os.environ)
    with processes("fork", _listen_as_nobody, [(place.socket,)]):
        wait_until("the other user listens", lambda: Path(place.socket).exists())
        with client_of(tmp_path / "source", tmp_path) as client:
            assert client.status()["pid"] in {fetcher.pid for fetcher in fetchers_of(tmp_path)}


def _bind(ear: socket.socket, path: str) -> None:
    """Bind where the path is longer than an address may be."""
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    ear.bind(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
    os.close(folder)


def _listen_as_nobody(path: str) -> None:
    ear = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    _bind(ear, path + ".new")
    os.seteuid(65534)  # the kernel remembers who listened
    ear.listen(5)
    os.seteuid(0)
    os.rename(path + ".new", path)
    time.sleep(60)


# --- who shares one


def test_other_credentials_are_another_fetcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for a client whose environment changes; what differs from rank to rank does not count."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "one")
    with client_of(tmp_path / "source", cache) as one, client_of(tmp_path / "source", cache) as two:
        pid = one.status()["pid"]
        monkeypatch.setenv("RANK", "7")
        assert two.status()["pid"] == pid
        two.close()
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "two")
        assert two.status()["pid"] != pid
        assert one.status()["pid"] == pid
        names = {path.name for path in cache.rglob("*.lock")}
        assert len(names) == 2
        words = " ".join(word for fetcher in fetchers_of(cache) for word in fetcher.cmdline())
        assert '"one"' not in words
        assert "secret" not in words.lower()


def test_another_protocol_is_an_error_with_both_versions(tmp_path: Path) -> None:
    """Said at once, without starting anything."""

    def answer(peer: socket.socket) -> None:
        receive_request(peer)
        send_answer(peer, Done({"protocol": PROTOCOL + 1, "version": "77.0", "instance": "x", "pid": 1}))

    client = client_of(tmp_path / "source", tmp_path)
    with (
        _Impostor(rendezvous_in_root(str(tmp_path), os.environ), answer),
        pytest.raises(FetchError, match=rf"protocol {PROTOCOL + 1} \(version 77.0\).*{PROTOCOL} "),
    ):
        client.status()
    assert client.n_launched == 0


def test_a_fetcher_that_dies_again_and_again_is_an_error_with_its_log(tmp_path: Path) -> None:
    """After five deaths within one request."""
    n_asked = 0

    def answer(peer: socket.socket) -> None:
        nonlocal n_asked
        receive_request(peer)
        send_answer(peer, Done({"protocol": PROTOCOL, "version": "1", "instance": "x", "pid": 1}))
        receive_request(peer)
        n_asked += 1

    place = rendezvous_in_root(str(tmp_path), os.environ)
    Path(place.log).write_text("its last words")
    client = client_of(tmp_path / "source", tmp_path)
    with _Impostor(place, answer), pytest.raises(FetchError, match=r"(?s)lost 5 times.*its last words"):
        client.status()
    assert n_asked == 5


class _Impostor:
    """Listens in the fetcher's place and treats every peer in the same way."""

    def __init__(self, place: Rendezvous, answer: Callable[[socket.socket], None]) -> None:
        self._answer, self._place = answer, place
        self._ear = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        _bind(self._ear, place.socket)
        self._ear.listen(5)
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        while True:
            peer, _ = self._ear.accept()
            with peer:
                try:
                    self._answer(peer)
                except ConnectionError:
                    return

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        with connect(self._place, timeout_s=30.0):
            pass
        self._thread.join()
        self._ear.close()


def test_streams_may_lie_anywhere(tmp_path: Path) -> None:
    """One fetcher, at the root of the first; each file below its own stream's folder; rubbish swept in both."""
    needs = filled(tmp_path / "a", 1, 10)
    filled(tmp_path / "b", 1, 10)
    rubbish = tmp_path / "two" / ".x.0123456789abcdef.tmp"
    rubbish.parent.mkdir()
    rubbish.touch()
    configs = [
        stream_config(str(tmp_path / side), str(tmp_path / cache)) for side, cache in (("a", "one"), ("b", "two"))
    ]
    with FetchClient(str(tmp_path / "one"), configs) as client:
        assert client.wait(needs[0]) == str(tmp_path / "one" / "0")
        assert client.wait(FileRequest(1, "0", 10)) == str(tmp_path / "two" / "0")
        wait_until("rubbish is swept", lambda: not rubbish.exists())
    assert not (tmp_path / "two" / ".streaming").exists()
