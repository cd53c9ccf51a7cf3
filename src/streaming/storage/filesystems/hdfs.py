"""`hdfs://namenode[:port]/path` and `hdfs:///path`, through hdfs-native (extra `hdfs`): no Java, no libhdfs.

The cluster's settings are read from `HADOOP_CONF_DIR`. `storage_options` may hold any setting of Hadoop by its name,
which has a dot, `config_dir`, and three names for Kerberos. hdfs-native waits for a silent name node for ever, so each
call runs in a thread of its own, which is abandoned if it takes too long. (Its asynchronous interface could be
cancelled, but panics if there is no name node.)
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar, cast

from streaming.errors import (
    ObjectForbiddenError,
    ObjectMissingError,
    OptionError,
    StorageError,
    StoreUnreachableError,
    TransferDamagedError,
)
from streaming.placement import is_temporary, temporary_beside
from streaming.storage.common.extras import import_extra
from streaming.storage.common.transport import read_timeout_s
from streaming.storage.settings import StoreSettings
from streaming.storage.store import Content, ObjectFacts, Part
from streaming.storage.translation import translating_errors
from streaming.storage.uploads import open_upload
from streaming.storage.url import Bucket

T = TypeVar("T")

_CHUNK_BYTES: Final = 1 << 20
_N_LISTED: Final = 1000  # files in one call
_OWN: Final = ("config_dir", "kerberos_cache", "kerberos_keytab", "kerberos_principal")
_FAILOVER: Final = {  # all name nodes of a cluster are tried a few times; the caller retries
    "dfs.client.failover.max.attempts": "3",
    "dfs.client.failover.sleep.base.millis": "100",
    "dfs.client.failover.sleep.max.millis": "1000",
}


def open_hdfs(location: Bucket, settings: StoreSettings) -> HdfsStore:
    """Open `hdfs://`. Connects when first used."""
    hdfs = import_extra("hdfs_native", package="hdfs-native", extra="hdfs", purpose="hdfs://")
    idle_timeout_s = settings.timeout_s if settings.for_uploads else read_timeout_s(settings.timeout_s)
    own, hadoop = _options(settings)
    hadoop = {**_FAILOVER, "dfs.client.socket-timeout": str(int(idle_timeout_s * 1000)), **hadoop}
    own.setdefault("config_dir", settings.environment.get("HADOOP_CONF_DIR") or None)
    url = f"hdfs://{location.name}" if location.name else None  # None: the cluster of the configuration
    try:
        client = hdfs.Client(url, hadoop, **own)
    except Exception as error:
        raise OptionError(f"{location.shown} cannot be opened with these settings: {error}") from error
    return HdfsStore(location, client, hdfs.WriteOptions, idle_timeout_s)


def _options(settings: StoreSettings) -> tuple[dict[str, Any], dict[str, str]]:
    for name, value in settings.options.items():
        if name not in _OWN and "." not in name:
            raise OptionError(
                f"storage_options: hdfs:// takes no {name!r}; it takes settings of Hadoop (names with a dot), "
                f"{', '.join(_OWN)}"
            )
        if not isinstance(value, str):
            raise OptionError(f"storage_options: {name!r} must be a text, not of type {type(value).__name__}")
    own = {name: value for name, value in settings.options.items() if name in _OWN}
    return own, {name: value for name, value in settings.options.items() if name not in _OWN}


class HdfsStore:
    """The files below a folder of HDFS."""

    def __init__(self, location: Bucket, client: Any, write_options: Any, idle_timeout_s: float) -> None:
        self._location, self._client, self._write_options = location, client, write_options
        self._top, self._idle_timeout_s = f"/{location.prefix}".rstrip("/"), idle_timeout_s

    def get(self, name: str, *, offset: int = 0, version: str | None = None) -> Content:
        """See Store."""
        with self._translating_errors(name):
            facts, reader = self._call(lambda: self._opened(name, version))
        return Content(facts, offset, self._chunks(name, reader, offset, facts.n_bytes))

    def get_range(self, name: str, begin: int, end: int, *, version: str | None = None) -> Part:
        """See Store."""
        with self._translating_errors(name):
            facts, reader = self._call(lambda: self._opened(name, version))
            if end > facts.n_bytes:
                raise TransferDamagedError(
                    f"{self._shown(name)} has {facts.n_bytes} bytes; bytes up to {end} were asked for: was it cut?"
                )
            data = self._call(lambda: bytes(reader.read_range(begin, end - begin)))
        if len(data) != end - begin:
            raise TransferDamagedError(
                f"{self._shown(name)}: bytes {begin} to {end} were asked for, {len(data)} came; was it cut?"
            )
        return Part(facts, data)

    def put(self, name: str, path: str, *, moved: Callable[[int], None] | None = None) -> None:
        """See Store."""
        target = self._path(name)
        temporary = temporary_beside(target)
        with open_upload(path, self._shown(name)) as file, self._translating_errors(name):
            try:
                self._write(temporary, file, moved)
                self._call(lambda: self._client.rename(temporary, target, overwrite=True))
            except BaseException:
                with contextlib.suppress(Exception):
                    self._call(lambda: self._client.delete(temporary))
                raise

    def list(self, prefix: str = "") -> Iterator[ObjectFacts]:
        """See Store. Hidden temporaries of writers are not objects."""
        with self._translating_errors(prefix), contextlib.suppress(FileNotFoundError):
            statuses = self._call(lambda: self._client.list_status(self._path(prefix) or "/", recursive=True))
            while batch := self._call(lambda: list(itertools.islice(statuses, _N_LISTED))):
                for status in batch:
                    name = status.path[len(self._top) + 1 :]
                    if not status.isdir and name != prefix and not is_temporary(name):
                        yield _facts_of(name, status)

    def head(self, name: str) -> ObjectFacts:
        """See Store."""
        with self._translating_errors(name):
            return self._call(lambda: self._facts(name, None))

    def delete(self, name: str) -> None:
        """See Store."""
        with contextlib.suppress(ObjectMissingError), self._translating_errors(name):
            self._call(lambda: self._client.delete(self._path(name)))

    def _facts(self, name: str, version: str | None) -> ObjectFacts:
        status = self._client.get_file_info(self._path(name))
        if status.isdir:
            raise ObjectMissingError(f"{self._shown(name)} is a folder; check the path")
        facts = _facts_of(name, status)
        if version not in (None, facts.version):
            raise TransferDamagedError(f"{self._shown(name)} changed while it was read; check who writes to it")
        return facts

    def _opened(self, name: str, version: str | None) -> tuple[ObjectFacts, Any]:
        facts = self._facts(name, version)
        reader = self._client.read(self._path(name))
        if len(reader) != facts.n_bytes:
            raise TransferDamagedError(f"{self._shown(name)} is being written; check who does")
        return facts, reader

    def _chunks(self, name: str, reader: Any, begin: int, end: int) -> Iterator[bytes]:
        if begin >= end:
            return
        with self._translating_errors(name):
            pieces = self._call(lambda: reader.read_range_stream(begin, end - begin))
        while True:
            with self._translating_errors(name):
                chunk = self._call(lambda: _joined(pieces))
            if not chunk:
                return
            yield chunk

    def _write(self, path: str, file: Any, moved: Callable[[int], None] | None) -> None:
        writer = self._call(lambda: self._client.create(path, self._write_options(create_parent=True)))
        n_bytes = 0
        while block := file.read(_CHUNK_BYTES):
            self._call(functools.partial(writer.write, block))
            n_bytes += len(block)
            if moved is not None:
                moved(n_bytes)
        self._call(writer.close)

    def _call(self, call: Callable[[], T]) -> T:
        """Run a call in a thread; return or raise what it does. Raises TimeoutError if it takes too long."""
        ended = SimpleQueue[tuple[T | None, BaseException | None]]()

        def run() -> None:
            try:
                ended.put((call(), None))
            except BaseException as error:  # a panic of Rust is no Exception
                ended.put((None, error))

        threading.Thread(target=run, name="hdfs", daemon=True).start()
        try:
            result, error = ended.get(timeout=self._idle_timeout_s)
        except Empty:
            raise TimeoutError from None
        if error is not None:
            raise error if isinstance(error, Exception) else RuntimeError(f"hdfs-native: {error}") from error
        return cast(T, result)

    def _path(self, name: str) -> str:
        return f"{self._top}/{name}" if name else self._top

    def _shown(self, name: str) -> str:
        return f"{self._location.shown}/{name}"

    def _translating_errors(self, name: str) -> contextlib.AbstractContextManager[None]:
        return translating_errors(lambda error: self._translated(name, error))

    def _translated(self, name: str, error: Exception) -> StorageError:
        """Say what an error of hdfs-native means."""
        shown = self._shown(name)
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return ObjectMissingError(f"{shown} does not exist; check the path")
        if isinstance(error, FileExistsError | IsADirectoryError):
            return StorageError(f"{shown}: a folder is in the way ({error}); check the path")
        if isinstance(error, TimeoutError):
            return StoreUnreachableError(
                f"{shown}: the cluster said nothing for {self._idle_timeout_s:.0f} s; check the name node's address "
                "and the network"
            )
        if isinstance(error, PermissionError) or "AccessControlException" in str(error):
            return ObjectForbiddenError(f"{shown} is refused ({error}); check HADOOP_USER_NAME, or the Kerberos ticket")
        return StoreUnreachableError(
            f"{shown}: {error}; check the name node's address, that data nodes can be reached, and HADOOP_CONF_DIR"
        )


def _joined(pieces: Iterator[Any]) -> bytes:
    """Join the next pieces to a chunk; empty at the end."""
    chunk = bytearray()
    while len(chunk) < _CHUNK_BYTES and (piece := next(pieces, None)) is not None:
        chunk += piece
    return bytes(chunk)


def _facts_of(name: str, status: Any) -> ObjectFacts:
    modified_ms = status.modification_time
    return ObjectFacts(name, status.length, f"{modified_ms}-{status.length}", modified_ms / 1000)
