"""Buckets through obstore: the only file that knows it.

obstore is native and multi-threaded: a process that used it must not fork, and a forked child must not use it. So it is
imported when the first bucket is opened, which only the fetcher does. Its own retries are off (who calls a store counts
attempts) and its errors, which are sentences, become ours here.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from streaming.errors import (
    MissingExtraError,
    NoRoomError,
    NotYetError,
    ObjectForbiddenError,
    ObjectMissingError,
    OptionError,
    StorageError,
    StoreBusyError,
    StoreUnreachableError,
    TransferDamagedError,
)
from streaming.storage.s3 import Identity, S3Settings, s3_settings
from streaming.storage.settings import StoreSettings
from streaming.storage.store import Content, ObjectFacts, Part
from streaming.storage.url import Bucket

if TYPE_CHECKING:
    from obstore.store import S3Store

_CHUNK_BYTES: Final = 1 << 20  # also what a broken connection loses at most
_PART_BYTES: Final = 8 << 20  # of an upload
_N_PARTS: Final = 4  # in flight, per upload
_CONNECT_S: Final = 10.0
_METADATA_S: Final = 1.0  # a machine that has a role says so at once
_WHOLE_S: Final = 7 * 24 * 3600.0  # a transfer may take long, as long as it moves

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>([^<]{1,100})</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]{1,300})</Message>")
_OF_CREDENTIALS: Final = re.compile(r"Error performing [A-Z]+ \S*(?:/latest/(?:api|meta-data)/|//169\.254\.|//sts\.)")


def open_s3(location: Bucket, settings: StoreSettings) -> BucketStore:
    """An Opener."""
    if settings.options:
        raise NotYetError("storage_options are not built yet")
    return open_bucket(location, settings.environment, timeout_s=settings.timeout_s, for_uploads=settings.for_uploads)


def open_bucket(
    location: Bucket, environment: Mapping[str, str], *, timeout_s: float, for_uploads: bool = False
) -> BucketStore:
    """The store at `location`. Raises OptionError, NotYetError or MissingExtraError for what cannot be honoured.

    A connection must be made, and each next piece come, in a share of `timeout_s`, so that several tries fit into it.
    """
    settings = s3_settings(location.name, environment, for_uploads=for_uploads)
    if settings.identity is Identity.INSTANCE and not _has_role(settings.metadata_endpoint):
        settings = replace(settings, identity=Identity.NOBODY)
    keys = _keys(environment) if settings.identity is Identity.KEYS else {}
    return BucketStore(location, settings, _connected(location, settings, keys, timeout_s, whole_requests=for_uploads))


class BucketStore:
    """The objects of a bucket below a prefix."""

    def __init__(self, location: Bucket, settings: S3Settings, client: S3Store) -> None:
        import obstore

        self._location, self._settings, self._client, self._obstore = location, settings, client, obstore

    def get(self, name: str, *, offset: int = 0, version: str | None = None) -> Content:
        """See Store."""
        options: Any = {}
        if offset:
            options["range"] = {"offset": offset}
        if version is not None:
            options["if_match"] = version
        with self._told(name):
            result = self._obstore.get(self._client, name, options=options or None)
            facts = _facts(result.meta, name)
            if result.range[0] != offset:
                raise TransferDamagedError(f"{self._shown(name)}: bytes from {offset} on were asked for, others came")
            stream = result.stream(min_chunk_size=_CHUNK_BYTES)
        return Content(facts, offset, self._chunks(name, stream))

    def get_range(self, name: str, begin: int, end: int, *, version: str | None = None) -> Part:
        """See Store."""
        options: Any = {"range": (begin, end)}
        if version is not None:
            options["if_match"] = version
        with self._told(name):
            result = self._obstore.get(self._client, name, options=options)
            facts, came = _facts(result.meta, name), tuple(result.range)
            data = bytes(result.bytes()) if came == (begin, end) else b""
        if len(data) != end - begin:
            raise TransferDamagedError(
                f"{self._shown(name)}: bytes {begin} to {end} were asked for, {came[0]} to {came[1]} of "
                f"{facts.n_bytes} came"
            )
        return Part(facts, data)

    def put(self, name: str, path: str, *, moved: Callable[[int], None] | None = None) -> None:
        """See Store."""
        try:
            with open(path, "rb") as file, self._told(name):
                counted: Any = _Counted(file, moved)
                self._obstore.put(self._client, name, counted, chunk_size=_PART_BYTES, max_concurrency=_N_PARTS)
        except StorageError:
            raise
        except OSError as error:
            raise StorageError(f"{path} cannot be read for the upload to {self._shown(name)}: {error}") from error

    def list(self, prefix: str = "") -> Iterator[ObjectFacts]:
        """See Store."""
        with self._told(prefix):
            for batch in self._obstore.list(self._client, prefix or None):
                for meta in batch:
                    yield _facts(meta, meta["path"])

    def head(self, name: str) -> ObjectFacts:
        """See Store."""
        with self._told(name):
            return _facts(self._obstore.head(self._client, name), name)

    def delete(self, name: str) -> None:
        """See Store."""
        with contextlib.suppress(ObjectMissingError), self._told(name):
            self._obstore.delete(self._client, name)

    def _chunks(self, name: str, stream: Iterator[Any]) -> Iterator[memoryview]:
        while True:
            with self._told(name):
                chunk = next(stream, None)
            if chunk is None:
                return
            yield memoryview(chunk)

    def _shown(self, name: str) -> str:
        return f"{self._location}/{name}" if name else str(self._location)

    @contextlib.contextmanager
    def _told(self, name: str) -> Iterator[None]:
        """Errors of obstore as ours, with what was asked, where, as whom, and what to check."""
        try:
            yield
        except (StorageError, GeneratorExit):
            raise
        except Exception as error:
            kind, what, check = _meaning(error)
            raise kind(
                f"{self._shown(name)}: {what}. Asked at {self._settings.shown_endpoint} with "
                f"{self._settings.identity.value}; {check}"
            ) from None  # the text above is what there is to know; the library's own runs over a page


def read_timeout_s(timeout_s: float) -> float:
    """How long no byte may come before a request is given up, where `timeout_s` is allowed in all.

    A quarter of it, so that a stall costs one try of several; but up to 10 s if so much is allowed.
    """
    return max(timeout_s / 4, min(timeout_s, 10.0))


def _keys(environment: Mapping[str, str]) -> dict[str, str]:
    """The keys of the environment that is meant, which need not be this process's."""
    names = {
        "access_key_id": "AWS_ACCESS_KEY_ID",
        "secret_access_key": "AWS_SECRET_ACCESS_KEY",
        "session_token": "AWS_SESSION_TOKEN",
    }
    return {option: environment[name] for option, name in names.items() if environment.get(name)}


