"""What the type checker promises to users. Checked by mypy (`make types`); running it only imports it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_type

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray
    from torch.utils.data import DataLoader, Dataset, IterableDataset

    from streaming import LocalDataset, MDSWriter, Stream, StreamingDataLoader, StreamingDataset, World
    from streaming.write.merge import merge_index

    def datasets_are_what_pytorch_takes(streaming: StreamingDataset, local: LocalDataset) -> None:
        """Both fit a plain DataLoader, and are iterable or map-style as declared."""
        iterable: IterableDataset[Any] = streaming
        mapped: Dataset[Any] = local
        DataLoader(iterable)
        DataLoader(mapped)
        assert_type(iter(streaming), Iterator[Any])
        assert_type(streaming.size, int)
        assert_type(len(local), int)
        assert_type(streaming.samples_per_shard, NDArray[np.int64])

    def states_are_dicts(loader: StreamingDataLoader, dataset: StreamingDataset) -> None:
        """A loader over another kind of dataset has no state."""
        assert_type(loader.state_dict(), dict[str, Any] | None)
        assert_type(dataset.state_dict(0, from_beginning=True), dict[str, Any])
        assert_type(dataset.stats().as_dict(), dict[str, Any])

    def settings_have_types(stream: Stream) -> None:
        """`validate_hash` takes a name, None or False; `out` a path, a URL or a pair."""
        StreamingDataset(streams=[stream], validate_hash=False, world=World(0, 1))
        MDSWriter(out=("folder", "s3://bucket/prefix"), columns={"x": "int"})
        StreamingDataset(streams=stream)
        StreamingDataset(streams="s3://bucket/prefix")  # type: ignore[arg-type]

    def parts_are_named_or_found(folder: Path) -> None:
        """`merge_index` takes a list of paths, URLs or pairs and the root, or only the root."""
        merge_index("s3://bucket/prefix", False, 30.0, storage_options={"region": "eu-1"})
        merge_index(folder, keep_local=True)
        merge_index([folder / "index.json"], (folder, "s3://bucket/prefix"))
        merge_index([("a/index.json", None), (None, "s3://bucket/a/index.json")], out=folder)
        merge_index(["a/index.json"])  # type: ignore[call-overload]


def test_the_package_says_that_it_is_typed() -> None:
    """`py.typed` is shipped."""
    from importlib.resources import files

    assert files("streaming").joinpath("py.typed").is_file()
