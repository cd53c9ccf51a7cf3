"""`storage_options`: one vocabulary for all stores.

A name means the same for every store that takes it. The names that boto3, obstore and fsspec use are aliases, in upper
or lower case (`endpoint_url`, `AWS_ACCESS_KEY_ID`, `anon`). A name that the store does not take is an error.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from typing import Any, Final

from streaming.errors import OptionError
from streaming.storage.schemes import scheme_named
from streaming.storage.url import Bucket, Folder, Location


class OptionKind(enum.Enum):
    """What the value of an option must be; the text completes "must be …"."""

    TEXT = "a text"
    SECRET = "a text (which is not shown)"
    FLAG = "True or False"
    SECONDS = "a number of seconds above 0"
    HEADERS = "a mapping of texts to texts"


VOCABULARY: Final[Mapping[str, OptionKind]] = {
    "access_key_id": OptionKind.TEXT,
    "account_key": OptionKind.SECRET,
    "account_name": OptionKind.TEXT,
    "anonymous": OptionKind.FLAG,
    "ca_bundle": OptionKind.TEXT,
    "client_id": OptionKind.TEXT,
    "client_secret": OptionKind.SECRET,
    "connect_timeout": OptionKind.SECONDS,
    "endpoint": OptionKind.TEXT,
    "headers": OptionKind.HEADERS,
    "key_file": OptionKind.TEXT,
    "key_passphrase": OptionKind.SECRET,
    "known_hosts": OptionKind.TEXT,
    "no_proxy": OptionKind.TEXT,
    "password": OptionKind.SECRET,
    "profile": OptionKind.TEXT,
    "proxy": OptionKind.SECRET,  # may hold a password
    "query": OptionKind.SECRET,  # of a signed URL
    "read_timeout": OptionKind.SECONDS,
    "region": OptionKind.TEXT,
    "requester_pays": OptionKind.FLAG,
    "sas_token": OptionKind.SECRET,
    "secret_access_key": OptionKind.SECRET,
    "service_account_file": OptionKind.TEXT,
    "service_account_key": OptionKind.SECRET,
    "session_token": OptionKind.SECRET,
    "tenant_id": OptionKind.TEXT,
    "token": OptionKind.SECRET,
    "user": OptionKind.TEXT,
    "virtual_hosted_style": OptionKind.FLAG,
}

_ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "access_key_id": ("aws_access_key_id", "key"),
    "account_key": ("azure_storage_account_key", "azure_storage_access_key", "access_key"),
    "account_name": ("azure_storage_account_name",),
    "anonymous": ("anon", "skip_signature", "aws_skip_signature", "azure_skip_signature", "google_skip_signature"),
    "ca_bundle": ("aws_ca_bundle",),
    "client_id": ("azure_client_id", "azure_storage_client_id"),
    "client_secret": ("azure_client_secret", "azure_storage_client_secret"),
    "endpoint": (
        "endpoint_url",
        "aws_endpoint",
        "aws_endpoint_url",
        "aws_endpoint_url_s3",
        "azure_endpoint",
        "azure_storage_endpoint",
        "base_url",
        "google_base_url",
    ),
    "key_file": ("key_filename",),
    "no_proxy": ("proxy_excludes",),
    "profile": ("aws_profile", "profile_name"),
    "proxy": ("proxy_url",),
    "region": ("aws_region", "aws_default_region", "default_region", "region_name"),
    "requester_pays": ("request_payer", "aws_request_payer"),
    "sas_token": ("azure_storage_sas_token", "azure_storage_sas_key", "sas_key"),
    "secret_access_key": ("aws_secret_access_key", "secret"),
    "service_account_file": (
        "application_credentials",
        "google_application_credentials",
        "google_service_account",
        "google_service_account_path",
        "service_account",
        "service_account_path",
    ),
    "service_account_key": ("google_service_account_key",),
    "session_token": ("aws_session_token", "aws_token"),
    "tenant_id": ("azure_tenant_id", "azure_storage_tenant_id"),
    "token": ("azure_storage_token", "bearer_token", "google_bearer_token", "hf_token"),
    "user": ("username",),
    "virtual_hosted_style": ("aws_virtual_hosted_style_request", "virtual_hosted_style_request"),
}
_NAME_OF: Final = {alias: name for name, aliases in _ALIASES.items() for alias in aliases}
SECRET_OPTIONS: Final = frozenset(
    each
    for name, kind in VOCABULARY.items()
    if kind in (OptionKind.SECRET, OptionKind.HEADERS)
    for each in (name, *_ALIASES.get(name, ()))
)
"""The names of options that no message may repeat, in lower case."""
_SENT: Final = frozenset(
    {"access_key_id", "account_key", "query", "sas_token", "secret_access_key", "session_token", "token"}
)
_FLAGS: Final = {"true": True, "1": True, "yes": True, "requester": True, "false": False, "0": False, "no": False}


def read_options(options: Mapping[str, Any], takes: frozenset[str], *, scheme: str) -> dict[str, Any]:
    """Check options and return them under their names in the vocabulary, without those that are None.

    Raises OptionError for a name that the scheme does not take, and for a value of another kind than the name's. No
    message holds a value that may be secret.
    """
    read: dict[str, Any] = {}
    for given, value in options.items():
        name = _name(given)
        if name not in takes:
            raise OptionError(
                f"storage_options: {scheme}:// takes no {given!r}; it takes {', '.join(sorted(takes)) or 'none'}"
            )
        if value is None:
            continue
        value = _sendable(given, name, _checked(given, VOCABULARY[name], value))
        if name in read and read[name] != value:
            raise OptionError(f"storage_options: {name!r} is given twice with two values, once as {given!r}")
        read[name] = value
    return read


def options_for(location: Bucket, options: Mapping[str, Any]) -> dict[str, Any]:
    """Read the options of a stream at `location` against those that its scheme takes; see `read_options`."""
    row = scheme_named(location.scheme)
    takes = row.options if row is not None else None
    return read_options(options, takes or frozenset(), scheme=location.scheme)


def checked_options(location: Location, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Check a stream's options without opening its store, and return a copy to send to the fetcher.

    Raises OptionError for an option that the scheme of `location` does not take, and for one that is not JSON.
    """
    if not options:
        return {}
    _check_is_mapping(options)
    if isinstance(location, Folder):
        raise OptionError(f"storage_options: {location.path!r} is a folder, which takes none")
    row = scheme_named(location.scheme)
    if row is not None and row.options is not None:
        read_options(options, row.options, scheme=location.scheme)
    try:
        copy: dict[str, Any] = json.loads(json.dumps(dict(options), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(
            "storage_options must hold texts, numbers, True, False, None, lists and mappings of them, for they travel "
            f"to the fetcher's process; among {', '.join(sorted(options))} is something else ({type(error).__name__})"
        ) from None
    return copy


def _check_is_mapping(options: object) -> None:
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise OptionError("storage_options must be a mapping of names to values")


def _name(given: str) -> str:
    name = given.lower()
    return _NAME_OF.get(name, name)


def _sendable(given: str, name: str, value: Any) -> Any:
    """Return a value as a header can hold it: without spaces and line breaks at its ends. Raises OptionError."""
    if name == "headers":
        return {header: _sendable(given, "token", text) for header, text in value.items()}
    if name not in _SENT:
        return value
    value = value.strip()
    if not value.isprintable() or not all(ord(character) < 256 for character in value):
        raise OptionError(
            f"storage_options: {given!r} holds characters that no request can, such as line breaks; copy it anew"
        )
    return value


def _checked(given: str, kind: OptionKind, value: Any) -> Any:
    if kind is OptionKind.FLAG:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in _FLAGS:
            return _FLAGS[value.lower()]
    elif kind is OptionKind.SECONDS:
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e9:
            return float(value)
    elif kind is OptionKind.HEADERS:
        if isinstance(value, Mapping) and all(isinstance(text, str) for pair in value.items() for text in pair):
            return dict(value)
    elif isinstance(value, str) and value:
        return value
    raise OptionError(f"storage_options: {given!r} must be {kind.value}, not {_said(kind, value)}")


def _said(kind: OptionKind, value: Any) -> str:
    return repr(value) if kind in (OptionKind.FLAG, OptionKind.SECONDS) else f"of type {type(value).__name__}, or empty"
