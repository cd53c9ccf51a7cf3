"""The code in the README runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

from support.scripts import output_of

README = Path(__file__).parents[2] / "README.md"


def test_the_quick_start_runs(tmp_path: Path) -> None:
    """All tested blocks, one after the other, as one script in an empty folder."""
    blocks = re.findall(r"<!-- tested: \w+ -->\n```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len(blocks) == 4
    printed = output_of(blocks, tmp_path)
    assert printed.startswith("picture 1337\n")
    assert "canonical node" in printed


def test_the_two_commands_are_targets_of_the_makefile() -> None:
    """`make demo` and `make test`."""
    makefile = (README.parent / "Makefile").read_text()
    assert {"demo", "test"} <= set(re.findall(r"^(\w+):", makefile, flags=re.MULTILINE))
