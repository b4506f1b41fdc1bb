"""Decoding parameters over HTTP, with the real model: what each does to the distribution that the server reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from calls import GENERATE, GENERATE_STREAM, MODEL, ROOT, ROOT_STREAM, ROUTES, TGI_ROUTES, TRITON, Reply, Route
from server import Server, running
from sockets import ask

from interlingua.engine.native.watermark import detect

VOCAB = 49_152
GAMMA = 0.25
CATS = "cat cat cat cat"
SHARP: tuple[dict[str, Any], ...] = ({"temperature": 1e-5}, {"temperature": 1e38, "top_k": 1}, {"top_p": 1e-5})


@pytest.fixture(scope="module")
def wide() -> Iterator[Server]:
    """A server with many alternatives and a strong watermark."""
    flags = ("--max-top-n-tokens", "1024", "--watermark-gamma", str(GAMMA), "--watermark-delta", "8")
    with running(flags) as started:
        yield started


def details_of(reply: Reply) -> Any:
    return (reply.raw[0] if isinstance(reply.raw, list) else reply.raw)["details"]


async def test_reported_values_are_the_models_own_whatever_filters_are_on(wide: Server) -> None:
    """Never fewer than asked, sorted, finite, the chosen one among them with the same value."""
    wish: dict[str, Any] = {"top_n_tokens": 1024, "max_new_tokens": 1, "seed": 3}
    plain = details_of(await GENERATE.call(wide.port, "Name a colour:", **wish))
    for filters in (
        {"do_sample": True, "top_p": 0.5},
        {"do_sample": True, "top_k": 1},
        {"do_sample": True, "typical_p": 0.2},
        {"repetition_penalty": 1.9},
        {"watermark": True},
    ):
        details = details_of(await GENERATE.call(wide.port, "Name a colour:", **wish, **filters))
        assert details["top_tokens"] == plain["top_tokens"], filters
        values = {token["id"]: token["logprob"] for token in details["top_tokens"][0]}
        assert len(values) >= 1024
        assert all(isinstance(value, float) and value <= 0 for value in values.values())
        assert list(values.values()) == sorted(values.values(), reverse=True)
        (chosen,) = details["tokens"]
        assert values.get(chosen["id"], chosen["logprob"]) == chosen["logprob"]


async def test_more_alternatives_than_the_limit_are_refused(wide: Server) -> None:
    answer = await GENERATE.post(wide.port, "x", top_n_tokens=1025)
    assert answer.status == 422 and "1025" in answer.json["error"] and "1024" in answer.json["error"]


@pytest.mark.parametrize("frequency", [-1.9, 0.5, 2.0])
async def test_tgis_frequency_penalty_is_its_formula(wide: Server, frequency: float) -> None:
    """f * count / length over prompt and output, taken from the model's own values."""
    ids = [token["id"] for token in (await ask(wide.port, "POST", "/tokenize", {"inputs": CATS})).json]
    wish: dict[str, Any] = {"top_n_tokens": 1024, "max_new_tokens": 12, "frequency_penalty": frequency}
    details = details_of(await GENERATE.call(wide.port, CATS, **wish))
    for token, top in zip(details["tokens"], details["top_tokens"], strict=True):
        seen = Counter(ids)
        scores = {one["id"]: one["logprob"] - frequency * seen[one["id"]] / len(ids) for one in top}
        best = max(scores.values())
        assert scores[token["id"]] >= best - 1e-4
        ids.append(token["id"])


@pytest.mark.parametrize(("frequency", "presence"), [(2.0, 0.0), (0.0, 2.0), (-1.5, 0.5)])
async def test_openais_penalties_are_their_formula(wide: Server, frequency: float, presence: float) -> None:
    """f * count + p over the answer alone: what is chosen beats each alternative, and the prompt counts for nothing."""
    body = {"model": MODEL, "prompt": CATS, "temperature": 0, "max_tokens": 16, "logprobs": 5}
    penalties = {"frequency_penalty": frequency, "presence_penalty": presence}
    reply = await ask(wide.port, "POST", "/v1/completions", {**body, **penalties})
    plain = await ask(wide.port, "POST", "/v1/completions", body)
    assert reply.status == plain.status == 200, reply.body
    logprobs = reply.json["choices"][0]["logprobs"]
    assert logprobs["tokens"][0] == plain.json["choices"][0]["logprobs"]["tokens"][0]
    assert logprobs["tokens"] != plain.json["choices"][0]["logprobs"]["tokens"]
    seen: Counter[str] = Counter()

    def score(token: str, logprob: float) -> float:
        return logprob - frequency * seen[token] - presence * (seen[token] > 0)

    for token, logprob, top in zip(*(logprobs[k] for k in ("tokens", "token_logprobs", "top_logprobs")), strict=True):
        assert score(token, logprob) >= max(score(*one) for one in top.items()) - 1e-3
        seen[token] += 1


