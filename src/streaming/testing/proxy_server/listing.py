"""The answer to S3's ListObjectsV2: pure."""

from __future__ import annotations

import datetime
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

_MOST: Final = 1000


@dataclass(frozen=True, slots=True)
class Listed:
    """What a list says of an object."""

    key: str
    n_bytes: int
    etag: str
    modified_s: float


def list_objects(bucket: str, objects: Sequence[Listed], query: Mapping[str, str]) -> str:
    """One page of the objects of a prefix, which come sorted by key, as XML."""
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    after = query.get("continuation-token") or query.get("start-after", "")
    most = min(_MOST, int(query.get("max-keys") or _MOST))
    shown: dict[str, Listed | None] = {}  # keys, and the folders that stand for those below them
    for each in objects:
        cut = each.key.find(delimiter, len(prefix)) if delimiter else -1
        name = each.key if cut < 0 else each.key[: cut + len(delimiter)]
        if name > after:
            shown.setdefault(name, each if cut < 0 else None)
    page = list(shown.items())[:most]
    quoted = urllib.parse.quote if query.get("encoding-type") == "url" else str
    parts = [
        _tag("Name", bucket),
        _tag("Prefix", quoted(prefix)),
        _tag("KeyCount", len(page)),
        _tag("MaxKeys", most),
        _tag("IsTruncated", "true" if len(page) < len(shown) else "false"),
        _tag("EncodingType", "url") if quoted is not str else "",
        _tag("NextContinuationToken", page[-1][0]) if page and len(page) < len(shown) else "",
    ]
    for name, found in page:
        if found is None:
            parts.append(f"<CommonPrefixes>{_tag('Prefix', quoted(name))}</CommonPrefixes>")
            continue
        moment = datetime.datetime.fromtimestamp(found.modified_s, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        facts = {"Key": quoted(name), "LastModified": moment, "ETag": found.etag, "Size": found.n_bytes}
        inside = "".join(_tag(tag, value) for tag, value in facts.items())
        parts.append(f"<Contents>{inside}<StorageClass>STANDARD</StorageClass></Contents>")
    content = "".join(parts)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{content}</ListBucketResult>'
    )


def _tag(name: str, value: object) -> str:
    return f"<{name}>{escape(str(value))}</{name}>"
