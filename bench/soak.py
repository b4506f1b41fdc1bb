"""Everything at once for a long time: nothing may differ, fail or be left behind.

Starts `interlingua serve` with a KV pool that is too small for its load, so that cached prompts are thrown out all the
time, and requests wait or begin again. Asks for the whole answers of a set of requests in every dialect (greedy and
sampled, with stops and grammars, in several scripts) and streams each once. Then, for as long as it is told to:

- of what workers do in turn, 25 % are clients that leave, before the first byte or after some events, half of them with
  a reset; 5 % are bad requests; the rest are whole answers and streams, which must say what they said before;
- now and then a burst comes that is more than the server takes: what it refuses must be 429, at once.

Afterwards every request has had exactly one ending by the server's own count, of the kinds that were provoked alone;
gauges are at zero, no socket or thread is left, and memory is no larger than it was when the server was warm. Prints
one JSON line; exits with 1 when something did not hold.

    python bench/soak.py [--seconds 1800] [--streams 32] [-- FLAG OF serve ...]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import socket
import struct
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from loadgen import prompt
from server import Server, running

LIMIT = 96  # requests that the server takes at once
POOL = ("--kv-memory", "32MiB", "--max-concurrent-requests", str(LIMIT))
GROWTH = 24_000_000  # bytes that a warm server's memory may move
VANISHING, BAD = 0.25, 0.05  # shares of what workers do
BURST_EVERY = 10.0  # seconds
ZERO = ("tgi_queue_size", "tgi_batch_current_size", "interlingua_requests_inside", "interlingua_kv_blocks_used")
_BEGINNINGS = ("", "Weiter: ", "今天天气很好，我们去", "Привет! ", "😀🎉 ", "def f(x):\n    ", "مرحبا ")
_STOPS: tuple[list[str], ...] = ([], [], [" and"], [".", "\n\n"], ["e"])
_GRAMMAR = {"type": "regex", "value": "[a-z]{3,12}( [a-z]{2,9}){2,20}"}
_SLACK = 8  # sockets and threads that may come and go


@dataclass(frozen=True, slots=True)
class Form:
    """A dialect's way to ask and to answer. `text` reads a whole answer, `joined` the events of a stream."""

    path: str
    stream_path: str
    body: Callable[[str, dict[str, Any]], dict[str, Any]]
    text: Callable[[Any, str], str]
    joined: Callable[[list[Any], str], str]


def _tgi(text: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"inputs": text, "parameters": parameters}


def _openai(key: str) -> Callable[[str, dict[str, Any]], dict[str, Any]]:
    def body(text: str, parameters: dict[str, Any]) -> dict[str, Any]:
        plain = {name: value for name, value in parameters.items() if name not in ("max_new_tokens", "do_sample")}
        if "do_sample" not in parameters:
            plain["temperature"] = 0
        asked = [{"role": "user", "content": text}] if key == "messages" else text
        return {key: asked, "max_tokens": parameters["max_new_tokens"], **plain}

    return body


def _native(text: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"inputs": text, "parameters": {k: v for k, v in parameters.items() if k not in ("ignore_eos", "stop")}}


def _tokens(events: list[Any], _: str) -> str:
    """Special tokens are no part of the text."""
    return "".join("" if event["token"].get("special") else event["token"]["text"] for event in events)


def _deltas(events: list[Any], _: str) -> str:
    choices = [choice for event in events for choice in event["choices"]]
    return "".join(choice["text"] if "text" in choice else choice["delta"].get("content") or "" for choice in choices)


def forms(model: str) -> tuple[Form, ...]:
    triton = f"/v2/models/{model}/generate"
    return (
        Form("/generate", "/generate_stream", _tgi, lambda a, _: a["generated_text"], _tokens),
        Form("/", "/", _tgi, lambda a, _: a[0]["generated_text"], _tokens),
        Form(
            triton,
            f"{triton}_stream",
            lambda text, parameters: {"text_input": text, "parameters": parameters},
            lambda a, _: a["text_output"],
            lambda events, _: "".join(event["text_output"] for event in events),
        ),
        Form("/infer", "/infer", _native, lambda a, _: a["generated_text"], _tokens),
        Form("/v1/completions", "/v1/completions", _openai("prompt"), lambda a, _: a["choices"][0]["text"], _deltas),
        Form(
            "/v1/chat/completions",
            "/v1/chat/completions",
            _openai("messages"),
            lambda a, _: a["choices"][0]["message"]["content"] or "",
            _deltas,
        ),
        Form(
            "/vllm/generate",
            "/vllm/generate",
            _openai("prompt"),
            lambda a, asked: a["text"][0].removeprefix(asked),
            lambda events, asked: (events[-1]["text"][0] if events else asked).removeprefix(asked),
        ),
    )


