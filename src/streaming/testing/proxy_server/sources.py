"""Where answers come from: what the connection of a client needs of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from streaming.testing.proxy_server.answers import Answer
from streaming.testing.proxy_server.http1 import AnswerHead, RequestHead


@dataclass(frozen=True, slots=True)
class Request:
    """A request whose body has not been read."""

    head: RequestHead
    body: AsyncIterator[bytes]
    interim: Callable[[AnswerHead], Awaitable[None]]
    """Passes a `100 Continue` or the like on to the client, before the answer."""


class Source(Protocol):
    """Answers the requests of one client, one after the other."""

    @property
    def checks_signatures(self) -> bool:
        """Whether a request must arrive with all headers that the client signed."""
        ...

    def answering(self, request: Request) -> AbstractAsyncContextManager[Answer]:
        """The answer, whose body can be read inside the block."""
        ...

    def close(self) -> None:
        """The client has gone."""
        ...
