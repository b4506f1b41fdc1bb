"""Entry point of `interlingua`: signals and standard output around everything that a command does (`commands.py`).

Nearly nothing is imported before `main` runs, so that from its first line on neither a signal nor a closed pipe can
show a traceback.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

_ENDLESS = ("serve", "top")  # run until they are told to stop: a signal is no failure of theirs
_ENDINGS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = next(iter(arguments), "")
    if command == "serve":  # SIGHUP has keys and certificates read again, and they have not been read yet
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def end(number: int, frame: FrameType | None) -> None:
        _end(signal.Signals(number), command)

    for number in _ENDINGS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as a shell starts what it leaves in the background
            signal.signal(number, end)
    if sys.stdout is None:  # closed by who started us, as in `interlingua info >&-`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
    try:
        from interlingua.cli import commands

        code = commands.run(arguments)
        sys.stdout.flush()
        threads = sys.modules.get("interlingua.engine.threads")
        if threads is not None and threads.left():
            _leave_nothing()
            os._exit(code)
        return code
    except BrokenPipeError:  # the reader of our output has left, as in `interlingua info | head -1`
        _drop_output()
        return 0
    except OSError as problem:
        if problem.errno != errno.ENOSPC:
            raise
        _drop_output()
        print(f"interlingua: {problem.strerror}", file=sys.stderr)
        return 1
    finally:
        _leave_nothing()


def _end(number: signal.Signals, command: str) -> None:
    """Ends the process where it stands, with what it has printed and one line.

    An exception would rise from whatever line is running: in a callback that can raise none, in an import that takes it
    for its own failure, in a task that nobody awaits any more. What is cut off can bear it, as it must bear SIGKILL.
    `serve` has handlers of its own as soon as there is something to wind down.
    """
    for ending in _ENDINGS:  # a second one need not wait for a reader of our output
        signal.signal(ending, signal.SIG_DFL)
    with contextlib.suppress(OSError, RuntimeError, ValueError):  # nobody reads it, or it was just being written to
        sys.stdout.flush()
    _leave_nothing()
    endless = command in _ENDLESS
    stream, line = (sys.stdout, "") if endless else (sys.stderr, f"interlingua: {_ENDINGS[number]}\n")
    if stream is not None:
        # On a terminal there may be a bar, half an answer or ^C before it. By hand: see the flush.
        _write(stream.fileno(), "\n" + line if stream.isatty() else line)
    os._exit(0 if endless else 128 + number)


def _leave_nothing() -> None:
    """Ends what a thread or a task has begun and cannot end any more: processes, and bars that hide the cursor."""
    for process in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{process}/stat", "rb") as stat:  # it may have ended by now
            parent = int(stat.read().rpartition(b")")[2].split()[1])
            if parent == os.getpid():
                os.kill(int(process), signal.SIGTERM)
    if "rich" in sys.modules:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and stream.isatty():
                _write(stream.fileno(), "\x1b[?25h")


def _write(descriptor: int, text: str) -> None:
    with contextlib.suppress(OSError):  # whoever would have read it has gone
        os.write(descriptor, text.encode())


def _drop_output() -> None:
    """What is still buffered goes nowhere, instead of failing once more when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
