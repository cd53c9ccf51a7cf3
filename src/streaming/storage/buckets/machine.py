"""Whether this machine is one of a cloud's and has an identity there: asked once, and not for longer than a moment.

Without this look, a machine that is none of the cloud's would wait for credentials that never come, on each request.
"""

from __future__ import annotations

import contextlib
import http.client
import urllib.parse
from collections.abc import Mapping
from typing import Final

_WAIT_S: Final = 1.0  # a machine that has a role says so at once


def has_aws_role(endpoint: str) -> bool:
    """Whether the metadata service at `endpoint` names a role."""
    lasts = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    token = _ask(endpoint, "PUT", "/latest/api/token", lasts)
    if token is None:
        return False
    role = _ask(endpoint, "GET", "/latest/meta-data/iam/security-credentials/", {"X-aws-ec2-metadata-token": token})
    return bool(role and role.strip())


def has_google_account(endpoint: str) -> bool:
    """Whether the metadata service at `endpoint` names a service account."""
    path = "/computeMetadata/v1/instance/service-accounts/default/email"
    return bool(_ask(endpoint, "GET", path, {"Metadata-Flavor": "Google"}))


def is_azure_machine(endpoint: str) -> bool:
    """Whether the metadata service at `endpoint` is Azure's; it does not say whether there is an identity."""
    return _ask(endpoint, "GET", "/metadata/versions", {"Metadata": "true"}) is not None


def _ask(endpoint: str, method: str, path: str, headers: Mapping[str, str]) -> str | None:
    """The answer, None if there is no good one. Proxies are not asked: the service is the machine's own."""
    parts = urllib.parse.urlsplit(endpoint)
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=_WAIT_S)
        with contextlib.closing(connection):
            connection.request(method, path, headers=dict(headers))
            answer = connection.getresponse()
            text = answer.read(4096).decode("ascii", "replace")
            return text if answer.status == 200 else None
    return None
