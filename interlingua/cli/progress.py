"""Progress on standard error: a bar on a terminal, else one line for each file that is fetched."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import rich.progress

_WORTH_A_BAR = 2**30  # bytes of weights


class Progress:
    """A context manager around the work that is shown; prints nothing when nothing is fetched.

    `show` may be called from any thread, one at a time.
    """

    def __init__(self) -> None:
        self._bars: rich.progress.Progress | None = None
        self._tasks: dict[str, rich.progress.TaskID | None] = {}

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def show(self, label: str, done: int, total: int | None) -> None:
        """`done` of `total` bytes of `label` are here; `total` None = not known."""
        if not sys.stderr.isatty():
            if label not in self._tasks:
                self._tasks[label] = None
                size = "" if total is None else f" ({total / 1e6:,.1f} MB)"
                print(f"interlingua: fetching {label}{size}", file=sys.stderr, flush=True)
            return
        bars = self._bars or self._open()
        task = self._tasks.get(label)
        if task is None:
            task = self._tasks[label] = bars.add_task(label, total=total)
        bars.update(task, completed=done, total=total)

    def load(self, done: int, total: int) -> None:
        """`done` of `total` bytes of weights are packed. Small models are there before a bar is worth it."""
        if total >= _WORTH_A_BAR and sys.stderr.isatty():
            self.show("loading the weights", done, total)

    def _open(self) -> rich.progress.Progress:
        from rich import progress  # late: a start that fetches nothing need not pay for it
        from rich.console import Console

        self._bars = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.DownloadColumn(),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._bars.start()
        return self._bars
