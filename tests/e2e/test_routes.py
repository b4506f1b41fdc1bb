"""Every route says the same of the same request, whole and as a stream."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from calls import GENERATE, GENERATE_STREAM, QUESTION, ROOT, ROUTES, TGI_ROUTES, TRITON, Reply, Route
from server import Server

PROMPTS = (
    "My name is Olivier and I",
    "def fibonacci(n):\n    ",
    "今天天气很好，",
    "Emoji for joy: 😀🎉",
    "A",
)
EOS = 2
every_route = pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)


async def call_all(server: Server, prompt: str, **parameters: Any) -> list[Reply]:
    """The replies of all routes, asked at the same time; they agree with one another."""
    replies = await asyncio.gather(*(route.call(server.port, prompt, **parameters) for route in ROUTES))
    first = replies[0]
    for route, reply in zip(ROUTES, replies, strict=True):
        assert (reply.text, reply.ids) == (first.text, first.ids), route
        assert (reply.finish_reason, reply.generated_tokens) == (first.finish_reason, first.generated_tokens), route
        assert reply.generated_tokens == len(reply.ids), route
        if reply.pieces is not None:
            assert "".join(reply.pieces) == reply.text, route
            assert len(reply.pieces) == len(reply.ids), route
    return replies


@pytest.mark.parametrize("prompt", PROMPTS)
async def test_greedy_texts_agree(server: Server, prompt: str) -> None:
    replies = await call_all(server, prompt, max_new_tokens=24)
    assert replies[0].text.strip()
    seeds = [reply.seed for reply in replies if reply.seed is not None]
    assert len(seeds) == len(TGI_ROUTES)
    assert all(1 <= seed < 2**53 for seed in seeds)  # drawn, and of no effect


@pytest.mark.bit_exact
async def test_same_seed_same_answer(server: Server) -> None:
    sampling = {"do_sample": True, "temperature": 1.2, "top_k": 50, "top_p": 0.97, "typical_p": 0.9}
    texts = set()
    for seed in (1, 2**64 - 1):
        replies = await call_all(server, PROMPTS[0], max_new_tokens=16, seed=seed, repetition_penalty=1.1, **sampling)
        assert {reply.seed for reply in replies} == {seed, None}
        texts.add(replies[0].text)
    assert len(texts) == 2


@pytest.mark.bit_exact
@pytest.mark.parametrize("route", TGI_ROUTES, ids=lambda route: route.name)
async def test_a_drawn_seed_replays_the_answer(server: Server, route: Route) -> None:
    sampling = {"do_sample": True, "temperature": 1.5, "top_k": 1000, "top_p": 0.99, "max_new_tokens": 12}
    drawn = await route.call(server.port, PROMPTS[0], **sampling)
    again = await route.call(server.port, PROMPTS[0], **sampling)
    assert drawn.seed != again.seed and drawn.text != again.text
    replay = await call_all(server, PROMPTS[0], seed=drawn.seed, **sampling)
    assert replay[0].ids == drawn.ids


async def test_ignore_eos(server: Server) -> None:
    short = (await call_all(server, QUESTION, max_new_tokens=60))[0]
    assert short.finish_reason == "eos_token" and short.generated_tokens < 60
    assert short.ids[-1] == EOS and EOS not in short.ids[:-1]
    assert "Paris" in short.text and "<|im_end|>" not in short.text
    long = (await call_all(server, QUESTION, max_new_tokens=short.generated_tokens + 10, ignore_eos=True))[0]
    assert long.finish_reason == "length" and long.generated_tokens == short.generated_tokens + 10
    assert long.ids[: short.generated_tokens] == short.ids
    assert long.text.startswith(short.text)
    # EOS as the last allowed token: length comes first.
    last = (await call_all(server, QUESTION, max_new_tokens=short.generated_tokens))[0]
    assert last.finish_reason == "length" and last.ids == short.ids


@pytest.mark.bit_exact
async def test_logprobs_of_tokens_and_of_the_prompt(server: Server) -> None:
    """The logprob that a token got when it was chosen is the one that it has as a part of a prompt, to the bit."""
    prompt = "The capital of France is"
    whole = (await GENERATE.call(server.port, prompt, max_new_tokens=20, top_n_tokens=3)).raw
    details = whole["details"]
    tokens = details["tokens"]
    for token, top in zip(tokens, details["top_tokens"], strict=True):
        assert top[0] == token  # greedy: the likeliest
        assert sum(math.exp(other["logprob"]) for other in top) <= 1 + 1e-5
    (again,) = (
        await ROOT.call(server.port, prompt + whole["generated_text"], max_new_tokens=1, decoder_input_details=True)
    ).raw
    prefill = again["details"]["prefill"]
    assert prefill[0]["logprob"] is None
    assert [token["id"] for token in prefill[-20:]] == [token["id"] for token in tokens]
    assert [token["logprob"] for token in prefill[-20:]] == [token["logprob"] for token in tokens]
    events = (await GENERATE_STREAM.call(server.port, prompt, max_new_tokens=20)).raw
    assert [event["token"]["logprob"] for event in events] == [token["logprob"] for token in tokens]
    refused = await GENERATE_STREAM.post(server.port, prompt, decoder_input_details=True)
    assert refused.status == 422 and "decoder_input_details" in refused.json["error"]


@every_route
async def test_prompt_before_the_answer(server: Server, route: Route) -> None:
    prompt = "  Once, in Zürich 🏔, "
    plain = await route.call(server.port, prompt, max_new_tokens=8)
    wish = {"exclude_input_in_output": False} if route.triton else {"return_full_text": True}
    full = await route.call(server.port, prompt, max_new_tokens=8, **wish)
    assert full.ids == plain.ids
    if full.pieces is not None:
        assert full.pieces == plain.pieces
    if not (route.triton and route.streams):  # its events hold new text alone
        assert full.text == prompt + plain.text


@every_route
async def test_stops(server: Server, route: Route) -> None:
    """In the middle of a token, across tokens, and at a token's edge: `/` keeps the stop, all others cut it."""
    prompt = PROMPTS[0]
    plain = await GENERATE_STREAM.call(server.port, prompt, max_new_tokens=30)
    assert plain.pieces is not None
    edge = "".join(plain.pieces[:12])
    for start, length in ((len(edge) - 3, 6), (len(edge), 4), (len(edge) + 1, 1)):
        stop = plain.text[start : start + length]
        assert len(stop) == length
        found = plain.text.index(stop)
        reply = await route.call(server.port, prompt, max_new_tokens=30, stop=["never to be seen", stop])
        assert reply.finish_reason == "stop_sequence"
        assert reply.text == plain.text[: found + (length if route.listed else 0)]
        assert reply.ids == plain.ids[: len(reply.ids)]
        if reply.pieces is not None:
            assert "".join(reply.pieces) == reply.text
            assert len(reply.pieces) == len(reply.ids)


