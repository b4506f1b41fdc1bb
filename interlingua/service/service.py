"""The spine: one request from a dialect's hands to the engine and back as text.

`Service.generate` is the whole life of a request. Whatever ends it (done, refused, cancelled, timed out,
failed), the same `finally` closes the engine's stream and gives the permit back, once, before the last
event goes out: a client that has read its answer's end can rely on its place being free.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeVar

from interlingua.contract.engine import Engine
from interlingua.contract.errors import (
    CancelledError,
    GenerationError,
    InterlinguaError,
    ModelError,
    NotSupportedError,
    OverloadedError,
    RequestTimeoutError,
    UnavailableError,
    ValidationError,
)
from interlingua.contract.events import Answer, FailedEvent, Summary, TextEvent, Timing, fold
from interlingua.contract.request import (
    Adapter,
    ChatPrompt,
    GenerationRequest,
    PreparedRequest,
    Priority,
    Prompt,
    SamplingParams,
    TextPrompt,
    Watermark,
)
from interlingua.contract.words import counted
from interlingua.media.sources import MediaSources
from interlingua.service import adapters
from interlingua.service.choices import Children, Choices, children_of
from interlingua.service.deadline import Deadline
from interlingua.service.metrics import DROPPED, STOPPED, SUCCESS, Metrics, Outcome
from interlingua.service.prepare import Limits, ModelDefaults, Preparer, Room, Tokenizer, TokenSpan, unread
from interlingua.text.chat_template import ChatTemplate
from interlingua.text.detokenize import StopMatcher, TokenTable

_log = logging.getLogger(__name__)
T = TypeVar("T")

# Work up to so many characters is done on the event loop, where it takes less than a millisecond; more goes
# to a thread, and texts that take whole seconds to a thread of their own, so that others never wait behind
# them.
_INLINE_CHARS = 2048
_LONG_CHARS = 262_144
_STUCK_AFTER = 60.0  # seconds without a finished step, with work pending, after which health says so


class State(Enum):
    LOADING = "loading"
    READY = "ready"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What one loaded model brings. The engine is started; who made it stops it."""

    name: str  # on every route
    engine: Engine
    tokenizer: Tokenizer
    defaults: ModelDefaults = field(default_factory=ModelDefaults)
    source: str = ""  # path or hub id, for /info
    chat: ChatTemplate = field(default_factory=lambda: ChatTemplate(None))
    watermark: Watermark = field(default_factory=Watermark)  # what a request's `watermark: true` stands for


