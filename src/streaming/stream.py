"""One source of shards: the settings that the user gives, and the location that they come to."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from streaming.arguments import flag, folder, is_truth, mapping, path, place, seconds, whole
from streaming.errors import OptionError
from streaming.fetch.wire import CredentialProvider
from streaming.folder_identity import is_same_folder
from streaming.formats.names import INDEX_NAME
from streaming.order import StreamWeight
from streaming.read.streams.location import StreamLocation, private_root
from streaming.storage.options import checked_options
from streaming.storage.url import Folder, Location, location_below, parse_remote

_PLACES: Final = ("remote", "local", "split")
_FETCHING: Final = ("download_retry", "download_timeout", "validate_hash", "keep_zip")

_BY_STORE: Final = (
    "What fetches files is a store: register one for a URL scheme of yours with streaming.storage.register_store()"
)
_BY_SAMPLES: Final = "Read what samples refer to by StreamingDataset.side_files(), or override get_item()"
_BY_VALUE: Final = (
    "What turns bytes into values is an encoding: register one with streaming.formats.plugins.register_encoding()"
)
_BY_WEIGHT: Final = "Give proportion=, repeat= or choose=; StreamingDataset.draws_per_stream says what they come to"
_HOOKS: Final = {
    "_download_file": _BY_STORE,
    "get_index_size": _BY_STORE,
    "prepare_shard": f"{_BY_STORE}. {_BY_SAMPLES}",
    "_prepare_shard_part": f"{_BY_STORE}. {_BY_SAMPLES}",
    "_decompress_shard_part": _BY_VALUE,
    "get_shards": _BY_VALUE,
    "set_up_local": _BY_STORE,
    "apply_default": "Give a setting to Stream(...), or to StreamingDataset(...) for all of its streams",
    "apply_weights": _BY_WEIGHT,
    "validate_weights": _BY_WEIGHT,
}
"""Methods of a stream that the predecessor calls, and what takes their place."""


class Stream:
    """A source of shards: where they are stored, where they are cached, and how they are fetched.

    `remote` is a URL or folder, `local` the folder that caches it. Without `remote` the data is in `local`, and is read
    there and never changed. With a URL and no `local`, the cache is a private folder in the system's temporary
    directory. `split` is a sub-folder of both.

    The other settings, where left out, are those of the dataset: `download_retry` attempts per file;
    `download_timeout` in seconds; `validate_hash`, the name of a hash, None for the fastest that the index has, or
    False for none; `keep_zip` to keep compressed files beside the decompressed ones; `storage_options` for the store
    (endpoint, credentials and so on), see docs/stores.md. Among these, `credentials` may be a function without
    arguments that returns such options, with `expires_at` (seconds since 1970 or a datetime) if they expire. It is
    called in your process, when they are first needed and before they expire.

    At most one weight may be given: `proportion` (relative to the other streams'), `repeat` (multiples of the stream,
    fractions too) or `choose` (samples per epoch). Several datasets may use one stream, since none changes it;
    `draws_per_stream` of the dataset says what its weight comes to. Raises OptionError.
    """

    def __init__(
        self,
        *,
        remote: str | os.PathLike[str] | None = None,
        local: str | os.PathLike[str] | None = None,
        split: str | os.PathLike[str] | None = None,
        proportion: float | None = None,
        repeat: float | None = None,
        choose: int | None = None,
        download_retry: int | None = None,
        download_timeout: float | None = None,
        validate_hash: str | bool | None = None,
        keep_zip: bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        _refuse_hooks(type(self))
        self.remote = place("remote", remote)
        self.local = folder("local", local)
        self.split = path("split", split) or ""
        self.proportion = proportion
        self.repeat = repeat
        self.choose = choose
        self.download_retry = download_retry
        self.download_timeout = download_timeout
        self.validate_hash = validate_hash
        self.keep_zip = keep_zip
        self.storage_options = storage_options
        location_of(self)
        weight_of(self)

    def __repr__(self) -> str:
        return f"Stream({', '.join(f'{name}={value!r}' for name, value in _shown(self).items())})"


class PlacedStream(Stream):
    """A stream of a dataset as it came out: a copy of the user's that says where it lies and how it is fetched.

    `local` is the root of its cache, or the source where that is read in place; `folder` is where its files are, the
    split included. Nothing of it can be changed.
    """

    folder: str
    user: Stream
    """The stream that the user made."""

    def __init__(self, stream: Stream, location: StreamLocation, defaults: StreamDefaults) -> None:
        split = stream.split or defaults.split or ""
        folder = location.cache if location.source is None else location.source
        root = location.root if location.source is None else folder.removesuffix("/" + split.strip("/"))
        options = defaults.storage_options if stream.storage_options is None else stream.storage_options
        placed = {name: getattr(location, name) for name in _FETCHING}
        self.__dict__.update(
            {
                **vars(stream),
                **placed,
                "local": root,
                "folder": folder,
                "split": split,
                "user": stream,
                "storage_options": options,
            }
        )

    def __setattr__(self, name: str, value: Any) -> None:
        raise OptionError(
            f"{name} of a dataset's stream is fixed when the dataset is made: give it a Stream({name}={value!r}, ...)"
        )


@dataclass(frozen=True, slots=True)
class StreamDefaults:
    """The dataset's settings, for streams that leave them open."""

    split: str | None = None
    download_retry: int = 2
    download_timeout: float = 60.0
    validate_hash: str | bool | None = None
    keep_zip: bool = False
    storage_options: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, **given: Any) -> StreamDefaults:
        """Check the dataset's arguments; None stands for the default. Raises OptionError."""
        split = path("split", given.pop("split", None))
        options = mapping("storage_options", given.pop("storage_options", None))
        checked = {name: value for name, value in _checked_fetching(given).items() if value is not None}
        return cls(split=_checked_split(split or ""), storage_options=options, **checked)


