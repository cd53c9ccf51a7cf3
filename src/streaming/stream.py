"""One source of shards: the settings that the user gives, and the location that they come to."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streaming.errors import OptionError
from streaming.fetch.wire import CredentialProvider
from streaming.folder_identity import is_same_folder
from streaming.order import StreamWeight
from streaming.read.streams.location import StreamLocation, private_root
from streaming.storage.options import checked_options
from streaming.storage.url import Folder, Location, location_below, parse_remote


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
        remote: str | None = None,
        local: str | None = None,
        split: str | None = None,
        proportion: float | None = None,
        repeat: float | None = None,
        choose: int | None = None,
        download_retry: int | None = None,
        download_timeout: float | None = None,
        validate_hash: str | bool | None = None,
        keep_zip: bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.remote = None if remote is None else os.fspath(remote)
        self.local = None if local is None else os.fspath(local)
        self.split = split or ""
        self.proportion = proportion
        self.repeat = repeat
        self.choose = choose
        self.download_retry = download_retry
        self.download_timeout = download_timeout
        self.validate_hash = validate_hash
        self.keep_zip = keep_zip
        self.storage_options = storage_options
        self.location = _location_of(self.remote) if self.remote else None
        """`remote`, parsed; None if there is none."""
        self._check()

    def _check(self) -> None:
        if not self.remote and not self.local:
            raise OptionError("a stream needs `remote`, `local` or both")
        parts = self.split.replace("\\", "/").split("/")
        if self.split and (self.split.startswith("/") or ".." in parts):
            raise OptionError(f"split={self.split!r} must be a folder below the stream's root")
        self.weight  # noqa: B018  raises for a weight that is impossible
        _check_fetching(self.download_retry, self.download_timeout, self.validate_hash)
        if self.storage_options:
            if not self.remote:
                raise OptionError("storage_options say how `remote` is asked, and this stream has none")
            assert self.location is not None
            split_options(self.location, self.storage_options)

    @property
    def weight(self) -> StreamWeight:
        """How much of the stream an epoch takes, as the user gave it. Raises OptionError for an impossible weight."""
        return StreamWeight(proportion=self.proportion, repeat=self.repeat, choose=self.choose)

    def __repr__(self) -> str:
        said = {name: value for name, value in vars(self).items() if value not in (None, "") and name != "location"}
        if self.location is not None:
            said["remote"] = self.location.shown
        if self.storage_options:  # names alone: values may be secret
            said["storage_options"] = sorted(self.storage_options)
        return f"Stream({', '.join(f'{name}={value!r}' for name, value in said.items())})"


@dataclass(frozen=True, slots=True)
class StreamDefaults:
    """The dataset's settings, for streams that leave them open."""

    split: str | None = None
    download_retry: int = 2
    download_timeout: float = 60.0
    validate_hash: str | bool | None = None
    keep_zip: bool = False
    storage_options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        _check_fetching(self.download_retry, self.download_timeout, self.validate_hash)


def _check_fetching(
    download_retry: int | None, download_timeout: float | None, validate_hash: str | bool | None
) -> None:
    if download_retry is not None and download_retry < 0:
        raise OptionError(f"download_retry must be 0 or more, got {download_retry}")
    if download_timeout is not None and not download_timeout > 0:
        raise OptionError(f"download_timeout must be above 0 seconds, got {download_timeout}")
    if validate_hash is True:
        raise OptionError("validate_hash takes the name of a hash, None or False, not True")


def resolve(stream: Stream, number: int, defaults: StreamDefaults) -> StreamLocation:
    """Resolve a stream's settings to its location. Touches no file, except to compare `remote` and `local`."""
    split = stream.split or defaults.split or ""
    remote = stream.location
    local = None if not stream.local else _absolute(stream.local)
    source_root: str | None = None
    if remote is None:
        assert local is not None
        source_root, remote = local, Folder(local)
    elif isinstance(remote, Folder) and (local is None or _is_source(remote.path, local, split)):
        source_root = remote.path
    is_private = source_root is not None or local is None
    root = (
        local
        if local is not None and not is_private
        else private_root(str(remote) if isinstance(remote, Folder) else str(stream.remote))
    )
    chosen: dict[str, Any] = {
        name: getattr(defaults, name) if getattr(stream, name) is None else getattr(stream, name)
        for name in ("download_retry", "download_timeout", "validate_hash", "keep_zip")
    }
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


def _location_of(remote: str) -> Location:
    """Parse a stream's `remote`. In a folder, `~` is the home folder."""
    location = parse_remote(remote)
    return Folder(_absolute(remote)) if isinstance(location, Folder) else location


def _absolute(folder: str) -> str:
    return os.path.abspath(os.path.expanduser(folder))
