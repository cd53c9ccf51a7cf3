"""Open stores are kept, one per place and settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from streaming.errors import OptionError
from streaming.storage import connect, registry
from streaming.storage.connect import Stores

COUNTED: list[object] = []


def open_counted(location: object, settings: object) -> object:
    """An opener that tells of each store it opens."""
    COUNTED.append(settings)
    return object()


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    monkeypatch.setattr(registry, "_registered", {"tape": f"{__name__}:open_counted"})
    COUNTED.clear()
    return COUNTED


def test_the_same_settings_mean_the_same_store(counted: list[object]) -> None:
    """Any difference means another: place, patience, options, use."""
    stores = Stores({})
    first = stores.open("tape://a/x", 5.0, {"token": "1", "region": "r"})
    assert stores.open("tape://a/x", 5.0, {"region": "r", "token": "1"}) is first
    others = [
        stores.open("tape://a/y", 5.0, {"token": "1", "region": "r"}),
        stores.open("tape://a/x", 6.0, {"token": "1", "region": "r"}),
        stores.open("tape://a/x", 5.0, {"token": "2", "region": "r"}),
        stores.open("tape://a/x", 5.0),
        stores.open_for_uploads("tape://a/x", {"token": "1", "region": "r"}),
    ]
    assert len({id(store) for store in (first, *others)}) == 6 == len(counted)


def test_old_stores_are_let_go(counted: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials that are renewed for weeks must not pile up; what is used stays."""
    monkeypatch.setattr(connect, "_N_OPEN", 3)
    stores = Stores({})
    used = stores.open("tape://used", 5.0)
    for i in range(10):
        stores.open("tape://a/x", 5.0, {"token": str(i)})
        assert stores.open("tape://used", 5.0) is used
    assert len(stores._stores) == 3


def test_a_folder_takes_no_options(tmp_path: Path) -> None:
    """They would have no effect."""
    Stores({}).open(str(tmp_path), 5.0)
    with pytest.raises(OptionError, match="takes none"):
        Stores({}).open(str(tmp_path), 5.0, {"region": "r"})
