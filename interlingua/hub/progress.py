"""How a download shows itself: a bar on a terminal, a line now and then elsewhere. All of it on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO


class Progress(Protocol):
    """Told of one download at a time: `begin`, `update` as often as it likes, `end` in every case."""

    def begin(self, what: str, total: int) -> None:
        """`total` is in bytes, 0 if it is not known."""
        ...

    def update(self, done: int) -> None:
        """`done` bytes of the total are here."""
        ...

    def end(self, failed: bool = False) -> None: ...


class LineProgress:
    """Plain lines for logs: at the beginning, then at most one every `interval` seconds, then at the end."""

    def __init__(self, stream: TextIO | None = None, interval: float = 5.0) -> None:
        self._stream = stream
        self._interval = interval
        self._what = ""
        self._total = 0
        self._done = 0
        self._last = 0.0

    def begin(self, what: str, total: int) -> None:
        self._what, self._total, self._done = what, total, 0
        self._last = time.monotonic()
        self._print(f"{total / 1e6:.0f} MB to go" if total else "begins")

    def update(self, done: int) -> None:
        self._done = done
        now = time.monotonic()
        if now - self._last < self._interval:
            return
        self._last = now
        share = f" ({100 * done // self._total} %)" if self._total else ""
        self._print(f"{done / 1e6:.0f} MB{share}")

    def end(self, failed: bool = False) -> None:
        word = "given up" if failed else "done"
        self._print(f"{self._done / 1e6:.0f} MB, {word}" if self._done else word)

    def _print(self, text: str) -> None:
        print(f"{self._what}: {text}", file=self._stream or sys.stderr, flush=True)


class BarProgress:
    """A bar with rate and time left."""

    def __init__(self) -> None:
        # rich takes 0.1 s to import: only where a bar is really drawn.
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task("", visible=False)

    def begin(self, what: str, total: int) -> None:
        self._bar.reset(self._task, description=what, total=total or None, visible=True)
        self._bar.start()

    def update(self, done: int) -> None:
        self._bar.update(self._task, completed=done)

    def end(self, failed: bool = False) -> None:
        self._bar.stop()


def default_progress() -> Progress:
    return BarProgress() if sys.stderr.isatty() else LineProgress()


@contextmanager
def reported(progress: Progress, what: str, total: int) -> Iterator[Progress]:
    """`begin` and `end` around a block, also if it fails."""
    progress.begin(what, total)
    try:
        yield progress
    except BaseException:
        progress.end(failed=True)
        raise
    progress.end()
