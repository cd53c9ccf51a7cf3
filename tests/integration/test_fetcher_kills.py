"""Whatever is killed, whenever: no byte is lost or wrong, and nothing is left for a person to clean up."""

from __future__ import annotations

import contextlib
import multiprocessing
import operator
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from streaming.errors import FetchError
from streaming.fetch.wire.protocol import FileRequest
from streaming.testing import FaultProxy, FaultRule, ProxyLimits
from support.fetcher_world import (
    client_of,
    fetchers_of,
    processes,
    read_and_compare,
    read_and_delete,
    temporaries,
    wait_until,
)
from support.stores import STOPPED, fill

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

N_KILLS = 25
N_WORKERS = 4


def dying_python(folder: Path, n_deaths: int) -> str:
    """An interpreter that is killed as soon as it starts, the first `n_deaths` times. Each start adds a line."""
    script, starts = folder / "python", folder / "starts"
    folder.mkdir()
    script.write_text(
        f'#!/bin/sh\necho x >> "{starts}"\n'
        f'if [ "$(wc -l < "{starts}")" -le {n_deaths} ]; then kill -9 $$; fi\n'
        f'exec "{sys.executable}" "$@"\n'
    )
    script.chmod(0o755)
    starts.touch()
    return str(script)


@pytest.mark.parametrize("n_deaths", [1, 4])
def test_a_fetcher_killed_while_it_starts_is_started_again(
    tmp_path: Path, store: FaultProxy, monkeypatch: pytest.MonkeyPatch, n_deaths: int
) -> None:
    """Up to four in a row."""
    (whole,) = fill(store, "d", 1, 10_000)
    monkeypatch.setattr(sys, "executable", dying_python(tmp_path / "bin", n_deaths))
    with client_of("s3://bkt/d", tmp_path / "cache") as client:
        assert Path(client.wait(FileRequest(0, "0", 10_000))).read_bytes() == whole
        assert client.n_launched == n_deaths + 1
    assert (tmp_path / "bin" / "starts").read_text().count("x") == n_deaths + 1


