"""A model of bytes for tests of service and server: one token per byte, spoken by the scripted engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from interlingua.contract.request import GenerationRequest, PreparedRequest, TextPart, TextPrompt
from interlingua.engine.echo import EchoEngine, Script
from interlingua.server.exchange import Presence
from interlingua.service.prepare import Limits, ModelDefaults
from interlingua.service.service import ServedModel, Service

BOS, EOS = 256, 257
VOCAB_SIZE = 258
NAME = "bytes"


class Span(NamedTuple):
    id: int
    text: str
    start: int
    stop: int


class ByteTokenizer:
    """Id = byte value. Adds BOS, unless the text begins with it."""

    token_bytes = (*(bytes([value]) for value in range(256)), b"<s>", b"</s>")
    special_ids = frozenset({BOS, EOS})
    eos_ids = frozenset({EOS})

    def __init__(self, bos_id: int | None = BOS) -> None:
        self.bos_id = bos_id

    def id_to_text(self, token_id: int) -> str:
        return self.token_bytes[token_id].decode("utf-8", "replace")

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        written = text.startswith("<s>")
        bos = [BOS] if self.bos_id is not None and (add_special or written) else []
        return [*bos, *text.removeprefix("<s>" if bos else "").encode()]

    def encode_with_offsets(self, text: str, add_special: bool = True) -> list[Span]:
        spans = [Span(value, chr(value), at, at + 1) for at, value in enumerate(text.encode())]
        return [Span(BOS, "", 0, 0), *spans] if add_special else spans


def script(text: str, **more: float | int | Exception | None) -> Script:
    """A script that says `text` and then EOS."""
    return Script(ids=(*text.encode(), EOS), **more)  # type: ignore[arg-type]


def request(text: str = "Hi", **more: object) -> GenerationRequest:
    """A greedy request for `text`."""
    return GenerationRequest(request_id="r", prompt=TextPrompt((TextPart(text),)), **more)  # type: ignore[arg-type]


@dataclass(slots=True)
class House:
    """A service over a scripted engine, with the books that every test ends by checking."""

    engine: EchoEngine
    service: Service

    async def emptied(self, patience: float = 5.0) -> None:
        """Waits until nothing is left of any request, then checks that each had exactly one ending."""
        service, metrics = self.service, self.service.metrics
        deadline = asyncio.get_running_loop().time() + patience
        while service.inside or self.engine.stats().running or self.engine.stats().waiting or _listeners():
            assert asyncio.get_running_loop().time() < deadline, (service.inside, self.engine.stats(), _listeners())
            await asyncio.sleep(0.01)
        assert self.engine.stats().kv_blocks_used == 0
        assert metrics.requests == metrics.successes + sum(metrics.failures.values())


def _listeners() -> list[asyncio.Task[object]]:
    """Tasks that listen for a client to leave. One that was cancelled ends in the loop's next round."""
    return [task for task in asyncio.all_tasks() if Presence._listen.__qualname__ in repr(task.get_coro())]


def house(
    say: Script | Callable[[PreparedRequest], Script] | None = None,
    *,
    limits: Limits | None = None,
    defaults: ModelDefaults | None = None,
    max_running: int = 64,
    max_context: int = 8192,
    loaded: bool = True,
) -> House:
    """A service whose engine says what `say` scripts; None = the prompt itself."""
    engine = EchoEngine(vocab_size=VOCAB_SIZE, eos_id=EOS, script=say, max_running=max_running, max_context=max_context)
    made = House(engine, Service(limits or Limits()))
    if loaded:
        made.service.attach(served(engine, defaults))
    return made


def served(engine: EchoEngine, defaults: ModelDefaults | None = None) -> ServedModel:
    return ServedModel(NAME, engine, ByteTokenizer(), defaults or ModelDefaults())


def text_of(ids: Sequence[int]) -> str:
    return bytes(value for value in ids if value < 256).decode("utf-8", "replace")
