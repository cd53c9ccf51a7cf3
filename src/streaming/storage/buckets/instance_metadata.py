"""Instance metadata: whether this machine belongs to a cloud, and has an identity there. No request waits above 1 s.

Without it, each request from a machine outside the cloud would wait for credentials that never come.
"""

from __future__ import annotations

import contextlib
import http.client
import urllib.parse
from collections.abc import Mapping
from typing import Final

_WAIT_S: Final = 1.0  # the service is on the machine itself, and answers at once


def has_aws_role(endpoint: str) -> bool:
    """Whether the metadata service at `endpoint` names a role."""
    lasts = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    token = _request(endpoint, "PUT", "/latest/api/token", lasts)
    if token is None:
        return False
    role = _request(endpoint, "GET", "/latest/meta-data/iam/security-credentials/", {"X-aws-ec2-metadata-token": token})
    return bool(role and role.strip())


def has_google_account(endpoint: str) -> bool:
    """Whether the metadata service at `endpoint` names a service account."""
    path = "/computeMetadata/v1/instance/service-accounts/default/email"
    return bool(_request(endpoint, "GET", path, {"Metadata-Flavor": "Google"}))


def is_azure_machine(endpoint: str) -> bool:
    """Whether the metadata service at `endpoint` is Azure's; that does not imply an identity."""
    return _request(endpoint, "GET", "/metadata/versions", {"Metadata": "true"}) is not None


def _request(endpoint: str, method: str, path: str, headers: Mapping[str, str]) -> str | None:
    """Request a page of the metadata service, past any proxy; None without an answer of status 200."""
    parts = urllib.parse.urlsplit(endpoint)
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=_WAIT_S)
        with contextlib.closing(connection):
            connection.request(method, path, headers=dict(headers))
            answer = connection.getresponse()
            text = answer.read(4096).decode("ascii", "replace")
            return text if answer.status == 200 else None
    return None