def test_fetchers_that_are_always_killed_at_their_start_are_an_error(
    tmp_path: Path, store: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five in a row, and it says so."""
    fill(store, "d", 1, 10_000)
    monkeypatch.setattr(sys, "executable", dying_python(tmp_path / "bin", 1_000))
    with client_of("s3://bkt/d", tmp_path / "cache") as client, pytest.raises(FetchError, match="5 times"):
        client.wait(FileRequest(0, "0", 10_000))
    assert (tmp_path / "bin" / "starts").read_text().count("x") == 5


def test_the_fetcher_may_be_killed_at_any_time(tmp_path: Path, store: FaultProxy) -> None:
    """Again and again, under forked and spawned workers that compare every byte: no error, nothing wrong or left."""
    cache, rng = tmp_path / "cache", random.Random(1)
    contents = fill(store, "d", 32, 300_000)
    needs = [FileRequest(0, str(i), 300_000) for i in range(32)]
    store.set_limits(ProxyLimits(latency_s=0.01))
    fork, spawn = multiprocessing.get_context("fork"), multiprocessing.get_context("spawn")
    over, n_read = spawn.Event(), spawn.Array("q", N_WORKERS, lock=False)
    with client_of("s3://bkt/d", cache) as client, contextlib.ExitStack() as stack:
        client.status()
        started = []
        for i in range(N_WORKERS):
            arguments = (client, needs[i::N_WORKERS], contents[i::N_WORKERS], over, n_read, i)
            method = (fork, spawn)[i % 2].get_start_method()
            started += stack.enter_context(processes(method, read_and_delete, [arguments]))
        wait_until("all workers read", lambda: all(n_read))
        pauses_s = []
        for _ in range(N_KILLS):
            before, began_s = list(n_read), time.monotonic()
            with contextlib.suppress(ProcessLookupError):
                os.kill(client.status()["pid"], signal.SIGKILL)
            client.status()
            pauses_s.append(time.monotonic() - began_s)
            time.sleep(rng.uniform(0, 0.1))
            # Five deaths within one request are an error, so every worker gets on between them.
            wait_until("files come again", lambda before=before: all(map(operator.lt, before, n_read)))  # type: ignore[misc]
        over.set()
        for process in started:
            process.join(30)
        assert [process.exitcode for process in started] == [0] * N_WORKERS
        print(f"pause after a kill: median {sorted(pauses_s)[N_KILLS // 2]:.3f} s, worst {max(pauses_s):.3f} s")
        print(f"{sum(n_read)} files compared, {client.n_launched} launches by the parent")
        wait_until("what was half-written is swept", lambda: temporaries(cache) == [])


def test_after_the_death_of_all_the_next_start_sweeps(tmp_path: Path, store: FaultProxy) -> None:
    """Killed in the middle of transfers: rubbish lies there, until anybody starts again."""
    cache = tmp_path / "cache"
    contents = fill(store, "d", 8, 400_000)
    needs = [FileRequest(0, str(i), 400_000) for i in range(8)]
    store.set_rules(FaultRule(STOPPED))
    client = client_of("s3://bkt/d", cache)
    client.announce("rank0", needs)
    wait_until("transfers are under way", lambda: len(temporaries(cache)) == 8)
    (fetcher,) = fetchers_of(cache)
    fetcher.kill()
    client.close()
    wait_until("it is dead", lambda: not fetchers_of(cache))
    assert len(temporaries(cache)) == 8
    store.set_rules()
    with client_of("s3://bkt/d", cache) as client:
        read_and_compare(client, needs, contents)
        wait_until("rubbish is swept", lambda: temporaries(cache) == [])
    assert sorted(path.name for path in cache.iterdir()) == sorted([".streaming", *(need.name for need in needs)])


@pytest.mark.parametrize("how", ["its last client goes", "it is asked to end"])
def test_an_end_in_the_middle_of_transfers_leaves_nothing(tmp_path: Path, store: FaultProxy, how: str) -> None:
    """Its own temporaries go with it."""
    cache = tmp_path / "cache"
    fill(store, "d", 8, 400_000)
    store.set_rules(FaultRule(STOPPED))
    client = client_of("s3://bkt/d", cache)
    client.announce("rank0", [FileRequest(0, str(i), 400_000) for i in range(8)])
    wait_until("transfers are under way", lambda: len(temporaries(cache)) == 8)
    (fetcher,) = fetchers_of(cache)
    if how == "it is asked to end":
        fetcher.terminate()
    client.close()
    wait_until("it has ended", lambda: not fetchers_of(cache))
    assert [path.name for path in cache.iterdir()] == [".streaming"]
    assert not list(cache.rglob("*.sock"))


def test_clients_that_are_killed_keep_nothing_alive(tmp_path: Path, store: FaultProxy) -> None:
    """Also in the middle of waiting."""
    cache = tmp_path / "cache"
    fill(store, "d", 1, 400_000)
    store.set_rules(FaultRule(STOPPED))
    with processes("fork", _wait, [(str(cache),)] * 2):
        wait_until("they wait", lambda: len(temporaries(cache)) == 1)
    wait_until("the fetcher has ended", lambda: not fetchers_of(cache))
    assert temporaries(cache) == []


def _wait(root: str) -> None:
    client_of("s3://bkt/d", Path(root)).wait(FileRequest(0, "0", 400_000))


def test_a_cache_that_is_deleted_under_it_is_made_anew(tmp_path: Path, store: FaultProxy) -> None:
    """The folder with files, lock and socket: the next clients start over, in it."""
    cache = tmp_path / "cache"
    contents = fill(store, "d", 4, 1000)
    needs = [FileRequest(0, str(i), 1000) for i in range(4)]
    with client_of("s3://bkt/d", cache) as old:
        read_and_compare(old, needs[:2], contents[:2])
        for path in sorted(cache.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        cache.rmdir()
        with client_of("s3://bkt/d", cache) as new:
            read_and_compare(new, needs, contents)
            read_and_compare(old, needs, contents)
