"""The bar while a large model's weights are read. Downloads show themselves: see `hub/progress.py`."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