@dataclass(frozen=True, slots=True)
class Case:
    """One request in its two modes."""

    form: Form
    prompt: str
    body: dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Report:
    """What happened. `faults` must stay empty."""

    streams: int = 0
    wholes: int = 0
    tokens: int = 0  # events of streams
    vanished: int = 0
    bad: int = 0
    bursts: int = 0
    refused: int = 0  # with 429
    preemptions: int = 0
    grammars: bool = False  # does this server have them?
    seconds: float = 0.0
    resident_mb: list[int] = field(default_factory=list)  # after the start, warm, largest while running, in the end
    endings: dict[str, int] = field(default_factory=dict)  # as the server counts them
    faults: list[str] = field(default_factory=list)
    answers: dict[int, str] = field(default_factory=dict, repr=False)  # by number of the request


def case(number: int, model: str, grammars: bool = False) -> Case:
    """The same for the same number; numbers in a row differ in everything."""
    dice = random.Random(number)
    text = dice.choice(_BEGINNINGS) + prompt(number, dice.randint(1, 100))
    parameters: dict[str, Any] = {"max_new_tokens": dice.randint(8, 96), "ignore_eos": dice.random() < 0.5}
    if dice.random() < 0.5:
        parameters |= {"do_sample": True, "temperature": 1.1, "top_p": 0.95, "seed": dice.getrandbits(62) + 1}
    if stops := dice.choice(_STOPS):
        parameters["stop"] = stops
    every = forms(model)
    form = every[number % len(every)]
    if grammars and form.path == "/generate" and dice.random() < 0.5:
        parameters = {"max_new_tokens": parameters["max_new_tokens"], "grammar": _GRAMMAR}
    return Case(form, text, form.body(text, parameters))


def bad_requests(model: str) -> tuple[tuple[str, bytes, int], ...]:
    """(path, body, status) of what must be refused, and by whom it is refused."""
    return (
        ("/generate", b"{", 422),
        ("/generate", b'{"inputs":"x","parameters":{"top_p":7}}', 422),
        ("/", b'{"inputs":""}', 422),
        (f"/v2/models/{model}/generate", b"[]", 400),
        (f"/v2/models/{model}/generate", b'{"text_input":"\\ud800"}', 400),
        ("/v2/models/nobody/generate", b'{"text_input":"x"}', 404),
        ("/infer", b'{"inputs":"x","parameters":{"seed":-1}}', 422),
        ("/v1/completions", b'{"prompt":5}', 400),
        ("/v1/chat/completions", b'{"messages":[]}', 400),
        ("/vllm/generate", b'{"prompt":"x","max_tokens":-1}', 422),
        ("/nothing", b"", 404),
    )