@pytest.mark.parametrize("route", TGI_ROUTES, ids=lambda route: route.name)
async def test_truncate_keeps_the_last_tokens(server: Server, route: Route) -> None:
    words = "The quick brown fox jumps over the lazy dog near the river bank"
    full = (await GENERATE.call(server.port, words, max_new_tokens=1, decoder_input_details=True)).raw["details"]
    kept = full["prefill"][-5:]
    same = await GENERATE.call(server.port, "".join(token["text"] for token in kept), max_new_tokens=10)
    cut = await route.call(server.port, words, max_new_tokens=10, truncate=5)
    assert (cut.ids, cut.text) == (same.ids, same.text)
    if route.streams:
        assert cut.raw[-1]["details"]["input_length"] == 5
    else:
        whole = await route.call(server.port, words, max_new_tokens=1, truncate=5, decoder_input_details=True)
        details = (whole.raw[0] if route.listed else whole.raw)["details"]
        assert details["prompt_tokens"] == 5
        assert [token["id"] for token in details["prefill"]] == [token["id"] for token in kept]
        assert details["prefill"][0]["logprob"] is None
    longer = await route.call(server.port, words, max_new_tokens=4, truncate=1000)
    assert longer.ids == (await GENERATE.call(server.port, words, max_new_tokens=4)).ids


async def test_perf_stat_adds_up(server: Server) -> None:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    rows = (await TRITON.call(server.port, PROMPTS[0], max_new_tokens=30)).raw["details"]["perf_stat"]
    milliseconds = (loop.time() - begun) * 1e3
    total = sum(row[1] for row in rows)
    assert len(rows) == 30
    assert total > 0 and total <= milliseconds + len(rows) / 2  # whole numbers, each up to half a one too large
    without = await TRITON.post(server.port, PROMPTS[0], max_new_tokens=2, perf_stat=False)
    assert without.json["details"]["perf_stat"] is None
