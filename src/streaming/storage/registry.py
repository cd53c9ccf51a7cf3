"""Stores that the user adds: the functions that open the URLs of a scheme.

Stores live in the fetcher, a separate process that is started by exec. It can import a function by its name, but cannot
be given an object: so a registration is two texts, which each client sends with its first message.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from streaming.errors import MissingExtraError, OptionError

_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*")
_OPENER: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")

_registered: dict[str, str] = {}


def register_store(scheme: str, opener: str) -> None:
    """Open the URLs of `scheme` by `opener`, as in `"package.module:function"`, from now on; also of a built-in scheme.

    The function takes a `Bucket` (the parsed URL) and `StoreSettings`, and returns a `Store`. It is imported and called
    in the fetcher's process, never here. Raises OptionError for anything that another process could not import.
    """
    _check_scheme(scheme)
    _check_opener(scheme, opener)
    _registered[scheme] = opener


def registered_stores() -> dict[str, str]:
    """Return the openers that were registered in this process, by scheme."""
    return dict(_registered)


def register_all(openers: Mapping[str, str]) -> None:
    """Register openers of another process. None is imported before a URL of its scheme is opened."""
    _registered.update(openers)


def load_opener(scheme: str, opener: str) -> Callable[..., Any]:
    """Import the function that `opener` names. Raises OptionError if that fails, MissingExtraError from its module."""
    module_name, _, path = opener.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except MissingExtraError:
        raise
    except (ImportError, AttributeError) as error:
        raise OptionError(
            f"the store of {scheme}:// cannot be opened: {opener!r} cannot be imported in the fetcher's process "
            f"({error}); is its package installed in this interpreter, or its folder in PYTHONPATH?"
        ) from error
    if not callable(found):
        raise OptionError(f"the store of {scheme}:// cannot be opened: {opener!r} is {found!r}, not a function")
    opener_of_scheme: Callable[..., Any] = found
    return opener_of_scheme


def _check_scheme(scheme: object) -> None:
    if not isinstance(scheme, str) or not _SCHEME.fullmatch(scheme) or scheme == "file":
        raise OptionError(
            f"{scheme!r} is no scheme of a store: lower-case letters, digits, '+', '.', '-', as in 'tape'"
        )


def _check_opener(scheme: str, opener: object) -> None:
    how = (
        f"write the function in a module that can be imported, and register its name: "
        f"register_store({scheme!r}, 'package.module:function')"
    )
    if not isinstance(opener, str):
        raise OptionError(f"{opener!r} cannot open {scheme}://: stores live in another process; {how}")
    if not _OPENER.fullmatch(opener):
        raise OptionError(f"{opener!r} does not name a function; {how}")
    top = opener.partition(":")[0].partition(".")[0]
    if top == "__main__":
        raise OptionError(f"{opener!r} cannot open {scheme}://: another process has another __main__; {how}")
    if importlib.util.find_spec(top) is None:
        raise OptionError(f"{opener!r} cannot open {scheme}://: there is no module {top!r} to import; {how}")
