"""Diagnosis of obstore's errors, which are sentences. Pure."""

from __future__ import annotations

import errno
import re
from typing import Final

from streaming.errors import (
    NoRoomError,
    ObjectForbiddenError,
    StorageError,
    StoreBusyError,
    StoreUnreachableError,
    TransferDamagedError,
)
from streaming.storage.common.diagnosis import Diagnosis, Refusal, broken_off, diagnose, read_refusal, unreachable

_STATUS: Final = re.compile(r"status code: (\d{3})")
_QUERY: Final = re.compile(r"\?[^\s)]+")  # of a URL in a message: it may hold a signature
_NOT_A_STORE: Final = re.compile(
    r"non-partial response when range|[Hh]eader (?:not present|missing)|Requested [^\n]+, got |range was invalid"
)
_NO_CONNECTION: Final = {
    "ConnectionRefused": "ConnectionRefused: nobody listens there",
    "InvalidCertificate": "its certificate is not trusted; `ca_bundle` or AWS_CA_BUNDLE names certificates to trust",
    "InvalidContentType": "it does not speak TLS: is it http:// in place of https://?",
    "tunnel error": "the proxy gives no way to it",
    "Unreachable": "network unreachable",
}
_TOKEN_REQUEST: Final = re.compile(
    r"performing token request|performing POST REDACTED|azure cli|az account get-access-token|credential provider: |"
    r"Error performing [A-Z]+ \S*(?:/latest/(?:api|meta-data)/|/computeMetadata/|//169\.254\.|//sts\.|/oauth2/)",
    re.IGNORECASE,
)
_NOT_REACHED: Final = re.compile(r"kind: (?:Connect|Timeout|Interrupted)|timed? ?out|connect|resolve", re.IGNORECASE)


def diagnose_error(error: Exception, *, has_credentials: bool) -> Diagnosis:
    """Diagnose an error that obstore raised."""
    import obstore.exceptions as theirs

    text = str(error)
    said = text.partition("\n\nDebug source:")[0]
    if _TOKEN_REQUEST.search(said):
        return _no_credentials(text, said)
    if found := _STATUS.search(said):
        return diagnose(read_refusal(int(found[1]), said), has_credentials=has_credentials)
    if "BareRedirect" in text:
        return diagnose(Refusal(301), has_credentials=has_credentials)
    if isinstance(error, FileNotFoundError | theirs.NotFoundError):
        return diagnose(Refusal(404), has_credentials=has_credentials)
    if isinstance(error, theirs.PreconditionError):
        return diagnose(Refusal(412), has_credentials=has_credentials)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Diagnosis(NoRoomError, str(error), "make room")
    return _without_answer(text)


def _no_credentials(text: str, said: str) -> Diagnosis:
    """Diagnose a failed request for credentials: it was refused, or not answered, and another attempt may help."""
    what = f"no credentials could be had ({first_line(said)})"
    check = "check the role, the credentials file or the login that they come from"
    found = _STATUS.search(said)
    if found and (int(found[1]) == 429 or int(found[1]) >= 500):
        return Diagnosis(StoreBusyError, what, check)
    if not found and _NOT_REACHED.search(text):
        return Diagnosis(StoreUnreachableError, what, f"{check}, and the network")
    return Diagnosis(ObjectForbiddenError, what, check)


def first_line(error: object) -> str:
    """Return the first line of an error, cut to 300 characters, without queries, which may be secret."""
    return _QUERY.sub("?…", str(error).strip().partition("\n")[0])[:300]


def _without_answer(text: str) -> Diagnosis:
    if "kind: Interrupted" in text or "IncompleteBody" in text or "IncompleteMessage" in text:
        return broken_off()
    if "kind: Timeout" in text or "TimedOut" in text:
        return unreachable("the store said nothing for too long")
    if "dns error" in text:
        return unreachable("the endpoint's name is not known (DNS)")
    if "kind: Redirect" in text or "error following redirect" in text:
        return diagnose(Refusal(301), has_credentials=False)
    if "kind: Connect" in text:
        why = next((words for sign, words in _NO_CONNECTION.items() if sign in text), "")
        return unreachable(f"no connection to the store{f' ({why})' if why else ''}")
    if "Could not parse path" in text:
        what = f"its client takes no such name ({first_line(text)})"
        return Diagnosis(StorageError, what, "names have no empty parts, no '.' or '..', and no control characters")
    if "Wanted range" in text:
        return diagnose(Refusal(416), has_credentials=False)
    if _NOT_A_STORE.search(text):
        what = f"no answer of an object store: {first_line(text)}"
        return Diagnosis(TransferDamagedError, what, "check the endpoint, and what stands in between")
    return unreachable(first_line(text))
