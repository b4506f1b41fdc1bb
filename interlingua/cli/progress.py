"""Bars on a terminal: while a large model's weights are read, and while `verify` works.

Downloads show themselves: see `hub/progress.py`.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

    from interlingua.hub.progress import Progress

_WORTH_A_BAR = 2**30  # bytes; less is read before a bar could be looked at


class WeightsBar:
    """A context manager around the loading of a model. Draws nothing for a small one, or without a terminal."""

    def __init__(self) -> None:
        self._bar: Progress | None = None

    def __enter__(self) -> WeightsBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.end()

    def show(self, done: int, total: int) -> None:
        """`done` of `total` bytes are packed. Called from any one thread."""
        if total < _WORTH_A_BAR or not sys.stderr.isatty():
            return
        if self._bar is None:
            from interlingua.hub.progress import BarProgress

            self._bar = BarProgress()
            self._bar.begin("reading the weights", total)
        self._bar.update(done)


class CountBar:
    """A context manager around work that is counted. Draws nothing without a terminal."""

    def __init__(self, what: str, total: int) -> None:
        self._bar: RichProgress | None = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(what, total=total)

    def __enter__(self) -> CountBar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=done)
