"""Several answers to one request: `n` to return, chosen from `best_of` that are generated.

Each answer is a request of its own to the engine, a child. All children have one prompt, and so one group, whose KV
the engine computes once; each has a seed of its own. To everybody outside they are one request: one place in the
counts, one time limit, one ending.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from interlingua.contract.engine import Engine
from interlingua.contract.errors import IncompleteGenerationError
from interlingua.contract.events import (
    EngineEvent,
    FailedEvent,
    Summary,
    TextEvent,
    TextStarted,
    TextStopped,
    TextToken,
    Timing,
    TokenText,
)
from interlingua.contract.request import GenerationRequest, PreparedRequest
from interlingua.service.metrics import Histogram
from interlingua.service.prepare import MAX_DRAWN_SEED
from interlingua.service.story import Story
from interlingua.text.detokenize import StopMatcher, TokenTable

_numbers = itertools.count(1)  # clients choose request ids, and two may choose the same


def child_seed(seed: int, choice: int) -> int:
    """The seed of answer `choice`, which replays it when sent alone. Documented in docs/reproducibility.md.

    The first answer has the request's own seed. The others' are in 1..2^53-1, as drawn seeds are.
    """
    if choice == 0:
        return seed
    digest = hashlib.sha256(seed.to_bytes(8, "little") + choice.to_bytes(8, "little")).digest()
    return int.from_bytes(digest, "little") % MAX_DRAWN_SEED + 1


def children_of(prepared: PreparedRequest, count: int) -> Sequence[PreparedRequest]:
    """The engine's requests for `count` answers. The prompt's logprobs are asked of the first alone."""
    if count == 1:
        return (prepared,)
    group = f"{prepared.request_id}/{next(_numbers)}"
    return tuple(
        replace(
            prepared,
            request_id=f"{group}/{choice}",
            group=group,
            prompt_logprobs=prepared.prompt_logprobs and choice == 0,
            sampling=replace(prepared.sampling, seed=child_seed(prepared.sampling.seed, choice)),
        )
        for choice in range(count)
    )


class Children:
    """The engine's streams of one request, read as one by one task.

    Several are read by a task each, so that none waits for another. `aclose` ends all of them, and so does
    cancelling the reader: what has not been read is lost.
    """

    def __init__(self, engine: Engine, requests: Sequence[PreparedRequest]) -> None:
        self.requests = requests
        self._streams = [engine.generate(request) for request in requests]
        self._readers: list[asyncio.Task[None]] = []
        self._heard: list[tuple[int, EngineEvent]] = []
        self._fault: Exception | None = None
        self._news = asyncio.Event()

    async def hear(self) -> Sequence[tuple[int, EngineEvent]]:
        """What has come since the last call, at least one event, each with its choice.

        Raises:
            IncompleteGenerationError: a stream is over without an ending.
        """
        if len(self._streams) == 1:
            try:
                return ((0, await anext(self._streams[0])),)
            except StopAsyncIteration:
                raise _too_early() from None
        if not self._readers:
            self._readers = [asyncio.create_task(self._read(choice)) for choice in range(len(self._streams))]
        while not self._heard:
            if self._fault is not None:
                raise self._fault
            await self._news.wait()
            self._news.clear()
        heard, self._heard = self._heard, []
        return heard

    async def close(self, choice: int) -> None:
        """Ends one stream; the others go on."""
        if self._readers:
            await _end(self._readers[choice : choice + 1])
        await self._streams[choice].aclose()

    async def aclose(self) -> None:
        await _end(self._readers)
        for stream in self._streams:
            await stream.aclose()

    async def _read(self, choice: int) -> None:
        try:
            async for event in self._streams[choice]:
                self._heard.append((choice, event))
                self._news.set()
            # Of interest only to one who has not heard the last token.
            self._heard.append((choice, FailedEvent(_too_early())))
        except Exception as fault:
            self._fault = fault
        self._news.set()


async def _end(readers: Sequence[asyncio.Task[None]]) -> None:
    """Cancels readers, which aborts their streams, and waits until nobody reads any more."""
    for reader in readers:
        reader.cancel()
    if readers:
        await asyncio.gather(*readers, return_exceptions=True)


def _too_early() -> IncompleteGenerationError:
    return IncompleteGenerationError("the engine ended the answer too early")


class Choices:
    """Tells the events of all answers of a request.

    With `best_of` nothing is told before the last answer is complete; then they come in the order of their mean
    logprob, best first, and are numbered so.
    """

    def __init__(
        self,
        request: GenerationRequest,
        children: Sequence[PreparedRequest],
        table: TokenTable,
        stops: StopMatcher | None,
        timing: Timing,
        gaps: Histogram,
    ) -> None:
        self.summary: Summary | None = None  # of the whole request, set with the last token of the last answer
        self._stories = [
            Story(request, child, table, stops, timing, gaps, choice) for choice, child in enumerate(children)
        ]
        self._running = len(children)
        self._ended: list[int] = []
        self._shares_prefill = request.prompt_logprobs and len(children) > 1
        self._prefill: tuple[TokenText, ...] | None = None
        self._ranks = request.best_of > 1
        self._waiting: list[TextEvent] = []  # for the prefill
        self._unranked: list[TextEvent] = []

    def tell(self, heard: Sequence[tuple[int, EngineEvent]]) -> Sequence[TextEvent]:
        """The text events that become ready. Raises the error of a FailedEvent: one ends them all."""
        told: list[TextEvent] = []
        for choice, event in heard:
            story = self._stories[choice]
            if story.summary is not None:
                continue
            told += story.tell(event)
            if story.summary is not None:
                self._ended.append(choice)
                self._running -= 1
        if not self._running:
            self.summary = self._total()
        if self._shares_prefill:
            told = self._with_prefill(told)
        if self._ranks:
            self._unranked += told
            return _ranked(self._unranked, len(self._stories)) if self.summary is not None else ()
        return told

    def take_ended(self) -> Sequence[int]:
        """Choices that have ended since the last call while others go on."""
        ended, self._ended = self._ended, []
        return ended if self._running else ()

    def stop_with_next_token(self) -> bool:
        """Makes the next token of each answer its last one. False if none has a token yet: then use `stop`."""
        if not any(story.count for story in self._stories):
            return False
        for story in self._stories:
            story.stopping = True
        return True

    def stop(self) -> Sequence[TextStopped]:
        """The end of all answers, before their first token."""
        return [story.stop() for story in self._stories]

    def _with_prefill(self, told: list[TextEvent]) -> list[TextEvent]:
        """Gives every answer the prompt's logprobs, and holds all back until the first child has brought them."""
        if self._prefill is None:
            told = self._waiting + told
            started = (event for event in told if isinstance(event, TextStarted) and event.choice == 0)
            self._prefill = next((event.prefill for event in started), None)
            if self._prefill is None:
                self._waiting = told
                return []
        return [replace(event, prefill=self._prefill) if isinstance(event, TextStarted) else event for event in told]

    def _total(self) -> Summary:
        """Counts the tokens of all answers, and the prompt once."""
        summaries = [story.summary for story in self._stories if story.summary is not None]
        return replace(summaries[0], generated_tokens=sum(summary.generated_tokens for summary in summaries))


def _ranked(events: Iterable[TextEvent], count: int) -> list[TextEvent]:
    """The events of `count` answers, the best first; equal ones keep their order."""
    answers: list[list[TextStarted | TextToken]] = [[] for _ in range(count)]
    for event in events:
        assert isinstance(event, TextStarted | TextToken)
        answers[event.choice].append(event)
    answers.sort(key=_mean_logprob, reverse=True)  # stable, as `reverse` keeps equal ones in order
    return [replace(event, choice=rank) for rank, answer in enumerate(answers) for event in answer]


def _mean_logprob(answer: Iterable[TextEvent]) -> float:
    logprobs = [event.logprob for event in answer if isinstance(event, TextToken)]
    return math.fsum(logprobs) / len(logprobs)
