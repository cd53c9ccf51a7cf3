"""`oci://bucket[@namespace]/prefix`: Oracle's Object Storage.

With a customer secret key (`OCI_ACCESS_KEY_ID` and `OCI_SECRET_ACCESS_KEY`, or in storage_options), it is reached at
its S3-compatible endpoint by the client for S3. Otherwise it is reached through its own interface with a profile of
`~/.oci/config`, as in the predecessor.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from streaming.errors import ObjectMissingError, OptionError, TransferDamagedError
from streaming.storage.buckets.s3_services import S3Service, open_s3_service
from streaming.storage.common.diagnosis import Access
from streaming.storage.common.transport import check_endpoint
from streaming.storage.oci.login import OciLogin, oci_login
from streaming.storage.options import options_for
from streaming.storage.settings import StoreSettings
from streaming.storage.store import Content, ObjectFacts, Part, Store
from streaming.storage.uploads import CountedFile, open_upload
from streaming.storage.url import Bucket
from streaming.storage.web.answers import HttpAnswer, body_of, content_of, facts_of, part_of
from streaming.storage.web.client import HttpClient, HttpSettings

_VARIABLES: Final = ("OCI_ACCESS_KEY_ID", "OCI_SECRET_ACCESS_KEY", "OCI_SESSION_TOKEN")
_BY_KEY: Final = frozenset({"access_key_id", "secret_access_key", "session_token", "anonymous"})


def open_oci(location: Bucket, settings: StoreSettings) -> Store:
    """Open `oci://`."""
    options, environment = options_for(location, settings.options), settings.environment
    if _BY_KEY & set(options) or ("profile" not in options and environment.get(_VARIABLES[0])):
        if "profile" in options:
            raise OptionError("storage_options: give keys or a 'profile', not both")
        return open_s3_service(location, oci_s3(location, options, environment), settings, options)
    login = oci_login(options, environment)
    named = "`endpoint` in storage_options"
    endpoint = check_endpoint(options.get("endpoint"), named=named)
    endpoint = endpoint or f"https://objectstorage.{login.region}.oraclecloud.com"
    access = Access(location.shown, endpoint, login.shown, has_credentials=True)
    client = HttpClient(HttpSettings.of(settings, options), access)
    return OciStore(location, endpoint, login, client, _namespace(location, environment))


def oci_s3(location: Bucket, options: Mapping[str, Any], environment: Mapping[str, str]) -> S3Service:
    """Locate Oracle's S3-compatible endpoint; each namespace and region has one."""
    endpoint = check_endpoint(options.get("endpoint"), named="`endpoint` in storage_options")
    namespace, region = _namespace(location, environment), options.get("region") or environment.get("OCI_REGION")
    if endpoint is None:
        if not namespace or not region:
            raise OptionError(
                f"{location.shown} with keys needs a namespace and a region: write oci://bucket@namespace/… or set "
                "OCI_NAMESPACE, and set OCI_REGION or `region` in storage_options"
            )
        endpoint = f"https://{namespace}.compat.objectstorage.{region}.oraclecloud.com"
    return S3Service(endpoint, region or "us-east-1", options.get("virtual_hosted_style", False), (_VARIABLES,))


def _namespace(location: Bucket, environment: Mapping[str, str]) -> str | None:
    return location.name.partition("@")[2] or environment.get("OCI_NAMESPACE") or None


class OciStore:
    """The objects of a bucket below a prefix, through Oracle's own interface."""

    def __init__(
        self, location: Bucket, endpoint: str, login: OciLogin, client: HttpClient, namespace: str | None
    ) -> None:
        """`namespace` None means that of the tenancy, which is requested once."""
        self._location, self._endpoint, self._login = location, endpoint, login
        self._client, self._namespace = client, namespace

    def get(self, name: str, *, offset: int = 0, version: str | None = None) -> Content:
        """See Store."""
        answer = self._get_answer(name, {"Range": f"bytes={offset}-"} if offset else {}, version)
        return content_of(answer, self._facts(answer, name), offset, shown=self._shown(name))

    def get_range(self, name: str, begin: int, end: int, *, version: str | None = None) -> Part:
        """See Store."""
        answer = self._get_answer(name, {"Range": f"bytes={begin}-{end - 1}"}, version)
        return part_of(answer, self._facts(answer, name), begin, end, shown=self._shown(name))

    def put(self, name: str, path: str, *, moved: Callable[[int], None] | None = None) -> None:
        """See Store."""
        with open_upload(path, self._shown(name)) as file:
            headers = {"Content-Length": str(os.fstat(file.fileno()).st_size)}
            self._request("PUT", self._object(name), name, headers=headers, body=CountedFile(file, moved)).read()

    def list(self, prefix: str = "") -> Iterator[ObjectFacts]:
        """See Store."""
        top = f"{self._location.prefix}/" if self._location.prefix else ""
        query = {"prefix": f"{top}{prefix}/" if prefix else top, "fields": "name,size,etag"}
        while True:
            words = urllib.parse.urlencode(query, quote_via=urllib.parse.quote)
            page = json.loads(self._request("GET", f"{self._bucket()}/o?{words}", prefix).read())
            for entry in page["objects"]:
                yield ObjectFacts(entry["name"][len(top) :], entry["size"], entry["etag"])
            if not page.get("nextStartWith"):
                return
            query["start"] = page["nextStartWith"]

    def head(self, name: str) -> ObjectFacts:
        """See Store."""
        return self._facts(self._request("HEAD", self._object(name), name), name)

    def delete(self, name: str) -> None:
        """See Store."""
        with contextlib.suppress(ObjectMissingError):
            self._request("DELETE", self._object(name), name).read()

    def _get_answer(self, name: str, headers: dict[str, str], version: str | None) -> HttpAnswer:
        if version is not None:
            headers = headers | {"If-Match": version}
        return self._request("GET", self._object(name), name, headers=headers)

    def _facts(self, answer: HttpAnswer, name: str) -> ObjectFacts:
        body = body_of(answer.status, answer.headers)
        if body is None or body.n_bytes is None:
            answer.close()
            raise TransferDamagedError(f"{self._shown(name)}: the store does not say how large it is")
        return facts_of(name, body.n_bytes, answer.headers)

    def _request(
        self, method: str, url: str, name: str, *, headers: Mapping[str, str] | None = None, body: Any = None
    ) -> HttpAnswer:
        signed = self._login.signed(method, url, time.time())
        return self._client.request(method, url, name=name, headers={**(headers or {}), **signed}, body=body)

    def _object(self, name: str) -> str:
        key = f"{self._location.prefix}/{name}" if self._location.prefix else name
        return f"{self._bucket()}/o/{urllib.parse.quote(key, safe='')}"

    def _bucket(self) -> str:
        if self._namespace is None:  # two threads may both request it; they get the same
            self._namespace = json.loads(self._request("GET", f"{self._endpoint}/n", "").read())
        bucket = urllib.parse.quote(self._location.name.partition("@")[0], safe="")
        return f"{self._endpoint}/n/{urllib.parse.quote(self._namespace or '', safe='')}/b/{bucket}"

    def _shown(self, name: str) -> str:
        return f"{self._location.shown}/{name}"
