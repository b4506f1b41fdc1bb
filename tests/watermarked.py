"""Answers of the demo model with and without a watermark, sampled at temperature 1 with fixed seeds."""

from __future__ import annotations

import asyncio

from interlingua.contract.events import FailedEvent, TokenEvent
from interlingua.contract.request import PreparedRequest, SamplingParams, Watermark
from interlingua.engine.native.engine import NativeEngine, NativeOptions
from interlingua.hub import resolve
from interlingua.text.tokenizer import Tokenizer

EACH = 20  # answers of either kind
TOKENS = 200
PROMPTS = (
    "The lighthouse keeper opened the door and",
    "Once upon a time in a small village",
    "Dear Sir or Madam, I am writing to",
    "The history of tea begins",
    "In the year 2150, people",
    "My grandmother used to say that",
    "A good loaf of bread needs",
    "The train left the station at dawn, and",
    "Scientists have long wondered why",
    "It was raining when the letter came.",
)


async def answers(gamma: float, delta: float) -> list[list[int]]:
    """Token ids [2 * EACH][TOKENS], the watermarked ones first."""
    files = resolve("smollm2-135m-instruct")
    tokenizer, engine = Tokenizer.load(files), NativeEngine(files, NativeOptions())

    async def one(number: int) -> list[int]:
        request = PreparedRequest(
            request_id=str(number),
            prompt_ids=tuple(tokenizer.encode(PROMPTS[number % len(PROMPTS)])),
            max_new_tokens=TOKENS,
            sampling=SamplingParams(
                do_sample=True, seed=2000 + number, watermark=Watermark(gamma, delta) if number < EACH else None
            ),
            stop_token_ids=frozenset(),
        )
        ids: list[int] = []
        async for event in engine.generate(request):
            if isinstance(event, FailedEvent):
                raise event.error
            if isinstance(event, TokenEvent):
                ids.append(event.token_id)
        return ids

    await engine.start()
    try:
        return await asyncio.gather(*(one(number) for number in range(2 * EACH)))
    finally:
        await engine.stop()
