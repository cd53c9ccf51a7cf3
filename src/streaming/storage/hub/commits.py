"""Writing to the Hugging Face hub through its own library, which knows how large files go there.

A commit is a whole request at the hub, and it allows few of them in an hour: what is ready while one commit is under
way goes into the next one together.
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
from streaming.storage.common.extras import needed
from streaming.storage.common.meaning import Asked, Meaning, meaning_of, read_answer, unreachable
from streaming.storage.hub.place import HubPlace
from streaming.storage.settings import StoreSettings
from streaming.storage.uploads import open_upload
from streaming.storage.web.answers import retry_after_s

_N_PER_COMMIT: Final = 100  # what the hub recommends at most
_CLIENTS: Final = ("httpx", "httpx2", "httpcore", "httpcore2")  # whose errors say that no answer came


class HubWriter:
    """Puts and deletes files of one data set, from many threads; its library is loaded when first used."""

    def __init__(self, place: HubPlace, asked: Asked, settings: StoreSettings) -> None:
        self._place, self._asked, self._timeout_s = place, asked, settings.timeout_s
        switch = settings.environment.get("HF_HUB_DISABLE_XET", "")
        self._without_xet = switch.upper() in ("1", "ON", "YES", "TRUE")
        self._commits = _Commits(self._commit)

    def put(self, name: str, path: str, moved: Callable[[int], None] | None) -> int:
        """Upload and commit the local file; its size."""
        hub = self._hub()
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(open_upload(path, f"{self._place}/{name}"))
            n_bytes = os.fstat(file.fileno()).st_size
            with self._told(name):
                # The library takes an open file to mean the plain way, a path to mean xet where that is installed.
                source = stack.enter_context(_Counted(path, moved)) if self._without_xet else path
                addition = hub.CommitOperationAdd(self._place.in_repo(name), source)
                self._api(hub).preupload_lfs_files(additions=[addition], free_memory=False, **self._arguments())
                self._commits.add(addition.path_in_repo, addition)
        if moved is not None:
            moved(n_bytes)
        return n_bytes

    def delete(self, name: str) -> None:
        """Commit that the file is gone."""
        hub, path_in_repo = self._hub(), self._place.in_repo(name)
        with self._told(name):
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
        hub = needed("huggingface_hub", package="huggingface_hub", extra="hf", purpose="writing to hf://")
        importlib.import_module("huggingface_hub.utils").disable_progress_bars()
        hub.get_session().timeout = self._timeout_s  # it has none by itself
        return hub

    @contextlib.contextmanager
    def _told(self, name: str) -> Iterator[None]:
        """Errors of the hub's library as ours."""
        try:
            yield
        except StorageError:
            raise
        except Exception as error:
            raise _meaning(error, self._asked).error(name, self._asked) from error


@dataclass(slots=True)
class _Waiting:
    path: str
    operation: Any
    is_done: bool = False
    error: BaseException | None = None


class _Commits:
    """Owns what waits to be committed. One commit at a time; who waits for it sends the next, with all that came."""

    def __init__(self, send: Callable[[list[Any]], None]) -> None:
        self._send = send
        self._sending, self._guard = threading.Lock(), threading.Lock()
        self._waiting: list[_Waiting] = []

    def add(self, path: str, operation: Any) -> None:
        """Back when it is committed; raises what its commit raised."""
        mine = _Waiting(path, operation)
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
            batch = {each.path: each for each in reversed(self._waiting[:_N_PER_COMMIT])}  # of one path the oldest
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


class _Counted(io.BufferedReader):
    """A file that tells how far it is read; of the kind that the library wants."""

    def __init__(self, path: str, moved: Callable[[int], None] | None) -> None:
        super().__init__(io.FileIO(path))
        self._moved = moved

    def read(self, size: int | None = -1, /) -> bytes:
        """As of any file; tells."""
        piece = super().read(size)
        if self._moved is not None:
            self._moved(self.tell())
        return piece


def _meaning(error: Exception, asked: Asked) -> Meaning:
    """What an error of the library means: it wraps those of its threads, so the causes are looked at too."""
    causes = list(_causes(error))
    for cause in causes:
        response = getattr(cause, "response", None)
        if response is not None:
            wait_s = retry_after_s(response.headers, time.time())
            answer = read_answer(response.status_code, response.text, headers=response.headers, retry_after_s=wait_s)
            return meaning_of(answer, has_credentials=asked.has_credentials)
    first = causes[-1]
    if type(first).__module__.partition(".")[0] in _CLIENTS or isinstance(first, RuntimeError):
        return unreachable(f"no answer ({str(first) or type(first).__name__})")
    return Meaning(StorageError, f"{type(first).__name__}: {first}", "check path and token")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
