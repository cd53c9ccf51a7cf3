"""How to reach a bucket of Google, from `storage_options` and the environment. Pure, but for a look at files.

HMAC keys (`GCS_KEY` and `GCS_SECRET`, as in the predecessor) are for S3's protocol, which Google speaks too. Everything
else is Google's own chain of default credentials.
"""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from streaming.errors import OptionError
from streaming.storage.buckets.s3_settings import AccessKeys
from streaming.storage.common.transport import check_endpoint

_GOOGLE: Final = "https://storage.googleapis.com"
_CLIENT_READS: Final = frozenset({"service_account", "authorized_user"})


class GcsIdentity(enum.Enum):
    """Where the credentials come from; the value completes "asked with …"."""

    ANONYMOUS = "no credentials, as `anonymous` in storage_options demands"
    HMAC = "the HMAC keys of storage_options"
    TOKEN = "the token of storage_options"
    FILE = "the service account of storage_options"
    UNSIGNED = "no credentials, as GOOGLE_SKIP_SIGNATURE demands"
    ENVIRONMENT_HMAC = "the HMAC keys GCS_KEY and GCS_SECRET of the environment"
    ENVIRONMENT_TOKEN = "the token GOOGLE_BEARER_TOKEN"
    ENVIRONMENT_FILE = "the account that GOOGLE_SERVICE_ACCOUNT… or GOOGLE_APPLICATION_CREDENTIALS names"
    LOGIN = "this user's default credentials (gcloud auth application-default login)"
    EMULATOR = "no credentials, as for the emulator of STORAGE_EMULATOR_HOST"
    MACHINE = "the service account of this machine (metadata)"
    NOBODY = (
        "no credentials: no GCS_… or GOOGLE_… variables are set, nobody is logged in, and this is no Google machine"
    )

    @property
    def has_credentials(self) -> bool:
        """Whether requests are signed."""
        unsigned = (GcsIdentity.ANONYMOUS, GcsIdentity.UNSIGNED, GcsIdentity.EMULATOR, GcsIdentity.NOBODY)
        return self not in unsigned


@dataclass(frozen=True, slots=True)
class GcsSettings:
    """Where the bucket is, and how to use it. Its `repr` shows no secret."""

    endpoint: str
    identity: GcsIdentity  # MACHINE needs a check of instance metadata
    keys: AccessKeys | None  # of the HMAC identities
    token: str | None = field(repr=False)
    credentials: Mapping[str, str] = field(repr=False)  # as obstore names them
    needs_google_auth: str | None  # a kind of credentials file that only Google's own library reads
    metadata_endpoint: str


def gcs_settings(environment: Mapping[str, str], options: Mapping[str, Any] | None = None) -> GcsSettings:
    """Combine checked options and variables. Raises OptionError."""
    options = options or {}
    emulator = environment.get("STORAGE_EMULATOR_HOST")
    if emulator and "://" not in emulator:
        emulator = f"http://{emulator}"
    endpoint = check_endpoint(options.get("endpoint"), named="`endpoint` in storage_options")
    if endpoint is None:
        endpoint = check_endpoint(environment.get("GOOGLE_BASE_URL") or emulator or None, named="STORAGE_EMULATOR_HOST")
    identity, secrets = _from_options(options)
    if identity is None:
        identity, secrets = _from_environment(environment)
    is_hmac = "key" in secrets
    host = environment.get("GCE_METADATA_HOST") or environment.get("GCE_METADATA_ROOT")
    return GcsSettings(
        endpoint=endpoint or _GOOGLE,
        identity=identity,
        keys=AccessKeys(secrets["key"], secrets["secret"]) if is_hmac else None,
        token=secrets.get("token"),
        credentials={} if is_hmac or "token" in secrets else secrets,
        needs_google_auth=_strange_kind(secrets),
        metadata_endpoint=f"http://{host or '169.254.169.254'}",
    )


def _from_options(options: Mapping[str, Any]) -> tuple[GcsIdentity | None, dict[str, str]]:
    forms: list[tuple[GcsIdentity, dict[str, str]]] = []
    if options.get("anonymous"):
        forms.append((GcsIdentity.ANONYMOUS, {}))
    if given := {"access_key_id", "secret_access_key"} & set(options):
        if len(given) == 1:
            raise OptionError("storage_options: 'access_key_id' and 'secret_access_key' go together")
        secrets = {"key": options["access_key_id"], "secret": options["secret_access_key"]}
        forms.append((GcsIdentity.HMAC, secrets))
    if "token" in options:
        forms.append((GcsIdentity.TOKEN, {"token": options["token"]}))
    if "service_account_file" in options:
        forms.append((GcsIdentity.FILE, {"service_account": options["service_account_file"]}))
    if "service_account_key" in options:
        forms.append((GcsIdentity.FILE, {"service_account_key": options["service_account_key"]}))
    if len(forms) > 1:
        raise OptionError(
            "storage_options: give one of HMAC keys, 'token', 'service_account_file', 'service_account_key', "
            "'anonymous'"
        )
    return forms[0] if forms else (None, {})


def _from_environment(environment: Mapping[str, str]) -> tuple[GcsIdentity, dict[str, str]]:
    """Return the first credentials in the environment."""
    if environment.get("GOOGLE_SKIP_SIGNATURE", "").lower() in ("1", "true", "yes", "on"):
        return GcsIdentity.UNSIGNED, {}
    key, secret = environment.get("GCS_KEY"), environment.get("GCS_SECRET")
    if key and secret:
        return GcsIdentity.ENVIRONMENT_HMAC, {"key": key, "secret": secret}
    if token := environment.get("GOOGLE_BEARER_TOKEN"):
        return GcsIdentity.ENVIRONMENT_TOKEN, {"token": token}
    if text := environment.get("GOOGLE_SERVICE_ACCOUNT_KEY"):
        return GcsIdentity.ENVIRONMENT_FILE, {"service_account_key": text}
    for name in ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"):
        if path := environment.get(name):
            return GcsIdentity.ENVIRONMENT_FILE, {"service_account": path}
    if path := environment.get("GOOGLE_APPLICATION_CREDENTIALS"):
        return GcsIdentity.ENVIRONMENT_FILE, {"application_credentials": path}
    if os.path.isfile(path := _login_file(environment)):
        return GcsIdentity.LOGIN, {"application_credentials": path}
    if environment.get("STORAGE_EMULATOR_HOST"):
        return GcsIdentity.EMULATOR, {}
    return GcsIdentity.MACHINE, {}


def _login_file(environment: Mapping[str, str]) -> str:
    home = environment.get("HOME") or os.path.expanduser("~")
    folder = environment.get("CLOUDSDK_CONFIG") or os.path.join(home, ".config", "gcloud")
    return os.path.join(folder, "application_default_credentials.json")


def _strange_kind(secrets: Mapping[str, str]) -> str | None:
    """Return the kind of a credentials file that only Google's library reads; None for others. Raises OptionError."""
    path = secrets.get("service_account") or secrets.get("application_credentials")
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            kind = json.load(file).get("type")
    except (OSError, ValueError, AttributeError) as error:
        raise OptionError(f"{path}, named as Google's credentials, cannot be read as a JSON object: {error}") from error
    if kind in _CLIENT_READS or kind is None:
        return None
    if "service_account" in secrets:
        raise OptionError(
            f"{path} is no service account, but of the kind {kind!r}; name it in GOOGLE_APPLICATION_CREDENTIALS"
        )
    return str(kind)
