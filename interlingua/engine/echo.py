"""The scripted engine: says given token ids with given delays and failures. Ships, and tests run on it.

Without a script it repeats the prompt's own tokens and ends with EOS, which is enough to try a client. It
keeps the same books as a real engine (a queue, running places, KV blocks), so that a test can see that every
ending gives everything back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from interlingua.contract.engine import EngineInfo, EngineStats
from interlingua.contract.errors import InterlinguaError, UnavailableError, ValidationError
from interlingua.contract.events import (
    EngineEvent,
    FailedEvent,
    FinishedEvent,
    FinishReason,
    StartedEvent,
    TokenEvent,
)
from interlingua.contract.request import Adapter, PreparedRequest
from interlingua.engine.peft import read_config


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What the engine does with one request. Delays are in seconds.

    The ids end with a stop token of the request, or the answer ends with the first EOS after them, or at
    `max_new_tokens`, whichever comes first. `delay` 0 still lets other tasks run between two tokens.
    """

    ids: tuple[int, ...] | None = None  # None = the prompt's own
    start_delay: float = 0.0  # the prefill
    delay: float = 0.0  # before each token
    logprob: float = -0.5
    fail_at: int | None = None  # fail after this many tokens; 0 = before the first
    error: InterlinguaError | None = None  # what to fail with; None = end without a word
    die_at: int | None = None  # the whole engine dies after this many tokens


class _Run:
    """A request inside the engine. `over` is set by the engine to end it from outside."""

    __slots__ = ("blocks", "over", "place", "request")

    def __init__(self, request: PreparedRequest, over: asyncio.Future[InterlinguaError]) -> None:
        self.request = request
        self.over = over
        self.place: asyncio.Future[None] | None = None  # set while it waits for a running place
        self.blocks = 0


