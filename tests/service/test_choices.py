"""Several answers to one request: each with a seed of its own, one ending for all, the best of them first."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable

import pytest
from byte_model import EOS, House, house, request

from interlingua.contract.errors import GenerationError, OverloadedError, RequestTimeoutError, ValidationError
from interlingua.contract.events import (
    EngineEvent,
    FailedEvent,
    FinishedEvent,
    FinishReason,
    StartedEvent,
    TextEvent,
    TextStarted,
    TextToken,
    TokenEvent,
    fold,
)
from interlingua.contract.request import GenerationRequest, PreparedRequest, SamplingRequest
from interlingua.engine.echo import Script
from interlingua.service.choices import child_seed
from interlingua.service.prepare import Limits

SAMPLED = SamplingRequest(do_sample=True, seed=7)
TEXTS = ("first", "2nd", "the third")
LOGPROBS = (-0.5, -0.25, -2.0)


def child(prepared: PreparedRequest) -> int:
    """Which of the children of a request with seed 7 this is."""
    return [child_seed(7, choice) for choice in range(8)].index(prepared.sampling.seed)


def say(prepared: PreparedRequest) -> Script:
    choice = child(prepared)
    return Script(ids=(*TEXTS[choice].encode(), EOS), logprob=LOGPROBS[choice])


async def told(home: House, received: GenerationRequest) -> list[TextEvent]:
    return [event async for batch in home.service.generate(received) for event in batch]


def seen_by(home: House) -> list[PreparedRequest]:
    """Fills with what the engine is given."""
    seen: list[PreparedRequest] = []
    generate: Callable[[PreparedRequest], AsyncGenerator[EngineEvent, None]] = home.engine.generate

    def record(prepared: PreparedRequest) -> AsyncGenerator[EngineEvent, None]:
        seen.append(prepared)
        return generate(prepared)

    home.engine.generate = record  # type: ignore[method-assign]
    return seen


def test_seeds():
    """As docs/reproducibility.md says: SHA-256 over seed and choice, 8 bytes each, little-endian."""
    assert child_seed(2**64 - 1, 0) == 2**64 - 1
    for seed, choice in ((7, 1), (2**64 - 1, 127), (0, 2)):
        digest = hashlib.sha256(seed.to_bytes(8, "little") + choice.to_bytes(8, "little")).digest()
        assert child_seed(seed, choice) == int.from_bytes(digest, "little") % (2**53 - 1) + 1
    assert len({child_seed(seed, choice) for seed in range(100) for choice in range(100)}) == 10_000


async def test_each_child_is_a_request_of_its_own_in_one_group():
    home = house(say)
    seen = seen_by(home)
    await home.service.answer(request(n=3, sampling=SAMPLED, prompt_logprobs=True, max_new_tokens=50))
    await home.service.answer(request(n=2, sampling=SAMPLED))
    await home.service.answer(request(sampling=SAMPLED))
    assert [prepared.sampling.seed for prepared in seen[:3]] == [child_seed(7, choice) for choice in range(3)]
    assert len({prepared.request_id for prepared in seen[:5]}) == 5
    assert [prepared.prompt_logprobs for prepared in seen[:3]] == [True, False, False]
    groups = [prepared.group for prepared in seen]
    assert groups[0] == groups[1] == groups[2] and groups[3] == groups[4] and groups[0] != groups[3]
    assert groups[5] is None and seen[5].request_id == "r"
    await home.emptied()


async def test_n_answers_in_the_order_of_their_children():
    home = house(say)
    events = await told(home, request(n=3, sampling=SAMPLED, max_new_tokens=50))
    assert sorted(e.choice for e in events if isinstance(e, TextStarted)) == [0, 1, 2]
    assert {e.choice: e.seed for e in events if isinstance(e, TextStarted)} == {c: child_seed(7, c) for c in range(3)}
    for choice, text in enumerate(TEXTS):
        tokens = [e for e in events if isinstance(e, TextToken) and e.choice == choice]
        assert [token.index for token in tokens] == list(range(1, len(text) + 2))
        assert "".join(token.text for token in tokens if not token.special) == text
        summaries = [token.summary for token in tokens]
        assert summaries[:-1] == [None] * len(text) and summaries[-1] is not None
        assert (summaries[-1].text, summaries[-1].seed) == (text, child_seed(7, choice))
    kinds = [e.choice for e in events if isinstance(e, TextToken)]
    assert kinds != sorted(kinds), "the answers come side by side"
    answer = fold(events)
    assert [answer.summary.text, *(other.summary.text for other in answer.alternatives)] == list(TEXTS)
    assert not any(other.alternatives for other in answer.alternatives)
    await home.emptied()


@pytest.mark.parametrize("n", [1, 2, 3])
async def test_best_of_puts_the_best_mean_logprob_first(n: int):
    home = house(say)
    batches = [b async for b in home.service.generate(request(n=n, best_of=3, sampling=SAMPLED, max_new_tokens=50))]
    assert len(batches) == 1, "nothing is told before the best is known"
    answer = fold(batches[0])
    assert [answer.summary.text, *(other.summary.text for other in answer.alternatives)] == [
        "2nd",
        "first",
        "the third",
    ]
    assert {token.choice for token in answer.tokens} == {0}
    assert [other.tokens[0].choice for other in answer.alternatives] == [1, 2]
    assert answer.summary.seed == child_seed(7, 1)
    await home.emptied()


async def test_equals_keep_their_order():
    home = house(lambda prepared: Script(ids=(65 + child(prepared), EOS)))
    answer = await home.service.answer(request(best_of=4, sampling=SAMPLED))
    assert [answer.summary.text, *(other.summary.text for other in answer.alternatives)] == list("ABCD")


async def test_every_answer_has_the_prefill_even_if_the_first_child_is_late():
    home = house(lambda prepared: Script(ids=(97, EOS), start_delay=0.05 if child(prepared) == 0 else 0))
    events = await told(home, request("Hi", n=3, sampling=SAMPLED, prompt_logprobs=True))
    started = [event for event in events if isinstance(event, TextStarted)]
    assert len(started) == 3 and len({event.prefill for event in started}) == 1
    assert started[0].prefill is not None and len(started[0].prefill) == 3
    assert all(len(answer.prefill) == 3 for answer in (fold(events), *fold(events).alternatives))
    assert all(len([e for e in events if isinstance(e, TextToken) and e.choice == c]) == 2 for c in range(3))
    await home.emptied()


async def test_a_stop_ends_its_own_answer_alone():
    home = house(lambda p: Script(ids=tuple(b"ab.cdefgh" if child(p) == 0 else b"abcdefgh."), delay=0.001))
    answer = await home.service.answer(request(n=2, sampling=SAMPLED, stop=(".",), max_new_tokens=50))
    assert (answer.summary.text, answer.alternatives[0].summary.text) == ("ab", "abcdefgh")
    assert home.engine.stats().generated_tokens_total == 3 + 9, "an answer ran on after its stop"
    await home.emptied()


async def test_one_request_in_the_counts_and_all_tokens():
    home = house(say)
    answer = await home.service.answer(request(n=3, sampling=SAMPLED, max_new_tokens=50))
    metrics = home.service.metrics
    assert (metrics.requests, metrics.successes) == (1, 1)
    assert metrics.generated.total == sum(map(len, TEXTS)) + 3 and metrics.input_length.total == 3
    timing = answer.summary.timing
    assert all(other.summary.timing is timing for other in answer.alternatives)
    moments = [timing.arrived, timing.queued, timing.started, timing.first_token, timing.finished]
    assert moments == sorted(moments)


async def test_each_answer_takes_a_permit_and_all_come_back_together():
    home = house(Script(start_delay=30), limits=Limits(max_concurrent_requests=4))
    running = asyncio.create_task(home.service.answer(request(n=3, sampling=SAMPLED)))
    await asyncio.sleep(0.02)
    assert home.service.inside == 3
    refused = await told(home, request(n=2, sampling=SAMPLED))
    assert isinstance(refused[0], FailedEvent) and isinstance(refused[0].error, OverloadedError)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await home.emptied()
    never = await told(home, request(best_of=5, sampling=SAMPLED, field_names=(("best_of", "parameters.best_of"),)))
    assert isinstance(never[0], FailedEvent) and isinstance(never[0].error, ValidationError)
    assert never[0].error.message == "`parameters.best_of` must be at most 4, which the server runs at once, got 5"
    await home.emptied()


# --- endings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("best_of", [1, 3])
async def test_one_failure_ends_them_all_once(best_of: int):
    def plan(prepared: PreparedRequest) -> Script:
        if child(prepared) == 1:
            return Script(ids=(97,) * 9, fail_at=2, error=GenerationError("a bad row"))
        return Script(ids=(97,) * 500, delay=0.001)

    home = house(plan)
    events = await told(home, request(n=3, best_of=best_of, sampling=SAMPLED, max_new_tokens=500))
    assert isinstance(events[-1], FailedEvent) and events[-1].error.message == "a bad row"
    assert sum(isinstance(event, FailedEvent) for event in events) == 1
    assert home.engine.stats().generated_tokens_total < 100
    await home.emptied(0.5)
    assert home.service.metrics.failures == {"generation": 1}


async def test_one_silent_child_is_an_incomplete_answer():
    home = house(lambda p: Script(ids=(97,) * 9, fail_at=2 if child(p) == 2 else None))
    events = await told(home, request(n=3, sampling=SAMPLED))
    assert isinstance(events[-1], FailedEvent) and events[-1].error.kind == "incomplete_generation"
    await home.emptied(0.5)


async def test_a_fault_of_a_stream_ends_the_request():
    home = house(say)
    generate = home.engine.generate

    async def broken(prepared: PreparedRequest) -> AsyncGenerator[EngineEvent, None]:
        if child(prepared) == 1:
            raise RuntimeError("secret")
        async for event in generate(prepared):
            yield event

    home.engine.generate = broken  # type: ignore[method-assign]
    events = await told(home, request(n=2, sampling=SAMPLED))
    assert isinstance(events[-1], FailedEvent) and isinstance(events[-1].error, GenerationError)
    assert "secret" not in events[-1].error.message
    await home.emptied(0.5)


async def test_the_time_limit_ends_all():
    home = house(lambda p: Script(start_delay=30) if child(p) == 1 else Script(ids=(97, EOS)))
    events = await told(home, request(n=2, sampling=SAMPLED, timeout=0.1))
    assert isinstance(events[-1], FailedEvent) and isinstance(events[-1].error, RequestTimeoutError)
    await home.emptied(0.5)
    assert home.service.metrics.failures == {"timeout": 1}


@pytest.mark.parametrize("after", [0, 1, 5])
async def test_closing_early_aborts_all(after: int):
    home = house(Script(ids=(97,) * 1000, delay=0.001))
    batches = home.service.generate(request(n=4, sampling=SAMPLED, max_new_tokens=1000))
    for _ in range(after):
        await anext(batches)
    await batches.aclose()
    await home.emptied(0.1)
    assert len(asyncio.all_tasks()) == 1, "a reader is left"


@pytest.mark.parametrize("seconds", [0.0, 0.005, 0.02, 0.05])
async def test_cancelling_at_any_moment_leaves_nothing(seconds: float):
    home = house(Script(ids=(97,) * 1000, start_delay=0.01, delay=0.001), max_running=3)
    received = [request(n=n, best_of=b, sampling=SAMPLED, max_new_tokens=1000) for n, b in ((3, 1), (1, 3), (2, 2))]
    tasks = [asyncio.create_task(home.service.answer(one)) for one in received]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    await home.emptied(0.5)
    assert len(asyncio.all_tasks()) == 1, "a reader is left"


async def test_an_engine_may_ignore_groups():
    """The contract's smallest engine: whatever order its streams come in, the answers are sorted out."""
    home = house()

    async def plain(prepared: PreparedRequest) -> AsyncGenerator[EngineEvent, None]:
        await asyncio.sleep(0.01 * (2 - child(prepared)))
        yield StartedEvent(1.0)
        yield TokenEvent(65 + child(prepared), -0.5, 1.0, (), FinishReason.LENGTH)
        yield FinishedEvent(FinishReason.LENGTH, 1)

    home.engine.generate = plain  # type: ignore[method-assign]
    answer = await home.service.answer(request(n=3, sampling=SAMPLED, max_new_tokens=1))
    assert [answer.summary.text, *(other.summary.text for other in answer.alternatives)] == ["A", "B", "C"]


