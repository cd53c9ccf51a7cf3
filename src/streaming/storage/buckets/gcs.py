"""Opening a bucket of Google Cloud Storage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from streaming.errors import MissingExtraError, ObjectForbiddenError, OptionError
from streaming.storage.buckets.client_options import NO_RETRIES, client_options
from streaming.storage.buckets.gcs_settings import GcsIdentity, GcsSettings, gcs_settings
from streaming.storage.buckets.instance_metadata import has_google_account
from streaming.storage.buckets.s3 import open_s3_bucket
from streaming.storage.buckets.s3_settings import S3Identity, S3Settings
from streaming.storage.buckets.store import BucketStore
from streaming.storage.common.diagnosis import Access
from streaming.storage.options import options_for
from streaming.storage.settings import StoreSettings
from streaming.storage.url import Bucket

_SCOPE: Final = "https://www.googleapis.com/auth/devstorage.read_write"


def open_gcs(location: Bucket, settings: StoreSettings) -> BucketStore:
    """Open `gs://` and `gcs://`."""
    options = options_for(location, settings.options)
    found = gcs_settings(settings.environment, options)
    if found.identity is GcsIdentity.MACHINE and not has_google_account(found.metadata_endpoint):
        found = replace(found, identity=GcsIdentity.NOBODY)
    if found.keys is not None:
        return open_s3_bucket(location, _as_s3(found), settings, options, identity=found.identity.value, is_aws=False)
    if settings.for_uploads and not found.identity.has_credentials and found.identity is not GcsIdentity.EMULATOR:
        raise OptionError(
            f"{location.shown} cannot be written to with {found.identity.value}; Google takes no such uploads"
        )
    access = Access(
        location.shown, found.endpoint, found.identity.value, has_credentials=found.identity.has_credentials
    )
    # Else Google would unpack such objects itself, and then serve no ranges and state no length.
    http = client_options(settings, options, endpoint=found.endpoint, headers={"Accept-Encoding": "gzip"})
    provider = _provider(found)

    def connect() -> Any:
        from obstore.store import GCSStore

        return GCSStore(
            location.name,
            prefix=location.prefix or None,
            client_options=http,
            retry_config=NO_RETRIES,
            credential_provider=provider,
            **_arguments(found),
        )

    return BucketStore(access, connect)


def _as_s3(found: GcsSettings) -> S3Settings:
    """Return settings for the same bucket through S3's protocol, which HMAC keys are for."""
    return S3Settings(
        endpoint=found.endpoint,
        region="auto",
        identity=S3Identity.OPTIONS,
        keys=found.keys,
        profile=None,
        metadata_endpoint=found.metadata_endpoint,
        requester_pays=False,
        is_virtual_hosted=False,
        canned_acl=None,
    )


def _arguments(found: GcsSettings) -> dict[str, Any]:
    arguments: dict[str, Any] = {"base_url": found.endpoint, "skip_signature": not found.identity.has_credentials}
    if found.needs_google_auth is None:
        arguments |= found.credentials
    if found.identity is GcsIdentity.EMULATOR:  # the client would request a token of the machine for uploads
        arguments["skip_signature"] = False
    return arguments


def _provider(found: GcsSettings) -> Any:
    """Return what gives the client its token; None if it finds one by itself."""
    if found.token is not None or found.identity is GcsIdentity.EMULATOR:
        token = found.token or "emulator"
        return lambda: {"token": token, "expires_at": None}
    if found.needs_google_auth is None:
        return None
    try:
        import google.auth
        import google.auth.transport.requests
        from obstore.auth.google import GoogleCredentialProvider
    except ImportError as error:
        raise MissingExtraError(
            package="google-auth",
            extra="gcs",
            purpose=f"reading Google credentials of the kind {found.needs_google_auth!r}",
        ) from error
    try:
        credentials, _ = google.auth.default(scopes=[_SCOPE])
        return GoogleCredentialProvider(credentials)
    except Exception as error:
        raise ObjectForbiddenError(f"Google's library finds no credentials: {error}") from error
