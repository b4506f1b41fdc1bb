"""The life of a request in the service: its story, its one ending, and what it leaves behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

import pytest
from byte_model import BOS, EOS, House, house, request, script, served

from interlingua.contract.errors import (
    GenerationError,
    IncompleteGenerationError,
    InterlinguaError,
    OverloadedError,
    RequestTimeoutError,
    UnavailableError,
    ValidationError,
)
from interlingua.contract.events import (
    FailedEvent,
    FinishReason,
    TextEvent,
    TextStarted,
    TextStopped,
    TextToken,
    TokenText,
    fold,
)
from interlingua.contract.request import (
    GenerationRequest,
    MediaPart,
    PreparedRequest,
    SamplingRequest,
    StopMode,
    TextPrompt,
)
from interlingua.engine.echo import Script
from interlingua.service.prepare import Limits
from interlingua.service.service import Service


async def events(home: House, received: GenerationRequest) -> list[TextEvent]:
    return [event async for batch in home.service.generate(received) for event in batch]


async def failure(home: House, received: GenerationRequest) -> InterlinguaError:
    """The error that ends the request; everything must be free when it is told."""
    told = await events(home, received)
    assert isinstance(told[-1], FailedEvent)
    assert not any(isinstance(event, FailedEvent) for event in told[:-1])
    await home.emptied()
    return told[-1].error


# --- the story -------------------------------------------------------------------------------------------


async def test_stream_and_answer_tell_the_same():
    home = house(script("héllo"))
    told = await events(home, request())
    started, tokens = told[0], told[1:]
    assert isinstance(started, TextStarted) and started.prompt_tokens == 3 and started.prefill is None
    assert [token.index for token in tokens] == list(range(1, 8))
    assert "".join(token.text for token in tokens if not token.special) == "héllo"
    assert [token.summary is None for token in tokens] == [True] * 6 + [False]
    summary = tokens[-1].summary
    assert (tokens[-1].id, tokens[-1].text, tokens[-1].special) == (EOS, "</s>", True)
    assert (summary.text, summary.finish_reason) == ("héllo", FinishReason.EOS)
    assert (summary.generated_tokens, summary.prompt_tokens, summary.seed) == (7, 3, started.seed)
    answer = await home.service.answer(request(sampling=SamplingRequest(seed=started.seed)))
    assert answer.summary.text == summary.text and answer == fold(
        [*told[:1], *answer.tokens]
    )  # the fold adds nothing of its own
    await home.emptied()


async def test_times_follow_each_other():
    home = house(Script(ids=(97, 98, EOS), start_delay=0.02, delay=0.01))
    begun = time.monotonic()
    answer = await home.service.answer(request())
    timing = answer.summary.timing
    moments = [begun, timing.arrived, timing.queued, timing.started, timing.first_token, timing.finished]
    assert moments == sorted(moments)
    first, second, third = (token.elapsed_ms for token in answer.tokens)
    assert first >= 30 and second >= 10 and third >= 10
    total = sum((first, second, third)) / 1000
    assert timing.arrived + total <= timing.finished + 1e-6


async def test_length_comes_before_eos():
    answer = await house(script("ab")).service.answer(request(max_new_tokens=3))
    assert answer.summary.finish_reason is FinishReason.LENGTH
    assert answer.summary.text == "ab" and answer.tokens[-1].id == EOS


async def test_client_stop_ids_end_the_answer():
    answer = await house(script("abcd")).service.answer(request(stop_token_ids=(ord("c"),)))
    assert answer.summary.finish_reason is FinishReason.EOS and answer.summary.generated_tokens == 3


@pytest.mark.parametrize(
    ("mode", "text", "shown"),
    [
        (StopMode.CUT, "one ", ["o", "n", "e", " ", "", "", "", ""]),
        (StopMode.KEEP, "one stop", ["o", "n", "e", " ", "s", "t", "o", "p"]),
    ],
)
async def test_stop_strings_end_the_run(mode: StopMode, text: str, shown: list[str]):
    home = house(Script(ids=tuple(b"one stop two"), delay=0.001))
    answer = await home.service.answer(request(stop=("stop",), stop_mode=mode))
    assert answer.summary.text == text and answer.summary.finish_reason is FinishReason.STOP
    assert [token.text for token in answer.tokens] == shown
    assert answer.summary.generated_tokens == 8
    await home.emptied()
    assert home.engine.stats().generated_tokens_total == 8, "the engine ran on after the stop"


async def test_stop_on_the_last_allowed_token_is_cut_and_reports_length():
    answer = await house(script("abcd")).service.answer(request(stop=("cd",), max_new_tokens=4))
    assert answer.summary.text == "ab" and answer.summary.finish_reason is FinishReason.LENGTH


async def test_held_back_text_comes_out_at_the_end():
    answer = await house(script("ab")).service.answer(request(stop=("bcd",)))
    assert answer.summary.text == "ab" and answer.summary.finish_reason is FinishReason.EOS
    assert [token.text for token in answer.tokens] == ["a", "b", "</s>"]


async def test_held_back_events_come_together_and_unchanged():
    home = house(script("xabcabd"))
    batches = [batch async for batch in home.service.generate(request(stop=("abd!",)))]
    texts = ["".join(event.text for event in batch if isinstance(event, TextToken)) for batch in batches]
    assert texts == ["", "x", "abc", "abd</s>"]


async def test_the_prompt_is_never_searched_for_stops():
    answer = await house(script("A")).service.answer(request("Q: 1\nA:", stop=("Q:",)))
    assert answer.summary.text == "A" and answer.summary.finish_reason is FinishReason.EOS


async def test_prefill_has_a_row_for_every_prompt_token():
    answer = await house(script("x")).service.answer(request("é!", prompt_logprobs=True))
    assert answer.prefill == (
        TokenText(BOS, "<s>", None, True),
        TokenText(195, "", -1.0, False),
        TokenText(169, "é", -1.0, False),
        TokenText(33, "!", -1.0, False),
    )


async def test_alternatives_are_decoded_alone():
    answer = await house(script("\xc3")).service.answer(request(top_n_tokens=2, max_new_tokens=1))
    assert answer.tokens[0].top == (
        TokenText(195, "\ufffd", -0.5, False),
        TokenText(196, "\ufffd", -1.5, False),
    )


# --- endings ---------------------------------------------------------------------------------------------


async def test_refusals_take_no_permit():
    home = house()
    error = await failure(home, request(""))
    assert isinstance(error, ValidationError) and home.service.metrics.failures == {"validation": 1}


async def test_one_request_too_many_is_refused_at_once():
    home = house(Script(start_delay=30), limits=Limits(max_concurrent_requests=2), max_running=1)
    running = [asyncio.create_task(home.service.answer(request())) for _ in range(2)]
    await asyncio.sleep(0.02)
    assert (home.engine.stats().running, home.engine.stats().waiting) == (1, 1)
    told = await events(home, request())
    assert isinstance(told[0], FailedEvent) and isinstance(told[0].error, OverloadedError)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await home.emptied()
    assert home.service.metrics.failures == {"overloaded": 1, "dropped": 2}


async def test_a_place_is_free_when_the_last_event_is_told():
    home = house(script("ab"), limits=Limits(max_concurrent_requests=1))
    for _ in range(20):
        async for batch in home.service.generate(request()):
            if isinstance(batch[-1], TextToken) and batch[-1].summary is not None:
                assert home.service.inside == 0 and home.engine.stats().kv_blocks_used == 0
                answer = await home.service.answer(request())
                assert answer.summary.text == "ab"
    await home.emptied()


@pytest.mark.parametrize(
    "plan",
    [
        Script(start_delay=30),
        Script(ids=(97,) * 100, delay=0.01),
        Script(ids=(97,) * 100, delay=30),
    ],
    ids=["before the first token", "between tokens", "in a long step"],
)
async def test_time_limits_end_requests(plan: Script):
    home = house(plan)
    begun = time.monotonic()
    error = await failure(home, request(timeout=0.1, max_new_tokens=100))
    assert isinstance(error, RequestTimeoutError) and "0.1 seconds" in error.message
    assert 0.09 < time.monotonic() - begun < 5
    assert home.service.metrics.failures == {"timeout": 1}


async def test_the_limit_counts_from_arrival_and_waiting_counts():
    home = house(Script(start_delay=30), limits=Limits(timeout=0.2), max_running=1)
    first = asyncio.create_task(failure(home, request()))
    second = asyncio.create_task(failure(home, request()))
    for error in await asyncio.gather(first, second):
        assert isinstance(error, RequestTimeoutError)


async def test_a_slow_consumer_is_told_at_its_next_step_and_never_cancelled():
    home = house(Script(ids=(97,) * 1000))
    told: list[TextEvent] = []
    async for batch in home.service.generate(request(timeout=0.05, max_new_tokens=1000)):
        told += batch
        await asyncio.sleep(0.02)  # not ours to interrupt
    assert isinstance(told[-1], FailedEvent) and isinstance(told[-1].error, RequestTimeoutError)
    await home.emptied()


@pytest.mark.parametrize("at", [0, 3])
async def test_engine_faults_end_one_request(at: int):
    home = house(Script(ids=(97,) * 9, fail_at=at, error=GenerationError("a bad row")))
    error = await failure(home, request())
    assert isinstance(error, GenerationError) and error.message == "a bad row"


@pytest.mark.parametrize("at", [0, 3])
async def test_an_engine_that_falls_silent_is_an_incomplete_answer(at: int):
    error = await failure(house(Script(ids=(97,) * 9, fail_at=at)), request())
    assert isinstance(error, IncompleteGenerationError)


async def test_engine_death_ends_everybody_and_refuses_the_next():
    def say(prepared: PreparedRequest) -> Script:
        return Script(ids=(97,) * 9, die_at=3) if prepared.priority == 1 else Script(start_delay=30)

    home = house(say, max_running=2)
    others = [asyncio.create_task(events(home, request())) for _ in range(3)]
    await asyncio.sleep(0.02)
    mine = asyncio.create_task(events(home, request(priority=1)))
    await asyncio.sleep(0.02)
    others.pop().cancel()
    assert home.service.ill_health() is None
    others.pop(0).cancel()  # frees a place: the one of priority 1 comes first
    for told in await asyncio.gather(mine, *others):
        assert isinstance(told[-1], FailedEvent) and isinstance(told[-1].error, UnavailableError)
    assert home.service.ill_health() == "the engine has died"
    assert isinstance(await failure(home, request()), UnavailableError)


async def test_faults_of_our_own_end_the_request_without_their_text():
    home = house()

    async def broken(prepared: PreparedRequest) -> AsyncGenerator[object, None]:
        raise RuntimeError("secret")
        yield

    home.engine.generate = broken  # type: ignore[method-assign,assignment]
    error = await failure(home, request())
    assert isinstance(error, GenerationError) and "secret" not in error.message


@pytest.mark.parametrize("after", [0, 1, 5])
async def test_closing_early_aborts(after: int):
    home = house(Script(ids=(97,) * 1000, delay=0.001))
    batches = home.service.generate(request(max_new_tokens=1000))
    for _ in range(after):
        await anext(batches)
    await batches.aclose()
    await home.emptied(0.1)
    assert home.service.metrics.failures == ({"dropped": 1} if after else {})


@pytest.mark.parametrize("seconds", [0.0, 0.005, 0.02, 0.05])
async def test_cancelling_at_any_moment_leaves_nothing(seconds: float):
    home = house(Script(ids=(97,) * 1000, start_delay=0.01, delay=0.001), max_running=2)
    tasks = [asyncio.create_task(home.service.answer(request(max_new_tokens=1000))) for _ in range(5)]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    await home.emptied(0.5)


async def test_a_client_that_leaves_as_its_time_runs_out_has_left():
    home = house(Script(start_delay=30))
    task = asyncio.create_task(home.service.answer(request(timeout=0.05)))
    await asyncio.sleep(0.01)
    loop = asyncio.get_running_loop()
    loop.call_later(0.04, task.cancel)
    with pytest.raises((asyncio.CancelledError, RequestTimeoutError)):
        await task
    assert task.cancelling() <= 1
    await home.emptied()


async def test_random_endings_leave_nothing():
    """Many requests that end in every way at once, over a queue."""

    def say(prepared: PreparedRequest) -> Script:
        return (
            script("ok"),
            Script(ids=(97,) * 50, delay=0.002),
            Script(ids=(97,) * 9, fail_at=4, error=GenerationError("bad")),
            Script(ids=(97,) * 9, fail_at=2),
            Script(start_delay=30),
        )[len(prepared.prompt_ids) % 5]

    home = house(say, limits=Limits(max_concurrent_requests=40), max_running=8)

    async def one(number: int) -> None:
        received = request("x" * (number % 5 + 1), timeout=0.3, max_new_tokens=60, stop=("ok",) * (number % 2))
        batches = home.service.generate(received)
        told: Sequence[TextEvent] = ()
        count = 0
        async for batch in batches:
            told = batch
            count += 1
            if number % 7 == count:
                break
        await batches.aclose()
        if number % 7 != count:
            last = told[-1]
            assert isinstance(last, FailedEvent) or (isinstance(last, TextToken) and last.summary)

    tasks = [asyncio.create_task(one(number)) for number in range(200)]
    for number, task in enumerate(tasks):
        if number % 11 == 0:
            asyncio.get_running_loop().call_later(number / 2000, task.cancel)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert not [result for result in results if isinstance(result, Exception)]
    await home.emptied()


# --- life ------------------------------------------------------------------------------------------------


async def test_before_the_model_and_after_the_end():
    home = house(Script(ids=(97,) * 30, delay=0.01), loaded=False)
    assert home.service.ill_health() == "the server is loading"
    assert isinstance(await failure(home, request()), UnavailableError)
    home.service.attach(served(home.engine))
    assert home.service.ill_health() is None
    running = asyncio.create_task(home.service.answer(request(max_new_tokens=20)))
    await asyncio.sleep(0.03)
    home.service.begin_stop()
    assert home.service.ill_health() == "the server is stopping"
    empty = asyncio.create_task(home.service.wait_until_empty())
    assert isinstance(await failure_now(home.service), UnavailableError)
    assert not empty.done() and (await running).summary.generated_tokens == 20
    assert (await asyncio.wait_for(empty, 1.0)) is None
    await home.emptied()


async def failure_now(service: Service) -> InterlinguaError:
    told = [event async for batch in service.generate(request()) for event in batch]
    assert isinstance(told[-1], FailedEvent)
    return told[-1].error


async def test_health_sees_an_engine_that_is_stuck(monkeypatch: pytest.MonkeyPatch):
    home = house(Script(start_delay=30))
    task = asyncio.create_task(home.service.answer(request()))
    await asyncio.sleep(0.01)
    assert home.service.ill_health() is None, "a request that just came is no sign of illness"
    now = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + 100)
    assert "no progress" in (home.service.ill_health() or "")
    monkeypatch.undo()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await home.emptied()


async def test_metrics_add_up():
    home = house(script("hello"))
    for _ in range(3):
        await home.service.answer(request())
    await failure(home, request(""))
    text = home.service.metrics.render().decode()
    rows = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert rows["tgi_request_count"] == "4" and rows["tgi_request_success"] == "3"
    assert rows['tgi_request_failure{err="validation"}'] == "1"
    assert rows["tgi_request_duration_count"] == "3.0"
    assert rows['tgi_request_generated_tokens_bucket{le="4.0"}'] == "0.0"
    assert rows['tgi_request_generated_tokens_bucket{le="8.0"}'] == "3.0"
    assert rows["tgi_request_generated_tokens_sum"] == "18.0"
    for gauge in ("tgi_queue_size", "tgi_batch_current_size", "interlingua_kv_blocks_used"):
        assert float(rows[gauge]) == 0
    assert float(rows["process_resident_memory_bytes"]) > 0


# --- stopped by id ---------------------------------------------------------------------------------------


async def told_until_stopped(home: House, received: GenerationRequest, name: str, tokens: int) -> list[TextEvent]:
    """The events of a request that is stopped by `name` once it has told so many tokens."""
    told: list[TextEvent] = []
    async for batch in home.service.generate(received):
        told += batch
        if sum(isinstance(event, TextToken) for event in told) == tokens:
            assert home.service.stop_request(name)
            tokens = -1
    await home.emptied()
    return told


@pytest.mark.parametrize("name", ["r", "mine"])
async def test_a_stopped_request_ends_with_its_next_token(name: str):
    home = house(Script(ids=tuple(b"abcdefgh" * 100)))
    told = await told_until_stopped(home, request(max_new_tokens=500, client_id="mine"), name, 3)
    summary = fold(told).summary
    assert (summary.text, summary.finish_reason, summary.generated_tokens) == ("abcd", FinishReason.STOP, 4)
    assert not home.service.stop_request("mine") and not home.service.stop_request("r")
    assert home.service.metrics.successes == 1


async def test_text_that_is_held_back_belongs_to_a_stopped_answer():
    home = house(script("abcXYabc"))
    received = request(stop=("XYZ",), max_new_tokens=50)
    told = await told_until_stopped(home, received, "r", 3)
    assert fold(told).summary.text == "abcX"


@pytest.mark.parametrize("waits", ["in the queue", "in prefill"])
async def test_a_request_without_a_token_is_stopped_at_once(waits: str):
    home = house(Script(ids=(97,), start_delay=30), max_running=1)
    tasks = [asyncio.create_task(events(home, request(client_id=name))) for name in ("first", "second")]
    await asyncio.sleep(0.02)
    wanted = tasks[waits == "in the queue"]
    assert home.service.stop_request("second" if waits == "in the queue" else "first")
    told = await asyncio.wait_for(wanted, 5)
    assert isinstance(told[-1], TextStopped) and home.service.metrics.failures == {"stopped": 1}
    answer = fold(told)
    assert (answer.summary.text, answer.summary.finish_reason, answer.tokens) == ("", FinishReason.STOP, ())
    assert answer.summary.prompt_tokens == 3
    for task in tasks:
        task.cancel()
    await home.emptied()


async def test_a_request_is_stopped_while_it_is_prepared():
    home = house(Script(ids=(97,), start_delay=30))
    received = request("x" * 5000)  # prepared in a thread
    task = asyncio.create_task(events(home, received))
    await asyncio.sleep(0)
    assert home.service.stop_request("r")
    told = await asyncio.wait_for(task, 5)
    assert isinstance(told[-1], TextStopped) and told[-1].summary.prompt_tokens == 5001
    await home.emptied()


async def test_of_requests_with_one_name_the_oldest_is_stopped_first():
    home = house(Script(ids=(97,), start_delay=30))
    tasks = [asyncio.create_task(events(home, request(client_id="same"))) for _ in range(3)]
    await asyncio.sleep(0.02)
    for place, task in enumerate(tasks):
        assert home.service.stop_request("same")
        await asyncio.wait_for(task, 5)
        assert [other.done() for other in tasks] == [True] * (place + 1) + [False] * (2 - place)
    assert not home.service.stop_request("same")
    await home.emptied()


async def test_where_no_host_is_allowed_a_url_is_refused_for_what_the_model_reads():
    """To allow its host would not help, so that is not what the error is about."""
    home = house()
    part = MediaPart("image", "url", "https://h.example/a.png", "inputs[0].image_url", 100)
    asked = replace(request(), prompt=TextPrompt((part,)))
    (event,) = [event async for batch in home.service.generate(asked) for event in batch]
    assert isinstance(event, FailedEvent)
    assert event.error.message == (
        "`inputs[0].image_url` is an image, and the served model reads text only; nor would it be taken from there: "
        'it must be no URL: no host of media is allowed here, got "https://h.example/a.png"'
    )
