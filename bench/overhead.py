"""What the request path costs beside the engine: microseconds of CPU per request and per streamed token.

The scripted engine and a byte tokenizer stand behind the real HTTP protocol, application, dialects and service;
only the socket is replaced, by a transport that drops what is written. Two numbers come out:

- a request: from the bytes of its head to the last byte of its answer, which has one token;
- a streamed token: from the engine's TokenEvent to bytes handed to the transport.

The cost of the scripted engine, measured alone in the same loop, is taken off both. A bare application under
the same HTTP protocol is shown beside them; its part is in the requests.

CPU time of this process, the best of several rounds, so that neighbours on the machine hardly count. The last
line is JSON.

    python bench/overhead.py [--tokens 2000] [--rounds 7] [--check]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop
from uvicorn import Config
from uvicorn.server import ServerState

from interlingua.contract.request import PreparedRequest, SamplingParams
from interlingua.engine.echo import EchoEngine, Script
from interlingua.server.app import App, build_app
from interlingua.server.protocol import LimitedProtocol, protocol_class
from interlingua.server.routes import discover
from interlingua.server.settings import ServerSettings
from interlingua.service.service import ServedModel, Service

REQUEST_TARGET = 150.0  # microseconds
TOKEN_TARGET = 25.0
WORDS = [f" word{i}".encode() for i in range(512)]
EOS = len(WORDS)


class WordTokenizer:
    """Costs nothing: the prompt is always the same few ids."""

    token_bytes = (*WORDS, b"</s>")
    special_ids = frozenset({EOS})
    eos_ids = frozenset({EOS})
    bos_id = None

    def id_to_text(self, token_id: int) -> str:
        return self.token_bytes[token_id].decode()

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        return [1, 2, 3]

    def encode_with_offsets(self, text: str, add_special: bool = True) -> list[Any]:
        return []


class Transport(asyncio.Transport):
    """Takes everything at once, and says when an answer is complete."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = 0
        self.writes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += len(data)
        self.writes += 1

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None: ...


class Client:
    """One connection that asks again and again."""

    def __init__(self, app: App | Bare, path: str, body: dict[str, Any]) -> None:
        config = Config(app, lifespan="off", log_config=None, access_log=False, ws="none", proxy_headers=False)
        config.load()
        self.transport = Transport()
        self._protocol: LimitedProtocol = protocol_class(app.settings)(config, ServerState(), {})
        self._protocol.connection_made(self.transport)
        data = json.dumps(body).encode()
        self._request = (
            f"POST {path} HTTP/1.1\r\nhost: localhost:8080\r\nuser-agent: bench\r\naccept: */*\r\n"
            f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        ).encode() + data

    async def ask(self) -> None:
        protocol = self._protocol
        protocol.data_received(self._request)
        task = next(iter(protocol.tasks))
        await task
        assert protocol.cycle.response_complete

    def leave(self) -> None:
        self._protocol.connection_lost(None)


def site(tokens: int) -> App:
    """An application whose answers have `tokens` tokens."""
    ids = tuple(i % EOS for i in range(tokens))
    engine = EchoEngine(vocab_size=EOS + 1, max_context=1_000_000, script=Script(ids=ids))
    service = Service()
    service.attach(ServedModel("m", engine, WordTokenizer()))
    return build_app(service, discover(), ServerSettings())


async def best(rounds: int, count: int, work: Callable[[], Awaitable[None]]) -> float:
    """Microseconds of CPU that `work` takes, averaged over `count` calls, the best of `rounds`."""
    await work()
    times = []
    for _ in range(rounds):
        begun = time.process_time()
        for _ in range(count):
            await work()
        times.append((time.process_time() - begun) / count)
    return min(times) * 1e6


async def engine_alone(tokens: int, rounds: int, count: int) -> float:
    """Microseconds that the scripted engine itself takes for a token."""
    ids = tuple(i % EOS for i in range(tokens))
    engine = EchoEngine(vocab_size=EOS + 1, max_context=1_000_000, script=Script(ids=ids))
    request = PreparedRequest(
        request_id="",
        prompt_ids=(1, 2, 3),
        max_new_tokens=tokens,
        sampling=SamplingParams(),
        stop_token_ids=frozenset({EOS}),
    )

    async def work() -> None:
        async for event in engine.generate(request):
            assert event is not None

    return await best(rounds, count, work) / tokens


class Bare:
    """Answers two bytes, with as many headers as TGI's answer has."""

    settings = ServerSettings()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        headers = [(b"x-%d" % i, b"1") for i in range(11)] + [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok", "more_body": False})


async def measure(tokens: int, rounds: int) -> dict[str, float]:
    bodies: dict[str, tuple[str, dict[str, Any]]] = {
        "tgi": ("/generate", {"inputs": "Tell me of the sea", "parameters": {"max_new_tokens": 1}}),
        "tgi, details": (
            "/generate",
            {
                "inputs": "Tell me of the sea",
                "parameters": {
                    "max_new_tokens": 1,
                    "do_sample": True,
                    "temperature": 0.7,
                    "top_p": 0.9,
                    "seed": 1,
                    "details": True,
                    "stop": ["\n\n"],
                },
            },
        ),
        "triton": (
            "/v2/models/m/generate",
            {"text_input": "Tell me of the sea", "parameters": {"max_new_tokens": 1, "details": True}},
        ),
    }
    figures = {}
    bare = Client(Bare(), "/", {"inputs": "Tell me of the sea"})
    figures["bare application, a request"] = await best(rounds, 300, bare.ask)
    first = await engine_alone(1, rounds, 300)
    figures["scripted engine alone, a request"] = first
    one = site(1)
    for name, (path, body) in bodies.items():
        client = Client(one, path, body)
        figures[f"request, {name}"] = await best(rounds, 300, client.ask) - first
        client.leave()

    alone = await engine_alone(tokens, rounds, 1)
    figures["scripted engine alone, a token"] = alone
    many = site(tokens)
    streams: dict[str, tuple[str, dict[str, Any]]] = {
        "tgi": ("/generate_stream", {"inputs": "x", "parameters": {"max_new_tokens": tokens}}),
        "tgi, 4 stops": (
            "/generate_stream",
            {"inputs": "x", "parameters": {"max_new_tokens": tokens, "stop": ["\n\n", "User:", "###", "words"]}},
        ),
        "triton": (
            "/v2/models/m/generate_stream",
            {"text_input": "x", "parameters": {"max_new_tokens": tokens}},
        ),
    }
    for name, (path, body) in streams.items():
        client = Client(many, path, body)
        figures[f"streamed token, {name}"] = await best(rounds, 1, client.ask) / tokens - alone
        assert client.transport.writes > tokens / 2, "the answer was not streamed"
        client.leave()
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=2000, help="tokens of a stream")
    parser.add_argument("--rounds", type=int, default=7, help="rounds, of which the best counts")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    arguments = parser.parse_args()
    figures = uvloop.run(measure(arguments.tokens, arguments.rounds))
    missed = []
    for name, value in figures.items():
        target = {"request": REQUEST_TARGET, "streamed": TOKEN_TARGET}.get(name.split()[0].rstrip(","))
        if target is not None and value > target:
            missed.append(name)
        print(f"{name:34} {value:8.1f} µs" + (f"   target {target:.0f}" if target else ""))
    print(json.dumps({"python": platform.python_version(), "us": {k: round(v, 2) for k, v in figures.items()}}))
    return 1 if missed and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
