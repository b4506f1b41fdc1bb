"""What other servers got wrong and only a real model can show: answers that depend on the company or on the cache."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any

import pytest
from calls import GENERATE, GENERATE_STREAM, ROOT, TRITON, TRITON_STREAM, Reply, Route
from server import Server, running
from sockets import ask

SEEDED: dict[str, Any] = {"do_sample": True, "temperature": 0.8, "seed": 42, "max_new_tokens": 16}
WORDS = "The harbour was quiet, and the last boats came in one after another while the lamps were lit. "


def details_of(reply: Reply) -> Any:
    return reply.raw["details"]


async def neighbour(server: Server, number: int) -> Reply:
    """One of many requests that keep the batch busy: every length, every processor, some with a seed."""
    route = (GENERATE, GENERATE_STREAM, ROOT, TRITON_STREAM)[number % 4]
    kinds: tuple[dict[str, Any], ...] = (
        {},
        {"do_sample": True, "repetition_penalty": 1.3},
        {"do_sample": True, "typical_p": 0.2, "seed": number + 1},
        {"do_sample": True, "temperature": 1.7, "top_k": 40, "top_p": 0.9},
        {"repetition_penalty": 1.8, "ignore_eos": True},
        {"watermark": True, "do_sample": number % 2 == 0},
        {"do_sample": True, "frequency_penalty": 1.5},
    )
    prompt = f"{number}: " + WORDS * (number % 5) + "Then"
    return await route.call(server.port, prompt, max_new_tokens=3 + 5 * number % 23, **kinds[number % len(kinds)])


async def in_company(server: Server, others: int, *calls: Awaitable[Reply]) -> list[Reply]:
    """The replies to `calls`, which arrive one after another among `others` requests of every kind."""
    crowd = [asyncio.create_task(neighbour(server, number)) for number in range(others)]

    async def late(number: int, call: Awaitable[Reply]) -> Reply:
        await asyncio.sleep(0.02 * number)
        return await call

    replies = await asyncio.gather(*(late(number, call) for number, call in enumerate(calls)))
    await asyncio.gather(*crowd)
    return replies


async def test_a_seed_gives_the_same_tokens_alone_and_among_30_others(server: Server) -> None:
    alone = await GENERATE.call(server.port, "x", **SEEDED)
    assert alone.seed == 42 and len(alone.ids) == SEEDED["max_new_tokens"]
    routes = (*[GENERATE] * 20, TRITON, GENERATE_STREAM)
    replies = await in_company(server, 30, *(route.call(server.port, "x", **SEEDED) for route in routes))
    for reply in replies:
        assert (reply.ids, reply.text) == (alone.ids, alone.text)
        assert reply.seed in (42, None)
    other = await GENERATE.call(server.port, "x", **{**SEEDED, "seed": 43})
    assert other.ids != alone.ids


async def test_what_a_neighbour_asks_for_touches_its_own_row_alone(server: Server) -> None:
    """Ids and logprobs, to the bit; neighbours are penalised, sampled, and much longer or shorter."""
    wishes: tuple[dict[str, Any], ...] = (
        {"top_n_tokens": 3},
        {"repetition_penalty": 1.5},
        {"frequency_penalty": 1.5},
        {"do_sample": True, "typical_p": 0.2},
        {"watermark": True},
        {"grammar": {"type": "regex", "value": "[a-z ]{60}"}},
    )

    def call(wish: dict[str, Any]) -> Coroutine[Any, Any, Reply]:
        return GENERATE.call(server.port, "A list of three colours:", max_new_tokens=16, seed=7, **wish)

    alone = [details_of(await call(wish)) for wish in wishes]
    ids = [tuple(token["id"] for token in details["tokens"]) for details in alone]
    assert len(set(ids)) >= 5  # the processors do something; TGI's frequency penalty is a gentle one
    replies = await in_company(server, 20, *(call(wish) for wish in wishes * 2))
    assert [details_of(reply) for reply in replies] == alone * 2


@pytest.mark.parametrize("route", [GENERATE, ROOT, TRITON, GENERATE_STREAM, TRITON_STREAM], ids=lambda one: one.name)
async def test_a_top_k_over_the_vocabulary_is_no_limit(server: Server, route: Route) -> None:
    sampling: dict[str, Any] = {"do_sample": True, "temperature": 1.3, "seed": 5, "max_new_tokens": 8}
    whole = await route.call(server.port, "x", **sampling, top_k=49_152)  # the model's vocabulary
    neighbour_alone = await GENERATE.call(server.port, "Once", max_new_tokens=12, seed=1)
    huge, huger, neighbour_then = await asyncio.gather(
        route.call(server.port, "x", **sampling, top_k=5_000_000),
        route.call(server.port, "x", **sampling, top_k=2**31 - 1),
        GENERATE.call(server.port, "Once", max_new_tokens=12, seed=1),
    )
    assert huge.ids == huger.ids == whole.ids
    assert details_of(neighbour_then)["tokens"] == details_of(neighbour_alone)["tokens"]
    answer = await ask(server.port, "GET", "/health")
    assert answer.status == 200


async def test_prefill_details_are_the_same_with_a_cold_and_a_warm_cache(server: Server) -> None:
    prompt = "Tonight we eat. " + WORDS * 12
    wish: dict[str, Any] = {"max_new_tokens": 2, "decoder_input_details": True, "top_n_tokens": 2, "seed": 1}
    cold = details_of(await GENERATE.call(server.port, prompt, **wish))
    count = len((await ask(server.port, "POST", "/tokenize", {"inputs": prompt})).json)
    assert len(cold["prefill"]) == cold["prompt_tokens"] == count > 200
    assert cold["prefill"][0]["logprob"] is None
    assert all(token["logprob"] <= 0 for token in cold["prefill"][1:])
    for _ in range(2):
        assert details_of(await GENERATE.call(server.port, prompt, **wish)) == cold
    # Cached by a request that had no use for the prompt's logprobs.
    other = "At noon. " + prompt
    await GENERATE.call(server.port, other, max_new_tokens=2)
    warm = details_of(await GENERATE.call(server.port, other, **wish))
    assert [token["id"] for token in warm["prefill"][-count + 5 :]] == [token["id"] for token in cold["prefill"][5:]]
    assert all(token["logprob"] <= 0 for token in warm["prefill"][1:])
    assert details_of(await GENERATE.call(server.port, other, **wish)) == warm


async def test_the_prefix_cache_is_invisible() -> None:
    """Every answer is the one of a server without a cache, whatever was computed, stopped or left before it."""
    long = WORDS * 5  # over three blocks of the cache
    calls: list[tuple[str, dict[str, Any]]] = [
        (long, {"max_new_tokens": 40}),
        (long, {"max_new_tokens": 40}),
        (long, {"max_new_tokens": 40}),
        (long + "It", {"max_new_tokens": 30, "stop": [" the"]}),
        (long[: len(long) // 2], {"max_new_tokens": 20}),
        (long, {"max_new_tokens": 10, "decoder_input_details": True}),
        (long, {"max_new_tokens": 20, "do_sample": True, "temperature": 1.2, "seed": 2**64 - 1}),
        (long, {"max_new_tokens": 40}),
    ]
    with running(["--no-prefix-cache"]) as without:
        expected = [
            details_of(await GENERATE.call(without.port, prompt, **{"seed": 1, **wish})) for prompt, wish in calls
        ]
    with running() as cached:
        got = []
        for number, (prompt, wish) in enumerate(calls):
            if number == 2:  # a client that leaves in the middle of the same prompt's answer
                leaving = asyncio.create_task(GENERATE_STREAM.post(cached.port, long + "But", max_new_tokens=500))
                await asyncio.sleep(0.3)
                leaving.cancel()
                await asyncio.gather(leaving, return_exceptions=True)
            got.append(details_of(await GENERATE.call(cached.port, prompt, **{"seed": 1, **wish})))
    assert got == expected


async def test_best_of_returns_the_best_and_each_seed_replays(server: Server) -> None:
    """The winner has the highest mean logprob, the loser is told in full, and each seed replays."""
    wanted = {"do_sample": True, "temperature": 1.3, "max_new_tokens": 20}
    prompt = WORDS * 3 + "Then"
    best = await GENERATE.call(server.port, prompt, best_of=2, **wanted)
    details = details_of(best)
    (other,) = details["best_of_sequences"]

    def mean(answer: Any) -> float:
        return sum(token["logprob"] for token in answer["tokens"]) / len(answer["tokens"])

    assert mean(details) >= mean(other) and details["seed"] != other["seed"]
    assert other["tokens"] != details["tokens"] and other["finish_reason"] in ("length", "eos_token")
    for told, text in ((details, best.text), (other, other["generated_text"])):
        alone = await GENERATE.call(server.port, prompt, seed=told["seed"], **wanted)
        assert alone.text == text and details_of(alone)["tokens"] == told["tokens"]
    for parameters in ({}, {"do_sample": True, "seed": 1}, {"do_sample": True, "best_of": 3}):
        refused = await GENERATE.post(server.port, prompt, **{"best_of": 2, **parameters})
        assert refused.status == 422 and "parameters.best_of" in str(refused.json["error"])
    streamed = await GENERATE_STREAM.post(server.port, prompt, best_of=2, do_sample=True)
    assert streamed.status == 422 and "stream" in str(streamed.json["error"])
