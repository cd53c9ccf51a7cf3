"""The objects of a bucket of any cloud, through obstore.

obstore is native and multi-threaded: a process that has used it must not fork, and a forked child must not use it. So
it is imported when the first bucket is opened, which only the fetcher does.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from streaming.errors import ObjectMissingError, OptionError, StorageError, TransferDamagedError
from streaming.storage.buckets.errors import diagnose_error, first_line
from streaming.storage.common.diagnosis import Access
from streaming.storage.common.packed_objects import encodings_of, part_of_content, spooled, unpacked
from streaming.storage.store import Content, ObjectFacts, Part
from streaming.storage.translation import translating_errors
from streaming.storage.uploads import CountedFile, open_upload

_CHUNK_BYTES: Final = 1 << 20  # also the most that a broken connection loses
_PART_BYTES: Final = 8 << 20  # of an upload
_N_PARTS: Final = 4  # in flight, per upload


class BucketStore:
    """The objects of a bucket below a prefix."""

    def __init__(self, access: Access, connect: Callable[[], Any], *, single_put_bytes: int = 0) -> None:
        """Make obstore's client by `connect`, whose errors become OptionError: the settings make no client.

        With `single_put_bytes` above 0, each upload is one request, of at most so many bytes.
        """
        import obstore

        self._access, self._obstore, self._single_put_bytes = access, obstore, single_put_bytes
        try:
            self._client = connect()
        except Exception as error:
            raise OptionError(f"{access.place} cannot be opened with these settings: {first_line(error)}") from None

    def get(self, name: str, *, offset: int = 0, version: str | None = None) -> Content:
        """See Store."""
        options: Any = {}
        if offset:
            options["range"] = {"offset": offset}
        if version is not None:
            options["if_match"] = version
        with self._translating_errors(name):
            try:
                result = self._obstore.get(self._client, name, options=options or None)
            except Exception as error:
                if not (offset and self._is_beyond(name, error) and self._comes_packed(name)):
                    raise
                return self._unpacked(name, offset, version)
            if _encodings(name, result):
                return self._unpacked(name, offset, version, None if offset else result)
            facts = _facts(result.meta, name)
            if result.range[0] != offset:
                raise TransferDamagedError(f"{self._shown(name)}: bytes from {offset} on were asked for, others came")
            self._check_version(facts, version)
            stream = result.stream(min_chunk_size=_CHUNK_BYTES)
        return Content(facts, offset, self._chunks(name, stream))

    def get_range(self, name: str, begin: int, end: int, *, version: str | None = None) -> Part:
        """See Store."""
        options: Any = {"range": (begin, end)}
        if version is not None:
            options["if_match"] = version
        with self._translating_errors(name):
            try:
                result = self._obstore.get(self._client, name, options=options)
            except Exception as error:
                if not (self._is_beyond(name, error) and self._comes_packed(name)):
                    raise
                result = None
            if result is None or _encodings(name, result):
                whole = self._unpacked(name, begin, version)
                return part_of_content(whole, begin, end, shown=self._shown(name))
            facts, came = _facts(result.meta, name), tuple(result.range)
            self._check_version(facts, version)
            data = bytes(result.bytes()) if came == (begin, end) else b""
        if len(data) != end - begin:
            raise TransferDamagedError(
                f"{self._shown(name)}: bytes {begin} to {end} were asked for, {came[0]} to {came[1]} of "
                f"{facts.n_bytes} came"
            )
        return Part(facts, data)

    def put(self, name: str, path: str, *, moved: Callable[[int], None] | None = None) -> None:
        """See Store."""
        with open_upload(path, self._shown(name)) as file, self._translating_errors(name):
            if self._single_put_bytes:
                self._put_at_once(name, path, file, moved)
                return
            counted: Any = CountedFile(file, moved)
            self._obstore.put(self._client, name, counted, chunk_size=_PART_BYTES, max_concurrency=_N_PARTS)

    def list(self, prefix: str = "") -> Iterator[ObjectFacts]:
        """See Store."""
        with self._translating_errors(prefix):
            for batch in self._obstore.list(self._client, prefix or None):
                for meta in batch:
                    yield _facts(meta, meta["path"])

    def head(self, name: str) -> ObjectFacts:
        """See Store."""
        with self._translating_errors(name):
            result = self._obstore.get(self._client, name, options={"head": True})
            if not _encodings(name, result):
                return _facts(result.meta, name)
            return self._unpacked(name, 0, None).facts  # the store knows the packed size only

    def delete(self, name: str) -> None:
        """See Store."""
        with contextlib.suppress(ObjectMissingError), self._translating_errors(name):
            self._obstore.delete(self._client, name)

    def _put_at_once(self, name: str, path: str, file: Any, moved: Callable[[int], None] | None) -> None:
        n_bytes = os.fstat(file.fileno()).st_size
        if n_bytes > self._single_put_bytes:
            raise OptionError(
                f"{path} has {n_bytes} bytes; with S3_CANNED_ACL a file may have {self._single_put_bytes}: make the "
                "shards smaller (size_limit), or give the bucket a policy in place of the ACL"
            )
        if n_bytes:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
                self._obstore.put(self._client, name, whole, use_multipart=False)
        else:
            self._obstore.put(self._client, name, b"", use_multipart=False)
        if moved is not None:
            moved(n_bytes)

    def _unpacked(self, name: str, offset: int, version: str | None, result: Any = None) -> Content:
        """Read a packed object to its end; it has no ranges. Requires that errors are translated."""
        if result is None:
            options: Any = {"if_match": version} if version is not None else None
            result = self._obstore.get(self._client, name, options=options)
        packed = _facts(result.meta, name)
        self._check_version(packed, version)
        chunks = self._chunks(name, result.stream(min_chunk_size=_CHUNK_BYTES))
        return spooled(
            unpacked(chunks, _encodings(name, result), shown=self._shown(name)),
            offset,
            lambda n_bytes: replace(packed, n_bytes=n_bytes),
            shown=self._shown(name),
        )

    def _comes_packed(self, name: str) -> bool:
        """Whether the store says that the object is packed."""
        return bool(_encodings(name, self._obstore.get(self._client, name, options={"head": True})))

    def _is_beyond(self, name: str, error: Exception) -> bool:
        """Whether a range was refused, as one is that lies beyond the packed size."""
        translated = self._translated(name, error)
        return isinstance(translated, TransferDamagedError) and translated.is_beyond_end

    def _check_version(self, facts: ObjectFacts, version: str | None) -> None:
        """Check the version for servers that ignore If-Match."""
        if version is not None and facts.version not in (None, version):
            raise TransferDamagedError(f"{self._shown(facts.name)}: the object changed while it was read")

    def _chunks(self, name: str, stream: Iterator[Any]) -> Iterator[memoryview]:
        while True:
            with self._translating_errors(name):
                chunk = next(stream, None)
            if chunk is None:
                return
            yield memoryview(chunk)

    def _shown(self, name: str) -> str:
        return f"{self._access.place}/{name}" if name else self._access.place

    def _translating_errors(self, name: str) -> contextlib.AbstractContextManager[None]:
        return translating_errors(lambda error: self._translated(name, error), shows_cause=False)

    def _translated(self, name: str, error: Exception) -> StorageError:
        diagnosis = diagnose_error(error, has_credentials=self._access.has_credentials)
        return diagnosis.error(name, self._access)


def _encodings(name: str, result: Any) -> tuple[str, ...]:
    return encodings_of(name, result.attributes.get("Content-Encoding"))


def _facts(meta: Any, name: str) -> ObjectFacts:
    tag: str | None = meta["e_tag"]
    if tag and not tag.endswith('"'):  # Google's lists have tags without quotes
        tag = f'"{tag}"'
    return ObjectFacts(name, meta["size"], tag, meta["last_modified"].timestamp())
