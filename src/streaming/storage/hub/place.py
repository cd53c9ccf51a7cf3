"""Which data set of the Hugging Face hub, at which revision, with which token. Pure, but for the file of a token."""

from __future__ import annotations

import contextlib
import os
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from streaming.errors import OptionError
from streaming.storage.common.transport import check_endpoint
from streaming.storage.url import Bucket

_ENDPOINT: Final = "https://huggingface.co"
_REPO: Final = re.compile(
    r"(?P<org>[^/@]+)/(?P<name>[^/@]+)"
    r"(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?"
    r"(?:/(?P<path>.*))?",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class HubPlace:
    """A folder of a data set at a revision, and how to reach it. Its `repr` shows no secret."""

    endpoint: str
    repo: str  # org/name
    revision: str
    path: str
    token: str | None = field(repr=False)
    shown_identity: str

    def __str__(self) -> str:
        return f"hf://datasets/{self.repo}@{self.revision}/{self.path}".rstrip("/")

    def in_repo(self, name: str) -> str:
        """Return the path in the repository of a name below the place."""
        return "/".join(part for part in (self.path, name) if part)


def hub_place(location: Bucket, options: Mapping[str, Any], environment: Mapping[str, str]) -> HubPlace:
    """Combine URL, checked options, which win, and variables. Raises OptionError."""
    found = _REPO.fullmatch(location.prefix)
    if location.name != "datasets" or found is None:
        raise OptionError(
            f"Unsupported remote path: {location.shown!r}; write 'hf://datasets/<org>/<name>[@<revision>]/<path>'"
        )
    named = "`endpoint` in storage_options" if "endpoint" in options else "HF_ENDPOINT"
    endpoint = check_endpoint(options.get("endpoint") or environment.get("HF_ENDPOINT") or _ENDPOINT, named=named)
    assert endpoint is not None
    token, identity = _token(options, environment)
    return HubPlace(
        endpoint,
        f"{found['org']}/{found['name']}",
        urllib.parse.unquote(found["revision"] or "main"),  # a slash in it is written %2F
        (found["path"] or "").strip("/"),
        token,
        identity,
    )


def _token(options: Mapping[str, Any], environment: Mapping[str, str]) -> tuple[str | None, str]:
    """Return the token and its source: options, environment, or the file that `hf auth login` writes."""
    if "token" in options:
        return options["token"], "the token of storage_options"
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if token := environment.get(name, "").strip():
            return token, f"the token {name}"
    cache = environment.get("XDG_CACHE_HOME") or os.path.join(
        environment.get("HOME") or os.path.expanduser("~"), ".cache"
    )
    folder = environment.get("HF_HOME") or os.path.join(cache, "huggingface")
    path = os.path.expanduser(environment.get("HF_TOKEN_PATH") or os.path.join(folder, "token"))
    with contextlib.suppress(OSError), open(path, encoding="utf-8") as file:
        if token := file.read().strip():
            return token, f"the token of {path}"
    return None, "no token (HF_TOKEN is not set, and nobody has logged in)"
