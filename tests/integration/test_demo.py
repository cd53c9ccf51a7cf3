"""The demo runs as it stands: on a folder, and through a real object store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from streaming.testing.s3 import S3Server

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


@pytest.mark.parametrize("where", ["folder", "s3"])
def test_the_demo_trains_stops_and_resumes(where: str, s3_server: S3Server, tmp_path: Path) -> None:
    """Every loss after the resume equals that of the run that was not stopped, and nothing is left behind."""
    arguments = ["--remote", s3_server.url("demo")] if where == "s3" else []
    run = subprocess.run(
        [sys.executable, str(DEMO), *arguments],
        env={**os.environ, **s3_server.variables(), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "every loss equals that of the run that was not stopped" in run.stdout
    left = {path.name for path in tmp_path.iterdir() if not path.name.startswith("torchinductor")}
    # For a folder nothing; for the writer's uploads the fetcher's small folder, since it has no cache to put it in.
    assert left <= ({f"streaming-{os.geteuid()}"} if where == "s3" else set())
    assert not list(tmp_path.rglob("*.mds*"))
