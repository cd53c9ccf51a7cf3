"""Where no process can be started: the fetcher in the process that asks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from streaming.testing import FaultProxy, ProxyLimits
from support.fetcher_world import fetchers_of, temporaries
from support.stores import fill, gets

# Each of these runs in an interpreter of its own: what it leaves in the process must not reach other tests.
HEAD = """
import logging, os, sys
from pathlib import Path
sys.path[:0] = [{src!r}, {tests!r}]
from support.fetcher_world import client_of, content
from streaming.fetch.wire.protocol import FileRequest, Reason, Span
from support.fetching import read_ranges
logging.basicConfig()
sys.executable = "/no-python"
local = Path({local!r})
needs = [FileRequest(0, str(i), 50_000) for i in range({n})]
expected = [content(f"data/{{i}}", 50_000) for i in range({n})]
"""


def run(body: str, local: Path, n: int, **options: Any) -> subprocess.Popen[str]:
    root = Path(__file__).parents[2]
    head = HEAD.format(src=str(root / "src"), tests=str(root / "tests"), local=str(local), n=n)
    return subprocess.Popen(
        [sys.executable, "-c", head + body], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out + err


def test_files_and_ranges_come(store: FaultProxy, tmp_path: Path) -> None:
    """All that a fetcher does, one warning, and no other process."""
    fill(store, "data", 12, 50_000)
    said = finish(
        run(
            """
with client_of("s3://bkt/data", local) as client:
    client.announce("r", needs)
    for need, whole in zip(needs[:-1], expected):
        assert Path(client.wait(need)).read_bytes() == whole
    (part,) = read_ranges(client, [Span(FileRequest(0, "11", 50_000), 10, 20)], Reason.RANDOM)
    assert part is None or bytes(part) == expected[11][10:20]
    print(client.status()["pid"] == os.getpid())
""",
            tmp_path,
            12,
        )
    )
    assert said.count("transfers run in this process") == 1
    assert "no-python" in said
    assert said.startswith("True")
    assert fetchers_of(tmp_path) == []
    assert not temporaries(tmp_path)


def test_each_file_comes_once_a_machine(store: FaultProxy, tmp_path: Path) -> None:
    """Processes that all need the same files at once claim them one by one."""
    fill(store, "data", 20, 50_000)
    store.set_limits(ProxyLimits(latency_s=0.02))
    body = """
with client_of("s3://bkt/data", local) as client:
    client.announce("r", needs)
    for need, whole in zip(needs, expected):
        assert Path(client.wait(need)).read_bytes() == whole
"""
    for process in [run(body, tmp_path, 20) for _ in range(3)]:
        finish(process)
    assert {gets(store)[f"data/{i}"] for i in range(20)} == {1}


def test_a_child_of_it_is_refused(store: FaultProxy, tmp_path: Path) -> None:
    """A fork of a process in which a network store is open gets an error that says what to do, at once."""
    fill(store, "data", 2, 50_000)
    said = finish(
        run(
            """
from streaming.errors import FetchError
from support.fetching import read_ranges
client = client_of("s3://bkt/data", local)
client.wait(needs[0])
pid = os.fork()
if pid == 0:
    try:
        client.wait(needs[1])
    except FetchError as error:
        os.write(1, str(error).encode())
    os._exit(0)
os.waitpid(pid, 0)
client.wait(needs[1])
client.close()
""",
            tmp_path,
            2,
        )
    )
    assert "num_workers=0" in said