class Soak:
    """The clients of one server."""

    def __init__(self, server: Server, streams: int, cases: int, seed0: int) -> None:
        self.report = Report(resident_mb=[_megabytes(server.resident)])
        self._server = server
        self._streams = streams
        self._numbers = range(seed0, seed0 + cases)
        self._dice = random.Random(seed0)
        self._bad = bad_requests(server.model)
        self._files = _open_files(server)

    async def run(self, seconds: float, vanishing: int = 0) -> Report:
        report, begun = self.report, time.monotonic()
        before = await asyncio.to_thread(self._server.endings)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(
            self._server.url, connector=connector, timeout=aiohttp.ClientTimeout(total=300)
        ) as self._session:
            report.grammars = await self._has_grammars()
            self._cases = {number: case(number, self._server.model, report.grammars) for number in self._numbers}
            await self._in_parallel(self._whole, self._numbers)
            await self._in_parallel(self._stream, self._numbers)
            report.resident_mb.append(_megabytes(self._server.resident_now()))
            sampling = asyncio.create_task(self._sample())
            end = time.monotonic() + seconds
            bursting = asyncio.create_task(self._burst_until(end))
            await self._in_parallel(self._mixed, _until(end, self._numbers, self._dice))
            await bursting
            await asyncio.gather(*(self._vanish(number) for number in range(vanishing)))
            sampling.cancel()
        await self._settle()
        report.resident_mb[2:] = [max(report.resident_mb[1:]), _megabytes(self._server.resident_now())]
        report.seconds = round(time.monotonic() - begun, 1)
        if report.resident_mb[-1] > report.resident_mb[1] + _megabytes(GROWTH):
            report.faults.append(f"memory has grown: {report.resident_mb} MB")
        self._count(before, await asyncio.to_thread(self._server.endings))
        report.faults += self._server.errors  # a server that is well says nothing
        return report

    async def _in_parallel(self, work: Any, numbers: Iterable[int]) -> None:
        numbers = iter(numbers)

        async def worker() -> None:
            for number in numbers:
                try:
                    await work(number)
                except (aiohttp.ClientError, OSError, EOFError, TimeoutError, ValueError, KeyError) as problem:
                    self.report.faults.append(f"{type(problem).__name__}: {problem} in {self._cases.get(number)}")

        await asyncio.gather(*(worker() for _ in range(self._streams)))

    async def _mixed(self, number: int) -> None:
        draw = self._dice.random()
        if draw < VANISHING:
            await self._vanish(self._dice.randrange(1 << 20))
        elif draw < VANISHING + BAD:
            await self._refusal(*self._dice.choice(self._bad))
        elif draw < 0.65:
            await self._stream(number)
        else:
            await self._whole(number)

    @contextlib.asynccontextmanager
    async def _ask(self, path: str, body: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer of a client that comes again while the server is full. Raises ValueError for all but 200."""
        while True:
            async with self._session.post(path, json=body) as response:
                if response.status == 429:
                    await self._full(response)
                elif response.status != 200:
                    raise ValueError(f"{response.status} {await response.text()}")
                else:
                    yield response
                    return
            await asyncio.sleep(self._dice.uniform(0.05, 0.5))

    async def _full(self, response: aiohttp.ClientResponse) -> None:
        self.report.refused += 1
        if int(response.headers["retry-after"]) < 1 or "error" not in await response.json():
            raise ValueError(f"a refusal of no known shape: {await response.text()}")

    async def _has_grammars(self) -> bool:
        body = _tgi("x", {"max_new_tokens": 4, "grammar": _GRAMMAR})
        async with self._session.post("/generate", json=body) as response:
            if response.status == 200:
                self.report.wholes += 1
                return True
            self.report.bad += 1
            return False

    async def _whole(self, number: int) -> None:
        wanted = self._cases[number]
        async with self._ask(wanted.form.path, wanted.body) as response:
            text = wanted.form.text(await response.json(), wanted.prompt)
        self.report.wholes += 1
        first = self.report.answers.setdefault(number, text)
        if text != first:
            raise ValueError(f"the answer says {text!r}, and before {first!r}")

    async def _stream(self, number: int) -> None:
        wanted = self._cases[number]
        events: list[Any] = []
        async with self._ask(wanted.form.stream_path, wanted.body | {"stream": True}) as response:
            async for line in response.content:
                data = line.removeprefix(b"data:").strip()
                if data and data != b"[DONE]":
                    events.append(json.loads(data))
        self.report.streams += 1
        self.report.tokens += len(events)
        joined = wanted.form.joined(events, wanted.prompt)
        if joined != self.report.answers[number]:
            raise ValueError(f"the stream says {joined!r}, the answer {self.report.answers[number]!r}")
        last = events[-1].get("generated_text", joined) if events else joined
        if last != joined:
            raise ValueError(f"the stream says {joined!r}, its last event {last!r}")

    async def _refusal(self, path: str, body: bytes, status: int) -> None:
        async with self._session.post(path, data=body) as response:
            self.report.bad += 1
            if response.status != status or "error" not in await response.json():
                raise ValueError(f"{path} {body!r}: {response.status} {await response.text()}, not {status}")

    async def _burst_until(self, end: float) -> None:
        """More at once than the server takes, now and then. Each is answered or refused."""

        async def one(number: int) -> None:
            body = _tgi(prompt(number, 10), {"max_new_tokens": 24, "ignore_eos": True})
            async with self._session.post("/generate", json=body) as response:
                if response.status == 429:
                    await self._full(response)
                elif response.status == 200:
                    await response.read()
                    self.report.wholes += 1
                else:
                    raise ValueError(f"{response.status} {await response.text()}")

        while time.monotonic() + BURST_EVERY / 2 < end:
            await asyncio.sleep(BURST_EVERY / 2)
            self.report.bursts += 1
            before = self.report.refused
            first = self._dice.randrange(1 << 20)
            results = await asyncio.gather(*(one(first + n) for n in range(LIMIT + 32)), return_exceptions=True)
            self.report.faults += [repr(result) for result in results if result is not None]
            if self.report.refused == before:
                self.report.faults.append("a burst over the limit, and nobody was refused")
            await asyncio.sleep(BURST_EVERY / 2)

    async def _vanish(self, number: int) -> None:
        """Reads `number % 10` events of a long answer and leaves, with FIN or RST."""
        text = prompt(number, 20)
        path = f"/v2/models/{self._server.model}/generate_stream" if number % 4 < 2 else "/generate_stream"
        body = {"parameters": {"max_new_tokens": 2000, "ignore_eos": True}, "inputs": text, "text_input": text}
        data = json.dumps(body).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._server.port)
        writer.write(f"POST {path} HTTP/1.1\r\nhost: soak\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
        await writer.drain()
        self.report.vanished += 1
        if number % 10:
            head = await reader.readuntil(b"\r\n\r\n")
            if b" 429 " not in head.splitlines()[0]:
                for _ in range(number % 10):
                    await reader.readuntil(b"data: ")
        if number % 2:
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        else:
            writer.close()

    def _count(self, before: dict[str, int], after: dict[str, int]) -> None:
        """Compares the server's count of endings with what the clients did."""
        report = self.report
        ended = {kind: count - before.get(kind, 0) for kind, count in after.items()}
        report.endings = {kind: count for kind, count in ended.items() if count}
        received = ended.pop("received")
        if received != sum(ended.values()):
            report.faults.append(f"{received} requests, but {ended} ended")
        good = report.wholes + report.streams
        refused = sum(ended.get(kind, 0) for kind in ("validation", "not_found"))
        if refused != report.bad:
            report.faults.append(f"{report.bad} bad requests, but {refused} counted")
        # Of those that left, some did so too late, and some found the server full.
        if not good <= ended["success"] <= good + report.vanished:
            report.faults.append(f"{good} whole answers, but {ended['success']} counted")
        if ended.get("overloaded", 0) < report.refused:
            report.faults.append(f"{report.refused} refusals, but {ended.get('overloaded', 0)} counted")
        strange = ended.keys() - {"success", "dropped", "overloaded", "validation", "not_found"}
        if any(ended[kind] for kind in strange):
            report.faults.append(f"endings that nobody provoked: {report.endings}")

    async def _settle(self, seconds: float = 30) -> None:
        """Waits until the gauges are at zero, and the clients' sockets closed."""
        end = time.monotonic() + seconds
        while True:
            gauges = await asyncio.to_thread(self._server.gauges)
            left = {name: gauges[name] for name in ZERO if gauges[name]}
            if (files := _open_files(self._server)) > self._files + _SLACK:
                left["open files"] = files
            if not left:
                self.report.preemptions = int(gauges["interlingua_preemptions_total"])
                return
            if time.monotonic() > end:
                self.report.faults.append(f"left behind: {left}")
                return
            await asyncio.sleep(0.05)

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            self.report.resident_mb.append(_megabytes(self._server.resident_now()))


def _until(end: float, numbers: range, dice: random.Random) -> Iterable[int]:
    while time.monotonic() < end:
        yield dice.choice(numbers)


def _open_files(server: Server) -> int:
    """Files, sockets and threads of the server's process."""
    process = Path(f"/proc/{server.process.pid}")
    return len(list((process / "fd").iterdir())) + len(list((process / "task").iterdir()))


def _megabytes(size: int) -> int:
    return round(size / 1e6)


async def soak(
    server: Server, *, seconds: float, streams: int = 32, cases: int = 96, seed0: int = 0, vanishing: int = 0
) -> Report:
    """Runs the soak against a server that nobody else uses."""
    return await Soak(server, streams, cases, seed0).run(seconds, vanishing)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=1800, help="how long to go on")
    parser.add_argument("--streams", type=int, default=32, help="workers at the same time")
    parser.add_argument("--cases", type=int, default=96, help="different requests")
    parser.add_argument("--vanishing", type=int, default=100, help="clients that leave at once in the end")
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
