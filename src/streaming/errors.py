"""What can go wrong, as kinds that a caller can catch.

`StreamingError` is the root. Each kind is also the builtin exception that code written for the predecessor
catches at that place, so `except ValueError` and `except StreamingError` both work. A message says what happened,
to which stream, shard, sample or setting, and what to do next.
"""

from __future__ import annotations


class StreamingError(Exception):
    """Any error of this library."""


# --- what the caller asked for


class OptionError(StreamingError, ValueError):
    """A setting or argument that cannot be honoured."""


class NotYetError(StreamingError, NotImplementedError):
    """A documented setting whose effect this version does not have. Raised, so that nothing is silently ignored."""


class MissingExtraError(StreamingError, ImportError):
    """A package that is needed for this call is not installed."""

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
    """Rank and world size are contradictory, or a launcher is visible but says nothing usable."""


class StateError(StreamingError, ValueError):
    """A checkpoint state that does not belong to this dataset, or cannot take effect."""


class ClosedError(StreamingError, ValueError):
    """Something is used that was closed (ValueError, as of a closed file)."""


# --- what the bytes say


class FormatError(StreamingError, ValueError):
    """Bytes that are not what the format says: index, shard or record."""


class IndexFormatError(FormatError):
    """An `index.json` that cannot be used: damaged, of another version, hostile, or over a limit."""


class ShardDamagedError(FormatError):
    """A shard whose size, hash or offset table is wrong."""


class ValueDecodeError(FormatError):
    """A stored value that is not what the encoding of its column says."""


class UnsafeTypeError(StreamingError, ValueError):
    """A column that runs code when it is decoded, without `allow_unsafe_types=True`."""


# --- what the writer was given


class WriteError(StreamingError, RuntimeError):
    """Writing or uploading a dataset failed; no index was written."""


class EncodingNameError(StreamingError, TypeError):
    """A column encoding that does not exist."""


class EncodingConfigError(StreamingError, AssertionError, ValueError):
    """An encoding whose part after the colon makes no sense (AssertionError, as the predecessor raises)."""


class EncodingParameterError(StreamingError, AttributeError, KeyError):
    """A part after the colon for an encoding that takes none (AttributeError) or does not exist (KeyError)."""

    __str__ = Exception.__str__  # a KeyError would show its text quoted


class ValueEncodeError(StreamingError, ValueError):
    """A value that does not fit the encoding of its column."""


class ValueTypeError(StreamingError, AttributeError, TypeError):
    """A value of a type that the encoding does not take (AttributeError or TypeError, as in the predecessor)."""


class ValueRangeError(StreamingError, OverflowError):
    """A number that the encoding of its column cannot hold."""


class ColumnMissingError(StreamingError, KeyError):
    """A sample without one of the declared columns."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ColumnSizeError(StreamingError, KeyError, ValueError):
    """A value whose bytes do not fill its fixed-size column exactly (KeyError, as the predecessor raises)."""

    __str__ = Exception.__str__


class DirectoryNotEmptyError(StreamingError, FileExistsError):
    """The folder to write into already holds files."""


# --- what the world outside did


class StorageError(StreamingError, OSError):
    """A store could not do what was asked."""


class ObjectMissingError(StorageError, FileNotFoundError):
    """The object does not exist, or is hidden from these credentials."""


class ObjectForbiddenError(StorageError, PermissionError):
    """The store knows the object but refuses it to these credentials."""


class CredentialsExpiredError(ObjectForbiddenError):
    """These credentials are not valid any more (or not taken at all): new ones may be."""


class StoreMovedError(StorageError):
    """The bucket is elsewhere: another region, another endpoint."""


class StoreUnreachableError(StorageError, ConnectionError):
    """No answer from the store: wrong endpoint, no network, connection refused."""


class StoreBusyError(StorageError, ConnectionError):
    """The store asked to slow down or failed on its side (429, 5xx) until the attempts were used up."""

    retry_after_s: float | None = None  # how long it asked us to wait, where its client can tell
    is_throttled: bool = False  # it asked us to slow down; else it failed


class StoreCannotError(StorageError, NotImplementedError):
    """This kind of store has no such operation (a web server has no list, for instance)."""


class TransferDamagedError(StorageError):
    """What arrived is not what the store or the index promised: cut short, too long, wrong hash."""


class NoRoomError(StorageError):
    """The local disk has no room for a shard."""


class CacheTakenError(StorageError):
    """The cache folder is a copy of another remote."""


class CredentialsWantedError(StorageError):
    """The store cannot be asked before the user's function has given credentials. Never reaches the user."""


class CacheWriteError(StorageError):
    """This user cannot write the cache folder: what is there is read, the rest comes without it."""


class IndexMissingError(StreamingError, RuntimeError):
    """There is no `index.json` where the dataset should be (RuntimeError, as the predecessor raises)."""


class PartMissingError(ObjectMissingError, IndexMissingError):
    """An index that was to be merged is not there (RuntimeError or FileNotFoundError, as the predecessor raises)."""


class EmptyStreamError(StreamingError, RuntimeError):
    """A stream without a single sample (RuntimeError, as the predecessor raises)."""


class FetchError(StreamingError, RuntimeError):
    """The fetcher could not be started, was lost too often, or speaks another protocol."""


class DeadlineError(StreamingError, TimeoutError):
    """Something that was waited for did not come in time; the message says what."""


def _rebuild(kind: type[StreamingError], args: tuple[object, ...], state: dict[str, object]) -> StreamingError:
    """An error as it was, without running a constructor that takes other arguments."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error
