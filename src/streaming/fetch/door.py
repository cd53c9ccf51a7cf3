"""The way to a fetcher that listens: find it, or start it, and greet it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from streaming.errors import DeadlineError, FetchError
from streaming.fetch.connection import Connection
from streaming.fetch.launch import CannotLaunchError, KilledAtStartError, launch, may_start
from streaming.fetch.meeting import Place, PlaceError, connect, log_tail, place_in_root, private_place
from streaming.fetch.protocol import PROTOCOL, SLICE_S, VERSION, Done, Failed, Hello

ANSWER_S: Final = 30.0  # beyond its slice, before a fetcher that says nothing counts as stuck
_TIMEOUT_S: Final = SLICE_S + ANSWER_S
_CONNECT_S: Final = 30.0
_RESPECT_START_S: Final = 5.0  # how long another starter is believed to be alive
_MAX_KILLED: Final = 5  # at their start, before it counts as an error


class NoneListensError(Exception):
    """No fetcher listens, and none was to be started."""


class Door:
    """Where the clients of one cache root meet their fetcher, in one process."""

    def __init__(self, root: str | None, hello: Hello) -> None:
        self._root, self._hello = root, hello
        self._in_root = root is not None
        self._alone: str | None = None  # why no other process can be met
        self.n_launched = 0

    def open(self, *, start: bool) -> Connection:
        """A connection that has said hello, to a fetcher that is started if there is none."""
        began, pause_s, n_killed = time.monotonic(), 0.002, 0
        while True:
            if self._alone is not None:
                # The whole fetcher, which nobody else needs to import.
                from streaming.fetch.inside import connect_inside

                return self._greet(partial(connect_inside, self._alone), "this process")
            place = self.place()
            try:
                return self._greet(partial(connect, place, timeout_s=_TIMEOUT_S), place.socket)
            except (FileNotFoundError, ConnectionError, BlockingIOError) as error:
                if not start:
                    raise NoneListensError from error
                waited_s = time.monotonic() - began
                if waited_s > _CONNECT_S:
                    raise DeadlineError(
                        f"waited {waited_s:.0f} s for the fetcher at {place.socket} to answer; the end of its log:\n"
                        f"{log_tail(place)}"
                    ) from error
            try:
                with may_start(place, force=waited_s > _RESPECT_START_S) as mine:
                    if mine:
                        self.n_launched += 1
                        launch(place, self._root, os.environ)
                        continue
            except PlaceError as error:
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
                        f"{error}, {n_killed} times; is the machine out of memory? The end of its log {place.log}:\n"
                        f"{log_tail(place)}"
                    ) from error
                continue
            time.sleep(pause_s)
            pause_s = min(0.03, pause_s * 1.5)

    def _greet(self, reach: Callable[[], socket.socket], where: str) -> Connection:
        connection = Connection(reach())
        try:
            answer = connection.exchange(self._hello)
        except TimeoutError as error:
            raise DeadlineError(
                f"the fetcher at {where} accepted a connection and then said nothing for {_TIMEOUT_S:.0f} s; is it "
                f"stopped? Its log is {self.place().log}"
            ) from error
        if not isinstance(answer, Done):
            raise answer.error if isinstance(answer, Failed) else FetchError("the fetcher did not answer a greeting")
        theirs = answer.value
        if theirs["protocol"] != PROTOCOL:
            raise FetchError(
                f"the fetcher speaks protocol {theirs['protocol']} (version {theirs['version']}), this process "
                f"{PROTOCOL} (version {VERSION}): the package was replaced while this job ran; start the job again"
            )
        connection.instance = theirs["instance"]
        return connection

    def place(self) -> Place:
        """Where the fetcher listens, or will."""
        if self._in_root and self._root is not None:
            try:
                return place_in_root(self._root, os.environ)
            except PlaceError:
                self._in_root = False
        return private_place(self._root, os.environ)
