"""Services that speak S3's protocol under names of their own: Alibaba's OSS, Cloudflare's R2, Oracle's buckets by key.

Each is `s3_settings` in other words: its endpoint, its variables, how it wants buckets addressed. What a service does
not have (roles of machines, profiles) is not asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from streaming.errors import OptionError
from streaming.storage.buckets.s3 import open_s3_bucket
from streaming.storage.buckets.s3_settings import Identity, Keys, S3Settings
from streaming.storage.buckets.store import BucketStore
from streaming.storage.common.transport import check_endpoint
from streaming.storage.options import options_for
from streaming.storage.settings import StoreSettings
from streaming.storage.url import Bucket

_OSS_REGION: Final = re.compile(r"(?:^|[/.])oss-([a-z0-9-]+?)(?:-internal)?\.aliyuncs\.com")


@dataclass(frozen=True, slots=True)
class S3Alike:
    """How a service is reached, found from options and variables."""

    endpoint: str
    region: str
    is_virtual_hosted: bool
    key_names: tuple[tuple[str, str, str], ...]  # variables of key, secret and session token; the first that are set


def open_oss(location: Bucket, settings: StoreSettings) -> BucketStore:
    """An Opener, for `oss://`: Alibaba Cloud's Object Storage Service."""
    options = options_for(location, settings.options)
    return open_alike(location, oss(options, settings.environment), settings, options)


def open_r2(location: Bucket, settings: StoreSettings) -> BucketStore:
    """An Opener, for `r2://`: Cloudflare's R2."""
    options = options_for(location, settings.options)
    return open_alike(location, r2(options, settings.environment), settings, options)


def oss(options: Mapping[str, Any], environment: Mapping[str, str]) -> S3Alike:
    """By endpoint (`OSS_ENDPOINT`) or region (`OSS_REGION`). OSS takes requests to the bucket's own host only."""
    endpoint = _endpoint(options, environment, ("OSS_ENDPOINT",))
    found = _OSS_REGION.search(endpoint or "")
    region = options.get("region") or environment.get("OSS_REGION") or (found[1] if found else "")
    region = region.removeprefix("oss-")
    if endpoint is None and not region:
        raise OptionError(
            "oss:// needs a region or an endpoint: set OSS_REGION (as in 'cn-hangzhou') or OSS_ENDPOINT, or `region` "
            "or `endpoint` in storage_options"
        )
    names = (
        ("OSS_ACCESS_KEY_ID", "OSS_ACCESS_KEY_SECRET", "OSS_SESSION_TOKEN"),
        ("ALIBABA_CLOUD_ACCESS_KEY_ID", "ALIBABA_CLOUD_ACCESS_KEY_SECRET", "ALIBABA_CLOUD_SECURITY_TOKEN"),
    )
    return S3Alike(
        endpoint or f"https://s3.oss-{region}.aliyuncs.com",
        region or "us-east-1",
        options.get("virtual_hosted_style", True),
        names,
    )


def r2(options: Mapping[str, Any], environment: Mapping[str, str]) -> S3Alike:
    """By account (`R2_ACCOUNT_ID`), or by endpoint; also with the AWS variables that Cloudflare's pages tell to set."""
    endpoint = _endpoint(options, environment, ("R2_ENDPOINT_URL",))
    account = environment.get("R2_ACCOUNT_ID") or environment.get("CLOUDFLARE_ACCOUNT_ID")
    if endpoint is None and account:
        endpoint = f"https://{account}.r2.cloudflarestorage.com"
    if endpoint is None:
        endpoint = _endpoint({}, environment, ("S3_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"))
    if endpoint is None:
        raise OptionError(
            "r2:// needs an account: set R2_ACCOUNT_ID or R2_ENDPOINT_URL, or `endpoint` in storage_options"
        )
    names = (
        ("R2_ACCESS_KEY_ID", "R2_SECRET_ACCESS_KEY", "R2_SESSION_TOKEN"),
        ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    )
    return S3Alike(endpoint, options.get("region") or "auto", options.get("virtual_hosted_style", False), names)


def open_alike(location: Bucket, alike: S3Alike, settings: StoreSettings, options: dict[str, Any]) -> BucketStore:
    """The bucket of such a service, asked with the keys that options or variables hold, or with none."""
    keys, identity, shown = _keys(alike, options, settings.environment)
    found = S3Settings(
        endpoint=alike.endpoint,
        region=alike.region,
        identity=identity,
        keys=keys,
        profile=None,
        metadata_endpoint="http://169.254.169.254",  # of AWS; with keys or without, nobody asks it
        requester_pays=False,
        is_virtual_hosted=alike.is_virtual_hosted,
        canned_acl=None,
    )
    return open_s3_bucket(location, found, settings, options, identity=shown, is_aws=False)


def _keys(
    alike: S3Alike, options: Mapping[str, Any], environment: Mapping[str, str]
) -> tuple[Keys | None, Identity, str]:
    given = {"access_key_id", "secret_access_key", "session_token"} & set(options)
    if options.get("anonymous"):
        if given:
            raise OptionError("storage_options: 'anonymous' goes with no keys")
        return None, Identity.ANONYMOUS, Identity.ANONYMOUS.value
    if given:
        if not {"access_key_id", "secret_access_key"} <= given:
            raise OptionError("storage_options: keys are an 'access_key_id' and a 'secret_access_key', both")
        keys = Keys(options["access_key_id"], options["secret_access_key"], options.get("session_token"))
        return keys, Identity.OPTIONS, Identity.OPTIONS.value
    for key_id, secret, token in alike.key_names:
        if environment.get(key_id) and environment.get(secret):
            keys = Keys(environment[key_id], environment[secret], environment.get(token) or None)
            return keys, Identity.KEYS, f"the keys {key_id} and {secret} of the environment"
    key_id, secret, _ = alike.key_names[0]
    return None, Identity.NOBODY, f"no credentials: {key_id} and {secret} are not set"


def _endpoint(options: Mapping[str, Any], environment: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    if "endpoint" in options:
        return check_endpoint(options["endpoint"], named="`endpoint` in storage_options")
    for name in names:
        if url := environment.get(name):
            return check_endpoint(url if "://" in url else f"https://{url}", named=name)
    return None
