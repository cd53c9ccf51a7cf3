"""The objects of a bucket, through obstore, whichever cloud it is of.

obstore is native and multi-threaded: a process that used it must not fork, and a forked child must not use it. So it is
imported when the first bucket is opened, which only the fetcher does.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Iterator
from typing import Any, Final

from streaming.errors import ObjectMissingError, OptionError, StorageError, TransferDamagedError
from streaming.storage.buckets.errors import first_line, meaning_of_error
from streaming.storage.common.meaning import Asked
from streaming.storage.store import Content, ObjectFacts, Part
from streaming.storage.uploads import CountedFile

_CHUNK_BYTES: Final = 1 << 20  # also what a broken connection loses at most
_PART_BYTES: Final = 8 << 20  # of an upload
_N_PARTS: Final = 4  # in flight, per upload


class BucketStore:
    """The objects of a bucket below a prefix."""

    def __init__(self, asked: Asked, connect: Callable[[], Any], *, single_put_bytes: int = 0) -> None:
        """`connect` makes obstore's client; what it raises means settings that cannot be honoured.

        `single_put_bytes` above 0: uploads go in one request each, and may be no larger.
        """
        import obstore

        self._asked, self._obstore, self._single_put_bytes = asked, obstore, single_put_bytes
        try:
            self._client = connect()
        except Exception as error:
            raise OptionError(f"{asked.place} cannot be opened with these settings: {first_line(error)}") from None

    def get(self, name: str, *, offset: int = 0, version: str | None = None) -> Content:
        """See Store."""
        options: Any = {}
        if offset:
            options["range"] = {"offset": offset}
        if version is not None:
            options["if_match"] = version
        with self._told(name):
            result = self._obstore.get(self._client, name, options=options or None)
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
        with self._told(name):
            result = self._obstore.get(self._client, name, options=options)
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
        try:
            with open(path, "rb") as file, self._told(name):
                if self._single_put_bytes:
                    self._put_at_once(name, path, file, moved)
                    return
                counted: Any = CountedFile(file, moved)
                self._obstore.put(self._client, name, counted, chunk_size=_PART_BYTES, max_concurrency=_N_PARTS)
        except StorageError:
            raise
        except OSError as error:
            raise StorageError(f"{path} cannot be read for the upload to {self._shown(name)}: {error}") from error

    def list(self, prefix: str = "") -> Iterator[ObjectFacts]:
        """See Store."""
        with self._told(prefix):
            for batch in self._obstore.list(self._client, prefix or None):
                for meta in batch:
                    yield _facts(meta, meta["path"])

    def head(self, name: str) -> ObjectFacts:
        """See Store."""
        with self._told(name):
            return _facts(self._obstore.head(self._client, name), name)

    def delete(self, name: str) -> None:
        """See Store."""
        with contextlib.suppress(ObjectMissingError), self._told(name):
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

    def _check_version(self, facts: ObjectFacts, version: str | None) -> None:
        """For servers that do not look at If-Match."""
        if version is not None and facts.version not in (None, version):
            raise TransferDamagedError(f"{self._shown(facts.name)}: the object changed while it was read")

    def _chunks(self, name: str, stream: Iterator[Any]) -> Iterator[memoryview]:
        while True:
            with self._told(name):
                chunk = next(stream, None)
            if chunk is None:
                return
            yield memoryview(chunk)

    def _shown(self, name: str) -> str:
        return f"{self._asked.place}/{name}" if name else self._asked.place

    @contextlib.contextmanager
    def _told(self, name: str) -> Iterator[None]:
        """Errors of obstore as ours, with what was asked, where, as whom, and what to check."""
        try:
            yield
        except (StorageError, OptionError, GeneratorExit):
            raise
        except Exception as error:
            # Not "from error": the text says what there is to know; the library's own runs over a page.
            meaning = meaning_of_error(error, has_credentials=self._asked.has_credentials)
            raise meaning.error(name, self._asked) from None


def _facts(meta: Any, name: str) -> ObjectFacts:
    tag: str | None = meta["e_tag"]
    if tag and not tag.endswith('"'):  # a list of Google's has them bare
        tag = f'"{tag}"'
    return ObjectFacts(name, meta["size"], tag)
