"""What surrounds a fetcher and must not reach it: a parent full of native threads, other jobs' proxies, a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from streaming.fetch.wire.protocol import FileRequest
from streaming.testing import FaultProxy
from support.fetcher_world import PATIENCE_S, client_of, content, fetchers_of, filled, temporaries, wait_until
from support.stores import fill, gets, put

ROOT = Path(__file__).parents[2]
HEAD = f"""
import os, sys
from pathlib import Path
sys.path[:0] = [{str(ROOT / "src")!r}, {str(ROOT / "tests")!r}]
from support.fetcher_world import client_of, content, read_and_compare, run_all
from streaming.fetch.wire.protocol import FileRequest
"""


def test_a_parent_that_used_the_native_client_itself_may_fork(store: FaultProxy, tmp_path: Path) -> None:
    """Its forked children start and use the fetcher, though the parent's own client would hang in them."""
    fill(store, "data", 12, 5000)
    script = f"""{HEAD}
import obstore
from obstore.store import S3Store
own = S3Store("bkt", endpoint=os.environ["S3_ENDPOINT_URL"], client_options={{"allow_http": True}})
assert bytes(obstore.get(own, "data/0").bytes()) == content("data/0", 5000)
client = client_of("s3://bkt/data", Path({str(tmp_path)!r}))
needs = [FileRequest(0, str(i), 5000) for i in range(12)]
contents = [content(f"data/{{i}}", 5000) for i in range(12)]
run_all("fork", read_and_compare, [(client, needs[i::4], contents[i::4]) for i in range(4)])
assert bytes(obstore.get(own, "data/1").bytes()) == contents[1]
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=2 * PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert {gets(store)[f"data/{i}"] for i in range(2, 12)} == {1}


def test_each_job_goes_through_its_own_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two jobs on one cache with different proxies: two fetchers, and no request takes the other's way."""
    with FaultProxy.started(buckets={}) as one, FaultProxy.started(buckets={}) as two:
        for proxy, name in ((one, "a"), (two, "b")):
            put(proxy, {f"data/{name}": content(name, 3000)})
        monkeypatch.setenv("S3_ENDPOINT_URL", "http://store.invalid")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.delenv("NO_PROXY", raising=False)
        pids = []
        for proxy, name in ((one, "a"), (two, "b")):
            monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
            with client_of("s3://bkt/data", tmp_path) as client:
                assert Path(client.wait(FileRequest(0, name, 3000))).read_bytes() == content(name, 3000)
                pids.append(client.status()["pid"])
        assert pids[0] != pids[1]
        assert gets(one).total() == gets(two).total() == 1


def test_an_interrupt_of_the_terminal_is_not_the_fetchers(tmp_path: Path) -> None:
    """Ctrl-C reaches the foreground job; its handler still reads through the same fetcher, which then ends with it."""
    filled(tmp_path / "source", 2, 1000)
    cache = tmp_path / "cache"
    script = f"""{HEAD}
import time
client = client_of({str(tmp_path / "source")!r}, Path({str(cache)!r}))
pid = client.status()["pid"]
try:
    print("ready", flush=True)
    time.sleep({PATIENCE_S})
except KeyboardInterrupt:
    client.wait(FileRequest(0, "1", 1000))
    print("same" if client.status()["pid"] == pid else "another", flush=True)
"""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=terminal,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: _make_foreground(terminal),
    )
    os.close(terminal)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        os.write(controller, b"\x03")
        assert process.stdout.readline() == b"same\n"
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        os.close(controller)
    wait_until("the fetcher has ended", lambda: not fetchers_of(cache))
    assert not temporaries(cache)


def _make_foreground(terminal: int) -> None:
    """In the child: a session of its own, whose terminal this is."""
    import fcntl
    import signal
    import termios

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # who started the tests in the background had it ignored
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
