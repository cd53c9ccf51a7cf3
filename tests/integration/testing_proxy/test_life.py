"""The process of a FaultProxy ends with its block or its parent, and reports what went wrong."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys

import psutil
import pytest

import streaming
from streaming.errors import MissingExtraError, OptionError, StreamingError
from streaming.testing import Fault, FaultProxy, FaultRule
from support.fetcher_world import PATIENCE_S, wait_until
from support.http_world import ask_once

_PARENT = """
import sys
from streaming.testing import FaultProxy
with FaultProxy.started(buckets={}) as proxy:
    print(proxy.port, flush=True)
    sys.stdin.read()
"""


def children() -> list[psutil.Process]:
    """The proxies that this process has started."""
    return [p for p in psutil.Process().children() if any("proxy_server.process" in word for word in p.cmdline())]


def refuses(port: int) -> bool:
    """Whether nobody listens on this port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S).close()
    except ConnectionRefusedError:
        return True
    return False


def test_the_process_ends_with_the_block() -> None:
    """It ends even if the block raises."""
    before = children()
    with contextlib.suppress(KeyError), FaultProxy.started(buckets={}) as proxy:
        assert len(children()) == len(before) + 1
        raise KeyError
    assert children() == before
    assert refuses(proxy.port)


def test_the_process_ends_with_its_parent() -> None:
    """A parent that is killed leaves no process behind."""
    folder = os.path.dirname(os.path.dirname(streaming.__file__))
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": folder},
    ) as parent:
        assert parent.stdout is not None
        port = int(parent.stdout.readline())
        assert not refuses(port)
        parent.send_signal(signal.SIGKILL)
        parent.wait(PATIENCE_S)
    wait_until("nobody listens", lambda: refuses(port))


def test_what_goes_wrong_is_told() -> None:
    """Contradictory settings, a process that dies and errors of the proxy raise, with the reason."""
    with pytest.raises(OptionError, match="host:port"), FaultProxy.started(upstream="nowhere"):
        pass
    with pytest.raises(OptionError, match="not both"), FaultProxy.started(upstream="a:1", buckets={}):
        pass
    with FaultProxy.started(upstream="127.0.0.1:9") as proxy, pytest.raises(OptionError, match="upstream"):
        proxy.add_bytes("bkt", {"a": b"1"})
    with pytest.raises(StreamingError, match="process has ended"), FaultProxy.started(host="1.2.3.4"):
        pass
    before = children()
    with FaultProxy.started() as proxy:
        (process,) = (each for each in children() if each not in before)
        process.kill()
        process.wait(PATIENCE_S)
        with pytest.raises(StreamingError, match="process"):
            proxy.set_rules(FaultRule(Fault(status=503)))


def test_without_its_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes before a process is started."""
    monkeypatch.setitem(sys.modules, "h11", None)
    with pytest.raises(MissingExtraError, match=r"h11.*streaming-dataset\[testing\]"), FaultProxy.started():
        pass


def test_two_proxies_do_not_share_anything() -> None:
    """Each has its own objects, rules and counts."""
    with FaultProxy.started() as one, FaultProxy.started() as other:
        for proxy, n_bytes in ((one, 1), (other, 2)):
            proxy.add_bytes("bkt", {"a": bytes(n_bytes)})
        one.set_rules(FaultRule(Fault(status=500), times=1))
        assert [ask_once(one.port, "/bkt/a").status for _ in range(2)] == [500, 200]
        assert len(ask_once(other.port, "/bkt/a").body) == 2
        assert (one.counts().n_requests, other.counts().n_requests) == (2, 1)
