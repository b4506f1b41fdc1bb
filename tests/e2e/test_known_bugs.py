"""What other servers got wrong and only a real model can show: answers that depend on the company or on the cache."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Coroutine
from typing import Any

import pytest
from calls import GENERATE, GENERATE_STREAM, MODEL, ROOT, TRITON, TRITON_STREAM, Reply, Route
from server import Server, running
from sockets import Answer, ask

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


async def stranger(server: Server, number: int) -> Answer:
    """A neighbour from another dialect: several answers, biases, penalties of the answer alone, forced forms."""
    prompt = f"{number}: " + WORDS * (number % 4) + "Then"
    chat = {"messages": [{"role": "user", "content": prompt}]}
    tensor = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": [prompt]}
    asked: tuple[tuple[str, dict[str, Any]], ...] = (
        ("/v1/completions", {"prompt": prompt, "n": 2, "logit_bias": {"30": 5, "31": -100}, "max_tokens": 9}),
        ("/v1/chat/completions", {**chat, "presence_penalty": 2, "min_p": 0.1, "stream": True, "max_tokens": 12}),
        ("/vllm/generate", {"prompt": prompt, "frequency_penalty": 2, "best_of": 2, "max_tokens": 7}),
        ("/infer", {"inputs": prompt, "parameters": {"do_sample": True, "watermark": True, "max_new_tokens": 8}}),
        (f"/v2/models/{MODEL}/infer", {"inputs": [tensor], "parameters": {"repetition_penalty": 2.0}}),
        ("/v1/chat/completions", {**chat, "guided_regex": "[a-z]{4,30}", "max_tokens": 20}),
    )
    path, body = asked[number % len(asked)]
    answer = await ask(server.port, "POST", path, body)
    assert answer.status == 200, answer.body
    return answer


async def in_company(server: Server, others: int, *calls: Awaitable[Reply]) -> list[Reply]:
    """The replies to `calls`, which arrive one after another among `others` requests of every kind."""
    crowd: list[asyncio.Task[Any]] = [asyncio.create_task(neighbour(server, number)) for number in range(others)]
    crowd += [asyncio.create_task(stranger(server, number)) for number in range(others // 3)]

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


# --- every dialect, one model --------------------------------------------------------------------------------------


def text_of(answer: Answer) -> str:
    """The new text of an answer or a stream of any dialect, for a prompt that says `PROMPT`."""
    assert answer.status == 200, answer.body
    if answer.headers["content-type"] == "application/x-ndjson":  # vLLM's streams: each line is all so far
        told = [json.loads(answer.body.splitlines()[-1])]
    elif answer.headers["content-type"].startswith("text/event-stream"):
        frames = [frame.removeprefix("data: ") for frame in answer.body.decode().split("\n\n") if frame]
        told = [json.loads(frame) for frame in frames if frame != "[DONE]"]
    else:
        told = [answer.json[0] if isinstance(answer.json, list) else answer.json]
    return "".join(map(_new_text, told))


def _new_text(one: Any) -> str:
    if "choices" in one:
        choice = one["choices"][0]
        text = choice.get("text") or (choice.get("delta") or choice.get("message") or {}).get("content")
    elif "outputs" in one:
        text = next(output["data"][0] for output in one["outputs"] if output["name"] == "text_output")
    elif "text" in one:
        text = one["text"][0].removeprefix(PROMPT)
    elif "token" in one:
        text = one.get("generated_text")
    else:
        text = one.get("text_output", one.get("generated_text"))
    return text or ""


PROMPT = "The weather in the hills was"


def asks(parameters: dict[str, Any], limit: int) -> list[tuple[str, dict[str, Any]]]:
    """The same wish on every route that takes a plain prompt, whole and streamed."""
    tgi = {"inputs": PROMPT, "parameters": {**parameters, "max_new_tokens": limit}}
    triton = {"text_input": PROMPT, "parameters": {**parameters, "max_new_tokens": limit}}
    tensor = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": [PROMPT]}
    kserve = {"inputs": [tensor], "parameters": {**parameters, "max_new_tokens": limit}}
    plain = {name: value for name, value in parameters.items() if name != "do_sample"}
    openai = {"model": MODEL, "prompt": PROMPT, **plain, "max_tokens": limit}
    return [
        ("/generate", tgi),
        ("/generate_stream", tgi),
        ("/", tgi),
        ("/", {**tgi, "stream": True}),
        (f"/v2/models/{MODEL}/generate", triton),
        (f"/v2/models/{MODEL}/generate_stream", triton),
        (f"/v2/models/{MODEL}/infer", kserve),
        ("/infer", tgi),
        ("/infer", {**tgi, "stream": True}),
        ("/v1/completions", openai),
        ("/v1/completions", {**openai, "stream": True}),
        ("/vllm/generate", openai),
        ("/vllm/generate", {**openai, "stream": True}),
    ]


async def test_one_seed_says_the_same_on_every_dialect_in_any_company(server: Server) -> None:
    sampling = {"do_sample": True, "temperature": 0.8, "top_k": 40, "top_p": 0.9, "seed": 42}
    alone = text_of(await ask(server.port, "POST", "/generate", asks(sampling, 16)[0][1]))
    assert len(alone) > 8

    async def told(path: str, body: dict[str, Any]) -> str:
        return text_of(await ask(server.port, "POST", path, body))

    crowd = [asyncio.create_task(neighbour(server, number)) for number in range(10)]
    texts = await asyncio.gather(*(told(path, body) for path, body in asks(sampling, 16)))
    await asyncio.gather(*crowd)
    assert texts == [alone] * len(texts)
    other = [await told(path, body) for path, body in asks({**sampling, "seed": 43}, 16)[::4]]
    assert len(set(other)) == 1 and other[0] != alone


async def test_greedy_in_the_words_of_each_dialect(server: Server) -> None:
    """Temperature 0 where it stands for greedy, a tiny one, a tiny top-p: the same text on all routes."""
    greedy = text_of(await ask(server.port, "POST", "/generate", asks({}, 8)[0][1]))
    wishes = ({"temperature": 1e-4}, {"temperature": 1e-5, "top_p": 0.9}, {"top_p": 1e-4}, {"top_k": 1})
    for wish in wishes:
        calls = [ask(server.port, "POST", path, body) for path, body in asks({"do_sample": True, **wish}, 8)]
        assert [text_of(answer) for answer in await asyncio.gather(*calls)] == [greedy] * len(calls), wish
    for path in ("/v1/completions", "/vllm/generate"):
        for temperature in (0, 0.0, 1e-12):
            body = {"model": MODEL, "prompt": PROMPT, "temperature": temperature, "max_tokens": 8}
            assert text_of(await ask(server.port, "POST", path, body)) == greedy
    for one in (1, 1.0):  # no filter, however it is written
        body = {"model": MODEL, "prompt": PROMPT, "temperature": 0.9, "seed": 5, "max_tokens": 8}
        plain = text_of(await ask(server.port, "POST", "/v1/completions", body))
        assert text_of(await ask(server.port, "POST", "/v1/completions", {**body, "top_p": one})) == plain


async def test_values_of_impossible_tokens_are_still_json(server: Server) -> None:
    """A grammar or top-k of 1 that leaves one token: the raw model's values, finite, and as many as were asked for."""

    def strict(answer: Answer) -> Any:
        def refuse(name: str) -> None:
            raise AssertionError(name)

        assert answer.status == 200, answer.body
        return json.loads(answer.body, parse_constant=refuse)

    regex = {"grammar": {"type": "regex", "value": "zq"}, "top_n_tokens": 5, "details": True}
    details = strict(await ask(server.port, "POST", "/generate", {"inputs": "x", "parameters": regex}))["details"]
    assert all(len(top) >= 5 for top in details["top_tokens"])
    values = [one["logprob"] for top in details["top_tokens"] for one in top] + [
        token["logprob"] for token in details["tokens"]
    ]
    assert all(-1000 < value <= 0 for value in values)
    body = {"prompt": "green tree house", "echo": True, "logprobs": 5, "top_k": 1, "max_tokens": 2, "seed": 1}
    (choice,) = strict(await ask(server.port, "POST", "/v1/completions", {"model": MODEL, **body}))["choices"]
    first, *others = choice["logprobs"]["token_logprobs"]
    assert first is None and len(others) > 3 and all(-1000 < value <= 0 for value in others)
    assert choice["text"].startswith("green tree house")


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "no"}}}}, "no"),
    ({"guided_json": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}}, "circle"),
    ({"guided_json": "{oops"}, "guided_json"),
    ({"guided_regex": "a*+"}, "repetition"),
    ({"guided_regex": "["}, "unclosed"),
    ({"guided_grammar": "start: nothing"}, "guided_grammar"),
    ({"structured_outputs": {"regex": "(a"}}, "structured_outputs"),
]


