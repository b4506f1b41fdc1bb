"""A real server process for the tests: the scripted engine behind the real socket, once per set of flags.

The prompt chooses what the engine says: one that begins with `{"say":` is a script, anything else is echoed.
Run as a program it prints one JSON line of URLs when it serves, and stops when its input closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import uvloop
from wire import SETUPS
from wire_cases import ADAPTERS, MODEL

from interlingua.contract.errors import GenerationError
from interlingua.contract.request import PreparedRequest
from interlingua.engine.echo import EchoEngine, Script
from interlingua.engine.peft import CONFIG_FILE
from interlingua.media.sources import MediaSources
from interlingua.server.app import build_app
from interlingua.server.routes import discover
from interlingua.server.run import bind, listening
from interlingua.server.settings import ServerSettings
from interlingua.service.prepare import Limits, ModelDefaults
from interlingua.service.service import ServedModel, Service
from interlingua.text.chat_template import ChatTemplate

_GRPC = importlib.util.find_spec("grpc") is not None
BOS, EOS, PAD = 256, 257, 258
# Tokens longer than a byte, so that stops and characters can lie across and inside them.
WORDS = ("alpha", " beta", " gamma", "onetwo", "threefour", " Paris", "😀", "Carol:", "    ", "\u2028")
MAX_INPUT, MAX_TOTAL = 1024, 1100


class Span(NamedTuple):
    id: int
    text: str
    start: int
    stop: int


class ByteTokenizer:
    """One token per byte, three special ones, and `WORDS`, which only scripts use."""

    bos_id = BOS
    eos_ids = (EOS,)
    special_ids = (BOS, EOS, PAD)
    token_bytes = (
        *(bytes([value]) for value in range(256)),
        b"<s>",
        b"</s>",
        b"<pad>",
        *(word.encode() for word in WORDS),
    )

    def id_to_text(self, token_id: int) -> str:
        return self.token_bytes[token_id].decode("utf-8", "replace")

    def encode(self, text: str, add_special: bool = True) -> Sequence[int]:
        bos = [BOS] if add_special or text.startswith("<s>") else []
        return [*bos, *text.removeprefix("<s>").encode()]

    def encode_with_offsets(self, text: str, add_special: bool = True) -> Sequence[Span]:
        data = text.encode()
        spans = [Span(value, chr(value), at, at + 1) for at, value in enumerate(data)]
        return [Span(BOS, "", 0, 0), *spans] if add_special else spans


# What the user said last is the prompt. The comment tells how answers are marked.
CHAT_TEMPLATE = (
    "{# tools tool_calls <tool_call> <think> </think> #}{{ messages[-1].content }}{% if thinking %}<think>{% endif %}"
)


def ids_of(pieces: Sequence[str | int]) -> tuple[int, ...]:
    """Ids of script pieces: an id as it is, a word as its one token, else bytes."""
    ids: list[int] = []
    for piece in pieces:
        if isinstance(piece, int):
            ids.append(piece)
        elif piece in WORDS:
            ids.append(259 + WORDS.index(piece))
        else:
            ids += piece.encode()
    return tuple(ids)


def script_of(request: PreparedRequest) -> Script:
    text = bytes(value for value in request.prompt_ids if value < 256).decode("utf-8", "replace")
    if not text.startswith('{"say":'):
        return Script()
    wanted, _ = json.JSONDecoder().raw_decode(text)
    return Script(
        ids=(*ids_of(wanted["say"]), EOS),
        start_delay=wanted.get("start_delay", 0.0),
        delay=wanted.get("delay", 0.0),
        fail_at=wanted.get("fail_at"),
        error=GenerationError("the script said so") if wanted.get("fail_at") is not None else None,
    )


def say(*pieces: str | int, **more: float) -> str:
    """The prompt that makes the engine say `pieces` and then EOS."""
    return json.dumps({"say": list(pieces), **more})


@contextlib.contextmanager
def _adapter_folder() -> Iterator[str]:
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, CONFIG_FILE).write_text(json.dumps(config))
        yield folder


async def _serve_all() -> None:
    closed = asyncio.Event()
    loop = asyncio.get_running_loop()
    threading.Thread(target=lambda: (sys.stdin.read(), loop.call_soon_threadsafe(closed.set)), daemon=True).start()
    async with contextlib.AsyncExitStack() as stack:
        adapter = stack.enter_context(_adapter_folder())
        urls = {}
        for setup, wire in {**SETUPS, "small": SETUPS["plain"]}.items():
            small = setup == "small"  # one runs, four are inside, bodies are short
            limits = Limits(
                max_input_token_len=MAX_INPUT,
                max_concurrent_requests=4 if small else 512,
                max_prompt_chars=41_943_040 if wire.lenient_ranges else 4_194_304,
            )
            server = ServerSettings(
                port=0,
                stop_grace=1.0,
                payload_limit=100_000 if small else 40 << 20,
                grpc_port=0 if setup == "plain" and _GRPC else None,
            )
            size = len(ByteTokenizer.token_bytes)
            engine = EchoEngine(
                vocab_size=size,
                max_context=MAX_TOTAL,
                eos_id=EOS,
                script=script_of,
                max_running=1 if small else 8,
            )
            await engine.start()
            for name in ADAPTERS:
                await engine.load_adapter(name, adapter)
            service = Service(limits, media=MediaSources(hosts=frozenset({"h.example"})))
            chat = ChatTemplate(CHAT_TEMPLATE)
            stack.callback(service.close)
            service.attach(ServedModel(MODEL, engine, ByteTokenizer(), ModelDefaults(), chat=chat))
            app = build_app(service, discover(), server, wire)
            urls[setup] = await stack.enter_async_context(listening(app, bind(app.settings)))
            if setup == "plain" and _GRPC:
                urls["grpc"] = app.addresses["gRPC"]
        print(json.dumps(urls), flush=True)
        await closed.wait()


@dataclass(frozen=True)
class Served:
    """URLs of the running servers, by set of flags."""

    urls: dict[str, str]

    @property
    def url(self) -> str:
        return self.urls["plain"]


@contextlib.contextmanager
def running() -> Iterator[Served]:
    """Runs the process while the block runs."""
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here), str(here.parents[1])])}
    process = subprocess.Popen(
        [sys.executable, str(here / "served.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, "the server did not start"
        urls: dict[str, Any] = json.loads(line)
        yield Served(urls)
    finally:
        process.stdin.close()
        try:
            process.wait(20)
        finally:
            process.kill()
            process.stdout.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve_all())
