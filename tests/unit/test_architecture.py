"""ARCHITECTURE.md names files that exist, and counts them right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/streaming"
TEXT = (ROOT / "ARCHITECTURE.md").read_text()


def test_every_file_and_folder_that_it_names_exists() -> None:
    """A renamed module takes its row along."""
    named = set(re.findall(r"`([\w/*]+(?:\.py|/))`", TEXT))
    missing = [name for name in named if not any(SOURCE.glob(name)) and not any(ROOT.glob(name))]
    assert len(named) > 50
    assert not missing


def test_the_walk_to_cold_bytes_is_counted_right() -> None:
    """Each leg states how many files it names, and their sums stand below."""
    walk = TEXT[TEXT.index("## From `for sample") : TEXT.index("## The states")]
    rows = re.findall(r"^\| ([\w ,]+) \| (.*) \| (\d+) \|$", walk, re.MULTILINE)
    for leg, files, n in rows:
        assert len(re.findall(r"`[\w/]+\.py`", files)) == int(n), leg
    counts = [int(n) for _, _, n in rows]
    assert f"{sum(counts[:-1])} files where the shard is waited for, and {sum(counts)} by range" in walk


def test_no_row_of_the_questions_needs_a_second_hop() -> None:
    """Every row but a heading names a file, a folder or a package."""
    table = TEXT[TEXT.index("| question |") : TEXT.index("`dataset.py` and `dataloader.py`")]
    for line in table.splitlines()[2:]:
        if line and not line.startswith("| **"):
            assert "`" in line.split("|")[2], line


@pytest.mark.parametrize("path", [ROOT / "ARCHITECTURE.md", ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))])
def test_prose_is_at_most_120_columns_wide(path: Path) -> None:
    """Tables, code blocks and headings of links may be wider."""
    prose = re.sub(r"^(`{3,}).*?^\1", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert [line for line in prose.splitlines() if len(line) > 120 and not line.startswith("|")] == []
