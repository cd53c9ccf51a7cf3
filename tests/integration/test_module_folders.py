"""The fetcher finds the packages that its clients found, wherever they found them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import streaming
from streaming import MDSWriter
from streaming.testing.web import WebServer

_READ = """
import sys
if sys.argv[3] == "appended":
    sys.path += sys.argv[4:]
from streaming import StreamingDataset
with StreamingDataset(remote=sys.argv[1], local=sys.argv[2], batch_size=1, cache_limit="1mb") as dataset:
    print(sorted(sample["i"] for sample in dataset) == list(range(20)))
"""


@pytest.fixture
def bare_python() -> str:
    """The interpreter that this environment was made from, if it has none of the packages."""
    python = getattr(sys, "_base_executable", sys.executable)
    found = subprocess.run([python, "-E", "-s", "-c", "import msgspec"], capture_output=True, check=False)
    if found.returncode == 0:
        pytest.skip("the interpreter below this environment has the packages itself")
    return python


def one_folder_each(parent: Path) -> list[str]:
    """The packages of this environment, each in a folder of its own, as environment modules have them."""
    paths = [Path(folder) for folder in sys.path if folder.endswith("site-packages")]
    folders = []
    for path in (path for folder in paths for path in folder.iterdir()):
        if (path.is_dir() and not path.name.endswith((".dist-info", "__pycache__"))) or path.suffix in (".py", ".so"):
            own = parent / path.name
            if not own.exists():
                own.mkdir(parents=True)
                (own / path.name).symlink_to(path)
                folders.append(str(own))
    return folders


@pytest.mark.parametrize("way", ["PYTHONPATH", "appended"])
def test_packages_come_from_where_the_client_found_them(bare_python: str, tmp_path: Path, way: str) -> None:
    """As with environment modules on clusters: by PYTHONPATH alone, or by folders that the program adds."""
    folders = [os.path.dirname(os.path.dirname(streaming.__file__)), *one_folder_each(tmp_path / "modules")]
    script = tmp_path / "script" / "train.py"
    script.parent.mkdir()
    script.write_text(_READ)
    (script.parent / "urllib3.py").write_text("raise RuntimeError('the script hides a package')\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    if way == "PYTHONPATH":
        environment["PYTHONPATH"] = os.pathsep.join(folders)
    with WebServer.started() as server:
        with MDSWriter(out=server.path("data"), columns={"i": "int"}, compression="zstd", hashes=["xxh64"]) as out:
            for i in range(20):
                out.write({"i": i})
        command = [bare_python, str(script), server.url("data"), str(tmp_path / "cache"), way, *folders]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.stdout.strip() == "True", done.stderr
