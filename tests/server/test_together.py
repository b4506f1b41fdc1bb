"""Several requests of one call as one stream: numbered on, ended together, closed together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, cast

import pytest

from interlingua.contract.dialect import Call, Encoder
from interlingua.contract.errors import GenerationError
from interlingua.contract.events import FailedEvent, TextEvent, TextToken
from interlingua.contract.request import GenerationRequest, TextPart, TextPrompt
from interlingua.server.together import together


def call_of(*choices: int) -> Call:
    first, *more = (
        GenerationRequest(request_id=str(place), prompt=TextPrompt((TextPart("x"),)), n=n)
        for place, n in enumerate(choices)
    )
    return Call(first, True, cast(Encoder, None), tuple(more))


class Requests:
    """Streams that say one token for each choice, then do what `then` says of their request."""

    def __init__(self, **then: Any) -> None:
        self.then = then
        self.open = 0

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Sequence[TextEvent], None]:
        self.open += 1
        try:
            for choice in range(request.n):
                await asyncio.sleep(0)
                yield [TextToken(1, 5, request.request_id, -1.0, False, 1.0, choice=choice)]
            then = self.then.get("r" + request.request_id)
            if then == "wait":
                await asyncio.sleep(60)
            elif isinstance(then, FailedEvent):
                yield [then]
            elif then is not None:
                raise then
        finally:
            self.open -= 1


async def gather(call: Call, requests: Requests) -> list[TextEvent]:
    return [event async for batch in together(call, requests.generate) for event in batch]


async def test_choices_are_numbered_on() -> None:
    requests = Requests()
    events = await gather(call_of(2, 1, 3), requests)
    assert all(isinstance(event, TextToken) for event in events)
    numbered = sorted((event.choice, event.text) for event in events if isinstance(event, TextToken))
    assert numbered == [(0, "0"), (1, "0"), (2, "1"), (3, "2"), (4, "2"), (5, "2")]
    assert requests.open == 0


async def test_the_first_failure_is_the_last_event_and_ends_the_others() -> None:
    requests = Requests(r0="wait", r1=FailedEvent(GenerationError("bad")), r2="wait")
    events = await asyncio.wait_for(gather(call_of(1, 1, 1), requests), 10)
    assert isinstance(events[-1], FailedEvent) and not any(isinstance(event, FailedEvent) for event in events[:-1])
    assert requests.open == 0


async def test_a_fault_of_our_own_is_raised() -> None:
    requests = Requests(r0="wait", r1=RuntimeError("oops"))
    with pytest.raises(RuntimeError, match="oops"):
        await asyncio.wait_for(gather(call_of(1, 1), requests), 10)
    assert requests.open == 0


@pytest.mark.parametrize("heard", [0, 1, 3])
async def test_whoever_leaves_leaves_nothing_behind(heard: int) -> None:
    requests = Requests(r0="wait", r1="wait", r2="wait")
    stream = together(call_of(1, 1, 1), requests.generate)
    for _ in range(heard):
        await anext(stream)
    reader = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0.01)
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    await stream.aclose()
    assert requests.open == 0
