"""Writing to the Hugging Face hub, through its own library, which knows how to upload large files.

The hub allows few commits in an hour: files that become ready while a commit is under way go into the next one
together.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from streaming.errors import StorageError
from streaming.storage.common.diagnosis import Access, Diagnosis, diagnose, read_refusal, unreachable
from streaming.storage.common.extras import import_extra
from streaming.storage.hub.place import HubPlace
from streaming.storage.settings import StoreSettings
from streaming.storage.translation import translating_errors
from streaming.storage.uploads import open_upload
from streaming.storage.web.answers import retry_after_s

_N_PER_COMMIT: Final = 100  # what the hub recommends at most
_HTTP_LIBRARIES: Final = ("httpx", "httpx2", "httpcore", "httpcore2")  # their errors mean that no answer came


class HubWriter:
    """Puts and deletes files of one data set, from many threads. Loads the library when first used."""

    def __init__(self, place: HubPlace, access: Access, settings: StoreSettings) -> None:
        self._place, self._access, self._timeout_s = place, access, settings.timeout_s
        switch = settings.environment.get("HF_HUB_DISABLE_XET", "")
        self._without_xet = switch.upper() in ("1", "ON", "YES", "TRUE")
        self._commits = _Commits(self._commit)

    def put(self, name: str, path: str, moved: Callable[[int], None] | None) -> int:
        """Upload and commit the local file; return its size in bytes."""
        hub = self._hub()
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(open_upload(path, f"{self._place}/{name}"))
            n_bytes = os.fstat(file.fileno()).st_size
            with self._translating_errors(name):
                # The library uploads an open file over plain HTTP, a path by xet if that is installed.
                source = stack.enter_context(_CountedReader(path, moved)) if self._without_xet else path
                addition = hub.CommitOperationAdd(self._place.in_repo(name), source)
                self._api(hub).preupload_lfs_files(additions=[addition], free_memory=False, **self._arguments())
                self._commits.add(addition.path_in_repo, addition)
        if moved is not None:
            moved(n_bytes)
        return n_bytes

    def delete(self, name: str) -> None:
        """Commit the deletion of the file."""
        hub, path_in_repo = self._hub(), self._place.in_repo(name)
        with self._translating_errors(name):
            self._commits.add(path_in_repo, hub.CommitOperationDelete(path_in_repo, is_folder=False))

    def _commit(self, operations: list[Any]) -> None:
        paths = [operation.path_in_repo for operation in operations]
        message = f"{paths[0]} and {len(paths) - 1} more" if len(paths) > 1 else paths[0]
        self._api(self._hub()).create_commit(
            operations=operations, commit_message=f"streaming: {message}", **self._arguments()
        )

    def _api(self, hub: Any) -> Any:
        return hub.HfApi(self._place.endpoint, token=self._place.token or False)  # False: not this process's own

    def _arguments(self) -> dict[str, Any]:
        return {"repo_id": self._place.repo, "repo_type": "dataset", "revision": self._place.revision}

    def _hub(self) -> Any:
        hub = import_extra("huggingface_hub", package="huggingface_hub", extra="hf", purpose="writing to hf://")
        importlib.import_module("huggingface_hub.utils").disable_progress_bars()
        hub.get_session().timeout = self._timeout_s  # it has none by itself
        return hub

    def _translating_errors(self, name: str) -> contextlib.AbstractContextManager[None]:
        return translating_errors(lambda error: _diagnosis(error, self._access).error(name, self._access))


@dataclass(slots=True)
class _QueuedOperation:
    """One file's addition or deletion, and the outcome of its commit."""

    path: str
    operation: Any
    is_done: bool = False
    error: BaseException | None = None


class _Commits:
    """Owns the queue of operations. One commit is sent at a time; a thread that waits for it sends the next one."""

    def __init__(self, send: Callable[[list[Any]], None]) -> None:
        self._send = send
        self._sending, self._guard = threading.Lock(), threading.Lock()
        self._waiting: list[_QueuedOperation] = []

    def add(self, path: str, operation: Any) -> None:
        """Commit the operation, alone or with others; return when that is done. Raises what its commit raised."""
        mine = _QueuedOperation(path, operation)
        with self._guard:
            self._waiting.append(mine)
        while not mine.is_done:
            with self._sending:
                if not mine.is_done:
                    self._send_batch()
        if mine.error is not None:
            raise mine.error

    def _send_batch(self) -> None:
        with self._guard:
            batch = {each.path: each for each in reversed(self._waiting[:_N_PER_COMMIT])}  # of each path the oldest
            self._waiting = [each for each in self._waiting if batch.get(each.path) is not each]
        error: BaseException | None = RuntimeError("the commit was interrupted")
        try:
            self._send([each.operation for each in batch.values()])
            error = None
        except Exception as failure:
            error = failure
        finally:
            for each in batch.values():
                each.error, each.is_done = error, True


class _CountedReader(io.BufferedReader):
    """A file of the type that the library wants, which reports how far it has been read."""

    def __init__(self, path: str, moved: Callable[[int], None] | None) -> None:
        super().__init__(io.FileIO(path))
        self._moved = moved

    def read(self, size: int | None = -1, /) -> bytes:
        """Like `file.read`, and reports progress."""
        piece = super().read(size)
        if self._moved is not None:
            self._moved(self.tell())
        return piece


def _diagnosis(error: Exception, access: Access) -> Diagnosis:
    """Diagnose an error of the library, which wraps those of its threads: the causes count, too."""
    causes = list(_causes(error))
    for cause in causes:
        response = getattr(cause, "response", None)
        if response is not None:
            wait_s = retry_after_s(response.headers, time.time())
            refusal = read_refusal(response.status_code, response.text, headers=response.headers, retry_after_s=wait_s)
            return diagnose(refusal, has_credentials=access.has_credentials)
    first = causes[-1]
    if type(first).__module__.partition(".")[0] in _HTTP_LIBRARIES or isinstance(first, RuntimeError):
        return unreachable(f"no answer ({str(first) or type(first).__name__})")
    return Diagnosis(StorageError, f"{type(first).__name__}: {first}", "check path and token")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