def _connected(
    location: Bucket, settings: S3Settings, keys: Mapping[str, str], timeout_s: float, *, whole_requests: bool
) -> S3Store:
    from obstore.store import S3Store

    client_options: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=min(timeout_s, _CONNECT_S)),
        "read_timeout": timedelta(seconds=timeout_s if whole_requests else read_timeout_s(timeout_s)),
        "timeout": timedelta(seconds=_WHOLE_S),
    }
    options: dict[str, Any] = {"region": settings.region, "metadata_endpoint": settings.metadata_endpoint, **keys}
    if settings.endpoint is not None:
        # Both names: the second would else be read from the environment and win.
        options |= {"endpoint": settings.endpoint, "aws_endpoint_url_s3": settings.endpoint}
        client_options["allow_http"] = settings.endpoint.startswith("http://")
    if settings.identity in (Identity.NOBODY, Identity.UNSIGNED):
        options["skip_signature"] = True
    if settings.requester_pays:
        options["request_payer"] = True
    if settings.certificate_file is not None:
        client_options["root_certificate"] = _certificates(settings.certificate_file)
    provider = _profile() if settings.identity is Identity.PROFILE else None
    try:
        return S3Store(
            location.name,
            prefix=location.prefix or None,
            client_options=client_options,  # type: ignore[arg-type]
            retry_config={"max_retries": 0, "retry_timeout": timedelta(0)},
            credential_provider=provider,
            **options,
        )
    except Exception as error:
        raise OptionError(f"{location} cannot be opened with these settings: {_first_line(error)}") from error


def _profile() -> Any:
    """AWS profiles, which obstore does not read, through boto3."""
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        raise MissingExtraError(
            package="boto3", extra="aws-profile", purpose="reading an AWS profile (AWS_PROFILE or ~/.aws/credentials)"
        ) from error
    try:
        return Boto3CredentialProvider()
    except Exception as error:
        raise ObjectForbiddenError(
            f"the AWS profile gives no credentials: {error}; check AWS_PROFILE and ~/.aws"
        ) from error


