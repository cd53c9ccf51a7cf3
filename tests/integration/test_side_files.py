"""Files to which samples refer: all come, within the dataset's limit, and no other file is ever deleted."""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from streaming.errors import ObjectMissingError, StreamingError
from streaming.testing import FaultProxy
from support.disks import Watcher, bytes_below, keeps_attributes, own_disk, watched
from support.fetcher_world import content, fetchers_of, wait_until
from support.stores import gets, put, put_folder

MIB = 1 << 20
N_FILES = 100
LIMIT = 10 * MIB


@pytest.fixture
def store_of_videos(store: FaultProxy, tmp_path: Path) -> FaultProxy:
    """A dataset of 100 records that name a file of 1 MiB each, and the files."""
    folder = tmp_path / "source"
    with MDSWriter(out=str(folder), columns={"id": "int", "path": "str"}, size_limit=1 << 10) as writer:
        for number in range(N_FILES):
            writer.write({"id": number, "path": name_of(number)})
    put_folder(store, folder, "d")
    put(store, {f"videos/{name_of(number)}": bytes_of(number) for number in range(N_FILES)})
    return store


def name_of(number: int) -> str:
    return f"{number % 7}/{number}.mp4"


def bytes_of(number: int) -> bytes:
    return content(name_of(number), MIB)


class Videos(StreamingDataset):
    """Each sample with the bytes of its file."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.videos = self.side_files("s3://bkt/videos", os.path.join(os.path.dirname(options["local"]), "videos"))

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        sample = super().get_item(sample_id, retry)
        return {**sample, "video": self.videos.read(sample["path"])}


@pytest.fixture
def options(store_of_videos: FaultProxy, tmp_path: Path) -> dict[str, Any]:
    del store_of_videos
    return {"remote": "s3://bkt/d", "local": str(tmp_path / "cache" / "d"), "batch_size": 4, "cache_limit": LIMIT}


def checked(samples: list[dict[str, Any]]) -> list[int]:
    assert all(sample["video"] == bytes_of(sample["id"]) for sample in samples)
    return [sample["id"] for sample in samples]


@pytest.mark.parametrize("start", [None, "fork", "spawn"])
def test_all_come_and_the_cache_never_exceeds_its_limit(
    options: dict[str, Any], tmp_path: Path, start: str | None
) -> None:
    """Ten times as much as fits, twice, with and without workers: shards and files share one limit."""
    n_workers = 0 if start is None else 2
    with Videos(shuffle=True, **options) as dataset, Watcher(tmp_path / "cache") as watcher:
        loader = StreamingDataLoader(
            dataset, batch_size=4, num_workers=n_workers, multiprocessing_context=start, collate_fn=checked
        )
        for _ in range(2):
            assert sorted(number for batch in loader for number in batch) == list(range(N_FILES))
    assert LIMIT // 2 < watcher.most <= LIMIT


def test_the_disk_itself_never_holds_more_than_the_limit(options: dict[str, Any], tmp_path: Path) -> None:
    """As the file system says at one moment; it counts whole pages, and the fetcher's sockets and locks."""
    with own_disk(tmp_path / "cache", 2 * LIMIT), watched(tmp_path / "cache") as most:
        with Videos(shuffle=True, **options) as dataset:
            assert sorted(checked(list(dataset))) == list(range(N_FILES))
        assert most[0] <= LIMIT + MIB // 2


def test_what_is_there_is_not_fetched_again(options: dict[str, Any], store_of_videos: FaultProxy) -> None:
    """By another job either; without a limit all stays."""
    del options["cache_limit"]
    for _ in range(2):
        with Videos(**options) as dataset:
            assert checked(list(dataset)) == list(range(N_FILES))
    assert {gets(store_of_videos)[f"videos/{name_of(number)}"] for number in range(N_FILES)} == {1}


