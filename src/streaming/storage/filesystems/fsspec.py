"""The other file systems of fsspec (extra `fsspec`): `ftp://`, `smb://`, `github://`, `webdav://`, `gdrive://` …

`storage_options` go to the file system unchanged. fsspec promises little, so little is relied on. File systems that are
not asynchronous come from a pool, and one thread at a time uses each. Their caches of listings are dropped before each
operation. Where a file system can move files, a put shows them only once they are whole. A version is a hash or tag in
the file's listing, else its time and size, as precise as the file system's clock.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from streaming.errors import (
    ObjectMissingError,
    OptionError,
    StorageError,
    StoreCannotError,
    TransferDamagedError,
)
from streaming.placement import is_temporary, temporary_beside
from streaming.storage.common.diagnosis import Access
from streaming.storage.common.extras import import_extra
from streaming.storage.common.pool import Pool
from streaming.storage.filesystems.fsspec_errors import diagnose_error
from streaming.storage.settings import StoreSettings
from streaming.storage.store import Content, ObjectFacts, Part
from streaming.storage.translation import translating_errors
from streaming.storage.uploads import open_upload, replace_in_steps
from streaming.storage.url import Bucket

_N_INSTANCES: Final = 16  # of a file system with one connection
_N_INSTANCES_ASYNC: Final = 64  # of one with an event loop of its own
_QUEUE_S: Final = 600.0  # at least this long a call waits for an instance that others have
_CHUNK_BYTES: Final = 1 << 20
_CONTENT: Final = ("ETag", "etag", "e_tag", "md5Hash", "md5Checksum", "content_hash", "sha256", "sha", "checksum")
_TIMES: Final = ("mtime", "modified", "LastModified", "last_modified", "modify", "modifiedTime", "updated", "created")


def open_filesystem(location: Bucket, settings: StoreSettings) -> FileSystemStore:
    """Open any scheme of fsspec that no other store has. Connects when first used."""
    fsspec = import_extra("fsspec", package="fsspec", extra="fsspec", purpose=f"{location.scheme}://")
    if "::" in location.name + location.prefix:
        raise OptionError(f"{location.shown}: chained URLs (with '::') are not read; name one file system")
    try:
        kind = fsspec.get_filesystem_class(location.scheme)
        top = kind._strip_protocol(str(location))
    except (ImportError, ValueError) as error:
        raise OptionError(f"{location.shown} cannot be opened: {error}") from error
    named = ", ".join(sorted(settings.options)) or "none"
    access = Access(location.shown, f"{location.scheme}://", f"storage_options: {named}", bool(settings.options))
    pool: Pool[Any] = Pool(
        lambda: _connect(fsspec, location, settings.options, access),
        limit=_N_INSTANCES_ASYNC if kind.async_impl else _N_INSTANCES,
        place=location.shown,
        queue_timeout_s=max(_QUEUE_S, settings.timeout_s),
        close=lambda _: None,  # fsspec has no such call; connections end with the last reference
        harmless=(StorageError, FileNotFoundError, PermissionError, NotImplementedError),
    )
    return FileSystemStore(access, top, pool)


def _connect(fsspec: Any, location: Bucket, options: Mapping[str, Any], access: Access) -> Any:
    try:
        return fsspec.core.url_to_fs(str(location), skip_instance_cache=True, **options)[0]
    except (TypeError, ValueError, ImportError) as error:
        raise OptionError(f"{location.shown} cannot be opened with these storage_options: {error}") from error
    except Exception as error:
        raise diagnose_error(error, access).error("", access) from error


class FileSystemStore:
    """The files below a folder of a file system of fsspec."""

    def __init__(self, access: Access, top: str, pool: Pool[Any]) -> None:
        self._access, self._top, self._pool = access, top, pool

    def get(self, name: str, *, offset: int = 0, version: str | None = None) -> Content:
        """See Store."""
        facts = self._facts(name, version)
        return Content(facts, offset, self._chunks(name, offset, facts.n_bytes))

    def get_range(self, name: str, begin: int, end: int, *, version: str | None = None) -> Part:
        """See Store."""
        facts = self._facts(name, version)
        if end > facts.n_bytes:
            raise TransferDamagedError(
                f"{self._shown(name)} has {facts.n_bytes} bytes; bytes up to {end} were asked for: was it cut?"
            )
        with self._borrowed(name) as files:
            data = bytes(files.cat_file(self._path(name), start=begin, end=end))
        if len(data) != end - begin:
            raise TransferDamagedError(
                f"{self._shown(name)}: bytes {begin} to {end} were asked for, {len(data)} came; was it cut?"
            )
        return Part(facts, data)

    def put(self, name: str, path: str, *, moved: Callable[[int], None] | None = None) -> None:
        """See Store. Is atomic only where the file system moves files, or shows them once they are closed."""
        with open_upload(path, self._shown(name)) as file:
            n_bytes = os.fstat(file.fileno()).st_size
        with self._borrowed(name) as files:
            self._put(files, self._path(name), path, _progress(moved))
        found = self.head(name)  # a read-only file system may discard the bytes
        if found.n_bytes != n_bytes:
            raise StorageError(f"{self._shown(name)}: {n_bytes} bytes were written, {found.n_bytes} are there")
        if moved is not None:
            moved(n_bytes)  # not every file system reports progress

    def _put(self, files: Any, target: str, path: str, progress: Any) -> None:
        _make_folder(files, target.rpartition("/")[0])
        if not _moves(files):
            files.put_file(path, target, callback=progress)
            return
        if files.isdir(target):  # some would move the file into the folder
            raise StorageError(f"{target} is a folder, and no file can be put there; check the path")
        temporary = temporary_beside(target)
        try:
            files.put_file(path, temporary, callback=progress)
            _replace(files, temporary, target)
        except BaseException:
            with contextlib.suppress(Exception):
                files.rm_file(temporary)
            raise

    def list(self, prefix: str = "") -> Iterator[ObjectFacts]:
        """See Store. Hidden temporaries of writers are not objects."""
        with self._borrowed(prefix) as files:
            found = files.find(self._path(prefix), detail=True)
        for path, info in found.items():
            name = path.removeprefix(self._top).lstrip("/")
            if name != prefix and not is_temporary(name):
                yield _facts_of(name, info)

    def head(self, name: str) -> ObjectFacts:
        """See Store."""
        return self._facts(name, None)

    def delete(self, name: str) -> None:
        """See Store."""
        with contextlib.suppress(ObjectMissingError), self._borrowed(name) as files:
            files.info(self._path(name))  # some raise nothing useful for a missing file
            files.rm_file(self._path(name))

    def _facts(self, name: str, version: str | None) -> ObjectFacts:
        with self._borrowed(name) as files:
            info = files.info(self._path(name))
        if info.get("type") not in ("file", None) or info.get("size") is None:
            raise ObjectMissingError(f"{self._shown(name)} is no file with a size; check the path")
        facts = _facts_of(name, info)
        if version is not None and version != facts.version:
            raise TransferDamagedError(f"{self._shown(name)} changed while it was read; check who writes to it")
        return facts

    def _chunks(self, name: str, offset: int, n_bytes: int) -> Iterator[bytes]:
        with self._borrowed(name) as files, files.open(self._path(name), "rb") as file:
            file.seek(offset)
            while offset < n_bytes and (chunk := file.read(min(_CHUNK_BYTES, n_bytes - offset))):
                offset += len(chunk)
                yield chunk

    def _path(self, name: str) -> str:
        return f"{self._top.rstrip('/')}/{name}" if name and self._top else name or self._top

    def _shown(self, name: str) -> str:
        return f"{self._access.place}/{name}"

    @contextlib.contextmanager
    def _borrowed(self, name: str) -> Iterator[Any]:
        """Borrow a file system without cached listings for a block about `name`."""
        with translating_errors(lambda error: self._translated(name, error)), self._pool.borrowed() as files:
            files.invalidate_cache()
            yield files

    def _translated(self, name: str, error: Exception) -> StorageError:
        if isinstance(error, NotImplementedError):
            return StoreCannotError(f"{self._shown(name)}: its file system has no such operation: {error}")
        return diagnose_error(error, self._access).error(name, self._access)


def _make_folder(files: Any, folder: str) -> None:
    """Make the folder if it is missing and the file system has folders."""
    try:
        files.makedirs(folder, exist_ok=True)
    except NotImplementedError:
        pass
    except Exception:  # if two threads make it at once, some file systems refuse one, each with its own error
        files.invalidate_cache()
        if not files.isdir(folder):
            raise


def _moves(files: Any) -> bool:
    """Whether the file system has a move of its own; the default of fsspec copies and deletes."""
    from fsspec.spec import AbstractFileSystem

    return type(files).mv is not AbstractFileSystem.mv


def _replace(files: Any, path: str, target: str) -> None:
    try:
        files.mv(path, target)
    except Exception as error:
        files.invalidate_cache()
        if isinstance(error, PermissionError) or not files.exists(target):
            raise
        kept = replace_in_steps(files.mv, path, target)  # some file systems do not move onto a file that exists
        with contextlib.suppress(Exception):  # the new file is in place, and the old one is hidden
            files.rm_file(kept)


def _progress(moved: Callable[[int], None] | None) -> Any:
    """Return a callback of fsspec that reports progress to `moved`."""
    from fsspec.callbacks import Callback

    return Callback(hooks={"moved": lambda size, value: moved(value)} if moved is not None else {})


def _facts_of(name: str, info: Mapping[str, Any]) -> ObjectFacts:
    size = int(info.get("size") or 0)
    content = next((str(info[key]) for key in _CONTENT if info.get(key)), None)
    if content is not None:
        return ObjectFacts(name, size, content)
    moment = next((info[key] for key in _TIMES if info.get(key) is not None), None)
    if moment is None:
        return ObjectFacts(name, size, None)
    if hasattr(moment, "timestamp"):
        moment = moment.timestamp()  # a folder may hold the number where the file has the date
    return ObjectFacts(name, size, f"{moment}-{info.get('ino', '')}-{size}")
