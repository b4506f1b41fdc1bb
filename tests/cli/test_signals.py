"""A signal ends every command at once, whatever it is at: in one line, with the code that shells know."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
ENDINGS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])

# `info` is made to do something else, up to a signal to itself.
PROGRAM = """
import os, signal, subprocess, sys, threading, time, types
from interlingua.cli.main import main

def struck(number={number}):
    os.kill(os.getpid(), number)

def info(options):
    print("begun")
{body}
    return 0

sys.modules["interlingua.cli.info"] = types.SimpleNamespace(run=info)
sys.exit(main(["info"]))
"""


def program(number: signal.Signals, *lines: str) -> list[str]:
    body = "".join(f"    {line}\n" for line in lines)
    return [sys.executable, "-c", PROGRAM.format(number=int(number), body=body)]


def ended(command: list[str]) -> tuple[int, str, str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def line(number: signal.Signals) -> str:
    return f"interlingua: {WORDS[number]}\n"


@ENDINGS
@pytest.mark.parametrize("command", ["serve", "info", "top"])
def test_while_the_programs_own_modules_are_imported(command: str, number: signal.Signals) -> None:
    program = (
        "import os, sys\n"
        "class Stop:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == 'interlingua.cli.parser': os.kill(os.getpid(), {int(number)})\n"
        "sys.meta_path.insert(0, Stop())\n"
        "from interlingua.cli.main import main\n"
        "sys.exit(main())\n"
    )
    wanted = (128 + number, "", line(number)) if command == "info" else (0, "", "")
    assert ended([sys.executable, "-c", program, command]) == wanted


PLACES = {
    "where nothing can be raised": [
        "class Last:",
        "    def __del__(self): struck()",
        "Last()",
        "time.sleep(50)",
    ],
    "where errors are taken for one's own": [
        "try: struck()",
        "except BaseException: raise ImportError('half imported') from None",
    ],
    "in a task that nobody awaits": [
        "import asyncio",
        "async def work(): struck()",
        "async def both():",
        "    tasks = [asyncio.create_task(work()), asyncio.create_task(asyncio.sleep(50))]",
        "    await tasks[1]",
        "asyncio.run(both())",
    ],
    "while a thread works that is not a daemon": [
        "threading.Thread(target=time.sleep, args=(50,)).start()",
        "struck()",
    ],
    "when all is done": [
        "import atexit",
        "atexit.register(struck)",
    ],
}


@ENDINGS
@pytest.mark.parametrize("place", PLACES)
def test_wherever_it_strikes(place: str, number: signal.Signals) -> None:
    """What was printed by then is still seen."""
    assert ended(program(number, *PLACES[place])) == (128 + number, "begun\n", line(number))


@ENDINGS
def test_a_proof_that_is_under_way(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "interlingua.cli.main", "verify", "--requests", "8"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert "equal" not in process.stdout.readline()
        process.send_signal(number)
        process.stdout.read()
        assert (process.stderr.read(), process.wait(60)) == (line(number), 128 + number)


def test_what_it_started_ends_with_it() -> None:
    """A pip that fetches, the processes of an engine."""
    lines = ["child = subprocess.Popen(['sleep', '50'], stdout=subprocess.DEVNULL)", "print(child.pid)", "struck()"]
    code, out, _ = ended(program(signal.SIGTERM, *lines))
    assert code == 143
    child = Path("/proc", out.split()[1], "stat")
    assert not child.exists() or child.read_text().split()[2] == "Z"


def test_on_a_terminal_the_cursor_comes_back() -> None:
    """A bar hides it."""
    lines = ["from rich.console import Console", "Console(stderr=True).show_cursor(False)", "struck()"]
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    command = program(signal.SIGTERM, *lines)
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=theirs, timeout=60, check=False, env=environment)
    assert done.returncode == 143
    assert os.read(ours, 1000) == b"\x1b[?25l\x1b[?25h\r\ninterlingua: terminated\r\n"
    os.close(ours)
    os.close(theirs)


def test_what_a_shell_leaves_in_the_background_hears_no_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert ended(program(signal.SIGINT, "struck()")) == (0, "begun\n", "")
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


SLOW_LOAD = """
import sys, time
from interlingua.cli.main import main
from interlingua.engine.native import engine

def slow(*_):
    print("loading", flush=True)
    time.sleep(50)

engine.load_model = slow
sys.exit(main(["serve", "--port", "0"]))
"""


@ENDINGS
def test_a_server_does_not_wait_for_a_model_that_is_being_read(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SLOW_LOAD], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(number)
        assert process.wait(20) == 0
        lines = [line.partition(": ")[2] for line in process.stderr.read().splitlines()]
        assert lines[-2:] == ["stopping: no request is running", "ended with exit code 0"]
