"""Open stores are kept: one per place and settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from streaming.errors import OptionError
from streaming.storage import open_stores, registry
from streaming.storage.open_stores import PrefixStore, Stores
from streaming.storage.url import parse_remote

COUNTED: list[object] = []


def open_counted(location: object, settings: object) -> object:
    """An opener that records each call."""
    COUNTED.append(settings)
    return object()


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    monkeypatch.setattr(registry, "_registered", {"tape": f"{__name__}:open_counted"})
    COUNTED.clear()
    return COUNTED


def test_the_same_settings_mean_the_same_store(counted: list[object]) -> None:
    """A difference in place, time-out, options or use means another store."""
    stores = Stores({})
    first = stores.open(parse_remote("tape://a/x"), 5.0, {"token": "1", "region": "r"})
    assert stores.open(parse_remote("tape://a/x"), 5.0, {"region": "r", "token": "1"}) is first
    others = [
        stores.open(parse_remote("tape://a/y"), 5.0, {"token": "1", "region": "r"}),
        stores.open(parse_remote("tape://a/x"), 6.0, {"token": "1", "region": "r"}),
        stores.open(parse_remote("tape://a/x"), 5.0, {"token": "2", "region": "r"}),
        stores.open(parse_remote("tape://a/x"), 5.0),
        stores.open_for_uploads(parse_remote("tape://a/x"), {"token": "1", "region": "r"}),
    ]
    assert len({id(store) for store in (first, *others)}) == 6 == len(counted)


def test_old_stores_are_dropped(counted: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores of renewed credentials do not pile up over weeks; one in use stays."""
    monkeypatch.setattr(open_stores, "_N_OPEN", 3)
    stores = Stores({})
    used = stores.open(parse_remote("tape://used"), 5.0)
    for i in range(10):
        stores.open(parse_remote("tape://a/x"), 5.0, {"token": str(i)})
        assert stores.open(parse_remote("tape://used"), 5.0) is used
    assert len(stores._stores) == 3


def test_streams_of_one_bucket_share_a_client() -> None:
    """Prefixes share a client; other options or another bucket have another."""
    stores = Stores({"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "r"})
    opened = [stores.open(parse_remote(f"s3://bucket/{i}"), 5.0) for i in range(5)]
    assert all(isinstance(store, PrefixStore) for store in opened)
    assert len({id(store._whole) for store in opened if isinstance(store, PrefixStore)}) == 1
    others = [
        stores.open(parse_remote("s3://bucket/0"), 5.0, {"region": "q"}),
        stores.open(parse_remote("s3://other/0"), 5.0),
    ]
    assert len({id(store._whole) for store in [opened[0], *others] if isinstance(store, PrefixStore)}) == 3


def test_a_folder_takes_no_options(tmp_path: Path) -> None:
    """Options would have no effect there."""
    Stores({}).open(parse_remote(str(tmp_path)), 5.0)
    with pytest.raises(OptionError, match="takes none"):
        Stores({}).open(parse_remote(str(tmp_path)), 5.0, {"region": "r"})