def test_after_a_restart_only_copies_are_evicted(options: dict[str, Any], tmp_path: Path) -> None:
    """Files that another fetcher brought are evicted; files that the user put there, renamed or copied are not."""
    folder = tmp_path / "cache" / "videos"
    unlimited = {name: value for name, value in options.items() if name != "cache_limit"}
    with Videos(**unlimited) as dataset:
        assert checked(list(dataset)) == list(range(N_FILES))
    if not keeps_attributes(folder):
        pytest.skip("this file system keeps no attributes of files, so what is a copy is not known after a restart")
    wait_until("its fetcher has ended", lambda: not fetchers_of(Path(options["local"])))
    own = folder / "0" / "own.mp4"
    own.write_bytes(bytes(MIB))
    renamed = folder / "renamed.mp4"
    (folder / name_of(0)).rename(renamed)
    with Videos(**options) as dataset:
        assert checked([dataset[0]]) == [0]
        wait_until("there is less than the limit", lambda: bytes_below(tmp_path / "cache") <= LIMIT)
        assert checked(list(dataset)) == list(range(N_FILES))
    assert own.read_bytes() == bytes(MIB)
    assert renamed.read_bytes() == bytes_of(0)


def test_a_file_larger_than_the_limit_comes_without_the_cache(
    options: dict[str, Any], store_of_videos: FaultProxy, tmp_path: Path
) -> None:
    """It comes whole, and nothing of it stays."""
    whole = content("large", 12 * MIB)
    put(store_of_videos, {"videos/large.mp4": whole})
    with Videos(**options) as dataset, Watcher(tmp_path / "cache") as watcher:
        assert dataset.videos.read("large.mp4") == whole
    assert watcher.most <= LIMIT
    assert not list((tmp_path / "cache" / "videos").rglob("large*"))


def test_an_open_file_is_read_to_its_end(options: dict[str, Any], tmp_path: Path) -> None:
    """Even after it was evicted for others."""
    with Videos(**options) as dataset, dataset.videos.open(name_of(3)) as file:
        begin = file.read(10)
        assert checked(list(dataset)) == list(range(N_FILES))
        wait_until("the file was evicted", lambda: not (tmp_path / "cache" / "videos" / name_of(3)).exists())
        assert begin + file.read() == bytes_of(3)


def test_many_threads_read_at_random(options: dict[str, Any], tmp_path: Path) -> None:
    """Each gets the files that it asked for, within the limit."""
    rng = random.Random(0)
    numbers = [rng.randrange(N_FILES) for _ in range(200)]
    with Videos(**options) as dataset, Watcher(tmp_path / "cache") as watcher, ThreadPoolExecutor(8) as threads:
        found = threads.map(lambda number: dataset.videos.read(name_of(number)) == bytes_of(number), numbers)
        assert all(found)
    assert watcher.most <= LIMIT


def test_side_files_pickle_as_configuration(options: dict[str, Any]) -> None:
    """The copy opens what it needs by itself."""
    with Videos(**options) as dataset:
        dataset.videos.read(name_of(0))
        again = pickle.loads(pickle.dumps(dataset.videos))
        assert again.read(name_of(1)) == bytes_of(1)
        again.close()


@pytest.mark.parametrize("name", ["../d/index.json", "/etc/hostname", "", "a\0b"])
def test_a_name_that_leads_elsewhere_is_refused(options: dict[str, Any], tmp_path: Path, name: str) -> None:
    """Whatever a record says, also in a folder that is read in place."""
    with Videos(**options) as dataset:
        for files in (dataset.videos, dataset.side_files(local=str(tmp_path))):
            with pytest.raises(StreamingError, match="not a name below"):
                files.read(name)


def test_the_error_for_a_missing_file_names_it(options: dict[str, Any], tmp_path: Path) -> None:
    """In a store and in a folder."""
    with Videos(**options) as dataset:
        for files in (dataset.videos, dataset.side_files(local=str(tmp_path))):
            with pytest.raises(ObjectMissingError, match=r"5/nothing\.mp4"):
                files.read("5/nothing.mp4")


def test_a_folder_is_read_in_place(options: dict[str, Any], tmp_path: Path) -> None:
    """Given as `local` or as `remote`."""
    (tmp_path / "beside" / "a").mkdir(parents=True)
    (tmp_path / "beside" / "a" / "b").write_bytes(b"seven")
    with Videos(**options) as dataset:
        assert dataset.side_files(local=str(tmp_path / "beside")).read("a/b") == b"seven"
        assert dataset.side_files(str(tmp_path / "beside")).read("a/b") == b"seven"
    assert os.listdir(tmp_path / "beside") == ["a"]


@pytest.fixture(autouse=True)
def _all_is_given_back(tmp_path: Path) -> Iterator[None]:
    """No test leaves a half-written file; the fetcher goes on for a moment."""
    yield
    wait_until("no half-written file is left", lambda: not list(tmp_path.rglob(".*.tmp")))
