"""The XML with which S3 answers ListObjectsV2."""

from __future__ import annotations

import datetime
import urllib.parse
from collections.abc import Iterable, Mapping
from typing import Final
from xml.sax.saxutils import escape

from streaming.testing.proxy_server.objects import OriginObject

_PAGE_KEYS: Final = 1000


def list_objects(bucket: str, objects: Iterable[OriginObject], query: Mapping[str, str]) -> str:
    """One page of `objects`, all those with the queried prefix, sorted by key."""
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    after = query.get("continuation-token") or query.get("start-after", "")
    most = min(_PAGE_KEYS, int(query.get("max-keys") or _PAGE_KEYS))
    shown: dict[str, OriginObject | None] = {}  # keys, and folders (None) in place of the keys below them
    for each in objects:
        cut = each.key.find(delimiter, len(prefix)) if delimiter else -1
        name = each.key if cut < 0 else each.key[: cut + len(delimiter)]
        if name > after:
            shown.setdefault(name, each if cut < 0 else None)
    page = list(shown.items())[:most]
    quoted = urllib.parse.quote if query.get("encoding-type") == "url" else str
    tags: dict[str, object] = {
        "Name": bucket,
        "Prefix": quoted(prefix),
        "EncodingType": "" if quoted is str else "url",
        "KeyCount": len(page),
        "MaxKeys": most,
        "IsTruncated": "true" if len(page) < len(shown) else "false",
        "NextContinuationToken": page[-1][0] if len(page) < len(shown) else "",
    }
    entries = "".join(_entry(quoted(name), found) for name, found in page)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"{_tagged(tags)}{entries}</ListBucketResult>"
    )


def _entry(name: str, found: OriginObject | None) -> str:
    if found is None:
        return f"<CommonPrefixes>{_tagged({'Prefix': name})}</CommonPrefixes>"
    moment = datetime.datetime.fromtimestamp(found.modified_s, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    size = len(found.content)
    return f"<Contents>{_tagged({'Key': name, 'LastModified': moment, 'ETag': found.etag, 'Size': size})}</Contents>"


def _tagged(tags: Mapping[str, object]) -> str:
    """The tags that have a value."""
    return "".join(f"<{tag}>{escape(str(value))}</{tag}>" for tag, value in tags.items() if value != "")
