"""`storage_options`: one vocabulary for all stores.

A name means the same wherever it is taken. What users of boto3, obstore and fsspec write is understood too, in any case
(`endpoint_url`, `AWS_ACCESS_KEY_ID`, `anon`). A name that the store does not take is refused, never ignored.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from typing import Any, Final

from streaming.errors import OptionError
from streaming.storage.schemes import scheme_named
from streaming.storage.url import Bucket, Folder, Location


class Kind(enum.Enum):
    """What a value must be; the words complete "must be …"."""

    TEXT = "a text"
    SECRET = "a text (which is not shown)"
    FLAG = "True or False"
    SECONDS = "a number of seconds above 0"
    HEADERS = "a mapping of texts to texts"


VOCABULARY: Final[Mapping[str, Kind]] = {
    "access_key_id": Kind.TEXT,
    "account_key": Kind.SECRET,
    "account_name": Kind.TEXT,
    "anonymous": Kind.FLAG,
    "ca_bundle": Kind.TEXT,
    "client_id": Kind.TEXT,
    "client_secret": Kind.SECRET,
    "connect_timeout": Kind.SECONDS,
    "endpoint": Kind.TEXT,
    "headers": Kind.HEADERS,
    "key_file": Kind.TEXT,
    "key_passphrase": Kind.SECRET,
    "known_hosts": Kind.TEXT,
    "no_proxy": Kind.TEXT,
    "password": Kind.SECRET,
    "profile": Kind.TEXT,
    "proxy": Kind.SECRET,  # may hold a password
    "query": Kind.SECRET,  # of a signed URL
    "read_timeout": Kind.SECONDS,
    "region": Kind.TEXT,
    "requester_pays": Kind.FLAG,
    "sas_token": Kind.SECRET,
    "secret_access_key": Kind.SECRET,
    "service_account_file": Kind.TEXT,
    "service_account_key": Kind.SECRET,
    "session_token": Kind.SECRET,
    "tenant_id": Kind.TEXT,
    "token": Kind.SECRET,
    "user": Kind.TEXT,
    "virtual_hosted_style": Kind.FLAG,
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
_FLAGS: Final = {"true": True, "1": True, "yes": True, "requester": True, "false": False, "0": False, "no": False}


def read_options(options: Mapping[str, Any], takes: frozenset[str], *, scheme: str) -> dict[str, Any]:
    """The options under their names in the vocabulary, checked; those that are None are left out.

    Raises OptionError for a name that the scheme does not take, and for a value that is not what the name demands. No
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
        value = _checked(given, VOCABULARY[name], value)
        if name in read and read[name] != value:
            raise OptionError(f"storage_options: {name!r} is given twice with two values, once as {given!r}")
        read[name] = value
    return read


def options_for(location: Bucket, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a stream at `location`, as its scheme's row in the table allows; see `read_options`."""
    row = scheme_named(location.scheme)
    takes = row.options if row is not None else None
    return read_options(options, takes or frozenset(), scheme=location.scheme)


def checked_options(location: Location, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """A copy of a stream's options, for those who only carry them; needs no store's client.

    Raises OptionError for what the scheme of `location` does not take, and for what cannot travel to the fetcher's
    process.
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


def _checked(given: str, kind: Kind, value: Any) -> Any:
    if kind is Kind.FLAG:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in _FLAGS:
            return _FLAGS[value.lower()]
    elif kind is Kind.SECONDS:
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e9:
            return float(value)
    elif kind is Kind.HEADERS:
        if isinstance(value, Mapping) and all(isinstance(text, str) for pair in value.items() for text in pair):
            return dict(value)
    elif isinstance(value, str) and value:
        return value
    raise OptionError(f"storage_options: {given!r} must be {kind.value}, not {_said(kind, value)}")


def _said(kind: Kind, value: Any) -> str:
    return repr(value) if kind in (Kind.FLAG, Kind.SECONDS) else f"of type {type(value).__name__}, or empty"