# --- stopped by id ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("best_of", [1, 2])
async def test_stopping_by_id_ends_every_answer_with_its_next_token(best_of: int):
    home = house(Script(ids=tuple(b"abcdefgh" * 100), delay=0.001))
    task = asyncio.create_task(told(home, request(n=2, best_of=best_of, sampling=SAMPLED, max_new_tokens=800)))
    for _ in range(5000):
        if home.engine.stats().generated_tokens_total >= 10:
            break
        await asyncio.sleep(0.001)
    assert home.service.stop_request("r")
    answer = fold(await asyncio.wait_for(task, 5))
    for one in (answer, *answer.alternatives):
        assert one.summary.finish_reason is FinishReason.STOP
        assert 5 <= one.summary.generated_tokens == len(one.tokens) < 100
    assert len(answer.alternatives) == 1
    await home.emptied(0.5)


async def test_stopping_by_id_before_any_token():
    home = house(Script(ids=(97,), start_delay=30))
    task = asyncio.create_task(told(home, request(n=3, sampling=SAMPLED)))
    await asyncio.sleep(0.02)
    assert home.service.stop_request("r")
    answer = fold(await asyncio.wait_for(task, 5))
    seeds = [one.summary.seed for one in (answer, *answer.alternatives)]
    assert seeds == [child_seed(7, choice) for choice in range(3)] and answer.tokens == ()
    await home.emptied(0.5)
