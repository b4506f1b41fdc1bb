"""The time limit of a request, and other reasons to end its waits early."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType

from interlingua.contract.errors import InterlinguaError, RequestTimeoutError
from interlingua.contract.words import counted


class Deadline:
    """Ends the waits of one request when its time is up. A context manager around each wait, used many times.

    A timer cancels the task that waits, and the wait's end turns that into a RequestTimeoutError. Outside
    of a wait nothing is interrupted: the consumer's own work between two events is not ours to cancel, and
    the next wait then fails at once. `interrupt` ends the waits before their time.
    """

    __slots__ = ("_cancelled", "_loop", "_others", "_over", "_timer", "_waiting", "at")

    def __init__(self, arrived: float, seconds: float) -> None:
        self.at = arrived + seconds  # on the clock of time.monotonic
        self._waiting: asyncio.Task[object] | None = None
        self._others = 0  # cancellations that the waiting task had seen before
        self._over: InterlinguaError | None = None  # why nothing is waited for any more
        self._cancelled = False
        left = max(0.0, self.at - time.monotonic())
        self._loop = asyncio.get_running_loop()
        error = RequestTimeoutError(f"the request's time limit of {counted(seconds, 'second')} has passed")
        self._timer = self._loop.call_later(left, self.interrupt, error)

    def __enter__(self) -> None:
        if self._over is not None:
            raise self._over
        # Asked for each time: a consumer may well wrap every step in a task of its own.
        task = asyncio.current_task(self._loop)
        assert task is not None
        self._waiting = task
        self._others = task.cancelling()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        task = self._waiting
        self._waiting = None
        if self._cancelled:
            self._cancelled = False
            assert task is not None and self._over is not None
            # More cancellations than ours: the client left at the same moment, and that comes first.
            if task.uncancel() <= self._others and kind is asyncio.CancelledError:
                raise self._over from None

    def close(self) -> None:
        self._timer.cancel()

    def interrupt(self, error: InterlinguaError) -> None:
        """Ends the present wait, or else the next one, with `error`. Once: the first error stays."""
        if self._over is not None:
            return
        self._over = error
        if self._waiting is not None:
            self._cancelled = True
            self._waiting.cancel()
