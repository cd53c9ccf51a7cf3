"""Writing to the Hugging Face hub through its own library, which knows how large files go there.

A commit is a whole request at the hub, and it allows few of them in an hour: what is ready while one commit is under
way goes into the next one together.
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from streaming.errors import StorageError, StoreUnreachableError
from streaming.storage.options import imported
from streaming.storage.web import Asked, error_of

_N_PER_COMMIT: Final = 100  # what the hub recommends at most
_CLIENTS: Final = ("httpx", "httpx2", "httpcore", "httpcore2")  # whose errors say that no answer came


class HubWriter:
    """Puts and deletes files of one data set, from many threads; its library is loaded when first used."""

    def __init__(
        self,
        endpoint: str,
        repo: str,
        revision: str,
        token: str | None,
        environment: Mapping[str, str],
        timeout_s: float,
    ) -> None:
        self._endpoint, self._repo, self._revision, self._token = endpoint, repo, revision, token
        self._timeout_s = timeout_s
        self._without_xet = environment.get("HF_HUB_DISABLE_XET", "").upper() in ("1", "ON", "YES", "TRUE")
        self._commits = _Commits(self._commit)

    def put(self, asked: Asked, path_in_repo: str, path: str, moved: Callable[[int], None] | None) -> int:
        """Upload and commit the local file; its size."""
        hub, arguments = self._hub(), self._arguments()
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(open(path, "rb"))
                n_bytes = os.fstat(file.fileno()).st_size
            except OSError as error:
                raise StorageError(f"{path} cannot be read for the upload to {asked.what}: {error}") from error
            with _told(asked):
                # The library takes an open file to mean the plain way, a path to mean xet where that is installed.
                source = _Counted(file, moved) if self._without_xet else path
                addition = hub.CommitOperationAdd(path_in_repo, source)
                hub.HfApi(self._endpoint, token=self._token).preupload_lfs_files(
                    additions=[addition], free_memory=False, **arguments
                )
                self._commits.add(path_in_repo, addition)
        if moved is not None:
            moved(n_bytes)
        return n_bytes

    def delete(self, asked: Asked, path_in_repo: str) -> None:
        """Commit that the file is gone."""
        with _told(asked):
            self._commits.add(path_in_repo, self._hub().CommitOperationDelete(path_in_repo, is_folder=False))

    def _commit(self, operations: list[Any]) -> None:
        paths = [operation.path_in_repo for operation in operations]
        message = f"{paths[0]} and {len(paths) - 1} more" if len(paths) > 1 else paths[0]
        hub = self._hub()
        hub.HfApi(self._endpoint, token=self._token).create_commit(
            operations=operations, commit_message=f"streaming: {message}", **self._arguments()
        )

    def _arguments(self) -> dict[str, Any]:
        return {"repo_id": self._repo, "repo_type": "dataset", "revision": self._revision}

    def _hub(self) -> Any:
        hub = imported("huggingface_hub", package="huggingface_hub", extra="hf", purpose="writing to hf://")
        imported("huggingface_hub.utils", package="huggingface_hub", extra="hf", purpose="writing to hf://")
        hub.utils.disable_progress_bars()
        hub.get_session().timeout = self._timeout_s  # it has none by itself
        return hub


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
    """A file that tells how far it is read."""

    def __init__(self, file: io.BufferedReader, moved: Callable[[int], None] | None) -> None:
        super().__init__(file.raw)
        self._moved = moved

    def read(self, size: int | None = -1, /) -> bytes:
        piece = super().read(size)
        if self._moved is not None:
            self._moved(self.tell())
        return piece


@contextlib.contextmanager
def _told(asked: Asked) -> Iterator[None]:
    """Errors of the hub's library as ours."""
    try:
        yield
    except StorageError:
        raise
    except Exception as error:
        for cause in _causes(error):
            response = getattr(cause, "response", None)
            if response is not None:
                raise error_of(asked, response.status_code, response.headers, str(cause).encode()) from error
        *_, first = _causes(error)
        if type(first).__module__.partition(".")[0] in _CLIENTS or isinstance(first, RuntimeError):
            raise asked.error(
                StoreUnreachableError, f"no answer ({str(first) or type(first).__name__})", "check endpoint and network"
            ) from error
        raise asked.error(StorageError, f"{type(first).__name__}: {first}", "check path and token") from error


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, what it was raised from, and so on: the library wraps those of its threads."""
    while error is not None:
        yield error
        error = error.__cause__