async def test_every_parameter_of_openais_route_reaches_the_sampler(wide: Server) -> None:
    """Each changes an answer as it must, or is refused with the field's name."""
    body = {"model": MODEL, "prompt": "Once upon a time", "temperature": 0, "max_tokens": 12}

    async def text(**more: Any) -> str:
        reply = await ask(wide.port, "POST", "/v1/completions", {**body, **more})
        assert reply.status == 200, reply.body
        answer = reply.json["choices"][0]["text"]
        assert isinstance(answer, str)
        return answer

    greedy = await text()
    forced = (await ask(wide.port, "POST", "/tokenize", {"inputs": " cat"})).json[-1]["id"]
    assert await text(logit_bias={str(forced): 100}) == " cat" * 12
    assert await text(temperature=1.5, seed=3, min_p=1.0) == greedy
    assert await text(temperature=1.5, seed=3) != greedy
    assert await text(repetition_penalty=1.8) != greedy
    first = (await ask(wide.port, "POST", "/tokenize", {"inputs": greedy})).json[2]["id"]
    assert greedy.startswith(await text(stop_token_ids=[first])) and await text(stop_token_ids=[first]) != greedy
    assert len(await text(stop_token_ids=[first], min_tokens=10)) > len(await text(stop_token_ids=[first]))
    for wrong in ({"logit_bias": {"99999999": 5}}, {"stop_token_ids": [99999999]}):
        reply = await ask(wide.port, "POST", "/v1/completions", {**body, **wrong})
        assert reply.status == 400 and next(iter(wrong)) in reply.json["error"]["message"]


async def test_repetition_penalty_reaches_the_prompt(wide: Server) -> None:
    """Without it the word goes on; with it no token of the prompt is chosen."""
    words = "The cat sat on the mat. The cat sat on the mat. The cat sat on the"
    prompt = [token["id"] for token in (await ask(wide.port, "POST", "/tokenize", {"inputs": words})).json]
    wish: dict[str, Any] = {"max_new_tokens": 1, "top_n_tokens": 5}
    plain = details_of(await GENERATE.call(wide.port, words, **wish))
    heavy = details_of(await GENERATE.call(wide.port, words, **wish, repetition_penalty=50.0))
    assert plain["tokens"][0]["id"] in prompt
    assert heavy["tokens"][0]["id"] not in prompt
    assert heavy["top_tokens"] == plain["top_tokens"]


@pytest.mark.parametrize("route", ROUTES, ids=lambda one: one.name)
@pytest.mark.parametrize("sampling", SHARP, ids=str)
async def test_extremes_are_greedy(wide: Server, route: Route, sampling: dict[str, Any]) -> None:
    """Tiny temperatures and filters leave one token, and no NaN."""
    greedy = await GENERATE.call(wide.port, "Once upon a time", max_new_tokens=8)
    reply = await route.call(wide.port, "Once upon a time", max_new_tokens=8, seed=5, **sampling)
    assert reply.ids == greedy.ids


@pytest.mark.parametrize("route", [ROOT, ROOT_STREAM, TRITON], ids=lambda one: one.name)
async def test_zero_temperature_is_refused(wide: Server, route: Route) -> None:
    answer = await route.post(wide.port, "x", temperature=0)
    assert answer.status == (400 if route.triton else 422) and "temperature" in answer.json["error"]


@pytest.mark.parametrize("route", TGI_ROUTES, ids=lambda one: one.name)
async def test_a_watermark_is_found_again_on_every_route(wide: Server, route: Route) -> None:
    wish: dict[str, Any] = {"max_new_tokens": 80, "ignore_eos": True, "seed": 11, "do_sample": True, "temperature": 1.1}
    marked = await route.call(wide.port, "Once upon a time", watermark=True, **wish)
    plain = await route.call(wide.port, "Once upon a time", watermark=False, **wish)
    assert detect(marked.ids, VOCAB, GAMMA).z > 8
    assert abs(detect(plain.ids, VOCAB, GAMMA).z) < 4
    again = await GENERATE_STREAM.call(wide.port, "Once upon a time", watermark=True, **wish)
    if route not in (ROOT, ROOT_STREAM):  # these take no defaults from the model's files
        assert again.ids == marked.ids


async def test_triton_marks_as_tgi_does(wide: Server) -> None:
    wish: dict[str, Any] = {"max_new_tokens": 40, "ignore_eos": True, "seed": 11, "do_sample": True, "watermark": True}
    expected = await GENERATE.call(wide.port, "Once upon a time", **wish)
    assert (await TRITON.call(wide.port, "Once upon a time", **wish)).ids == expected.ids
