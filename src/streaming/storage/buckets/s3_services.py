"""Other services that speak S3's protocol: Alibaba's OSS, Cloudflare's R2, Oracle's buckets with keys.

Each has an endpoint, variables and a way to address buckets of its own. They have no roles of machines and no profiles,
so none is looked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from streaming.errors import OptionError
from streaming.storage.buckets.s3 import open_s3_bucket
from streaming.storage.buckets.s3_settings import AccessKeys, S3Identity, S3Settings
from streaming.storage.buckets.store import BucketStore
from streaming.storage.common.transport import check_endpoint
from streaming.storage.options import options_for
from streaming.storage.settings import StoreSettings
from streaming.storage.url import Bucket

_OSS_REGION: Final = re.compile(r"(?:^|[/.])oss-([a-z0-9-]+?)(?:-internal)?\.aliyuncs\.com")


@dataclass(frozen=True, slots=True)
class S3Service:
    """How a service is reached, as options and variables say."""

    endpoint: str
    region: str
    is_virtual_hosted: bool
    key_names: tuple[tuple[str, str, str], ...]  # variables of key, secret and session token; the first set ones count


def open_oss(location: Bucket, settings: StoreSettings) -> BucketStore:
    """Open `oss://`, Alibaba Cloud's Object Storage Service."""
    options = options_for(location, settings.options)
    return open_s3_service(location, oss(options, settings.environment), settings, options)


def open_r2(location: Bucket, settings: StoreSettings) -> BucketStore:
    """Open `r2://`, Cloudflare's R2."""
    options = options_for(location, settings.options)
    return open_s3_service(location, r2(options, settings.environment), settings, options)


def oss(options: Mapping[str, Any], environment: Mapping[str, str]) -> S3Service:
    """Locate OSS by endpoint (`OSS_ENDPOINT`) or region (`OSS_REGION`). It takes requests to the bucket's host only."""
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
    return S3Service(
        endpoint or f"https://s3.oss-{region}.aliyuncs.com",
        region or "us-east-1",
        options.get("virtual_hosted_style", True),
        names,
    )


def r2(options: Mapping[str, Any], environment: Mapping[str, str]) -> S3Service:
    """Locate R2 by account (`R2_ACCOUNT_ID`) or endpoint; also by the AWS variables in Cloudflare's documentation."""
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
    return S3Service(endpoint, options.get("region") or "auto", options.get("virtual_hosted_style", False), names)


def open_s3_service(
    location: Bucket, service: S3Service, settings: StoreSettings, options: dict[str, Any]
) -> BucketStore:
    """Open a bucket of the service, with the keys of options or variables, or with none."""
    keys, identity, shown = _keys(service, options, settings.environment)
    found = S3Settings(
        endpoint=service.endpoint,
        region=service.region,
        identity=identity,
        keys=keys,
        profile=None,
        metadata_endpoint="http://169.254.169.254",  # of AWS; never used, with keys or without
        requester_pays=False,
        is_virtual_hosted=service.is_virtual_hosted,
        canned_acl=None,
    )
    return open_s3_bucket(location, found, settings, options, identity=shown, is_aws=False)


def _keys(
    service: S3Service, options: Mapping[str, Any], environment: Mapping[str, str]
) -> tuple[AccessKeys | None, S3Identity, str]:
    given = {"access_key_id", "secret_access_key", "session_token"} & set(options)
    if options.get("anonymous"):
        if given:
            raise OptionError("storage_options: 'anonymous' goes with no keys")
        return None, S3Identity.ANONYMOUS, S3Identity.ANONYMOUS.value
    if given:
        if not {"access_key_id", "secret_access_key"} <= given:
            raise OptionError("storage_options: keys are an 'access_key_id' and a 'secret_access_key', both")
        keys = AccessKeys(options["access_key_id"], options["secret_access_key"], options.get("session_token"))
        return keys, S3Identity.OPTIONS, S3Identity.OPTIONS.value
    for key_id, secret, token in service.key_names:
        if environment.get(key_id) and environment.get(secret):
            keys = AccessKeys(environment[key_id], environment[secret], environment.get(token) or None)
            return keys, S3Identity.KEYS, f"the keys {key_id} and {secret} of the environment"
    key_id, secret, _ = service.key_names[0]
    return None, S3Identity.NOBODY, f"no credentials: {key_id} and {secret} are not set"


def _endpoint(options: Mapping[str, Any], environment: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    if "endpoint" in options:
        return check_endpoint(options["endpoint"], named="`endpoint` in storage_options")
    for name in names:
        if url := environment.get(name):
            return check_endpoint(url if "://" in url else f"https://{url}", named=name)
    return None
