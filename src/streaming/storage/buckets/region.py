"""In which region a bucket of AWS is, where nobody has said it: AWS tells anybody, signed or not."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from streaming.errors import StorageError
from streaming.storage.common.meaning import Asked
from streaming.storage.settings import StoreSettings
from streaming.storage.web.answers import url_of
from streaming.storage.web.client import HttpClient, HttpSettings

DEFAULT_REGION: Final = "us-east-1"

_AWS: Final = "https://s3.us-east-1.amazonaws.com"
_WAIT_S: Final = 5.0
_TELLING: Final = (301, 307, 400, 403, 404)  # refusals too name the region


def region_of(bucket: str, settings: StoreSettings, options: Mapping[str, Any], *, endpoint: str = _AWS) -> str:
    """The bucket's region; the default one if AWS cannot be asked, which the first real request will then tell."""
    asked = Asked(f"s3://{bucket}", endpoint, "no credentials, for its region", has_credentials=False)
    http = HttpSettings.of(settings, options)
    http = replace(http, connect_s=min(http.connect_s, _WAIT_S), read_s=min(http.read_s, _WAIT_S))
    with contextlib.suppress(StorageError):
        answer = HttpClient(http, asked).ask("HEAD", url_of(endpoint, bucket), takes=_TELLING)
        return answer.headers.get("x-amz-bucket-region") or DEFAULT_REGION
    return DEFAULT_REGION