def _has_role(endpoint: str) -> bool:
    """Whether this machine has a role of AWS: asked once, and not for longer than a moment.

    Without this look, a machine that is none of AWS would wait for credentials that never come, on each request.
    """
    import http.client  # 30 ms, which only those pay who have no keys
    import urllib.parse

    parts = urllib.parse.urlsplit(endpoint)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=_METADATA_S)
    try:
        connection.request("PUT", "/latest/api/token", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"})
        answer = connection.getresponse()
        token = answer.read(4096).decode("ascii", "replace")
        if answer.status != 200:
            return False
        connection.request(
            "GET", "/latest/meta-data/iam/security-credentials/", headers={"X-aws-ec2-metadata-token": token}
        )
        answer = connection.getresponse()
        return answer.status == 200 and bool(answer.read(4096).strip())
    except (OSError, http.client.HTTPException, ValueError):
        return False
    finally:
        connection.close()


def _certificates(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise OptionError(
            f"the certificates that AWS_CA_BUNDLE or REQUESTS_CA_BUNDLE names cannot be read: {error}; name a PEM file"
        ) from error


class _Counted:
    """A file whose reader tells how far it is."""

    def __init__(self, file: Any, moved: Callable[[int], None] | None) -> None:
        self._file, self._moved = file, moved

    def read(self, n_bytes: int = -1) -> bytes:
        chunk: bytes = self._file.read(n_bytes)
        if self._moved is not None:
            self._moved(self._file.tell())
        return chunk

    def seek(self, offset: int, whence: int = 0) -> int:
        place: int = self._file.seek(offset, whence)
        return place

    def tell(self) -> int:
        place: int = self._file.tell()
        return place


def _facts(meta: Any, name: str) -> ObjectFacts:
    return ObjectFacts(name, meta["size"], meta["e_tag"])


def _meaning(error: Exception) -> tuple[type[StorageError], str, str]:
    """The kind of an obstore error, what happened, and what to check."""
    import obstore.exceptions as theirs

    text = str(error)
    found = _STATUS.search(text)
    status = int(found[1]) if found else 0
    answer = f"the store answered {status}{_reason(text)}"
    if _OF_CREDENTIALS.search(text):
        return ObjectForbiddenError, f"no credentials could be had ({_first_line(text)})", "check the role"
    if isinstance(error, FileNotFoundError | theirs.NotFoundError) or status == 404:
        if "<Code>NoSuchBucket</Code>" in text:
            return ObjectMissingError, "there is no such bucket", "check the bucket's name and the endpoint"
        return ObjectMissingError, answer, "check the path; without the right to list, a store hides what it has"
    refused = (PermissionError, theirs.PermissionDeniedError, theirs.UnauthenticatedError)
    if isinstance(error, refused) or status in (401, 403):
        return ObjectForbiddenError, answer, "check these credentials and the bucket's policy"
    if isinstance(error, theirs.PreconditionError) or status in (412, 416):
        return TransferDamagedError, "the object changed while it was read", "check who writes to it"
    if status == 429 or status >= 500 or "<Code>RequestTimeout</Code>" in text or "<Code>SlowDown</Code>" in text:
        return StoreBusyError, answer, "the store is busy or broken; try later, or ask it less often"
    if "<Code>ExpiredToken</Code>" in text or "<Code>InvalidToken</Code>" in text:
        return ObjectForbiddenError, answer, "renew these credentials"
    if "BareRedirect" in text or status in (301, 307, 308):
        return StorageError, "the store sent us elsewhere, as for a bucket of another region", "check AWS_REGION"
    if status:
        return StorageError, answer, "check the path and the endpoint"
    if isinstance(error, OSError) and error.errno == 28:
        return NoRoomError, str(error), "make room"
    return _meaning_without_answer(text)


def _meaning_without_answer(text: str) -> tuple[type[StorageError], str, str]:
    check = "check the endpoint, the network, and proxies (HTTP_PROXY, HTTPS_PROXY, NO_PROXY)"
    if "kind: Interrupted" in text or "IncompleteBody" in text:
        return TransferDamagedError, "the connection broke before all bytes had come", check
    if "kind: Timeout" in text or "TimedOut" in text:
        return StoreUnreachableError, "the store said nothing for too long", check
    if "dns error" in text:
        return StoreUnreachableError, "the endpoint's name is not known (DNS)", check
    if "kind: Connect" in text:
        detail = next((why for why in ("ConnectionRefused", "certificate", "InvalidContentType") if why in text), "")
        return StoreUnreachableError, f"no connection to the store {f'({detail})' if detail else ''}".rstrip(), check
    return StoreUnreachableError, _first_line(text), check


def _reason(text: str) -> str:
    parts = [found[1] for pattern in (_CODE, _MESSAGE) if (found := pattern.search(text))]
    return f" ({': '.join(parts)})" if parts else ""


def _first_line(error: object) -> str:
    return str(error).strip().partition("\n")[0][:300]
