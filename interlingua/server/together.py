"""Several requests of one call as one stream of events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from interlingua.contract.dialect import Call
from interlingua.contract.events import FailedEvent, TextEvent
from interlingua.contract.request import GenerationRequest
from interlingua.server.responses import Batches

Generate = Callable[[GenerationRequest], Batches]


async def together(call: Call, generate: Generate) -> Batches:
    """The events of all requests, the choices of each numbered on from those of the one before it.

    The first failure is the last event, and ends the others. Closing the generator ends all.
    """
    news: asyncio.Queue[Sequence[TextEvent] | BaseException] = asyncio.Queue()

    async def tell(request: GenerationRequest, first: int) -> None:
        try:
            async with aclosing(generate(request)) as batches:
                async for batch in batches:
                    news.put_nowait([_numbered(event, first) for event in batch])
            news.put_nowait(())
        except BaseException as fault:
            news.put_nowait(fault)
            raise

    tasks: list[asyncio.Task[None]] = []
    first = 0
    for request in (call.request, *call.more):
        tasks.append(asyncio.create_task(tell(request, first)))
        first += request.choices
    left = len(tasks)
    try:
        while left:
            batch = await news.get()
            if isinstance(batch, BaseException):
                raise batch
            if not batch:
                left -= 1
                continue
            yield batch
            if isinstance(batch[-1], FailedEvent):
                return
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _numbered(event: TextEvent, first: int) -> TextEvent:
    return event if isinstance(event, FailedEvent) else replace(event, choice=first + event.choice)
