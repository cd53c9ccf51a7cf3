"""How to reach an S3 bucket, from `storage_options` and the environment. Pure, but for a look at files.

Options win over the environment, and that over AWS's files. `S3_ENDPOINT_URL` wins over the AWS variables for an
endpoint, as in the predecessor. Everything else is named as AWS names it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from streaming.errors import OptionError
from streaming.storage.buckets.aws_profile import AwsProfile, aws_profile
from streaming.storage.common.transport import check_endpoint

AWS_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
"""Of AWS's tools, and the last of obstore and others; the client would read them, too."""


class S3Identity(enum.Enum):
    """Where the credentials come from; the value completes "asked with …"."""

    OPTIONS = "the keys of storage_options"
    ANONYMOUS = "no credentials, as `anonymous` in storage_options demands"
    UNSIGNED = "no credentials, as AWS_SKIP_SIGNATURE demands"
    KEYS = "the keys AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of the environment"
    WEB_IDENTITY = "the web identity of AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN"
    PROFILE = "the AWS profile of this user"
    CONTAINER = "the credentials of this container (AWS_CONTAINER_CREDENTIALS_…)"
    INSTANCE = "the role of this machine (instance metadata)"
    NOBODY = "no credentials: no AWS_… keys are set, no AWS profile gives any, and this machine has no role"

    @property
    def has_credentials(self) -> bool:
        """Whether requests are signed."""
        return self not in (S3Identity.ANONYMOUS, S3Identity.UNSIGNED, S3Identity.NOBODY)


@dataclass(frozen=True, slots=True)
class AccessKeys:
    """The keys that sign requests."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(repr=False, default=None)


@dataclass(frozen=True, slots=True)
class S3Settings:
    """Where the bucket is, and how to use it. Its `repr` shows no secret."""

    endpoint: str | None  # None: AWS itself
    region: str | None  # None: unknown so far
    identity: S3Identity  # INSTANCE needs a check of instance metadata
    keys: AccessKeys | None
    profile: AwsProfile | None
    metadata_endpoint: str
    requester_pays: bool
    is_virtual_hosted: bool
    canned_acl: str | None
    ca_bundle: str | None = None  # of the profile

    @property
    def shown_endpoint(self) -> str:
        """The endpoint, for messages."""
        return self.endpoint or f"https://s3.{self.region or 'us-east-1'}.amazonaws.com"


def s3_settings(
    bucket: str,
    environment: Mapping[str, str],
    options: Mapping[str, Any] | None = None,
    *,
    for_uploads: bool = False,
) -> S3Settings:
    """Combine checked options and variables for `bucket`. Raises OptionError."""
    options = options or {}
    profile = aws_profile(environment, options.get("profile"))
    identity = _identity(options, environment, profile)
    region = options.get("region") or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    return S3Settings(
        endpoint=_endpoint(options, environment, profile),
        region=region or profile.region,
        identity=identity,
        keys=_keys(identity, options, environment),
        profile=profile,
        metadata_endpoint=(
            environment.get("AWS_EC2_METADATA_SERVICE_ENDPOINT")
            or environment.get("AWS_METADATA_ENDPOINT")
            or "http://169.254.169.254"
        ).rstrip("/"),
        requester_pays=options.get(
            "requester_pays", bucket in environment.get("MOSAICML_STREAMING_AWS_REQUESTER_PAYS", "").split(",")
        ),
        is_virtual_hosted=options.get("virtual_hosted_style", profile.is_virtual_hosted),
        canned_acl=environment.get("S3_CANNED_ACL") or None if for_uploads else None,
        ca_bundle=profile.ca_bundle,
    )


def _endpoint(options: Mapping[str, Any], environment: Mapping[str, str], profile: AwsProfile) -> str | None:
    if "endpoint" in options:
        return check_endpoint(options["endpoint"], named="`endpoint` in storage_options")
    ignores = environment.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true" or profile.ignores_endpoints
    for name in ("S3_ENDPOINT_URL",) if ignores else ("S3_ENDPOINT_URL", *AWS_ENDPOINTS):
        if url := environment.get(name):
            return check_endpoint(url, named=f"the S3 endpoint {name}")
    if ignores:
        return None
    return check_endpoint(profile.endpoint, named=f"endpoint_url in {profile.config_file}")


def _identity(options: Mapping[str, Any], environment: Mapping[str, str], profile: AwsProfile) -> S3Identity:
    """Return the first source of credentials: the stream's options, then in the order of AWS's own tools."""
    given = {"access_key_id", "secret_access_key", "session_token"} & set(options)
    if options.get("anonymous"):
        if given or "profile" in options:
            raise OptionError("storage_options: 'anonymous' goes with no keys and no profile")
        return S3Identity.ANONYMOUS
    if given:
        if not {"access_key_id", "secret_access_key"} <= given or "profile" in options:
            raise OptionError(
                "storage_options: keys are an 'access_key_id' and a 'secret_access_key', both (and a 'session_token', "
                "if they are temporary), and no 'profile'"
            )
        return S3Identity.OPTIONS
    if "profile" in options:
        return S3Identity.PROFILE
    if environment.get("AWS_SKIP_SIGNATURE", "").lower() in ("1", "true", "yes", "on"):
        return S3Identity.UNSIGNED
    if environment.get("AWS_ACCESS_KEY_ID") and environment.get("AWS_SECRET_ACCESS_KEY"):
        return S3Identity.KEYS
    if environment.get("AWS_WEB_IDENTITY_TOKEN_FILE") and environment.get("AWS_ROLE_ARN"):
        return S3Identity.WEB_IDENTITY
    if profile.gives_keys:
        return S3Identity.PROFILE
    if any(environment.get(f"AWS_CONTAINER_CREDENTIALS_{kind}_URI") for kind in ("RELATIVE", "FULL")):
        return S3Identity.CONTAINER
    if environment.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return S3Identity.NOBODY
    return S3Identity.INSTANCE


def _keys(identity: S3Identity, options: Mapping[str, Any], environment: Mapping[str, str]) -> AccessKeys | None:
    if identity is S3Identity.OPTIONS:
        return AccessKeys(options["access_key_id"], options["secret_access_key"], options.get("session_token"))
    if identity is S3Identity.KEYS:
        return AccessKeys(
            environment["AWS_ACCESS_KEY_ID"],
            environment["AWS_SECRET_ACCESS_KEY"],
            environment.get("AWS_SESSION_TOKEN") or None,
        )
    return None
