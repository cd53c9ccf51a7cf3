"""Connects to the fetcher, which it finds or starts, and greets it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from streaming.errors import DeadlineError, FetchError
from streaming.fetch.client.launcher import CannotLaunchError, KilledAtStartError, launch, may_start
from streaming.fetch.wire.protocol import PROTOCOL, SLICE_S, VERSION, Connection, Done, Failed, Hello
from streaming.fetch.wire.rendezvous import (
    Rendezvous,
    RendezvousError,
    connect,
    log_tail,
    private_rendezvous,
    rendezvous_in_root,
)

ANSWER_S: Final = 30.0
"""Seconds beyond its slice after which a fetcher that says nothing counts as stuck."""
_TIMEOUT_S: Final = SLICE_S + ANSWER_S
_CONNECT_S: Final = 30.0
_RESPECT_START_S: Final = 5.0
"""Seconds for which another starter is believed to be alive."""
_MAX_KILLED: Final = 5
"""Fetchers that may be killed at their start before it counts as an error."""


class NoneListensError(Exception):
    """No fetcher listens, and none was to be started."""


class Connector:
    """Connects the clients of one cache root to their fetcher, in one process."""

    def __init__(self, root: str | None, hello: Hello) -> None:
        self._root, self._hello = root, hello
        self._in_root = root is not None
        self._alone: str | None = None  # why no other process can be met
        self.n_launched = 0

    def open(self, *, start: bool) -> Connection:
        """A connection that has said hello, to a fetcher that is started if none listens.

        Raises NoneListensError if none listens and `start` is False, DeadlineError, FetchError.
        """
        began, pause_s, n_killed = time.monotonic(), 0.002, 0
        while True:
            if self._alone is not None:
                # The whole fetcher, which nobody else needs to import.
                from streaming.fetch.server.in_process import connect_in_process

                return self._greet(partial(connect_in_process, self._alone), "this process")
            rendezvous = self.rendezvous()
            try:
                return self._greet(partial(connect, rendezvous, timeout_s=_TIMEOUT_S), rendezvous.socket)
            except (FileNotFoundError, ConnectionError, BlockingIOError) as error:
                if not start:
                    raise NoneListensError from error
                waited_s = time.monotonic() - began
                if waited_s > _CONNECT_S:
                    raise DeadlineError(
                        f"waited {waited_s:.0f} s for the fetcher at {rendezvous.socket} to answer; the end of its "
                        f"log:\n{log_tail(rendezvous)}"
                    ) from error
            try:
                with may_start(rendezvous, force=waited_s > _RESPECT_START_S) as mine:
                    if mine:
                        self.n_launched += 1
                        launch(rendezvous, self._root, os.environ)
                        continue
            except RendezvousError as error:
                if not self._in_root:
                    self._alone = f"the fetcher cannot meet its clients ({error}; set TMPDIR to a local folder)"
                self._in_root = False
                continue
            except CannotLaunchError as error:
                self._alone = str(error)
                continue
            except KilledAtStartError as error:
                n_killed += 1
                if n_killed >= _MAX_KILLED:
                    raise FetchError(
                        f"{error}, {n_killed} times; is the machine out of memory? The end of its log "
                        f"{rendezvous.log}:\n{log_tail(rendezvous)}"
                    ) from error
                continue
            time.sleep(pause_s)
            pause_s = min(0.03, pause_s * 1.5)

    def rendezvous(self) -> Rendezvous:
        """Where the fetcher listens, or will."""
        if self._in_root and self._root is not None:
            try:
                return rendezvous_in_root(self._root, os.environ)
            except RendezvousError:
                self._in_root = False
        return private_rendezvous(self._root, os.environ)

    def _greet(self, reach: Callable[[], socket.socket], where: str) -> Connection:
        connection = Connection(reach())
        try:
            answer = connection.exchange(self._hello)
        except TimeoutError as error:
            raise DeadlineError(
                f"the fetcher at {where} accepted a connection and then said nothing for {_TIMEOUT_S:.0f} s; is it "
                f"stopped? Its log is {self.rendezvous().log}"
            ) from error
        if not isinstance(answer, Done):
            raise answer.error if isinstance(answer, Failed) else FetchError("the fetcher did not answer a greeting")
        theirs = answer.value
        if theirs["protocol"] != PROTOCOL:
            raise FetchError(
                f"the fetcher speaks protocol {theirs['protocol']} (version {theirs['version']}), this process "
                f"{PROTOCOL} (version {VERSION}): the package was replaced while this job ran; start the job again"
            )
        connection.instance, connection.facts = theirs["instance"], theirs
        return connection
