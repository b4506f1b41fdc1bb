"""Entry point of `interlingua`: signals and standard output around everything that a command does (`commands.py`).

Nearly nothing is imported before `main` runs, so that from its first line on neither a signal nor a closed pipe can
show a traceback.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # A server that is told to stop has done its work, also while it starts; any other command was cut short.
    serving = arguments[:1] == ["serve"]
    stopped = 0 if serving else 128 + signal.SIGTERM

    def terminate(number: int, frame: FrameType | None) -> None:
        raise SystemExit(stopped)

    if serving:  # SIGHUP has keys and certificates read again, and they have not been read yet
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, terminate)
    if sys.stdout is None:  # closed by who started us, as in `interlingua info >&-`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
    try:
        from interlingua.cli import commands

        code = commands.run(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of our output has left, as in `interlingua info | head -1`
        _drop_output()
        return 0
    except OSError as problem:
        if problem.errno != errno.ENOSPC:
            raise
        _drop_output()
        print(f"interlingua: {problem.strerror}", file=sys.stderr)
        return 1


def _drop_output() -> None:
    """What is still buffered goes nowhere, instead of failing once more when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