class Service:
    """Serves one model to many requests at once. All methods run on the event loop.

    It exists before its model: until `attach` it refuses every request as unavailable, and so it does after
    `begin_stop`, while running requests go on.
    """

    def __init__(
        self, limits: Limits | None = None, metrics: Metrics | None = None, media: MediaSources | None = None
    ) -> None:
        self.limits = limits or Limits()
        self._media = media or MediaSources()
        self.metrics = metrics or Metrics()
        self.metrics.inside = lambda: self._inside
        self.metrics.stats = lambda: self._model.engine.stats() if self._model else None
        self.metrics.model_name = lambda: self._model.name if self._model else ""
        self._state = State.LOADING
        self._model: ServedModel | None = None
        self._preparer: Preparer | None = None
        self._table: TokenTable | None = None
        self._inside = 0  # permits taken, one for each answer that a request generates
        self._runs: dict[str, list[_Run]] = {}  # by either id of their requests, oldest first
        self._busy_since = 0.0  # when `_inside` last left 0, on the clock of time.monotonic
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="prepare")
        self._long_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prepare-long")
        self._adapter_lock = asyncio.Lock()  # one load at a time: each may take much memory

    # --- life ---------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self._state

    @property
    def model(self) -> ServedModel | None:
        """The served model; None while it loads."""
        return self._model

    def loaded(self) -> ServedModel:
        """The served model. Raises UnavailableError while it loads."""
        if self._model is None:
            raise UnavailableError("the model is loading")
        return self._model

    @property
    def room(self) -> Room:
        """The limits that hold for the served model. Only after `attach`."""
        assert self._preparer is not None
        return self._preparer.room

    @property
    def inside(self) -> int:
        """Permits taken: one for each answer that is prepared, waits or runs."""
        return self._inside

    def attach(self, model: ServedModel) -> None:
        """The model is loaded: from now on requests are served (unless the service is stopping already)."""
        self._table = TokenTable(model.tokenizer)
        engine = model.engine
        self._preparer = Preparer(
            model.tokenizer, engine.info, self.limits, model.defaults, engine.adapters, model.name, model.watermark
        )
        self._model = model
        if self._state is State.LOADING:
            self._state = State.READY

    def begin_stop(self) -> None:
        """Refuses all new requests; those inside go on."""
        self._state = State.STOPPING

    async def wait_until_empty(self) -> None:
        """Returns when no request is inside."""
        await self._emptied.wait()

    def close(self) -> None:
        """Ends the worker threads and processes. The service cannot be used after it."""
        if self._model is not None:
            self._model.chat.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._long_thread.shutdown(wait=False, cancel_futures=True)

    def ill_health(self) -> str | None:
        """Why no request can be served now, in words; None = all is well. A full house is no illness."""
        if self._state is not State.READY or self._model is None:
            return f"the server is {self._state.value}"
        engine = self._model.engine
        if engine.failure is not None:
            return "the engine has died"
        stats = engine.stats()
        if stats.running + stats.waiting > 0:
            silent = time.monotonic() - max(stats.last_progress, self._busy_since)
            if silent > _STUCK_AFTER:
                return f"the engine has made no progress for {counted(round(silent), 'second')}"
        return None

    # --- adapters -----------------------------------------------------------------------------------------

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """The loaded LoRA adapters by name; none while the model loads."""
        loaded = self._model.engine.adapters if self._model is not None else {}
        return tuple(loaded[name] for name in sorted(loaded))

    async def load_adapter(self, name: str, path: str) -> Adapter:
        """Loads the PEFT adapter in folder `path`; a loaded name gets a new version. Raises RequestError.

        The fields of its ValidationErrors are `lora_name` and `lora_path`, as in the vendor's and vLLM's routes.
        """
        async with self._adapter_lock:
            model = self._serving()
            adapters.check_load(name, path, model.name)
            try:
                adapter = await model.engine.load_adapter(name, path)
            except ModelError as problem:
                raise ValidationError("lora_path", f"cannot be loaded: {problem.message}") from None
        _log.info("adapter %s, version %d, rank %d, loaded from %s", name, adapter.version, adapter.rank, path)
        return adapter

    async def unload_adapter(self, name: str) -> None:
        """New requests for `name` are refused; running ones end on it. Raises RequestError."""
        async with self._adapter_lock:
            engine = self._serving().engine
            adapters.find(engine.adapters, name, "lora_name")
            await engine.unload_adapter(name)
        _log.info("adapter %s unloaded", name)

    # --- requests -----------------------------------------------------------------------------------------

    async def answer(self, request: GenerationRequest) -> Answer:
        """The whole answer of a request. Raises the InterlinguaError that ended it otherwise."""
        events: list[TextEvent] = []
        async for batch in self.generate(request):
            events += batch
        return fold(events)

    async def generate(
        self,
        request: GenerationRequest,
        arrived: float | None = None,
        on_end: Callable[[Outcome], None] | None = None,
        caller_id: str = "",
    ) -> AsyncGenerator[Sequence[TextEvent], None]:
        """Runs a request. Yields the text events that are there at once, together, in order.

        Never raises a RequestError: a refusal is a FailedEvent too, and the only event. Closing the
        generator, or cancelling the task that waits for it, aborts the request.

        Args:
            arrived: when the request came, on the clock of `time.monotonic`; None = now.
            on_end: told once how the request ended, before its last events are yielded.
            caller_id: one more name by which `stop_request` finds it; "" = none.
        """
        timing = Timing(arrived=time.monotonic() if arrived is None else arrived)
        self.metrics.requests += 1
        ending: Sequence[TextEvent] = ()
        summary: Summary | None = None
        kind = DROPPED  # counted when the consumer goes away first
        prepared: PreparedRequest | None = None
        children: Children | None = None
        deadline: Deadline | None = None
        run: _Run | None = None
        try:
            model, preparer, table = self._admit(request)
            deadline = Deadline(timing.arrived, request.timeout or self.limits.timeout)
            run = self._enlist(request, caller_id, deadline)
            with deadline:
                await self._check_media(request.prompt)
            request = await self._rendered(preparer, request, deadline)
            prepared, stops = await self._prepare(preparer, request, deadline)
            timing.queued = time.monotonic()
            children = Children(model.engine, children_of(prepared, request.choices))
            choices = run.begin(Choices(request, children.requests, table, stops, timing, self.metrics.gaps))
            while summary is None:
                with deadline:
                    heard = await children.hear()
                batch = choices.tell(heard)
                for choice in choices.take_ended():
                    await children.close(choice)
                summary = choices.summary
                if summary is not None:
                    ending = batch
                elif batch:
                    yield batch
        except _StoppedError:
            kind = STOPPED
            ending = choices.stop()
        except InterlinguaError as error:
            kind = error.kind
            ending = (FailedEvent(error),)
        except Exception:
            _log.exception(
                "request %s%s failed inside the server",
                *(request.request_id, f", the caller's {caller_id}," if caller_id else ""),
                extra={"request_id": request.request_id},
            )
            kind = GenerationError.kind
            ending = (FailedEvent(GenerationError("the request failed inside the server")),)
        finally:
            if deadline is not None:
                deadline.close()
            try:
                if children is not None:
                    await children.aclose()
            finally:
                if run is not None:
                    self._release(run)
                if summary is not None:
                    kind = SUCCESS
                timing.finished = timing.finished or time.monotonic()
                outcome = Outcome(request, kind, timing, prepared, summary)
                self.metrics.ended(outcome)
                if on_end is not None:
                    on_end(outcome)
        yield ending

    def stop_request(self, request_id: str) -> bool:
        """Ends a running request early, with the text that it has and `stop_sequence`; False: none has this id.

        Takes effect with the request's next token, or at once if it has none yet. Of several requests with the
        same client's id the oldest that was not stopped yet is meant.
        """
        for run in self._runs.get(request_id, ()):
            if not run.stopped:
                run.stop()
                return True
        return False

    async def token_spans(self, prompt: TextPrompt) -> Sequence[TokenSpan]:
        """The prompt's tokens and their places in it, without a permit. Raises RequestError."""
        tokenizer = self.loaded().tokenizer
        assert self._preparer is not None
        await self._check_media(prompt)
        self._preparer.check_prompt(prompt)
        text = prompt.text
        return await self._off_loop(len(text), lambda: tokenizer.encode_with_offsets(text, prompt.add_special))

    def token_text(self, token_id: int) -> str:
        """The text of a token, special ones included. Only after `attach`."""
        assert self._model is not None
        return self._model.tokenizer.id_to_text(token_id)

    def text_of(self, ids: Sequence[int], field: str) -> str:
        """The text of tokens one after the other, special ones included. For any thread.

        Raises:
            UnavailableError: no model is loaded.
            ValidationError: an id is no token's; it names `field`.
        """
        table = self.loaded().tokenizer.token_bytes
        for place, token in enumerate(ids):
            if token >= len(table):
                raise ValidationError(f"{field}[{place}]", f"must be a token id in 0..{len(table) - 1}, got {token}")
        return b"".join([table[token] for token in ids]).decode("utf-8", "replace")

    async def probe(self, seconds: float) -> None:
        """Has the engine make a token, beside the permits and uncounted. One that is busy with others is well.

        Raises:
            UnavailableError: no model is loaded.
            RequestTimeoutError: the engine has not done a step within `seconds`.
            InterlinguaError: the engine failed.
        """
        model = self.loaded()
        engine, begun = model.engine, time.monotonic()
        stream = engine.generate(
            PreparedRequest(
                request_id=f"probe-{secrets.token_hex(8)}",
                prompt_ids=(model.tokenizer.bos_id or 0,),
                max_new_tokens=1,
                sampling=SamplingParams(),
                stop_token_ids=frozenset(),
                priority=Priority.HIGHEST,
            )
        )
        try:
            async with asyncio.timeout(seconds):
                async for event in stream:
                    if isinstance(event, FailedEvent):
                        raise event.error
        except TimeoutError:
            if engine.stats().last_progress < begun:
                raise RequestTimeoutError(
                    f"the engine has not done a step within {counted(seconds, 'second')}"
                ) from None
        finally:
            await stream.aclose()

    async def render(self, prompt: ChatPrompt) -> TextPrompt:
        """The text of a conversation, without a permit. Raises RequestError."""
        chat = self.loaded().chat
        assert self._preparer is not None
        await self._check_media(prompt)
        self._preparer.check_prompt(prompt)
        return await chat.render(prompt)

    # --- steps of a request -------------------------------------------------------------------------------

    def _admit(self, request: GenerationRequest) -> tuple[ServedModel, Preparer, TokenTable]:
        """Takes a permit for each answer to generate. Behind them nothing queues but the engine's own queue."""
        model = self._serving()
        most, wanted = self.limits.max_concurrent_requests, request.choices
        if wanted > most:
            name = request.wire_name("best_of" if request.best_of > request.n else "n")
            raise ValidationError(name, f"must be at most {most}, which the server runs at once, got {wanted}")
        if self._inside + wanted > most:
            raise OverloadedError(
                f"the server is full: the limit of answers at once is {most}, and {self._inside} are under way"
            )
        if self._inside == 0:
            self._busy_since = time.monotonic()
            self._emptied.clear()
        self._inside += wanted
        assert self._preparer is not None and self._table is not None
        return model, self._preparer, self._table

    def _serving(self) -> ServedModel:
        """The model, if it takes requests now. Raises UnavailableError."""
        if self._state is not State.READY or self._model is None:
            raise UnavailableError(f"the server is {self._state.value}")
        if self._model.engine.failure is not None:
            raise UnavailableError("the engine has died")
        return self._model

    def _enlist(self, request: GenerationRequest, caller_id: str, deadline: Deadline) -> _Run:
        """Makes the request, which holds its permits, known by its ids."""
        names = {request.request_id, request.client_id, caller_id}
        run = _Run({name for name in names if name}, request.choices, deadline)
        for name in run.ids:
            self._runs.setdefault(name, []).append(run)
        return run

    def _release(self, run: _Run) -> None:
        for name in run.ids:
            runs = self._runs[name]
            runs.remove(run)
            if not runs:
                del self._runs[name]
        self._inside -= run.permits
        if self._inside == 0:
            self._emptied.set()

    async def _check_media(self, prompt: Prompt) -> None:
        """Raises ValidationError for media that may not be named here, before `Preparer` refuses all others.

        The model's inability comes first in its words: no other name, and nothing that the operator allows, would help.
        """
        if media := prompt.media:
            try:
                await asyncio.get_running_loop().run_in_executor(self._threads, self._media.check, media)
            except ValidationError as problem:
                part = next(part for part in media if part.field == problem.field)
                words = f"{unread(part)}; nor would it be taken from there: it {problem.problem}"
                raise NotSupportedError(part.field, words) from None

    async def _rendered(self, preparer: Preparer, request: GenerationRequest, deadline: Deadline) -> GenerationRequest:
        """`request` with the text of its conversation, if it has one."""
        if not isinstance(request.prompt, ChatPrompt):
            return request
        preparer.check(request)  # all else that can be refused, before a template is run
        with deadline:
            return replace(request, prompt=await self.render(request.prompt))

    async def _prepare(
        self, preparer: Preparer, request: GenerationRequest, deadline: Deadline
    ) -> tuple[PreparedRequest, StopMatcher | None]:
        preparer.check(request)

        def work() -> tuple[Sequence[int], StopMatcher | None]:
            return preparer.tokenize(request), StopMatcher(request.stop) if request.stop else None

        chars = _prompt_chars(request) + sum(map(len, request.stop))
        if chars <= _INLINE_CHARS:
            ids, stops = work()
        else:
            with deadline:
                ids, stops = await self._off_loop(chars, work)
        return preparer.finish(request, ids, deadline.at), stops

    async def _off_loop(self, chars: int, work: Callable[[], T]) -> T:
        if chars <= _INLINE_CHARS:
            return work()
        threads = self._threads if chars <= _LONG_CHARS else self._long_thread
        return await asyncio.get_running_loop().run_in_executor(threads, work)


def _prompt_chars(request: GenerationRequest) -> int:
    return len(request.prompt.text) if isinstance(request.prompt, TextPrompt) else 0


class _StoppedError(CancelledError):
    """Somebody stopped the request by its id."""


class _Run:
    """A request inside, as `Service.stop_request` reaches it."""

    __slots__ = ("_choices", "_deadline", "ids", "permits", "stopped")

    def __init__(self, ids: set[str], permits: int, deadline: Deadline) -> None:
        self.ids = ids
        self.permits = permits
        self.stopped = False
        self._deadline = deadline
        self._choices: Choices | None = None  # None while the request is prepared

    def begin(self, choices: Choices) -> Choices:
        self._choices = choices
        if self.stopped:
            self.stop()
        return choices

    def stop(self) -> None:
        """Ends each answer with its next token; a request without a token ends now, or when it begins."""
        self.stopped = True
        if self._choices is not None and not self._choices.stop_with_next_token():
            self._deadline.interrupt(_StoppedError("the request was stopped"))
