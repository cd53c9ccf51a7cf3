"""The code in the README runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_quick_start_runs(tmp_path: Path) -> None:
    """All tested blocks, one after the other, as one script in an empty folder."""
    blocks = re.findall(r"<!-- tested: \w+ -->\n```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len(blocks) == 4
    script = tmp_path / "quick_start.py"
    script.write_text("\n".join(blocks))
    run = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:This DataLoader will create", str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("picture 1337\n")
    assert "canonical node" in run.stdout


def test_the_two_commands_are_targets_of_the_makefile() -> None:
    """`make demo` and `make test`."""
    makefile = (README.parent / "Makefile").read_text()
    assert {"demo", "test"} <= set(re.findall(r"^(\w+):", makefile, flags=re.MULTILINE))
