"""What is read from files and read again when they change: keys and certificates, without a restart."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path

from interlingua.contract.errors import ModelError

_log = logging.getLogger(__name__)


class Watched(ABC):
    """Values read from files. `read` is called once by the constructor, and by `refresh` when a file has changed.

    A path may be a symlink whose target is replaced, as Kubernetes does with mounted secrets.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = tuple(paths)
        self._seen = self._look()
        self.read()

    @abstractmethod
    def read(self) -> None:
        """Takes over what the files say now, all of it or nothing. Raises ModelError."""

    def refresh(self, force: bool = False) -> None:
        """Reads changed files again. What cannot be read is reported, and the old values stay in force."""
        look = self._look()
        if look == self._seen and not force:
            return
        self._seen = look
        names = ", ".join(map(str, self._paths))
        try:
            self.read()
        except ModelError as problem:
            _log.error("%s; what was read before stays in force", problem.message)
        else:
            if names:
                _log.info("read again: %s", names)

    def _look(self) -> list[tuple[int, int, int] | None]:
        """Tells the files' states apart: when and where they were written, and their size."""
        states: list[tuple[int, int, int] | None] = []
        for path in self._paths:
            try:
                state = path.stat()
            except OSError:
                states.append(None)
            else:
                states.append((state.st_mtime_ns, state.st_ino, state.st_size))
        return states
