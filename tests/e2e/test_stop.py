"""SIGTERM while answers are under way."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from calls import GENERATE_STREAM, ROOT_STREAM, TRITON_STREAM, Route
from server import Server, running
from sockets import Answer, Connection

STREAMS = (GENERATE_STREAM, ROOT_STREAM, TRITON_STREAM)
PROMPT = "My name is Olivier and I"


class Stream:
    """A stream that has begun."""

    def __init__(self, connection: Connection, status: int, headers: dict[str, str], first: bytes) -> None:
        self._connection = connection
        self._status = status
        self._headers = headers
        self._first = first

    @classmethod
    async def begin(cls, port: int, route: Route, tokens: int) -> Stream:
        connection = await Connection.open(port)
        parameters = {"max_new_tokens": tokens, "ignore_eos": True, "details": True}
        body: dict[str, Any] = {"inputs": PROMPT, "text_input": PROMPT, "stream": True, "parameters": parameters}
        connection.send("POST", route.path, body)
        status, headers = await connection.read_head()
        size = int(await connection.reader.readline(), 16)
        first = await connection.reader.readexactly(size)
        await connection.reader.readexactly(2)
        return cls(connection, status, headers, first)

    async def rest(self) -> list[Any]:
        """All events, after the connection has been closed by the server."""
        pieces = [piece async for piece in self._connection.pieces(self._headers)]
        assert await self._connection.reader.read() == b""
        self._connection.close()
        assert self._status == 200
        return Answer(self._status, self._headers, self._first + b"".join(pieces)).events


ORDERLY = re.compile(r": (stopping: no request is running|ended with exit code 0)$")  # what an idle server says


async def begin_all(server: Server, tokens: int) -> list[Stream]:
    return list(
        await asyncio.gather(*(Stream.begin(server.port, route, tokens) for route in STREAMS for _ in range(3)))
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_streams_finish(number: signal.Signals) -> None:
    with running(["--kv-memory", "64MiB"]) as server:
        streams = await begin_all(server, tokens=50)
        server.process.send_signal(number)
        ends = await asyncio.wait_for(asyncio.gather(*(stream.rest() for stream in streams)), 60)
        for events in ends:
            assert len(events) == 50
            assert events[-1]["details"]["finish_reason"] == "length"
            assert events[-1]["details"]["generated_tokens"] == 50
            assert not any("error" in event for event in events)
        assert await asyncio.to_thread(server.process.wait, 20) == 0
        assert [line.partition(": ")[2] for line in server.errors] == [
            "stopping: 9 requests are running, waiting at most 90 s\n",
            "ended with exit code 0\n",
        ]


async def test_streams_that_take_too_long_end_with_one_error_event() -> None:
    with running(["--kv-memory", "512MiB", "--stop-grace", "0.5"]) as server:
        streams = await begin_all(server, tokens=4000)
        waiting = await Connection.open(server.port)
        waiting.send(
            "POST", "/generate", {"inputs": PROMPT, "parameters": {"max_new_tokens": 4000, "ignore_eos": True}}
        )
        await asyncio.sleep(0.2)
        begun = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        ends = await asyncio.wait_for(asyncio.gather(*(stream.rest() for stream in streams)), 30)
        for events in ends:
            assert set(events[-1]) == {"error", "error_type"}
            assert not any("error" in event for event in events[:-1])
        whole = await waiting.answer()
        assert whole.status == 503
        assert set(whole.json) == {"error", "error_type"}
        assert await asyncio.to_thread(server.process.wait, 20) == 0
        assert time.monotonic() - begun < 15
        assert all("Traceback" not in line for line in server.errors)


async def test_no_new_requests_while_the_last_ones_end() -> None:
    with running(["--kv-memory", "64MiB"]) as server:
        old = await Connection.open(server.port)
        assert (await old.ask("GET", "/health")).status == 200
        stream = await Stream.begin(server.port, GENERATE_STREAM, tokens=150)
        server.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.1)
        refused = await old.ask("POST", "/generate", {"inputs": PROMPT})
        assert refused.status == 503
        assert set(refused.json) == {"error", "error_type"}
        old.close()
        assert len(await stream.rest()) == 150
        assert await asyncio.to_thread(server.process.wait, 20) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_no_signal_changes_how_a_stopping_server_ends(number: signal.Signals) -> None:
    """Whoever is impatient sends many, also while the interpreter is ending."""
    with running(["--engine", "echo"]) as server:
        server.process.terminate()
        end = time.monotonic() + 20
        while server.process.poll() is None and time.monotonic() < end:
            server.process.send_signal(number)
            time.sleep(0.002)
        assert server.process.returncode == 0
    assert not [line for line in server.errors if not ORDERLY.search(line)]


def test_a_hangup_while_the_server_starts_is_no_end() -> None:
    """As `systemctl reload` right after a start."""
    command = [sys.executable, "-m", "interlingua.cli.main", "serve", "--engine", "echo", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while not _catches(process.pid, signal.SIGTERM):
            time.sleep(0.001)
        process.send_signal(signal.SIGHUP)
        assert process.stdout is not None
        ready = process.stdout.readline()
        process.terminate()
        assert ready.startswith("Ready in")
        assert process.wait(20) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("command", ["serve --port 0 --kv-memory 64MiB", "verify --requests 8"])
def test_at_any_moment_of_a_start(command: str, number: signal.Signals) -> None:
    for moment in range(12):
        with subprocess.Popen(
            [sys.executable, "-m", "interlingua.cli.main", *command.split()],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            while not _catches(process.pid, signal.SIGTERM):
                time.sleep(0.001)
            time.sleep(0.1 * moment)
            process.send_signal(number)
            assert process.stderr is not None
            lines = [line for line in process.stderr if not ORDERLY.search(line)]
            code = process.wait(60)
        if command.startswith("serve"):
            assert (code, lines) == (0, [])
        else:
            word = {signal.SIGTERM: "terminated", signal.SIGINT: "interrupted"}[number]
            assert (code, lines) == (128 + number, [f"interlingua: {word}\n"])


def _catches(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.partition("SigCgt:")[2].split()[0], 16) >> (number - 1) & 1)
