"""One file's transfer as the fetcher sees it: room is made where there is none, and what keeps it away is told."""

from __future__ import annotations

import traceback
from functools import partial
from typing import Protocol

from streaming.errors import FetchError, NoRoomError, StreamingError
from streaming.fetch.log import log
from streaming.fetch.task import AbandonedError, FileTask, Moved
from streaming.fetch.transfer import Means, fetch_file


class LimitError(NoRoomError):
    """The limit leaves no room for a file, whatever room the disk has. Never reaches a client."""


class RoomMaker(Protocol):
    """Who has room."""

    def take_room(self, task: FileTask, n_bytes: int) -> None:
        """Of a file so large, which only the store knew. Raises LimitError."""
        ...

    def make_room(self, task: FileTask) -> bool:
        """Delete what may go, as the disk is full; whether anything went."""
        ...


def move_file(task: FileTask, means: Means, moved: Moved, n_parts: int, room: RoomMaker) -> StreamingError | None:
    """Have the file placed; what kept it from coming. Raises nothing."""
    sized = partial(room.take_room, task)
    try:
        try:
            fetch_file(task, means, moved, n_parts=n_parts, sized=sized)
        except LimitError as error:
            return NoRoomError(str(error))
        except NoRoomError:
            if not room.make_room(task):
                raise
            fetch_file(task, means, moved, sized=sized)
    except AbandonedError as error:
        return error
    except StreamingError as error:
        log(f"not fetched: {type(error).__name__}: {error}")
        return error
    except Exception as error:
        log(traceback.format_exc())
        return FetchError(f"{task.shown}: the fetcher failed with {error!r}; its log has the details")
    return None
