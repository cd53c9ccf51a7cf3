"""Errors of obstore, which are sentences, as answers and meanings."""

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
from streaming.storage.common.meaning import Answer, Meaning, broken_off, meaning_of, read_answer, unreachable

_STATUS: Final = re.compile(r"status code: (\d{3})")
_QUERY: Final = re.compile(r"\?[^\s)]+")  # of a URL in a message; may hold a signature
_NO_SUCH_ANSWER: Final = re.compile(
    r"non-partial response when range|[Hh]eader (?:not present|missing)|Requested [^\n]+, got |range was invalid"
)
_NO_CONNECTION: Final = {
    "ConnectionRefused": "ConnectionRefused: nobody listens there",
    "InvalidCertificate": "its certificate is not trusted; `ca_bundle` or AWS_CA_BUNDLE names certificates to trust",
    "InvalidContentType": "it does not speak TLS: is it http:// in place of https://?",
    "tunnel error": "the proxy gives no way to it",
    "Unreachable": "network unreachable",
}
_OF_CREDENTIALS: Final = re.compile(
    r"performing token request|performing POST REDACTED|azure cli|az account get-access-token|credential provider: |"
    r"Error performing [A-Z]+ \S*(?:/latest/(?:api|meta-data)/|/computeMetadata/|//169\.254\.|//sts\.|/oauth2/)",
    re.IGNORECASE,
)
_NOT_REACHED: Final = re.compile(r"kind: (?:Connect|Timeout|Interrupted)|timed? ?out|connect|resolve", re.IGNORECASE)


def meaning_of_error(error: Exception, *, has_credentials: bool) -> Meaning:
    """What an error that obstore raised means."""
    import obstore.exceptions as theirs

    text = str(error)
    said = text.partition("\n\nDebug source:")[0]
    if _OF_CREDENTIALS.search(said):
        return _no_credentials(text, said)
    if found := _STATUS.search(said):
        answer = read_answer(int(found[1]), said)
        return meaning_of(answer, has_credentials=has_credentials)
    if "BareRedirect" in text:
        return meaning_of(Answer(301), has_credentials=has_credentials)
    if isinstance(error, FileNotFoundError | theirs.NotFoundError):
        return meaning_of(Answer(404), has_credentials=has_credentials)
    if isinstance(error, theirs.PreconditionError):
        return meaning_of(Answer(412), has_credentials=has_credentials)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Meaning(NoRoomError, str(error), "make room")
    return _without_answer(text)


def _no_credentials(text: str, said: str) -> Meaning:
    """Who gives them was not reached, so another try may help, or refused them."""
    what = f"no credentials could be had ({first_line(said)})"
    check = "check the role, the credentials file or the login that they come from"
    found = _STATUS.search(said)
    if found and (int(found[1]) == 429 or int(found[1]) >= 500):
        return Meaning(StoreBusyError, what, check)
    if not found and _NOT_REACHED.search(text):
        return Meaning(StoreUnreachableError, what, f"{check}, and the network")
    return Meaning(ObjectForbiddenError, what, check)


def first_line(error: object) -> str:
    """The beginning of what a client says, without what may be secret."""
    return _QUERY.sub("?…", str(error).strip().partition("\n")[0])[:300]


def _without_answer(text: str) -> Meaning:
    if "kind: Interrupted" in text or "IncompleteBody" in text or "IncompleteMessage" in text:
        return broken_off()
    if "kind: Timeout" in text or "TimedOut" in text:
        return unreachable("the store said nothing for too long")
    if "dns error" in text:
        return unreachable("the endpoint's name is not known (DNS)")
    if "kind: Redirect" in text or "error following redirect" in text:
        return meaning_of(Answer(301), has_credentials=False)
    if "kind: Connect" in text:
        why = next((words for sign, words in _NO_CONNECTION.items() if sign in text), "")
        return unreachable(f"no connection to the store{f' ({why})' if why else ''}")
    if "Could not parse path" in text:
        what = f"its client takes no such name ({first_line(text)})"
        return Meaning(StorageError, what, "names have no empty parts, no '.' or '..', and no control characters")
    if "Wanted range" in text:
        return meaning_of(Answer(416), has_credentials=False)
    if _NO_SUCH_ANSWER.search(text):
        what = f"no answer of an object store: {first_line(text)}"
        return Meaning(TransferDamagedError, what, "check the endpoint, and what stands in between")
    return unreachable(first_line(text))