def _checked_fetching(given: Mapping[str, Any]) -> dict[str, Any]:
    """How files are fetched, checked; what is None stays None. Raises OptionError."""
    checked = {name: given.get(name) for name in _FETCHING}
    if checked["download_retry"] is not None:
        checked["download_retry"] = whole("download_retry", checked["download_retry"], at_least=0)
    if checked["download_timeout"] is not None:
        checked["download_timeout"] = seconds("download_timeout", checked["download_timeout"])
    if checked["keep_zip"] is not None:
        checked["keep_zip"] = flag("keep_zip", checked["keep_zip"])
    choice = checked["validate_hash"]
    if is_truth(choice) and not choice:
        checked["validate_hash"] = False
    elif choice is not None and not isinstance(choice, str):
        raise OptionError(f"validate_hash takes the name of a hash, None or False, not {choice!r}")
    return checked


def _checked_split(split: str) -> str:
    if split and (split.startswith("/") or ".." in split.replace("\\", "/").split("/")):
        raise OptionError(f"split={split!r} must be a folder below the stream's root")
    return split


def weight_of(stream: Stream) -> StreamWeight:
    """How much of the stream an epoch takes, as the user gave it. Raises OptionError for an impossible weight."""
    choose = stream.choose
    if choose is not None:
        choose = whole("choose", choose, at_least=0)
    return StreamWeight(proportion=stream.proportion, repeat=stream.repeat, choose=choose)


def location_of(stream: Stream) -> Location | None:
    """The stream's `remote`, parsed; None if there is none. Raises OptionError for settings that cannot be meant.

    Settings are looked at when they are used, so one that was assigned to a stream takes effect.
    """
    remote, local = place("remote", stream.remote), folder("local", stream.local)
    if not remote and not local:
        raise OptionError("a stream needs `remote`, `local` or both")
    _checked_split(path("split", stream.split) or "")
    _checked_fetching(vars(stream))
    location = _parsed(remote) if remote else None
    options = mapping("storage_options", stream.storage_options)
    if options:
        if location is None:
            raise OptionError("storage_options say how `remote` is asked, and this stream has none")
        split_options(location, options)
    return location


