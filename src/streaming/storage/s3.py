"""How to reach an S3 bucket, from the environment: pure.

`S3_ENDPOINT_URL` goes before the AWS variables for an endpoint, as in the predecessor. Everything else is named as AWS
names it. A variable that we know and cannot honour is refused, never ignored.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass

from streaming.errors import NotYetError, OptionError


class Identity(enum.Enum):
    """Who asks, by where the credentials come from; the value completes the sentence "asked with …"."""

    KEYS = "the keys AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of the environment"
    UNSIGNED = "no credentials, as AWS_SKIP_SIGNATURE demands"
    WEB_IDENTITY = "the web identity of AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN"
    PROFILE = "the AWS profile of this user"
    CONTAINER = "the credentials of this container (AWS_CONTAINER_CREDENTIALS_…)"
    INSTANCE = "the role of this machine (instance metadata)"
    NOBODY = "no credentials: no AWS_… keys are set, there is no profile, and this machine has no role"


@dataclass(frozen=True, slots=True)
class S3Settings:
    """Where the bucket is and how to ask it. Holds no secret."""

    endpoint: str | None  # None: AWS itself
    region: str
    identity: Identity  # INSTANCE: still to be found out, by asking the machine
    metadata_endpoint: str
    certificate_file: str | None
    requester_pays: bool

    @property
    def shown_endpoint(self) -> str:
        """The endpoint, for messages."""
        return self.endpoint or f"https://s3.{self.region}.amazonaws.com"


def s3_settings(bucket: str, environment: Mapping[str, str], *, for_uploads: bool = False) -> S3Settings:
    """How these variables say that `bucket` is reached. Raises OptionError, or NotYetError for S3_CANNED_ACL."""
    if for_uploads and environment.get("S3_CANNED_ACL"):
        # A header that AWS wants signed, and that the client library can only add unsigned.
        raise NotYetError(
            "S3_CANNED_ACL is set, and uploads with an ACL are not built yet; unset it, and give the bucket a policy "
            "(most buckets have ACLs disabled anyway)"
        )
    endpoint = next(
        (
            url
            for key in ("S3_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
            if (url := environment.get(key))
        ),
        None,
    )
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise OptionError(f"the S3 endpoint must begin with http:// or https://, got {endpoint!r}")
    return S3Settings(
        endpoint=endpoint.rstrip("/") if endpoint else None,
        region=environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1",
        identity=_identity(environment),
        metadata_endpoint=(
            environment.get("AWS_EC2_METADATA_SERVICE_ENDPOINT")
            or environment.get("AWS_METADATA_ENDPOINT")
            or "http://169.254.169.254"
        ).rstrip("/"),
        certificate_file=environment.get("AWS_CA_BUNDLE") or environment.get("REQUESTS_CA_BUNDLE") or None,
        requester_pays=bucket in environment.get("MOSAICML_STREAMING_AWS_REQUESTER_PAYS", "").split(","),
    )


def _identity(environment: Mapping[str, str]) -> Identity:
    """The first source of credentials in the order in which AWS's own tools look."""
    if environment.get("AWS_SKIP_SIGNATURE", "").lower() in ("1", "true", "yes", "on"):
        return Identity.UNSIGNED
    if environment.get("AWS_ACCESS_KEY_ID") and environment.get("AWS_SECRET_ACCESS_KEY"):
        return Identity.KEYS
    if environment.get("AWS_WEB_IDENTITY_TOKEN_FILE") and environment.get("AWS_ROLE_ARN"):
        return Identity.WEB_IDENTITY
    if environment.get("AWS_PROFILE") or os.path.isfile(_credentials_file(environment)):
        return Identity.PROFILE
    if any(environment.get(f"AWS_CONTAINER_CREDENTIALS_{kind}_URI") for kind in ("RELATIVE", "FULL")):
        return Identity.CONTAINER
    if environment.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return Identity.NOBODY
    return Identity.INSTANCE


def _credentials_file(environment: Mapping[str, str]) -> str:
    named = environment.get("AWS_SHARED_CREDENTIALS_FILE")
    return named or os.path.join(environment.get("HOME") or os.path.expanduser("~"), ".aws", "credentials")
