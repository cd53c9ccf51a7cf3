"""Optional packages: each is needed by one kind of store."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from streaming.errors import MissingExtraError
from streaming.storage.common.extras import import_extra

TOP = Path(__file__).parents[4]


def test_a_missing_package_is_named_with_its_extra() -> None:
    """The error also says what needs the package."""
    with pytest.raises(MissingExtraError, match=r"tape:// needs the package 'tape'.*streaming-dataset\[tape\]"):
        import_extra("no_such_module_of_tapes", package="tape", extra="tape", purpose="tape://")


def test_a_store_names_its_missing_extra() -> None:
    """Although its modules import the package at their top."""
    program = (
        "import sys; sys.modules['paramiko'] = None\n"
        "from streaming.storage.open_stores import Stores\n"
        "from streaming.storage.url import parse_remote\n"
        "try: Stores({}).open(parse_remote('sftp://me@host/data'), 1.0)\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert re.match(r"MissingExtraError sftp:// needs .*streaming-dataset\[sftp\]", run.stdout)


def test_every_extra_that_an_error_names_exists() -> None:
    """The extra contains the package that the error names."""
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    named = set()
    for path in (TOP / "src").rglob("*.py"):
        named |= set(re.findall(r'package="([^"]+)",\s*extra="([^"]+)"', path.read_text()))
    assert len(named) > 5
    for package, extra in named:
        assert any(re.match(rf"{re.escape(package)}\b", each) for each in extras[extra]), (package, extra)
