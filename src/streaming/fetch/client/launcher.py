"""Starts the fetcher: one starter at a time, one new process, nobody's child."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import PathFinder
from typing import Final

from streaming.errors import FetchError
from streaming.fetch.wire.rendezvous import (
    EXIT_HELD,
    EXIT_UNUSABLE,
    PACKAGE_FOLDER,
    Rendezvous,
    RendezvousError,
    connect,
    log_tail,
    open_own,
)
from streaming.storage.registry import registered_stores

_START_S: Final = 30.0
# The packages that the fetcher needs come before site-packages (where another version may lie) and after the standard
# library; where this process looks for others comes last, so that it can hide nothing.
_BOOT: Final = """
import json, sys
a = json.loads(sys.argv[1])
i = next((i for i, p in enumerate(sys.path) if p.endswith(("site-packages", "dist-packages"))), len(sys.path))
sys.path[i:i] = a["path"]
sys.path += a["rest"]
from streaming.fetch.server.process import main
main(a["root"], a["folder"], a["name"])
"""
_KEPT_PYTHON: Final = frozenset({"PYTHONHOME", "PYTHONUTF8", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"})
_PACKAGES: Final = (
    *("numpy", "msgspec", "typing_extensions"),
    *("zstandard", "brotli", "cramjam", "xxhash"),
    *("obstore", "boto3", "urllib3", "paramiko", "cryptography", "fsspec", "hdfs_native", "huggingface_hub"),
    *("databricks", "google"),
)
"""What a fetcher may import beside the standard library, itself or through a store."""


class CannotLaunchError(FetchError):
    """This process cannot start another."""


class KilledAtStartError(Exception):
    """Something ended the fetcher before it listened; another may be started."""


@contextlib.contextmanager
def may_start(rendezvous: Rendezvous, *, force: bool) -> Iterator[bool]:
    """In the block: whether this process shall start a fetcher. True for one process at a time, if none listens.

    With `force` also if another process seems to be starting one: a fork can keep a dead starter's lock for ever.
    Raises RendezvousError if this rendezvous cannot be locked.
    """
    try:
        file = open_own(rendezvous.start, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise RendezvousError(f"{rendezvous.start}: {error}") from error
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield force
            return
        except OSError as error:
            raise RendezvousError(f"{rendezvous.start} cannot be locked: {error}") from error
        try:
            yield not _listens(rendezvous)
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # by hand: frees the copies that forks of other threads made
    finally:
        os.close(file)


def launch(rendezvous: Rendezvous, root: str | None, environment: Mapping[str, str]) -> None:
    """Start a fetcher. On return it listens, or another one holds the lock.

    Raises RendezvousError if this rendezvous cannot be used, KilledAtStartError if something ended the process, and
    FetchError with the log's last lines if it failed by itself.
    """
    # Secrets are in the environment alone: argv can be read by every user of the machine.
    others = _other_folders()
    argument = json.dumps(
        {
            "path": _module_folders(others),
            "rest": others,
            "root": root,
            "folder": rendezvous.folder,
            "name": rendezvous.name,
        }
    )
    kept = {k: v for k, v in environment.items() if not k.startswith("PYTHON") or k in _KEPT_PYTHON}
    command = [sys.executable, "-P", "-c", _BOOT, argument]
    try:
        log = open_own(rendezvous.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    except OSError as error:
        raise RendezvousError(f"{rendezvous.log}: {error}") from error
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=kept, start_new_session=True
        )
    except OSError as error:
        raise CannotLaunchError(
            f"the fetcher cannot be started: running {sys.executable!r} failed with {error}"
        ) from error
    finally:
        os.close(log)
    try:
        _wait_for_end(process.pid)
        code = process.wait(_START_S)  # of its first half, which ends when the second listens
    except subprocess.TimeoutExpired as error:
        process.kill()
        process.wait()
        raise FetchError(
            f"the fetcher did not listen within {_START_S:.0f} s; its log: {log_tail(rendezvous)}"
        ) from error
    if code == EXIT_UNUSABLE:
        raise RendezvousError(f"no lock or socket can be made in {rendezvous.folder}")
    if code < 0:
        raise KilledAtStartError(f"the fetcher was ended by signal {-code} while it started")
    if code not in (0, EXIT_HELD):
        raise FetchError(
            f"the fetcher did not start (exit {code}); the end of its log {rendezvous.log}:\n{log_tail(rendezvous)}"
        )


def _wait_for_end(pid: int) -> None:
    """Return as soon as this child ends. `Popen.wait` with a limit looks only every 50 ms."""
    try:
        watch = os.pidfd_open(pid)
    except (AttributeError, OSError):  # an old kernel, or not Linux
        return
    try:
        select.select([watch], [], [], _START_S)
    except ValueError:  # a descriptor beyond what select can hold
        return
    finally:
        os.close(watch)


def _listens(rendezvous: Rendezvous) -> bool:
    try:
        connect(rendezvous, timeout_s=1.0).close()
    except (FileNotFoundError, ConnectionError, BlockingIOError):
        return False
    except TimeoutError:  # it is there, with a full backlog
        return True
    return True


def _module_folders(others: list[str]) -> list[str]:
    """The folders of this package and of those that it needs, whatever this process did to its own search path.

    `others`: where this process finds modules, but for its script's folder.
    """
    folders = [os.path.dirname(PACKAGE_FOLDER)]
    of_user = {opener.partition(":")[0].partition(".")[0]: None for opener in registered_stores().values()}
    others = _other_folders()
    for package in (*_PACKAGES, *of_user):
        try:
            # Not in the script's folder first: what lies there may hide a package of the same name.
            found = PathFinder.find_spec(package, others) or importlib.util.find_spec(package)
        except (ImportError, ValueError):
            continue
        if found is None:
            continue
        if found.submodule_search_locations:  # a package, in one folder or in several
            folders += map(os.path.dirname, found.submodule_search_locations)
        elif found.origin is not None:
            folders.append(os.path.dirname(found.origin))
    return list(dict.fromkeys(os.path.abspath(folder) for folder in folders))


def _other_folders() -> list[str]:
    """Where else this process finds modules: PYTHONPATH, environment modules, `sys.path.append`; not the script's."""
    of_script = sys.path[:1] if not sys.flags.safe_path else []
    return [
        folder for folder in sys.path if os.path.isabs(folder) and folder not in of_script and os.path.exists(folder)
    ]