def _shown(stream: Stream) -> dict[str, Any]:
    """The settings of a stream that say something, without secrets."""
    names = [*_PLACES, "proportion", "repeat", "choose", *_FETCHING]
    said = {name: getattr(stream, name) for name in names if getattr(stream, name) not in (None, "")}
    if stream.remote:
        said["remote"] = _parsed(stream.remote).shown
    if stream.storage_options:  # names alone: values may be secret
        said["storage_options"] = sorted(stream.storage_options)
    return said


def _refuse_hooks(kind: type[Stream]) -> None:
    """Raise OptionError for a subclass with methods that the predecessor calls and this library never does."""
    for name, remedy in _HOOKS.items():
        if any(name in vars(base) for base in kind.__mro__):
            raise OptionError(
                f"{kind.__name__}.{name}() would never be called: a stream here has settings and no methods. {remedy}"
            )


def resolve(stream: Stream, number: int, defaults: StreamDefaults) -> StreamLocation:
    """Resolve a stream's settings to its location. Touches no file, except to compare folders and their versions."""
    remote = location_of(stream)
    split = path("split", stream.split) or defaults.split or ""
    local = None if not stream.local else _absolute(os.fspath(stream.local))
    source_root: str | None = None
    if remote is None:
        assert local is not None
        source_root, remote = local, Folder(local)
    elif isinstance(remote, Folder) and (local is None or _is_source(remote.path, local, split)):
        source_root = remote.path
    is_private = source_root is not None or local is None
    if local is not None and not is_private:
        root = local
    elif isinstance(remote, Folder):
        root = private_root(_version_of(remote.path, split))
    else:
        root = private_root(str(stream.remote))
    own = {name: value for name, value in _checked_fetching(vars(stream)).items() if value is not None}
    chosen: dict[str, Any] = {name: own.get(name, getattr(defaults, name)) for name in _FETCHING}
    options, credentials = "{}", None
    if not isinstance(remote, Folder):
        given = defaults.storage_options if stream.storage_options is None else stream.storage_options
        options, credentials = split_options(remote, given or {})
    joined = location_below(remote, split)
    return StreamLocation(
        title=f"stream {number} ({joined.shown})",
        source=None if source_root is None else os.path.join(source_root, split).rstrip("/"),
        remote=joined,
        root=root,
        is_private=is_private,
        cache=os.path.join(root, split).rstrip("/"),
        options=options,
        credentials=credentials,
        **chosen,
    )


def _version_of(source: str, split: str) -> str:
    """The text of a source by whatever path, and of what is in it now: a source written anew is unpacked anew."""
    folder = os.path.realpath(os.path.join(source, split))
    try:
        found = os.stat(os.path.join(folder, INDEX_NAME))
    except OSError:  # raised when it is read
        return folder
    return f"{folder} {found.st_size} {found.st_mtime_ns}"


def _is_source(remote: str, local: str, split: str) -> bool:
    """Whether `local` is the source itself, as a whole or where the split lies."""
    return is_same_folder(remote, local) or is_same_folder(os.path.join(remote, split), os.path.join(local, split))


def split_options(remote: Location, storage_options: Mapping[str, Any]) -> tuple[str, CredentialProvider | None]:
    """Check a stream's options; return them as JSON, and the function among them that returns credentials.

    Raises OptionError.
    """
    rest = dict(storage_options)
    credentials = rest.pop("credentials", None)
    if credentials is not None and not callable(credentials):
        raise OptionError(
            "storage_options: 'credentials' must be a function that returns options such as access_key_id and "
            f"secret_access_key, not {type(credentials).__name__}; what does not change is an option of its own"
        )
    return json.dumps(checked_options(remote, rest)), credentials


def _parsed(remote: str) -> Location:
    """Parse a stream's `remote`. In a folder, `~` is the home folder."""
    location = parse_remote(remote)
    return Folder(_absolute(remote)) if isinstance(location, Folder) else location


def _absolute(folder: str) -> str:
    return os.path.abspath(os.path.expanduser(folder))
