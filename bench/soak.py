"""Many streams for a long time: every joined stream must equal its whole answer, and nothing may be left behind.

Starts `interlingua serve` with a KV pool that is too small for the streams, so that cached prompts are thrown out all
the time, and requests wait or begin again. Asks for the whole answers of a set of requests on every route (greedy and
sampled, with stops, in several scripts), then streams the same requests in a random order and compares. In the end
clients leave in mid-answer, half of them with a reset. Afterwards all gauges must be back at zero and memory no
larger than it was when the server was warm. Prints one JSON line; exits with 1 when something did not hold.

    python bench/soak.py [--seconds 120] [--streams 32] [-- FLAG OF serve ...]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import aiohttp
import uvloop
from loadgen import prompt
from server import Server, running

POOL = ("--kv-memory", "64MiB")
GROWTH = 24_000_000  # bytes that a warm server's memory may move
ZERO = ("tgi_queue_size", "tgi_batch_current_size", "interlingua_requests_inside", "interlingua_kv_blocks_used")
_BEGINNINGS = ("", "Weiter: ", "今天天气很好，我们去", "Привет! ", "😀🎉 ", "def f(x):\n    ", "مرحبا ")
_STOPS: tuple[list[str], ...] = ([], [], [" and"], [".", "\n\n"], ["e"])


@dataclass(frozen=True, slots=True)
class Case:
    """One request in its two forms."""

    whole_path: str
    stream_path: str
    whole_body: dict[str, Any]
    stream_body: dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Report:
    """What happened. `faults` must stay empty."""

    streams: int = 0
    tokens: int = 0
    vanished: int = 0
    preemptions: int = 0
    seconds: float = 0.0
    resident_mb: list[int] = field(default_factory=list)  # after the start, warm, largest while running, in the end
    faults: list[str] = field(default_factory=list)
    answers: dict[int, str] = field(default_factory=dict, repr=False)  # by number of the request


def case(number: int, model: str) -> Case:
    """The same for the same number; numbers in a row differ in everything."""
    dice = random.Random(number)
    text = dice.choice(_BEGINNINGS) + prompt(number, dice.randint(1, 100))
    parameters: dict[str, Any] = {"max_new_tokens": dice.randint(8, 96), "ignore_eos": dice.random() < 0.5}
    if dice.random() < 0.5:
        parameters |= {"do_sample": True, "temperature": 1.1, "top_p": 0.95, "seed": dice.getrandbits(63) + 1}
    if stops := dice.choice(_STOPS):
        parameters["stop"] = stops
    if number % 3 == 0:
        body = {"inputs": text, "parameters": parameters}
        return Case("/generate", "/generate_stream", body, body)
    if number % 3 == 1:
        body = {"inputs": text, "parameters": parameters}
        return Case("/", "/", body, body | {"stream": True})
    base = f"/v2/models/{model}/generate"
    body = {"text_input": text, "parameters": parameters}
    return Case(base, f"{base}_stream", body, body)


def text_of(answer: Any) -> str:
    """The generated text of a whole answer of any route."""
    one = answer[0] if isinstance(answer, list) else answer
    return str(one["generated_text"] if "generated_text" in one else one["text_output"])


def piece_of(event: Any) -> str:
    """What an event adds to the answer. Special tokens are no part of it."""
    if "token" in event:
        return "" if event["token"]["special"] else str(event["token"]["text"])
    return str(event["text_output"])


class Soak:
    """The clients of one server."""

    def __init__(self, server: Server, streams: int, cases: int, seed0: int) -> None:
        self.report = Report(resident_mb=[_megabytes(server.resident)])
        self._server = server
        self._streams = streams
        self._cases = [case(number, server.model) for number in range(seed0, seed0 + cases)]
        self._dice = random.Random(seed0)

    async def run(self, seconds: float, vanishing: int = 0) -> Report:
        report, begun = self.report, time.monotonic()
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(
            self._server.url, connector=connector, timeout=aiohttp.ClientTimeout(total=120)
        ) as self._session:
            await self._in_parallel(self._whole, range(len(self._cases)))
            await self._in_parallel(self._stream, range(len(self._cases)))
            report.resident_mb.append(_megabytes(self._server.resident_now()))
            sampling = asyncio.create_task(self._sample())
            end = time.monotonic() + seconds
            await self._in_parallel(self._stream, _until(end, len(self._cases), self._dice))
            await asyncio.gather(*(self._vanish(number) for number in range(vanishing)))
            await self._settle()
            sampling.cancel()
        report.resident_mb[2:] = [max(report.resident_mb[1:]), _megabytes(self._server.resident_now())]
        report.seconds = round(time.monotonic() - begun, 1)
        if report.resident_mb[-1] > report.resident_mb[1] + _megabytes(GROWTH):
            report.faults.append(f"memory has grown: {report.resident_mb} MB")
        report.faults += self._server.errors  # a server that is well says nothing
        return report

    async def _in_parallel(self, work: Any, numbers: Any) -> None:
        numbers = iter(numbers)

        async def worker() -> None:
            for number in numbers:
                try:
                    await work(number)
                except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as problem:
                    self.report.faults.append(f"{type(problem).__name__}: {problem} in {self._cases[number]}")

        await asyncio.gather(*(worker() for _ in range(self._streams)))

    async def _whole(self, number: int) -> None:
        wanted = self._cases[number]
        async with self._session.post(wanted.whole_path, json=wanted.whole_body) as response:
            answer = await response.json()
            if response.status != 200:
                raise ValueError(f"{response.status} {answer}")
        self.report.answers[number] = text_of(answer)

    async def _stream(self, number: int) -> None:
        wanted = self._cases[number]
        joined = ""
        event: Any = {}
        async with self._session.post(wanted.stream_path, json=wanted.stream_body) as response:
            if response.status != 200:
                raise ValueError(f"{response.status} {await response.text()}")
            async for line in response.content:
                if line.strip():
                    event = json.loads(line.removeprefix(b"data:"))
                    joined += piece_of(event)
                    self.report.tokens += 1
        self.report.streams += 1
        if joined != self.report.answers[number]:
            raise ValueError(f"the stream says {joined!r}, the answer {self.report.answers[number]!r}")
        if event.get("generated_text", joined) != joined:
            raise ValueError(f"the stream says {joined!r}, its last event {event['generated_text']!r}")

    async def _vanish(self, number: int) -> None:
        """Reads `number % 10` events of a long answer and leaves, with FIN or RST."""
        text = prompt(number, 20)
        path = f"/v2/models/{self._server.model}/generate_stream" if number % 4 < 2 else "/generate_stream"
        body = {"parameters": {"max_new_tokens": 2000, "ignore_eos": True}, "inputs": text, "text_input": text}
        data = json.dumps(body).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._server.port)
        writer.write(f"POST {path} HTTP/1.1\r\nhost: soak\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
        await writer.drain()
        for _ in range(number % 10):
            await reader.readuntil(b"data: ")
        if number % 2:
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        else:
            writer.close()
        self.report.vanished += 1

    async def _settle(self, seconds: float = 20) -> None:
        """Waits until the gauges are at zero."""
        end = time.monotonic() + seconds
        while True:
            gauges = await asyncio.to_thread(self._server.gauges)
            left = {name: gauges[name] for name in ZERO if gauges[name]}
            if not left:
                self.report.preemptions = int(gauges["interlingua_preemptions_total"])
                return
            if time.monotonic() > end:
                self.report.faults.append(f"gauges are not back at zero: {left}")
                return
            await asyncio.sleep(0.05)

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            self.report.resident_mb.append(_megabytes(self._server.resident_now()))


def _until(end: float, count: int, dice: random.Random) -> Any:
    while time.monotonic() < end:
        yield dice.randrange(count)


def _megabytes(size: int) -> int:
    return round(size / 1e6)


async def soak(
    server: Server, *, seconds: float, streams: int = 32, cases: int = 96, seed0: int = 0, vanishing: int = 0
) -> Report:
    """Runs the soak against a server that nobody else uses."""
    return await Soak(server, streams, cases, seed0).run(seconds, vanishing)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=120, help="how long to stream")
    parser.add_argument("--streams", type=int, default=32, help="streams at the same time")
    parser.add_argument("--cases", type=int, default=96, help="different requests")
    parser.add_argument("--vanishing", type=int, default=100, help="clients that leave in mid-answer")
    parser.add_argument("--seed0", type=int, default=0, help="number of the first request")
    parser.add_argument("flags", nargs="*", default=POOL, metavar="-- FLAG", help="flags of `interlingua serve`")
    given = parser.parse_args(arguments)
    with running(given.flags) as server:
        wanted = {name: getattr(given, name) for name in ("seconds", "streams", "cases", "vanishing", "seed0")}
        report = uvloop.run(soak(server, **wanted))
    print(json.dumps({name: value for name, value in asdict(report).items() if name != "answers"}, ensure_ascii=False))
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
