"""Every way in which a request over HTTP can end: exactly one ending, and nothing left behind."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from byte_model import EOS, script
from server_site import Site, Start

from interlingua.contract.errors import GenerationError
from interlingua.engine.echo import Script
from interlingua.service.prepare import Limits

WHOLE, STREAM = "/generate", "/generate_stream"
LONG = Script(ids=(97,) * 1000, delay=0.002)
SLOW_START = Script(ids=(97, EOS), start_delay=30)


def body(text: str = "Hi", **parameters: Any) -> dict[str, Any]:
    return {"inputs": text, "parameters": {"max_new_tokens": 1000, **parameters}}


async def until_inside(site: Site, count: int) -> None:
    for _ in range(2000):
        if site.home.service.inside == count:
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"{site.home.service.inside} requests are inside, not {count}")


# --- done ------------------------------------------------------------------------------------------------


async def test_whole_and_stream_say_the_same(start: Start):
    site = await start(script("héllo 😀"))
    whole = await site.post(WHOLE, body(details=True))
    stream = await site.post(STREAM, body(details=True))
    assert whole.status == stream.status == 200
    assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = stream.events
    joined = "".join(event["token"]["text"] for event in events if not event["token"]["special"])
    assert joined == events[-1]["generated_text"] == whole.json["generated_text"] == "héllo 😀"
    assert [event["generated_text"] for event in events[:-1]] == [None] * (len(events) - 1)
    assert [event["token"]["text"] for event in events] == [t["text"] for t in whole.json["details"]["tokens"]]
    await site.home.emptied()


async def test_held_back_text_is_never_sent_before_its_time(start: Start):
    site = await start(Script(ids=(*b"onetwothreefour", EOS), delay=0.002))
    connection = await site.connect()
    connection.send("POST", STREAM, body(stop=["onetwothree", "Carol:"]))
    status, headers = await connection.read_head()
    pieces = [piece async for piece in connection.pieces(headers)]
    assert status == 200 and len(pieces) == 1, "the stop's events are sent together when it is complete"
    assert b'"text":"o"' not in pieces[0] and pieces[0].count(b"data: ") == len("onetwothree")
    connection.close()
    await site.home.emptied()


async def test_a_failed_partial_stop_is_sent_once_in_order(start: Start):
    site = await start(script("Carol! Dan"))
    events = (await site.post(STREAM, body(stop=["onetwothree", "Carol:"]))).events
    assert [event["token"]["text"] for event in events] == [*"Carol! Dan", "</s>"]
    assert [event["index"] for event in events] == list(range(1, 12))


async def test_a_new_request_on_the_same_connection_finds_the_place_free(start: Start):
    site = await start(script("ab"), limits=Limits(max_concurrent_requests=1))
    connection = await site.connect()
    for number in range(60):
        answer = await connection.ask("POST", (WHOLE, STREAM)[number % 2], body())
        assert answer.status == 200
    connection.close()
    await site.home.emptied()


async def test_pipelined_requests_are_answered_in_order(start: Start):
    site = await start(lambda request: script(f"{len(request.prompt_ids)}"))
    connection = await site.connect()
    for length in range(1, 6):
        connection.send("POST", WHOLE, body("x" * length))
    texts = [(await connection.answer()).json["generated_text"] for _ in range(5)]
    assert texts == ["2", "3", "4", "5", "6"]
    connection.close()
    await site.home.emptied()


# --- the client leaves -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("path", [WHOLE, STREAM])
@pytest.mark.parametrize("plan", [SLOW_START, LONG], ids=["before the first token", "between tokens"])
async def test_leaving(start: Start, plan: Script, path: str, how: str):
    site = await start(plan)
    connection = await site.connect()
    connection.send("POST", path, body())
    await until_inside(site, 1)
    if path == STREAM and plan is LONG:
        _, headers = await connection.read_head()
        pieces = connection.pieces(headers)
        for _ in range(3):
            await anext(pieces)
    else:
        await asyncio.sleep(0.02)
    getattr(connection, how)()
    made = site.home.engine.stats().generated_tokens_total
    await site.home.emptied(1.0)
    assert site.home.service.metrics.failures == {"dropped": 1}
    assert site.home.engine.stats().generated_tokens_total < made + 200, "the engine ran on"


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_leaving_the_queue(start: Start, how: str):
    site = await start(SLOW_START, max_running=1)
    connections = [await site.connect() for _ in range(5)]
    for number, connection in enumerate(connections):
        connection.send("POST", (WHOLE, STREAM)[number % 2], body())
    await until_inside(site, 5)
    for connection in connections[1:]:
        getattr(connection, how)()
    await until_inside(site, 1)
    assert (site.home.engine.stats().running, site.home.engine.stats().waiting) == (1, 0)
    getattr(connections[0], how)()
    await site.home.emptied(1.0)


async def test_leaving_in_the_middle_of_the_body(start: Start):
    site = await start()
    connection = await site.connect()
    connection.send_head("POST", WHOLE, "content-length: 1000")
    connection.writer.write(b'{"inputs"')
    await asyncio.sleep(0.02)
    connection.close()
    await asyncio.sleep(0.05)
    await site.home.emptied()
    assert site.home.service.metrics.failures == {"dropped": 1}


async def test_two_hundred_clients_that_vanish(start: Start):
    """In every phase and manner at once, while others are served to their end."""
    site = await start(Script(ids=(97,) * 200, start_delay=0.01, delay=0.001), max_running=16)
    chance = random.Random(7)

    async def vanish(number: int) -> None:
        connection = await site.connect()
        connection.send("POST", (WHOLE, STREAM)[number % 2], body(max_new_tokens=10_000, ignore_eos=True))
        await asyncio.sleep(chance.random() * 0.5)
        (connection.close if number % 3 else connection.reset)()

    async def stay() -> int:
        return len((await site.post(STREAM, body(max_new_tokens=50))).events)

    results = await asyncio.gather(*(vanish(number) for number in range(200)), *(stay() for _ in range(10)))
    assert results[200:] == [50] * 10
    await site.home.emptied()
    metrics = site.home.service.metrics
    assert metrics.successes == 10 and set(metrics.failures) <= {"dropped"}


async def test_a_client_that_never_reads_is_cut_off(start: Start):
    # Long enough to fill every buffer between us and a client that reads nothing.
    site = await start(Script(ids=(97,) * 100), server={"write_timeout": 0.3}, max_context=2_000_000)
    connection = await site.connect()
    connection.writer.transport.pause_reading()
    connection.send("POST", STREAM, body(max_new_tokens=1_900_000, ignore_eos=True))
    await until_inside(site, 1)
    await site.home.emptied(30.0)
    assert site.home.service.metrics.failures == {"dropped": 1}
    connection.close()


# --- refused ---------------------------------------------------------------------------------------------


async def test_overload_refuses_at_once_and_permits_come_back(start: Start):
    site = await start(Script(ids=(97, EOS), start_delay=0.2), limits=Limits(max_concurrent_requests=4), max_running=2)
    answers = await asyncio.gather(*(site.post((WHOLE, STREAM)[n % 2], body()) for n in range(40)))
    refused = [answer for answer in answers if answer.status == 429]
    assert len(refused) == 36 and sum(answer.status == 200 for answer in answers) == 4
    for answer in refused:
        assert answer.json["error_type"] == "overloaded" and answer.headers["retry-after"] == "1"
        assert answer.headers["content-type"] == "application/json"
    await site.home.emptied()
    again = await asyncio.gather(*(site.post(WHOLE, body()) for _ in range(4)))
    assert [answer.status for answer in again] == [200] * 4
    await site.home.emptied()


@pytest.mark.parametrize("path", [WHOLE, STREAM, "/v2/models/bytes/generate_stream"])
async def test_what_the_service_refuses_comes_before_the_first_event(start: Start, path: str):
    site = await start(limits=Limits(max_input_token_len=5))
    name = "text_input" if path.startswith("/v2") else "inputs"
    answer = await site.post(path, {name: "far too long"})
    assert answer.status == (400 if path.startswith("/v2") else 422)
    assert answer.headers["content-type"] == "application/json" and "5 tokens" in answer.json["error"]
    await site.home.emptied()


# --- time runs out ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [WHOLE, STREAM])
async def test_timeout_before_the_first_byte(start: Start, path: str):
    site = await start(SLOW_START, limits=Limits(timeout=0.1))
    answer = await site.post(path, body())
    assert (answer.status, answer.json["error_type"]) == (504, "timeout")
    await site.home.emptied()


async def test_timeout_of_a_whole_answer_that_was_being_computed(start: Start):
    site = await start(LONG, limits=Limits(timeout=0.1))
    assert (await site.post(WHOLE, body())).status == 504
    await site.home.emptied()


async def test_timeout_after_the_first_byte_is_one_event_and_the_end(start: Start):
    site = await start(LONG, limits=Limits(timeout=0.15))
    answer = await site.post(STREAM, body())
    assert answer.status == 200
    *tokens, last = answer.events
    assert tokens and all("token" in event for event in tokens)
    assert last["error_type"] == "timeout" and "token" not in last
    await site.home.emptied()


async def test_timeout_in_the_queue(start: Start):
    site = await start(SLOW_START, limits=Limits(timeout=0.2), max_running=1)
    answers = await asyncio.gather(*(site.post(STREAM, body()) for _ in range(4)))
    assert [answer.status for answer in answers] == [504] * 4
    await site.home.emptied()


# --- the engine fails ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [(GenerationError("a bad row"), 424, "generation"), (None, 500, "incomplete_generation")],
)
async def test_engine_faults(start: Start, error: GenerationError | None, status: int, kind: str):
    site = await start(Script(ids=(97,) * 9, fail_at=0, error=error))
    for path in (WHOLE, STREAM):
        answer = await site.post(path, body())
        assert (answer.status, answer.json["error_type"]) == (status, kind)
    site = await start(Script(ids=(97,) * 9, fail_at=3, error=error))
    assert (await site.post(WHOLE, body())).status == status
    stream = await site.post(STREAM, body())
    assert stream.status == 200
    assert ["token" in event for event in stream.events] == [True, True, True, False]
    assert stream.events[-1]["error_type"] == kind
    await site.home.emptied()


async def test_engine_death(start: Start):
    site = await start(lambda request: Script(ids=(97,) * 9, die_at=3) if len(request.prompt_ids) > 3 else LONG)
    other = asyncio.create_task(site.post(STREAM, body()))
    await until_inside(site, 1)
    await asyncio.sleep(0.05)
    mine = await site.post(STREAM, body("die"))
    assert ["token" in event for event in mine.events] == [True, True, True, False]
    assert (await other).events[-1]["error_type"] == "healthcheck"
    assert (await site.post(WHOLE, body())).status == 503
    assert (await site.ask("GET", "/health")).status == 503
    await site.home.emptied()
