"""The seam behind which engines stand: the native one, vLLM, and the scripted one of the tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass
from typing import Protocol

from interlingua.contract.events import EngineEvent
from interlingua.contract.request import Adapter, PreparedRequest


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What the service must know of a loaded model. Constant after `start`."""

    name: str  # "native", "echo", "vllm"
    vocab_size: int  # width of the logits; every prompt id is below it
    max_context: int  # prompt + output tokens of one request
    dtype: str  # "int4", "int8", "bfloat16", for /info
    device: str  # "cpu"
    description: str = ""  # one line for people: kernels, threads, numerics
    # Fields of PreparedRequest and SamplingParams that this engine does not honour. The service refuses a request
    # that gives one of them a value other than its neutral one, so that nothing is ignored in silence.
    unsupported: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot for gauges. All counts are of this moment, totals since start."""

    running: int = 0
    waiting: int = 0
    kv_blocks_total: int = 0
    kv_blocks_used: int = 0  # held by running requests; cached but unreferenced blocks are free
    kv_block_tokens: int = 1
    preemptions_total: int = 0
    prefix_hit_tokens_total: int = 0
    prompt_tokens_total: int = 0
    generated_tokens_total: int = 0
    drafted_tokens_total: int = 0  # guessed by speculation
    accepted_tokens_total: int = 0  # of those, the ones that plain decoding would have chosen too
    steps_total: int = 0
    last_progress: float = 0.0  # `time.monotonic()` of the last finished step; 0.0 = none yet


class EngineStream(Protocol):
    """The events of one request. An async generator function has this shape.

    `aclose` aborts what still runs, may be called at any time while no `__anext__` is pending, and more than once.
    Cancelling a pending `__anext__` aborts as well.
    """

    def __aiter__(self) -> AsyncIterator[EngineEvent]: ...

    def __anext__(self) -> Awaitable[EngineEvent]: ...

    def aclose(self) -> Awaitable[None]: ...


class Engine(Protocol):
    """Turns prepared requests into token events.

    Ownership: a request belongs to the engine from the first `__anext__` of `generate` until its ending event, or
    until the iterator is closed (`aclose`), which aborts it: its KV blocks and queue place are free within a step.
    All methods run on the event loop; none of them blocks it.
    """

    @property
    def info(self) -> EngineInfo: ...

    async def start(self) -> None:
        """Loads what must be loaded and starts working threads. Raises ModelError."""
        ...

    async def stop(self) -> None:
        """Ends running requests with `FailedEvent(UnavailableError)` and frees everything. Safe to call twice."""
        ...

    def generate(self, request: PreparedRequest) -> EngineStream:
        """Yields `StartedEvent`, then `TokenEvent`s, then one `FinishedEvent` or `FailedEvent`. Never raises."""
        ...

    @property
    def adapters(self) -> Mapping[str, Adapter]:
        """The loaded LoRA adapters by name: a view that follows every load and unload."""
        ...

    async def load_adapter(self, name: str, path: str) -> Adapter:
        """Loads the PEFT adapter in folder `path`. A name that is loaded already gets a new version.

        Requests that run on the old version end on it. Raises ModelError, and then nothing has changed.
        """
        ...

    async def unload_adapter(self, name: str) -> None:
        """Takes an adapter out of `adapters`. Its memory is freed when the last request on it has ended.

        A prepared request that comes later fails with a ValidationError. Raises KeyError.
        """
        ...

    def stats(self) -> EngineStats: ...

    @property
    def failure(self) -> BaseException | None:
        """The fault that ended the engine's thread, or None while it lives."""
        ...
