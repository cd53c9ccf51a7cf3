"""The meaning of a writer's `out`, and the folder in which the writer works."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TypeAlias

from streaming.errors import DirectoryNotEmptyError, OptionError
from streaming.folder_identity import KnownFolders, is_same_folder
from streaming.storage.url import Folder, Location, looks_like_url, parse_remote

Out: TypeAlias = str | os.PathLike[str] | tuple[str | os.PathLike[str], str | os.PathLike[str]]


@dataclass(frozen=True, slots=True)
class OutputLocation:
    """`local`: the folder in which files are made, None for a temporary one. `remote`: where they go, None: nowhere.

    At least one of the two is given. Both are absolute.
    """

    local: str | None
    remote: Location | None


def parse_out(out: Out) -> OutputLocation:
    """Parse `out`: a folder, a URL, or a pair (folder, URL or folder). `~` is the home folder everywhere.

    A relative folder means the one below the present working directory, wherever the process goes later.
    Raises OptionError.
    """
    if isinstance(out, tuple | list):
        if len(out) != 2:
            raise OptionError(f"out must be a path, a URL or a pair (local, remote), got {len(out)} items")
        local, remote = _text(out[0]), _text(out[1])
        if looks_like_url(local):
            raise OptionError(f"the first of the pair out=(local, remote) must be a folder, got {local!r}")
        local = _absolute(local)
        if looks_like_url(remote):
            return OutputLocation(local, _store(remote))
        folder = _absolute(remote)
        return OutputLocation(local, None if is_same_folder(local, folder) else Folder(folder))
    place = _text(out)
    if looks_like_url(place):
        return OutputLocation(None, _store(place))
    return OutputLocation(_absolute(place), None)


def make_folder(local: str, *, exist_ok: bool) -> None:
    """Make `local` an empty folder to write into.

    With `exist_ok` whatever is in `local` is deleted. Links in it are removed, not followed; `local` must not be a
    link itself. Raises DirectoryNotEmptyError, OptionError, OSError.
    """
    if exist_ok and os.path.lexists(local):
        _empty(local)
    os.makedirs(local, exist_ok=True)
    if os.listdir(local):
        raise DirectoryNotEmptyError(
            f"Directory is not empty: {local}; choose another folder, or pass exist_ok=True to delete what is in it"
        )


def _empty(folder: str) -> None:
    if os.path.islink(folder) or not os.path.isdir(folder):
        raise OptionError(f"exist_ok=True empties a folder, and {folder} is a link or a file; give the real folder")
    if KnownFolders(["/", os.path.expanduser("~")]).has(folder):
        raise OptionError(f"exist_ok=True would delete everything in {folder}; choose a folder for the dataset alone")
    with os.scandir(folder) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)  # does not follow links either
            else:
                os.unlink(entry.path)


def _absolute(folder: str) -> str:
    return os.path.abspath(os.path.expanduser(folder))


def _store(url: str) -> Location:
    try:
        return parse_remote(url)  # its error names a scheme that only a later version can write to
    except OptionError as error:
        scheme = url.partition(":")[0].lower()
        raise OptionError(f"Invalid Cloud provider prefix: {scheme}:// cannot be written to; {error}") from error


def _text(place: object) -> str:
    if not isinstance(place, str | os.PathLike):
        raise OptionError(f"out must be a path, a URL or a pair (local, remote), got {place!r}")
    text = os.fspath(place)
    if not isinstance(text, str) or not text:
        raise OptionError(f"out must be a path, a URL or a pair (local, remote), got {place!r}")
    return text