class EchoEngine:
    """Implements `contract.engine.Engine`.

    Args:
        script: for all requests, or a function from a request to its script.
        eos_id: the id that ends an answer whose script ran out; None = it ends at `max_new_tokens` by
            starting over.
        max_running: how many requests run at once; others wait, lowest `priority` number first.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        max_context: int = 8192,
        eos_id: int | None = None,
        script: Script | Callable[[PreparedRequest], Script] | None = None,
        max_running: int = 64,
        kv_blocks: int = 65_536,
        kv_block_tokens: int = 16,
        max_lora_rank: int = 64,
    ) -> None:
        self._info = EngineInfo(
            name="echo",
            vocab_size=vocab_size,
            max_context=max_context,
            dtype="none",
            device="cpu",
            description="scripted answers, no model",
            unsupported=frozenset({"grammar"}),
        )
        self._eos_id = eos_id
        self._script = script or Script()
        self._max_running = max_running
        self._kv_blocks = kv_blocks
        self._kv_block_tokens = kv_block_tokens
        self._running: set[_Run] = set()
        self._waiting: list[_Run] = []
        self._max_lora_rank = max_lora_rank
        self._adapters: dict[str, Adapter] = {}
        self._adapter_loads = 0
        self._failure: BaseException | None = None
        self._stopped = False
        self._steps = 0
        self._prompt_tokens = 0
        self._generated_tokens = 0
        self._last_progress = 0.0

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def failure(self) -> BaseException | None:
        return self._failure

    async def start(self) -> None:
        self._stopped = False

    async def stop(self) -> None:
        self._stopped = True
        self._end_all(UnavailableError("the server is stopping"))

    def kill(self, fault: BaseException) -> None:
        """Dies as an engine thread would: all requests fail, `failure` is set, new ones fail at once."""
        self._failure = fault
        self._end_all(UnavailableError("the engine has died"))

    def stats(self) -> EngineStats:
        return EngineStats(
            running=len(self._running),
            waiting=len(self._waiting),
            kv_blocks_total=self._kv_blocks,
            kv_blocks_used=sum(run.blocks for run in self._running),
            kv_block_tokens=self._kv_block_tokens,
            prompt_tokens_total=self._prompt_tokens,
            generated_tokens_total=self._generated_tokens,
            steps_total=self._steps,
            last_progress=self._last_progress,
        )

    @property
    def adapters(self) -> Mapping[str, Adapter]:
        return MappingProxyType(self._adapters)

    async def load_adapter(self, name: str, path: str) -> Adapter:
        """Reads the adapter's configuration; there is no model that its weights could change."""
        config = await asyncio.to_thread(read_config, Path(path), self._max_lora_rank)
        self._adapter_loads += 1
        adapter = Adapter(name, self._adapter_loads, path, config.highest_rank)
        self._adapters[name] = adapter
        return adapter

    async def unload_adapter(self, name: str) -> None:
        del self._adapters[name]

    async def generate(self, request: PreparedRequest) -> AsyncGenerator[EngineEvent, None]:
        if self._failure is not None or self._stopped:
            yield FailedEvent(UnavailableError("the engine does not run"))
            return
        adapter = request.adapter
        if adapter is not None and self._adapters.get(adapter.name) != adapter:
            yield FailedEvent(
                ValidationError("adapter_id", f"names an adapter that was just unloaded: {adapter.name!r}")
            )
            return
        script = self._script(request) if callable(self._script) else self._script
        run = _Run(request, asyncio.get_running_loop().create_future())
        try:
            if not await self._take_place(run):
                yield FailedEvent(run.over.result())
                return
            started = time.monotonic()
            if not await self._step(run, script.start_delay, 0):
                yield FailedEvent(run.over.result())
                return
            self._prompt_tokens += len(request.prompt_ids)
            if script.fail_at != 0:
                yield StartedEvent(started, 0, _prompt_logprobs(request))
            count = 0
            while count != script.fail_at:
                count += 1
                if not await self._step(run, script.delay, count):
                    yield FailedEvent(run.over.result())
                    return
                self._generated_tokens += 1
                event = self._token(request, script, count)
                yield event
                if event.finish_reason is not None:
                    yield FinishedEvent(event.finish_reason, count)
                    return
                if count == script.die_at:
                    self.kill(RuntimeError("the script said so"))
            if script.error is not None:
                yield FailedEvent(script.error)
        finally:
            self._leave(run)

    def _token(self, request: PreparedRequest, script: Script, count: int) -> TokenEvent:
        """The event of token number `count`, from 1."""
        ids = request.prompt_ids if script.ids is None else script.ids
        if count <= len(ids):
            token = ids[count - 1]
        elif self._eos_id is None:
            token = ids[(count - 1) % len(ids)]
        else:
            token = self._eos_id
        reason = None
        if count == request.max_new_tokens:
            reason = FinishReason.LENGTH
        elif token in request.stop_token_ids:
            reason = FinishReason.EOS
        top = self._top(request, token, script.logprob) if request.top_n_tokens else ()
        return TokenEvent(token, script.logprob, self._last_progress, top, reason)

    def _top(self, request: PreparedRequest, token: int, logprob: float) -> tuple[tuple[int, float], ...]:
        """`top_n_tokens` alternatives: the chosen id, then the ids after it, each less likely by 1."""
        n = min(request.top_n_tokens, self._info.vocab_size)
        return tuple(((token + rank) % self._info.vocab_size, logprob - rank) for rank in range(n))

    async def _step(self, run: _Run, delay: float, generated: int) -> bool:
        """Passes `delay` seconds and books the KV of a token. False: the run was ended from outside."""
        if delay > 0:
            await asyncio.wait((run.over,), timeout=delay)
        else:
            await asyncio.sleep(0)
        if run.over.done():
            return False
        run.blocks = -(-(len(run.request.prompt_ids) + generated) // self._kv_block_tokens)
        self._steps += 1
        self._last_progress = time.monotonic()
        return True

    async def _take_place(self, run: _Run) -> bool:
        """Waits for a running place. False: the run was ended from outside."""
        if len(self._running) < self._max_running:
            self._running.add(run)
            return True
        run.place = asyncio.get_running_loop().create_future()
        self._waiting.append(run)
        self._waiting.sort(key=lambda other: other.request.priority)  # stable: first come within a priority
        await asyncio.wait((run.place, run.over), return_when=asyncio.FIRST_COMPLETED)
        return not run.over.done()

    def _leave(self, run: _Run) -> None:
        if run in self._waiting:
            self._waiting.remove(run)
        if run in self._running:
            self._running.remove(run)
            if self._waiting:
                heir = self._waiting.pop(0)
                self._running.add(heir)
                assert heir.place is not None
                heir.place.set_result(None)

    def _end_all(self, error: InterlinguaError) -> None:
        for run in (*self._running, *self._waiting):
            if not run.over.done():
                run.over.set_result(error)


def _prompt_logprobs(request: PreparedRequest) -> tuple[float | None, ...] | None:
    return (None, *(-1.0 for _ in request.prompt_ids[1:])) if request.prompt_logprobs else None
