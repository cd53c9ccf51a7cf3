"""The Databricks workspace, and the credentials for it.

A host and a token (`DATABRICKS_HOST` and `DATABRICKS_TOKEN`, or `endpoint` and `token` of storage_options) suffice. For
everything else that Databricks has (OAuth, profiles of ~/.databrickscfg, notebooks, Azure, Google), its SDK logs in
(extra `databricks`) and renews what expires.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from streaming.errors import ObjectForbiddenError, OptionError
from streaming.storage.common.extras import import_extra
from streaming.storage.common.transport import check_endpoint
from streaming.storage.web.client import Headers, HttpSettings


@dataclass(frozen=True, slots=True)
class DatabricksLogin:
    """A workspace, and the headers that hold the credentials. Its `repr` shows no secret."""

    host: str
    headers: Headers = field(repr=False)
    shown_identity: str


def databricks_login(options: Mapping[str, Any], environment: Mapping[str, str], http: HttpSettings) -> DatabricksLogin:
    """Combine checked options and variables. Raises OptionError, MissingExtraError or ObjectForbiddenError."""
    named = "`endpoint` in storage_options" if "endpoint" in options else "DATABRICKS_HOST"
    host = options.get("endpoint") or environment.get("DATABRICKS_HOST") or None
    if host is not None and "://" not in host:
        host = f"https://{host}"
    host = check_endpoint(host, named=named)
    own = {"client_id", "client_secret", "profile"} & set(options)
    token = options.get("token") or (None if own else environment.get("DATABRICKS_TOKEN"))
    if token and own:
        raise OptionError(f"storage_options: give a 'token', or {' and '.join(sorted(own))}, not both")
    if host is not None and token:
        whose = "the token of storage_options" if "token" in options else "the token DATABRICKS_TOKEN"
        return DatabricksLogin(host, {"Authorization": f"Bearer {token}"}, whose)
    return _by_sdk(host, {name: options[name] for name in own} | ({"token": token} if token else {}), http)


def _by_sdk(host: str | None, given: dict[str, Any], http: HttpSettings) -> DatabricksLogin:
    core = import_extra(
        "databricks.sdk.core", package="databricks-sdk", extra="databricks", purpose="logging in to Databricks"
    )
    try:
        config = core.Config(host=host, http_timeout_seconds=http.read_s, retry_timeout_seconds=http.read_s, **given)
    except ValueError as error:
        raise ObjectForbiddenError(
            f"no credentials for Databricks could be had: {str(error)[:500]}; set DATABRICKS_HOST and "
            "DATABRICKS_TOKEN, or log in as Databricks' SDK takes it"
        ) from error

    def headers() -> dict[str, str]:
        try:
            found = dict(config.authenticate())
        except Exception as error:  # each of its dozen ways to log in has its own
            raise ObjectForbiddenError(
                f"no credentials for {config.host} could be had by {config.auth_type}: {error}; check or renew them"
            ) from error
        if config.workspace_id:
            found["X-Databricks-Workspace-Id"] = config.workspace_id
        return found

    return DatabricksLogin(config.host.rstrip("/"), headers, f"what Databricks' SDK found ({config.auth_type})")
