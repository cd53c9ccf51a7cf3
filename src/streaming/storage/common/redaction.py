"""What of a text may be shown: messages, logs and `repr` hold no password, token or signature. Pure."""

from __future__ import annotations

import base64
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

# Of a bucket, `name@place` and `?` are parts of names.
_USER_IN_URL: Final = re.compile(
    r"(\b(?:https?|s?ftp|socks\w*)://)[^\s/?#'\"<>]*@|(\b[A-Za-z][A-Za-z0-9+.-]*://)[^\s/?#:'\"<>]*:[^\s/?#'\"<>]*@",
    re.IGNORECASE,
)
_QUERY_OF_URL: Final = re.compile(r"(\bhttps?://[^\s?#'\"<>]*)\?[^\s'\"<>)]*", re.IGNORECASE)
_AUTHORITY: Final = re.compile(r"[/?#\\\s]")
_SECRET_VARIABLE: Final = re.compile(
    r"KEY|SECRET|TOKEN|PASSW|SAS|SIGNATURE|CONNECTION_STRING|CREDENTIAL", re.IGNORECASE
)
_NO_SECRET: Final = re.compile(r"_(?:FILE|PATH|ID|URI|URL|DIR)$|^HF_TOKEN_PATH$", re.IGNORECASE)
_LEAST_CHARACTERS: Final = 6
"""A shorter secret occurs by chance; without it a message would say nothing."""


def shown_url(url: str) -> str:
    """Return a URL without its user, query and fragment; of a malformed one, what is certainly harmless.

    >>> shown_url("ftp://user:word@host/x?sig=1#y")
    'ftp://host/x'
    """
    return _USER_IN_URL.sub(r"\1\2", url.partition("#")[0].partition("?")[0])


def shown_host(url: str) -> str:
    """Return scheme and host of a URL, for messages about one that is malformed: where a user ends may be unclear.

    >>> shown_host("ftp://user:word@host/x?sig=1")
    'ftp://host…'
    """
    scheme, colon, rest = url.partition("://")
    if not colon or not scheme.isalnum():
        scheme, rest = "", url
    authority = _AUTHORITY.split(rest, maxsplit=1)[0]
    host = authority.rpartition("@")[2]
    if "@" in rest[len(authority) :] or (not colon and "@" in rest):
        host = ""  # perhaps what seems to be the host is the beginning of a password
    return f"{scheme}{colon if scheme else ''}{host}…"


def without_secrets(text: str, secrets: Iterable[str] = ()) -> str:
    """Return a text without users and queries of URLs in it, and without each of `secrets` (of six characters or more).

    >>> without_secrets("at https://me:word@host/a?sig=1 with s3cr3t", ["s3cr3t"])
    'at https://host/a?… with …'
    """
    text = _QUERY_OF_URL.sub(r"\1?…", _USER_IN_URL.sub(r"\1\2", text))
    for secret in sorted(set(secrets), key=len, reverse=True):
        if len(secret) >= _LEAST_CHARACTERS:
            text = text.replace(secret, "…")
    return text


def secrets_in(options: Mapping[str, Any], names: frozenset[str]) -> Iterator[str]:
    """Yield the values of secret options, in all forms in which they are sent; `names` are those that are secret."""
    for name, value in options.items():
        if isinstance(value, Mapping):  # headers
            yield from _forms(list(value.values()))
        elif name.lower() == "proxy" and isinstance(value, str):
            yield from secrets_in_user(value.rpartition("@")[0].rpartition("/")[2])
        elif name.lower() in names or _SECRET_VARIABLE.search(name):
            yield from _forms([value])
    if isinstance(options.get("password"), str):
        yield _basic(f"{options.get('user', '')}:{options['password']}")


def secrets_in_user(user: str) -> Iterator[str]:
    """Yield the password of a URL's `user:password`, in all forms in which it is sent."""
    name, colon, password = user.partition(":")
    if colon:
        yield from (user, password, urllib.parse.unquote(password))
        yield _basic(f"{urllib.parse.unquote(name)}:{urllib.parse.unquote(password)}")


def _basic(words: str) -> str:
    """Return user and password as basic authentication sends them."""
    return base64.b64encode(words.encode()).decode()


def secrets_of_environment(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the values of variables that hold secrets, by their names; and the users of proxies."""
    for name, value in environment.items():
        if name.lower().endswith("_proxy"):
            yield from secrets_in_user(value.rpartition("@")[0].rpartition("/")[2])
        elif _SECRET_VARIABLE.search(name) and not _NO_SECRET.search(name):
            yield from _forms([value])


def _forms(values: Iterable[object]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str) and value:
            yield from (value, urllib.parse.quote(value, safe=""), urllib.parse.unquote(value))
            for part in re.split(r"[&;]", value.lstrip("?")):  # of a query, or a connection string
                yield part.partition("=")[2]
