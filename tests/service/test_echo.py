"""The scripted engine keeps the contract of engines, so that tests on it mean something."""

from __future__ import annotations

import asyncio

import pytest
from byte_model import EOS, VOCAB_SIZE

from interlingua.contract.engine import Engine
from interlingua.contract.errors import GenerationError, UnavailableError
from interlingua.contract.events import (
    EngineEvent,
    FailedEvent,
    FinishedEvent,
    FinishReason,
    StartedEvent,
    TokenEvent,
)
from interlingua.contract.request import PreparedRequest, SamplingParams
from interlingua.engine.echo import EchoEngine, Script


def prepared(ids: tuple[int, ...] = (1, 2, 3), **given: object) -> PreparedRequest:
    values: dict[str, object] = {
        "request_id": "r",
        "prompt_ids": ids,
        "max_new_tokens": 10,
        "sampling": SamplingParams(),
        "stop_token_ids": frozenset({EOS}),
        **given,
    }
    return PreparedRequest(**values)  # type: ignore[arg-type]


def engine(script: Script | None = None, **given: object) -> EchoEngine:
    return EchoEngine(vocab_size=VOCAB_SIZE, eos_id=EOS, script=script, **given)  # type: ignore[arg-type]


async def told(using: Engine, request: PreparedRequest) -> list[EngineEvent]:
    return [event async for event in using.generate(request)]


def shape(events: list[EngineEvent]) -> str:
    letters = {StartedEvent: "s", TokenEvent: "t", FinishedEvent: "f", FailedEvent: "x"}
    return "".join(letters[type(event)] for event in events)


async def test_it_repeats_the_prompt_and_ends():
    events = await told(engine(), prepared())
    assert shape(events) == "sttttf"
    tokens = [event for event in events if isinstance(event, TokenEvent)]
    assert [token.token_id for token in tokens] == [1, 2, 3, EOS]
    assert [token.finish_reason for token in tokens] == [None, None, None, FinishReason.EOS]
    assert events[-1] == FinishedEvent(FinishReason.EOS, 4)


@pytest.mark.parametrize(
    ("given", "script", "ids", "reason"),
    [
        ({"max_new_tokens": 2}, None, [1, 2], FinishReason.LENGTH),
        ({"max_new_tokens": 4}, None, [1, 2, 3, EOS], FinishReason.LENGTH),
        ({"stop_token_ids": frozenset({2})}, None, [1, 2], FinishReason.EOS),
        ({"stop_token_ids": frozenset(), "max_new_tokens": 5}, None, [1, 2, 3, EOS, EOS], FinishReason.LENGTH),
        ({}, Script(ids=(7, EOS, 8)), [7, EOS], FinishReason.EOS),
    ],
)
async def test_ends(given: dict[str, object], script: Script | None, ids: list[int], reason: FinishReason):
    events = await told(engine(script), prepared(**given))
    assert [event.token_id for event in events if isinstance(event, TokenEvent)] == ids
    assert events[-1] == FinishedEvent(reason, len(ids))


async def test_alternatives_and_prompt_logprobs_come_when_asked_for():
    events = await told(engine(), prepared(top_n_tokens=2, prompt_logprobs=True))
    started, token = events[0], events[1]
    assert isinstance(started, StartedEvent) and started.prompt_logprobs == (None, -1.0, -1.0)
    assert isinstance(token, TokenEvent) and token.top == ((1, -0.5), (2, -1.5))


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (Script(fail_at=0, error=GenerationError("no")), "x"),
        (Script(fail_at=2, error=GenerationError("no")), "sttx"),
        (Script(fail_at=2), "stt"),
        (Script(die_at=1), "stx"),
    ],
)
async def test_failures(script: Script, expected: str):
    using = engine(script)
    assert shape(await told(using, prepared())) == expected
    assert (using.failure is not None) == (script.die_at is not None)
    assert using.stats().kv_blocks_used == using.stats().running == 0


async def test_the_queue_orders_by_priority_then_arrival():
    using = engine(max_running=1)
    order: list[str] = []

    async def run(name: str, priority: int) -> None:
        await told(using, prepared(priority=priority))
        order.append(name)  # one runs at a time: they end in the order in which they began

    async with asyncio.TaskGroup() as group:
        for name, priority in (("a", 5), ("b", 5), ("c", 1), ("d", 3), ("e", 1)):
            group.create_task(run(name, priority))
            await asyncio.sleep(0)
        assert using.stats().waiting == 4
    assert order == ["a", "c", "e", "d", "b"]


async def test_blocks_grow_with_the_tokens_and_go_with_the_request():
    using = engine(Script(ids=(7,) * 40, delay=0.001), kv_block_tokens=4)
    stream = using.generate(prepared(max_new_tokens=40))
    used = []
    async for event in stream:
        if isinstance(event, TokenEvent):
            used.append(using.stats().kv_blocks_used)
        if len(used) == 10:
            break
    assert used == [1, 2, 2, 2, 2, 3, 3, 3, 3, 4]
    await stream.aclose()
    assert using.stats().kv_blocks_used == using.stats().running == 0


async def test_stopping_ends_everybody_and_takes_nobody():
    using = engine(Script(start_delay=30), max_running=1)
    tasks = [asyncio.create_task(told(using, prepared())) for _ in range(3)]
    await asyncio.sleep(0.01)
    await using.stop()
    await using.stop()
    for events in (*await asyncio.gather(*tasks), await told(using, prepared())):
        assert shape(events) == "x"
        assert isinstance(events[0], FailedEvent) and isinstance(events[0].error, UnavailableError)
    assert using.stats().running == using.stats().waiting == 0
    await using.start()
    assert using.failure is None
