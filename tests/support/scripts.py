"""Runs code of a page as a user would: one script, in an empty folder, in a new interpreter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def output_of(blocks: Sequence[str], folder: Path) -> str:
    """Run the blocks as one script; return what it prints. Fails for any warning or error."""
    script = folder / "page.py"
    script.write_text("\n".join(blocks))
    run = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:This DataLoader will create", str(script)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout
