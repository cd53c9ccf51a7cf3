"""Laws of `merge_index`, over generated trees of parts."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.write.dataset_parts import natural_order
from streaming.write.merge import merge_index
from support.merging import INDEX, contents_of, ids_in, names_of, shards_of, write_parts

STEP = st.sampled_from(["part2", "part10", "part1", "a", "b-1", "07", "7", "é"])
FOLDERS = st.lists(st.lists(STEP, min_size=1, max_size=3).map("/".join), min_size=1, max_size=5, unique=True)
TREES = FOLDERS.flatmap(
    lambda folders: st.tuples(*(st.integers(0, 25) for _ in folders)).map(lambda sizes: dict(zip(folders, sizes)))
)


@given(tree=TREES, compression=st.sampled_from([None, "zstd"]))
@settings(max_examples=15)
def test_a_merged_tree_has_every_sample_in_natural_order(tree: dict[str, int], compression: str | None) -> None:
    """Counts add up, every sample is read, no file is listed twice or touched; merging again gives the same bytes."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        tree = {name: tree[name] for name in sorted(tree, key=natural_order)}
        ids = write_parts(root, tree, compression=compression)
        before = contents_of(root)
        merge_index(folder)
        names = names_of(root / INDEX)
        assert sum(shard["samples"] for shard in shards_of(root / INDEX)) == len(ids)
        assert len(set(names)) == len(names)
        assert all((root / name).is_file() for name in names)
        if ids:
            assert ids_in(folder) == ids
        assert contents_of(root) == before
        merged = (root / INDEX).read_bytes()
        merge_index(folder)
        assert (root / INDEX).read_bytes() == merged
        named = [str(root / name / INDEX) for name in tree]
        merge_index(named, folder)
        assert (root / INDEX).read_bytes() == merged


@given(tree=TREES, data=st.data())
@settings(max_examples=15)
def test_merging_folders_of_a_tree_first_changes_nothing(tree: dict[str, int], data: st.DataObject) -> None:
    """A part is taken once, whichever folders above it were merged before, and in whichever order."""
    above = sorted({"/".join(name.split("/")[:depth]) for name in tree for depth in (1, 2)} - set(tree))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_parts(root, tree)
        merge_index(folder)
        merged = (root / INDEX).read_bytes()
        for name in data.draw(st.lists(st.sampled_from(above), unique=True) if above else st.just([])):
            if any(part.startswith(f"{name}/") for part in tree):
                merge_index(root / name)
        merge_index(folder)
        assert (root / INDEX).read_bytes() == merged


@given(names=st.lists(st.text("a1209/_", max_size=8), max_size=8), data=st.data())
def test_natural_order_is_total(names: list[str], data: st.DataObject) -> None:
    """All permutations of some names sort to the same order, and only equal names have equal keys."""
    assert sorted(names, key=natural_order) == sorted(data.draw(st.permutations(names)), key=natural_order)
    assert len(set(map(natural_order, names))) == len(set(names))
