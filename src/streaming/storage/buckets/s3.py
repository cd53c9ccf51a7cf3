"""Opening a bucket of S3, or of a service that speaks its protocol."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from streaming.errors import StorageError
from streaming.storage.buckets.aws_profile import ProfileKeys, profile_keys
from streaming.storage.buckets.client_options import NO_RETRIES, client_options
from streaming.storage.buckets.instance_metadata import has_aws_role
from streaming.storage.buckets.s3_settings import AWS_ENDPOINTS, AccessKeys, S3Identity, S3Settings, s3_settings
from streaming.storage.buckets.store import BucketStore
from streaming.storage.common.diagnosis import Access
from streaming.storage.common.transport import ca_bundle
from streaming.storage.options import options_for
from streaming.storage.settings import StoreSettings
from streaming.storage.url import Bucket
from streaming.storage.web.answers import url_of
from streaming.storage.web.client import HttpClient, HttpSettings

_ACL_BYTES: Final = 1 << 29  # of an upload with an ACL, which is one request
_AWS: Final = "https://s3.us-east-1.amazonaws.com"
_DEFAULT_REGION: Final = "us-east-1"
_REGION_S: Final = 5.0
_NAMING_REGION: Final = (301, 307, 400, 403, 404)  # refusals name the region, too


def open_s3(location: Bucket, settings: StoreSettings) -> BucketStore:
    """Open `s3://`."""
    options = options_for(location, settings.options)
    found = s3_settings(location.name, settings.environment, options, for_uploads=settings.for_uploads)
    if found.identity is S3Identity.INSTANCE and not has_aws_role(found.metadata_endpoint):
        found = replace(found, identity=S3Identity.NOBODY)
    if found.region is None and found.endpoint is None:
        found = replace(found, region=region_of(location.name, settings, options))
    if found.endpoint is None and set(AWS_ENDPOINTS) & set(settings.environment):
        found = replace(
            found, endpoint=found.shown_endpoint
        )  # else the client would take the one that is to be ignored
    return open_s3_bucket(location, found, settings, options)


def open_s3_bucket(
    location: Bucket,
    found: S3Settings,
    settings: StoreSettings,
    options: dict[str, Any],
    *,
    identity: str | None = None,
    is_aws: bool = True,
) -> BucketStore:
    """Open a bucket of S3, or of a service that speaks its protocol, with these settings.

    `identity` completes "asked with …" in errors where S3's own words would mislead. `is_aws=False` avoids requests
    that other services do not know.
    """
    provider = _provider(found)
    if isinstance(provider, ProfileKeys) and found.profile is not None:
        identity = f"the AWS profile {found.profile.name or 'default'!r} of this user ({provider.source})"
    if found.ca_bundle is not None and ca_bundle(options, settings.environment) is None:
        options = {**options, "ca_bundle": found.ca_bundle}
    access = Access(
        location.shown,
        found.shown_endpoint,
        identity or found.identity.value,
        has_credentials=found.identity.has_credentials,
    )
    # The client signs this header, as AWS demands, and sends it with every request of this store. AWS takes it with a
    # whole object, but not with a part of one: hence the single requests.
    headers = {"x-amz-acl": found.canned_acl} if found.canned_acl else None
    http = client_options(settings, options, endpoint=found.endpoint, headers=headers)
    arguments = _arguments(location, found, is_aws=is_aws)

    def connect() -> Any:
        from obstore.store import S3Store

        return S3Store(
            location.name.partition("@")[0],
            prefix=location.prefix or None,
            client_options=http,
            retry_config=NO_RETRIES,
            credential_provider=provider,
            **arguments,
        )

    return BucketStore(access, connect, single_put_bytes=_ACL_BYTES if headers else 0)


def region_of(bucket: str, settings: StoreSettings, options: Mapping[str, Any], *, endpoint: str = _AWS) -> str:
    """Ask AWS for the region of a bucket, which it tells anybody; the default if AWS cannot be reached.

    If that is wrong, the first request to the bucket says so.
    """
    access = Access(f"s3://{bucket}", endpoint, "no credentials, for its region", has_credentials=False)
    http = HttpSettings.of(settings, options)
    http = replace(http, connect_s=min(http.connect_s, _REGION_S), read_s=min(http.read_s, _REGION_S))
    with contextlib.suppress(StorageError):
        answer = HttpClient(http, access).request("HEAD", url_of(endpoint, bucket), takes=_NAMING_REGION)
        return answer.headers.get("x-amz-bucket-region") or _DEFAULT_REGION
    return _DEFAULT_REGION


def _arguments(location: Bucket, found: S3Settings, *, is_aws: bool) -> dict[str, Any]:
    """Set everything that the client would otherwise look up in its environment."""
    arguments: dict[str, Any] = {
        "region": found.region or _DEFAULT_REGION,
        "metadata_endpoint": found.metadata_endpoint,
        "skip_signature": not found.identity.has_credentials,
        "request_payer": found.requester_pays,
        "virtual_hosted_style_request": found.is_virtual_hosted,
    }
    endpoint = found.endpoint
    if endpoint is not None:
        if found.is_virtual_hosted:
            scheme, _, host = endpoint.partition("://")
            endpoint = f"{scheme}://{location.name.partition('@')[0]}.{host}"
        # Both names: the client would read the second from the environment, and prefer it.
        arguments |= {"endpoint": endpoint, "aws_endpoint_url_s3": endpoint}
    if not is_aws:
        arguments["disable_bulk_delete"] = True
    return arguments


def _provider(found: S3Settings) -> Any:
    """Return what gives the client its keys; None if it finds them by itself."""
    if found.keys is not None:
        return _StaticKeys(found.keys)
    if found.identity is S3Identity.PROFILE and found.profile is not None:
        return profile_keys(found.profile)
    return None


class _StaticKeys:
    """Gives the same keys always; without it, the client would mix them with a session token of the environment."""

    def __init__(self, keys: AccessKeys) -> None:
        self._keys = keys

    def __call__(self) -> dict[str, Any]:
        return {
            "access_key_id": self._keys.access_key_id,
            "secret_access_key": self._keys.secret_access_key,
            "token": self._keys.session_token,
            "expires_at": None,
        }
