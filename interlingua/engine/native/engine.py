"""The native engine: one thread that schedules, computes a step in one C++ call and hands its events over at once."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal, ParamSpec, TypeVar

import numpy as np

from interlingua.contract.engine import EngineInfo, EngineStats
from interlingua.contract.errors import (
    GenerationError,
    InterlinguaError,
    NotSupportedError,
    RequestError,
    UnavailableError,
    ValidationError,
)
from interlingua.contract.events import EngineEvent, FailedEvent, FinishedEvent
from interlingua.contract.request import Adapter, Grammar, PreparedRequest
from interlingua.engine.native._native import KV_BLOCK, Model, bound_free_heap, trim_heap
from interlingua.engine.native._native import SamplingParams as NativeSampling
from interlingua.engine.native.batch import build_batch
from interlingua.engine.native.blocks import BlockPool
from interlingua.engine.native.drafts import Drafter
from interlingua.engine.native.guide import Guide, Guides, Vocabulary
from interlingua.engine.native.load import LoadedModel, load_model
from interlingua.engine.native.lora import Lora, read_adapter
from interlingua.engine.native.memory import available_memory
from interlingua.engine.native.outcome import Outcome, read_outcomes
from interlingua.engine.native.scheduler import Scheduler
from interlingua.engine.native.sequence import Sequence
from interlingua.engine.native.weights import Quantize
from interlingua.engine.threads import PREFIX, in_thread
from interlingua.hub.files import ModelFiles

_log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
Numerics = Literal["int8", "int16"]
KvCacheType = Literal["fp16", "int8"]

# The engine thread needs the interpreter after every step; at the default of 5 ms a busy event loop would hold it up.
_SWITCH_INTERVAL = 0.0005
_FREE_HEAP = 4 << 20  # bytes
_JOIN_SECONDS = 30.0
_QUIET_SECONDS = 0.1  # after which an engine without work sees to its memory
_LOOK_AGAIN = 64 << 20  # bytes of the KV pool that are taken between two looks at how much memory is free
_SPARE = 8  # a part of so many of the pool is left free for others


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeOptions:
    """What an operator can set. `threads` 0 = all cores; `kv_memory` in bytes, None = a share of free memory."""

    threads: int = 0
    activations: Numerics = "int8"
    kv_cache_dtype: KvCacheType = "fp16"
    quantize: Quantize = "auto"
    kv_memory: int | None = None
    max_batch_tokens: int = 512
    max_batch_size: int = 256
    prefix_cache: bool = True
    speculate: int = 6  # drafted tokens a step at most, by prompt lookup; 0 = none
    max_seq_len: int | None = None
    max_lora_rank: int = 64
    isa: str | None = None  # None = INTERLINGUA_ISA, else the best tier of this machine

    @property
    def tier(self) -> str:
        return self.isa if self.isa is not None else os.environ.get("INTERLINGUA_ISA", "")

    @property
    def tier_named_by(self) -> str:
        """Where the operator named `tier`, for a message about it. What the command resolved is in `isa` alike."""
        return "INTERLINGUA_ISA" if os.environ.get("INTERLINGUA_ISA") == self.tier else "--isa"


class _Stream:
    """Where a request's events wait for their reader. The event loop's own, but for `sequence`: the engine thread's."""

    __slots__ = ("events", "guide", "lora", "sequence", "waiter")

    def __init__(self, lora: Lora | None) -> None:
        self.lora = lora  # held here from the request's arrival on, so that an unload cannot take it away
        self.events: deque[EngineEvent] = deque()
        self.waiter: asyncio.Future[None] | None = None
        self.guide: Guide | None = None  # the sequence's, once there is one
        self.sequence: Sequence | None = None  # what the engine thread made of the request

    def put(self, event: EngineEvent) -> None:
        self.events.append(event)
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


_Delivery = list[tuple[_Stream, EngineEvent]]


