"""What the type checker promises to users: read by mypy (`make types`); running it checks only that it imports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_type

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray
    from torch.utils.data import DataLoader, Dataset, IterableDataset

    from streaming import LocalDataset, MDSWriter, Stream, StreamingDataLoader, StreamingDataset, World

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

    def settings_have_types(stream: Stream) -> None:
        """`validate_hash` takes a name, None or False; `out` a path, a URL or a pair."""
        StreamingDataset(streams=[stream], validate_hash=False, world=World(0, 1))
        MDSWriter(out=("folder", "s3://bucket/prefix"), columns={"x": "int"})
        StreamingDataset(streams=stream)  # type: ignore[arg-type]


def test_the_package_says_that_it_is_typed() -> None:
    """`py.typed` is shipped."""
    from importlib.resources import files

    assert files("streaming").joinpath("py.typed").is_file()
