"""Stores that users register by name, for another process to import."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streaming.errors import OptionError
from streaming.storage import register_all, register_store, registered_stores, registry
from streaming.storage.open_stores import Stores
from streaming.storage.options import checked_options
from streaming.storage.schemes import known_schemes, scheme_named
from streaming.storage.url import Bucket, parse_remote
from streaming.testing.memory import MemoryStore

OPENER = "streaming.testing.memory:open_memory"


@pytest.fixture(autouse=True)
def unregistered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is registered before and after each test."""
    monkeypatch.setattr(registry, "_registered", {})


def test_a_registered_store_is_opened_by_its_scheme() -> None:
    """Its URLs parse, it takes any options, and its opener gets place and settings."""
    register_store("tape", OPENER)
    location = parse_remote("tape://robot/some/folder")
    assert location == Bucket("tape", "robot", "some/folder")
    assert checked_options(parse_remote("tape://robot/x"), {"anything": 1}) == {"anything": 1}
    store = Stores({}).open(parse_remote("tape://robot/x"), 5.0, {"anything": 1})
    assert isinstance(store, MemoryStore)


def test_a_registration_replaces_a_built_in_store() -> None:
    """An explicit registration wins over the built-in store of the scheme."""
    register_store("s3", OPENER)
    assert isinstance(Stores({}).open(parse_remote("s3://bucket/x"), 5.0), MemoryStore)


@pytest.mark.parametrize("scheme", [*known_schemes(), "ftp"])
def test_every_opener_of_the_table_can_be_imported(scheme: str) -> None:
    """Openers are texts, so only this test notices a wrong one before a URL is opened. `ftp` stands for fsspec."""
    row = scheme_named(scheme)
    assert row is not None
    assert row.opener is not None
    assert callable(registry.load_opener(scheme, row.opener))


def test_registrations_are_sent_as_texts() -> None:
    """Another process registers them, and imports nothing before it opens a URL."""
    register_store("tape", OPENER)
    program = (
        "import sys\n"
        "from streaming.storage import register_all\n"
        "from streaming.storage.url import parse_remote\n"
        f"register_all({registered_stores()!r})\n"
        "parse_remote('tape://robot/x')\n"
        "assert 'streaming.testing' not in sys.modules\n"
        "from streaming.storage.open_stores import Stores\n"
        "print(type(Stores({}).open(parse_remote('tape://robot/x'), 5.0)).__name__)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == "MemoryStore"


def opener_of_this_module(location: Any, settings: Any) -> MemoryStore:
    return MemoryStore()


@pytest.mark.parametrize(
    ("opener", "words"),
    [
        (opener_of_this_module, "another process; write the function in a module"),
        (lambda location, settings: None, "another process"),
        (MemoryStore(), "another process"),
        ("no-name", "does not name a function"),
        ("module.function", "does not name a function"),
        ("__main__:open_it", "another __main__"),
        ("no_such_module_at_all:open_it", "no module 'no_such_module_at_all'"),
    ],
)
def test_an_opener_that_another_process_cannot_import_is_refused(opener: Any, words: str) -> None:
    """The error says how to register a function."""
    with pytest.raises(OptionError, match=words) as caught:
        register_store("tape", opener)
    assert "register_store('tape', 'package.module:function')" in str(caught.value)
    assert registered_stores() == {}


@pytest.mark.parametrize("scheme", ["", "S3", "a b", "a://", "file", "1a"])
def test_only_a_word_can_be_a_scheme(scheme: str) -> None:
    """`file` cannot be registered."""
    with pytest.raises(OptionError, match="scheme"):
        register_store(scheme, OPENER)


@pytest.mark.parametrize(
    ("opener", "words"),
    [
        ("no_such_module_at_all:open_it", "cannot be imported in the fetcher"),
        ("streaming.testing.memory:no_such_name", "cannot be imported in the fetcher"),
        ("streaming.testing.memory:__doc__", "not a function"),
    ],
)
def test_a_missing_opener_is_an_error_when_it_is_needed(opener: str, words: str) -> None:
    """The error names opener and scheme, and says what to check."""
    register_all({"tape": opener})
    with pytest.raises(OptionError, match=words) as caught:
        Stores({}).open(parse_remote("tape://robot/x"), 5.0)
    assert opener in str(caught.value)
    assert "tape://" in str(caught.value)


def test_an_installed_package_brings_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names them in the group of entry points `streaming.stores`."""
    info = tmp_path / "tapes-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tapes\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[streaming.stores]\ntape = {OPENER}\ns3 = no_such_module:at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [found.value for found in importlib.metadata.entry_points(group="streaming.stores", name="tape")] == [OPENER]
    assert isinstance(Stores({}).open(parse_remote("tape://robot/x"), 5.0), MemoryStore)
    assert parse_remote("s3://bucket/x") == Bucket("s3", "bucket", "x")  # a package does not replace a built-in store
