"""The kinds of errors that a caller can catch.

`StreamingError` is the root. Each kind is also the builtin exception that code written for the predecessor
catches at that place, so `except ValueError` and `except StreamingError` both work. A message says what happened,
to which stream, shard, sample or setting, and what to do next.
"""

from __future__ import annotations

import json


class StreamingError(Exception):
    """Any error of this library."""


# --- what the caller asked for


class OptionError(StreamingError, ValueError):
    """A setting or argument that is invalid."""


class NotYetError(StreamingError, NotImplementedError):
    """A documented setting whose effect this version does not have. Raised, so that nothing is silently ignored."""


class MissingExtraError(StreamingError, ImportError):
    """A package that this call needs is not installed."""

    def __init__(self, *, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed; "
            f"install it with: pip install 'streaming-dataset[{extra}]'"
        )
        self.package = package
        self.extra = extra

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__))


class SampleIndexError(StreamingError, IndexError):
    """A sample number outside the dataset."""


class WorldError(StreamingError, RuntimeError):
    """Rank and world size contradict each other, or the variables of a launcher are present but unusable."""


class StateError(StreamingError, ValueError):
    """A checkpoint state of another dataset, or one that cannot take effect."""


class WorkerError(StreamingError, RuntimeError):
    """An iterator whose workers serve another process or another iterator."""


class ClosedError(StreamingError, ValueError):
    """A closed object was used (ValueError, as for a closed file)."""


# --- what the data hold


class FormatError(StreamingError, ValueError):
    """An index, shard or record whose bytes violate the format."""


class IndexFormatError(FormatError):
    """An `index.json` that cannot be used: damaged, of another version, hostile, or over a limit."""


class IndexSyntaxError(IndexFormatError, json.JSONDecodeError):
    """An `index.json` that is no JSON: empty, cut, or another file (JSONDecodeError, as in the predecessor)."""

    doc, pos, lineno, colno = "", 0, 1, 1  # an error from the fetcher is rebuilt without its constructor

    def __init__(self, message: str) -> None:
        json.JSONDecodeError.__init__(self, message, "", 0)
        self.args = (message,)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), self.args)

    __str__ = Exception.__str__


class ShardDamagedError(FormatError):
    """A shard of a wrong size, hash or offset table."""


class ValueDecodeError(FormatError):
    """A stored value that violates the encoding of its column."""


class UnsafeTypeError(StreamingError, ValueError):
    """A column whose decoding may run any code, read without `allow_unsafe_types=True`."""


# --- what a writer was given


class WriteError(StreamingError, RuntimeError):
    """Writing or uploading a dataset failed; no index was written."""


class WriterCopyError(WriteError, TypeError):
    """A writer that was copied or pickled: one dataset has one writer, in the process that made it."""


class EncodingNameError(StreamingError, TypeError):
    """A column encoding that does not exist."""


class EncodingConfigError(StreamingError, AssertionError, ValueError):
    """An encoding whose parameter, the part after the colon, is invalid (AssertionError, as in the predecessor)."""


class EncodingParameterError(StreamingError, AttributeError, KeyError):
    """A parameter for an encoding that takes none (AttributeError) or does not exist (KeyError)."""

    __str__ = Exception.__str__  # a KeyError would quote its text


class ValueEncodeError(StreamingError, ValueError):
    """A value that the encoding of its column cannot hold."""


class ValueTypeError(StreamingError, AttributeError, TypeError):
    """A value of a type that its encoding does not take (AttributeError or TypeError, as in the predecessor)."""


class ValueRangeError(StreamingError, OverflowError):
    """A number outside the range of its encoding."""


class ColumnMissingError(StreamingError, KeyError):
    """A sample without one of the declared columns."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ColumnSizeError(StreamingError, KeyError, ValueError):
    """A value whose bytes do not fill its fixed-size column exactly (KeyError, as in the predecessor)."""

    __str__ = Exception.__str__


class DirectoryNotEmptyError(StreamingError, FileExistsError):
    """The folder to write into holds files already."""


# --- what the world outside did


class StorageError(StreamingError, OSError):
    """A store, or a disk, could not serve a request."""


class ObjectMissingError(StorageError, FileNotFoundError):
    """The object does not exist, or is hidden from these credentials."""


class ObjectForbiddenError(StorageError, PermissionError):
    """The store denies these credentials access to the object."""


class CredentialsExpiredError(ObjectForbiddenError):
    """These credentials have expired or are not accepted; new ones may help."""


class StoreMovedError(StorageError):
    """The bucket is in another region, or at another endpoint."""


class StoreUnreachableError(StorageError, ConnectionError):
    """The store does not answer: wrong endpoint, no network, or connection refused."""


class StoreBusyError(StorageError, ConnectionError):
    """The store asked to slow down, or failed on its side (429, 5xx), until all attempts were used up."""

    retry_after_s: float | None = None  # the wait that it asked for, None if it named none or its client hides it
    is_throttled: bool = False  # whether it asked to slow down; else it failed


class StoreCannotError(StorageError, NotImplementedError):
    """This kind of store lacks the operation (a web server has no list, for instance)."""


class TransferDamagedError(StorageError):
    """The bytes that arrived are not those that the store or the index states: too few, too many, or a wrong hash."""

    is_beyond_end: bool = False  # whether the store refused the range, as one that the object does not have


class NoRoomError(StorageError):
    """The local disk has no room for a shard."""


class CacheTakenError(StorageError):
    """The cache folder is a copy of another remote."""


class RemoteChangedError(StorageError):
    """The remote was written anew while a run reads it; what comes now belongs to another version of the dataset."""


class CredentialsWantedError(StorageError):
    """A transfer needs credentials from the user's function first. For use between fetcher and client only."""


class CacheWriteError(StorageError):
    """This user cannot write the cache folder. Its files are read; all else is fetched without it."""


class IndexMissingError(StreamingError, FileNotFoundError, RuntimeError):
    """There is no `index.json` where the dataset should be (RuntimeError, FileNotFoundError for a LocalDataset)."""


class PartMissingError(ObjectMissingError, IndexMissingError):
    """An index to merge is missing (RuntimeError or FileNotFoundError, as in the predecessor)."""


class EmptyStreamError(StreamingError, RuntimeError):
    """A stream without samples (RuntimeError, as in the predecessor)."""


class FetchError(StreamingError, RuntimeError):
    """The fetcher could not be started, died too often, or speaks another protocol."""


class DeadlineError(StreamingError, TimeoutError):
    """A wait took too long; the message says for what."""


def _rebuild(kind: type[StreamingError], args: tuple[object, ...], state: dict[str, object]) -> StreamingError:
    """Rebuild a pickled error without its constructor, which may take other arguments."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error