async def test_broken_grammars_of_other_dialects_leave_nothing_behind(server: Server) -> None:
    """Refused before the first byte, each time anew; a good one is followed after, and who runs beside is as alone."""
    beside = GENERATE.call(server.port, "Once", max_new_tokens=24, seed=1)
    alone = details_of(await GENERATE.call(server.port, "Once", max_new_tokens=24, seed=1))
    running_beside = asyncio.create_task(beside)
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 20}
    plain = {"model": MODEL, "prompt": "x", "max_tokens": 20}
    for wish, says in BROKEN:
        for path, body in (("/v1/chat/completions", chat), ("/v1/completions", plain), ("/vllm/generate", plain)):
            if path == "/vllm/generate" and "response_format" in wish:
                continue  # not a field of this route
            for stream in (False, True, False):
                answer = await ask(server.port, "POST", path, {**body, **wish, "stream": stream})
                assert answer.status == (422 if path == "/vllm/generate" else 400), (path, wish, answer.body)
                assert answer.headers["content-type"] == "application/json" and says in answer.body.decode()
    answer = await ask(server.port, "POST", "/v1/completions", {**plain, "guided_regex": "ab{2}c"})
    assert text_of(answer) == "abbc"
    assert details_of(await running_beside) == alone


async def test_a_pool_too_small_for_all_is_invisible() -> None:
    """Streams of every kind, each of which needs a good part of the pool: as alone, and some were put back."""
    regex = {"grammar": {"type": "regex", "value": "[a-z ]{40,120}"}}
    wishes: tuple[tuple[Route, dict[str, Any]], ...] = (
        (GENERATE_STREAM, {}),
        (TRITON_STREAM, {"do_sample": True, "temperature": 1.1}),
        (GENERATE_STREAM, {"repetition_penalty": 1.4, "do_sample": True}),
        (GENERATE_STREAM, {"do_sample": True, "frequency_penalty": 1.5, "typical_p": 0.6}),
        (GENERATE_STREAM, regex),
        (GENERATE_STREAM, {"do_sample": True, **regex}),
        (GENERATE_STREAM, {"watermark": True, "stop": [" the lamp"]}),
        (ROOT, {"do_sample": True, "top_n_tokens": 3}),
    )

    async def call(server: Server, number: int) -> tuple[str, list[int], list[str] | None, str]:
        route, wish = wishes[number % len(wishes)]
        prompt = f"{number}. " + WORDS * 2
        reply = await route.call(server.port, prompt, max_new_tokens=90, seed=number + 1, **wish)
        return reply.text, reply.ids, reply.pieces, reply.finish_reason

    async def chat(server: Server, number: int) -> str:
        messages = [{"role": "user", "content": f"{number}. " + WORDS * 2}]
        body = {"model": MODEL, "messages": messages, "seed": number, "presence_penalty": 1, "max_tokens": 90}
        return text_of(await ask(server.port, "POST", "/v1/chat/completions", {**body, "stream": True}))

    with running(["--kv-memory", "11MiB", "--max-seq-len", "300"]) as server:
        calls = [*(lambda n=n: call(server, n) for n in range(16)), *(lambda n=n: chat(server, n) for n in range(4))]
        alone = [await one() for one in calls]
        assert server.gauge("interlingua_preemptions_total") == 0
        together = await asyncio.wait_for(asyncio.gather(*(one() for one in calls)), 300)
        assert together == alone
        assert server.gauge("interlingua_preemptions_total") > 0
        assert server.gauge("interlingua_kv_blocks_used") == 0


async def test_health_is_good_during_the_longest_prefill(server: Server) -> None:
    """A prompt of thousands of tokens, a body of megabytes: life and readiness answer, another stream goes on."""
    prompt = " ".join(f"{number} boats" for number in range(700))
    long = asyncio.create_task(GENERATE.call(server.port, prompt, max_new_tokens=1))
    large = asyncio.create_task(ask(server.port, "POST", "/generate", {"inputs": "boats " * 900_000}))
    other = asyncio.create_task(GENERATE_STREAM.call(server.port, "Once", max_new_tokens=40, ignore_eos=True))
    seen = 0
    while not (long.done() and large.done() and other.done()):
        for path in ("/health", "/v2/health/live", "/v2/health/ready"):
            assert (await asyncio.wait_for(ask(server.port, "GET", path), 10)).status == 200
            seen += 1
        await asyncio.sleep(0.05)
    assert seen > 10
    assert details_of(await long)["prompt_tokens"] > 2000
    assert (await large).status == 422
    assert len((await other).ids) == 40