def _tidily(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Calls `work` and gives what it freed back to the system, which the allocator would keep for each thread that ever
    did such work."""
    try:
        return work(*args, **kwargs)
    finally:
        trim_heap()


class NativeEngine:
    """Engine of the contract over a native model.

    Threads: the event loop calls the public methods; the engine thread owns scheduler and model. Requests and aborts go
    down through `_inbox`; events come up through one `call_soon_threadsafe` per step. Grammars have threads of their
    own (`guide.Guides`).

    Args:
        vocabulary: the model's tokens; without them, or with none that ends an answer, grammars are not supported.
    """

    def __init__(
        self,
        files: ModelFiles,
        options: NativeOptions,
        progress: Callable[[int, int], None] | None = None,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        self._files = files
        self._vocabulary = vocabulary
        self._guides: Guides | None = None
        self._options = options
        self._progress = progress
        self._loaded: LoadedModel | None = None
        self._scheduler: Scheduler | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inbox: deque[tuple[_Stream, PreparedRequest | None]] = deque()  # None = abort
        self._wake = threading.Condition()
        self._stopping = False
        self._failure: BaseException | None = None
        self._streams: dict[Sequence, _Stream] = {}  # engine thread only
        self._loras: dict[str, Lora] = {}  # event loop only: what new requests can ask for
        self._adapters: dict[str, Adapter] = {}  # the same, for others to see
        self._adapter_loads = 0
        self._open: set[_Stream] = set()  # event loop only: those that have a reader
        self._arrivals = 0
        self._steps = 0
        self._prompt_tokens = 0
        self._generated_tokens = 0
        self._drafted_tokens = 0
        self._accepted_tokens = 0
        self._last_progress = 0.0
        self._touched = 0  # bytes of the KV pool, engine thread only
        self._touchable = 0  # up to where memory was found for them

    # --- event loop ---

    @property
    def info(self) -> EngineInfo:
        assert self._loaded is not None, "info is known after start"
        return self._loaded.info

    @property
    def failure(self) -> BaseException | None:
        return self._failure

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        bound_free_heap(_FREE_HEAP)
        loaded = await in_thread("weights", lambda: _tidily(load_model, self._files, self._options, self._progress))
        vocabulary, width = self._vocabulary, loaded.info.vocab_size
        if vocabulary is not None and Guides.fits(vocabulary, width):
            self._guides = Guides(vocabulary, width, self._wake_up)
        else:
            loaded = replace(loaded, info=replace(loaded.info, unsupported=loaded.info.unsupported | {"grammar"}))
        self._loaded = loaded
        options = self._options
        self._scheduler = Scheduler(
            BlockPool(loaded.kv_blocks, options.prefix_cache),
            block_size=KV_BLOCK,
            max_batch_tokens=options.max_batch_tokens,
            max_batch_size=options.max_batch_size,
            copy=loaded.model.copy_block,
        )
        sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_INTERVAL))
        self._thread = threading.Thread(target=self._run, name=f"{PREFIX}engine", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            # A step takes milliseconds. One that hangs must not keep the process from ending: the thread is a daemon.
            await asyncio.to_thread(self._thread.join, _JOIN_SECONDS)
        if self._guides is not None:
            self._guides.close()
        self._tell_all(UnavailableError("the server is stopping"))  # nobody may wait for a thread that hangs

    @property
    def adapters(self) -> Mapping[str, Adapter]:
        return MappingProxyType(self._adapters)

    async def load_adapter(self, name: str, path: str) -> Adapter:
        loaded = self._loaded
        assert loaded is not None, "adapters are loaded after start"
        native, rank = await asyncio.to_thread(
            _tidily, read_adapter, Path(path), loaded.model, loaded.adaptable, self._options.max_lora_rank
        )
        self._adapter_loads += 1
        adapter = Adapter(name, self._adapter_loads, path, rank)
        self._loras[name] = Lora(adapter, native)
        self._adapters[name] = adapter
        return adapter

    async def unload_adapter(self, name: str) -> None:
        del self._adapters[name]
        del self._loras[name]

    async def generate(self, request: PreparedRequest) -> AsyncGenerator[EngineEvent, None]:
        adapter = request.adapter
        lora = self._loras.get(adapter.name) if adapter is not None else None
        if adapter is not None and (lora is None or lora.info != adapter):
            yield FailedEvent(
                ValidationError("adapter_id", f"names an adapter that was just unloaded: {adapter.name!r}")
            )
            return
        stream = _Stream(lora)
        posted = ended = False
        self._open.add(stream)
        try:
            if request.grammar is not None:
                try:
                    stream.guide = await self._guide(request.grammar)
                except RequestError as error:
                    yield FailedEvent(error)
                    return
            posted = True
            self._post(stream, request)
            while not ended:
                while not stream.events:
                    stream.waiter = asyncio.get_running_loop().create_future()
                    await stream.waiter
                    stream.waiter = None
                event = stream.events.popleft()
                ended = isinstance(event, FinishedEvent | FailedEvent)
                yield event
        finally:
            self._open.discard(stream)
            if posted and not ended and not any(isinstance(e, FinishedEvent | FailedEvent) for e in stream.events):
                self._post(stream, None)

    async def _guide(self, grammar: Grammar) -> Guide:
        if self._guides is None:
            raise NotSupportedError("grammar", "is not supported: the model has no token that ends an answer")
        return await self._guides.make(grammar)

    def stats(self) -> EngineStats:
        scheduler = self._scheduler
        if scheduler is None:
            return EngineStats()
        return EngineStats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            kv_blocks_total=scheduler.pool.count,
            kv_blocks_used=scheduler.pool.held,
            kv_block_tokens=KV_BLOCK,
            preemptions_total=scheduler.preemptions,
            prefix_hit_tokens_total=scheduler.prefix_hit_tokens,
            prompt_tokens_total=self._prompt_tokens,
            generated_tokens_total=self._generated_tokens,
            drafted_tokens_total=self._drafted_tokens,
            accepted_tokens_total=self._accepted_tokens,
            steps_total=self._steps,
            last_progress=self._last_progress,
        )

    def _post(self, stream: _Stream, request: PreparedRequest | None) -> None:
        with self._wake:
            if self._stopping or self._failure is not None:  # nobody reads the inbox; what runs ends anyway
                if request is not None:
                    stream.put(FailedEvent(UnavailableError("the engine does not take requests any more")))
                return
            self._inbox.append((stream, request))
            self._wake.notify()

    @staticmethod
    def _deliver(events: _Delivery) -> None:
        for stream, event in events:
            stream.put(event)

    def _tell_all(self, error: InterlinguaError) -> None:
        """Ends every request that has a reader, wherever it is; one that has ended stays as it is."""
        for stream in self._open:
            stream.put(FailedEvent(error))

    # --- engine thread ---

    def _run(self) -> None:
        scheduler = self._scheduler
        assert scheduler is not None
        try:
            while self._take_inbox(scheduler):
                self._step(scheduler)
        except BaseException as error:
            # Whatever broke, nobody may wait for ever: every request ends, health turns bad, the process can exit.
            with self._wake:
                self._failure = error
            self._end_all(scheduler, GenerationError("the engine has failed"))
            raise
        self._end_all(scheduler, UnavailableError("the server is stopping"))
        scheduler.check_integrity()

    def _take_inbox(self, scheduler: Scheduler) -> bool:
        """Takes new requests and aborts; sleeps while there is nothing to do. False = stop."""
        patience: float | None = _QUIET_SECONDS
        while not self._await_work(scheduler, patience):
            patience = 0.0 if self._touch_pool() else None
        with self._wake:
            if self._stopping:
                return False
        while True:
            with self._wake:
                if not self._inbox:
                    return True
                stream, request = self._inbox.popleft()
            if request is not None:
                self._admit(scheduler, stream, request)
            elif stream.sequence is not None and stream.sequence in self._streams:
                self._drop(scheduler, stream.sequence)

    def _await_work(self, scheduler: Scheduler, seconds: float | None) -> bool:
        """Sleeps while there is nothing to do. False = nothing came within `seconds`."""
        with self._wake:
            return self._wake.wait_for(
                lambda: bool(self._inbox or scheduler.running or scheduler.waiting or self._stopping), seconds
            )

    def _touch_pool(self) -> bool:
        """Has the system give the next pages of the KV pool before a step waits for them. False = there are no more.

        A request that comes meanwhile waits for one such piece. Where the machine has less memory left than the rest of
        the pool takes, pages come with their first use: servers side by side must not fill it with what none needs yet.
        What has been taken is not asked for again: it is not free any more.
        """
        pool = self._model.kv_bytes
        if self._touched >= pool:
            return False
        if self._touched >= self._touchable:
            try:
                if available_memory() < pool - self._touched + pool // _SPARE:
                    return False
            except OSError:  # no file can be opened now
                return False
            self._touchable = self._touched + _LOOK_AGAIN
        self._touched = self._model.touch_kv(self._touched)
        return True

    def _admit(self, scheduler: Scheduler, stream: _Stream, request: PreparedRequest) -> None:
        problem = self._misfit(request)
        if problem:
            self._hand_over([(stream, FailedEvent(GenerationError(problem)))])
            return
        try:
            slot = self._add_sampler(request)
        except Exception:  # one request's state cannot be built: it ends alone
            _log.exception("request %s: its decoding state could not be built", request.request_id)
            problem = "the request's decoding state could not be built"
            self._hand_over([(stream, FailedEvent(GenerationError(problem)))])
            return
        sequence = Sequence(
            request,
            self._arrivals,
            time.monotonic(),
            slot,
            list(request.prompt_ids),
            lora=stream.lora,
            guide=stream.guide,
        )
        if request.prompt_logprobs:
            sequence.prompt_logprobs.append(None)
        # The sampler keeps the alternatives of one token at a time; a mask is known for the next token alone.
        if self._options.speculate and not request.top_n_tokens and stream.guide is None:
            sequence.drafter = Drafter(self._options.speculate)
        self._arrivals += 1
        self._prompt_tokens += sequence.prompt_length
        stream.sequence = sequence
        self._streams[sequence] = stream
        scheduler.add(sequence)

    def _misfit(self, request: PreparedRequest) -> str:
        """What of the contract a request breaks, or "". The service refuses all this at the door; past this border an
        id is an index into memory, and a sequence that outgrows the pool would wait for ever."""
        if not request.prompt_ids or len(request.prompt_ids) + request.max_new_tokens > self.info.max_context:
            return "the request does not fit into the engine's context"
        bias = (token for token, _ in request.sampling.logit_bias)
        for ids in (request.prompt_ids, request.stop_token_ids, tuple(bias)):
            if ids and not (min(ids) >= 0 and max(ids) < self.info.vocab_size):
                return "the request names a token that the model does not have"
        return ""

    def _add_sampler(self, request: PreparedRequest) -> int:
        sampling, watermark = request.sampling, request.sampling.watermark
        params = NativeSampling(
            do_sample=sampling.do_sample,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            typical_p=sampling.typical_p,
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            frequency_penalty=sampling.frequency_penalty,
            presence_penalty=sampling.presence_penalty,
            frequency_over_output=sampling.frequency_over == "output",
            seed=sampling.seed,
            top_n=request.top_n_tokens,
            logit_bias=list(sampling.logit_bias),
            suppressed=sorted(request.stop_token_ids),
            min_new_tokens=request.min_new_tokens,
            watermark_gamma=watermark.gamma if watermark else 0.0,
            watermark_delta=watermark.delta if watermark else 0.0,
        )
        return self._model.add_sampler(params, np.array(request.prompt_ids, np.int32))

    @property
    def _model(self) -> Model:
        assert self._loaded is not None
        return self._loaded.model

    def _step(self, scheduler: Scheduler) -> None:
        begun = time.monotonic()
        self._end_misguided(scheduler)
        chunks = scheduler.schedule()
        if not chunks:
            self._await_mask(scheduler)
            return
        batch = build_batch(chunks)
        batch.run(self._model)
        now = time.monotonic()
        outcomes = list(read_outcomes(batch, self._model.top_tokens, now))
        scheduler.learn(chunks, now - begun)
        scheduler.finish((outcome.chunk, outcome.stands) for outcome in outcomes)
        self._count(outcomes, now)
        # Before anything that could fail:
        self._hand_over([(self._streams[o.chunk.sequence], event) for o in outcomes for event in o.events])
        goes_on = [o.chunk.sequence for o in outcomes if o.chosen and not o.ended]
        guided = [(sequence.guide, sequence.ids[-1]) for sequence in goes_on if sequence.guide is not None]
        if self._guides is not None and guided:
            self._guides.submit(guided)
        for outcome in outcomes:
            if outcome.ended:
                self._drop(scheduler, outcome.chunk.sequence)

    def _count(self, outcomes: list[Outcome], now: float) -> None:
        self._steps += 1
        self._last_progress = now
        for outcome in outcomes:
            self._generated_tokens += outcome.chosen
            if outcome.chosen and outcome.chunk.drafts:
                self._drafted_tokens += len(outcome.chunk.drafts)
                self._accepted_tokens += outcome.chosen - 1

    def _end_misguided(self, scheduler: Scheduler) -> None:
        """Ends the requests whose grammar cannot be followed any further, each alone."""
        for sequence in [s for s in scheduler.running if s.guide is not None and s.guide.failed]:
            assert sequence.guide is not None and sequence.guide.failed is not None
            self._hand_over([(self._streams[sequence], FailedEvent(sequence.guide.failed))])
            self._drop(scheduler, sequence)

    def _await_mask(self, scheduler: Scheduler) -> None:
        """Sleeps while every running sequence sits out and nobody comes or leaves."""
        with self._wake:
            while not self._stopping and not self._inbox and all(s.sits_out for s in scheduler.running):
                if not scheduler.running or not self._wake.wait(timeout=1.0):
                    return

    def _wake_up(self) -> None:
        with self._wake:
            self._wake.notify()

    def _drop(self, scheduler: Scheduler, sequence: Sequence) -> None:
        """The one exit: blocks, sampler state and place in the queue are free afterwards."""
        scheduler.remove(sequence)
        self._model.remove_sampler(sequence.slot)
        del self._streams[sequence]

    def _end_all(self, scheduler: Scheduler, error: InterlinguaError) -> None:
        """Ends every request. Readers are told first: cleaning up may meet the very state that is broken."""
        with self._wake:
            self._inbox.clear()
        self._on_loop(self._tell_all, error)
        for sequence in list(self._streams):
            self._drop(scheduler, sequence)

    def _hand_over(self, events: _Delivery) -> None:
        if events:
            self._on_loop(self._deliver, events)

    def _on_loop(self, call: Callable[[T], None], argument: T) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, argument)
