"""The code in the pages of docs/ runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.scripts import output_of

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"(?:<!-- (\w+) -->\n)?```python\n(.*?)```", flags=re.DOTALL)
_OUTPUT = re.compile(r"<!-- output -->\n```\n(.*?)```", flags=re.DOTALL)
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")

PAGES = [page.name for page in sorted(DOCS.glob("*.md"))]


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(tmp_path: Path, page: str) -> None:
    """All tested blocks of a page, one after the other, as one script in an empty folder; it prints what is shown."""
    text = (DOCS / page).read_text()
    blocks = [code for tag, code in _BLOCK.findall(text) if tag == "tested"]
    if not blocks:
        return
    assert output_of(blocks, tmp_path) == "".join(_OUTPUT.findall(text))


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_tested_or_said_to_be_later(page: str) -> None:
    """No code that nobody runs, unless it is tagged so."""
    tags = [tag for tag, _ in _BLOCK.findall((DOCS / page).read_text())]
    assert set(tags) <= {"tested", "later"}, tags


@pytest.mark.parametrize("page", PAGES)
def test_links_and_pictures_of_a_page_exist(page: str) -> None:
    """Those to files of ours."""
    for target in _LINK.findall((DOCS / page).read_text()):
        assert (DOCS / target).exists(), target
