"""Grammars over the wire and the real model: what comes back fits, whatever the model, the company and the route."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from calls import GENERATE, GENERATE_STREAM, ROOT, TGI_ROUTES, Reply, Route
from server import Server
from sockets import ask

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


def grammar(kind: str, value: object) -> dict[str, Any]:
    return {"grammar": {"type": kind, "value": value}}


def schema(value: object) -> dict[str, Any]:
    return grammar("json", value)


def essence(reply: Reply) -> tuple[str, list[int], list[float], str]:
    tokens = (
        [event["token"] for event in reply.raw] if isinstance(reply.raw, list) and "token" in reply.raw[0] else None
    )
    if tokens is None:
        answer = reply.raw[0] if isinstance(reply.raw, list) else reply.raw
        tokens = answer["details"]["tokens"]
    return reply.text, reply.ids, [token["logprob"] for token in tokens], reply.finish_reason


@pytest.mark.parametrize("route", TGI_ROUTES, ids=lambda one: one.name)
@pytest.mark.parametrize(
    "value", [schema(PERSON), schema(json.dumps(PERSON)), grammar("json_schema", {"name": "p", "schema": PERSON})]
)
async def test_an_answer_ends_by_itself_and_fits(server: Server, route: Route, value: dict[str, Any]) -> None:
    reply = await route.call(server.port, "Give JSON", max_new_tokens=512, **value)
    assert reply.finish_reason == "eos_token"
    person = json.loads(reply.text)
    assert list(person) == ["name", "age"] and isinstance(person["age"], int) and len(person["name"]) <= 20
    assert not re.search(r"\s{2}|\n", reply.text)


@pytest.mark.parametrize("route", TGI_ROUTES, ids=lambda one: one.name)
@pytest.mark.parametrize(
    "text", ["(😀你好){3}", "    return [a-z]{3}", "日本語のテキスト。", "naïve — “quoted”\\.", "👩‍👩‍👧‍👦👍🏽"]
)
async def test_forced_texts_come_whole(server: Server, route: Route, text: str) -> None:
    """Also characters that take several tokens, and spaces that begin an answer."""
    reply = await route.call(server.port, "x", max_new_tokens=200, **grammar("regex", text))
    assert re.fullmatch(text, reply.text) and "�" not in reply.text
    assert reply.finish_reason == "eos_token"
    assert reply.pieces is None or "".join(reply.pieces) == reply.text


WRONG: list[tuple[dict[str, Any], str]] = [
    (schema({"type": "not-a-type"}), "not-a-type"),
    (schema("{oops"), "a JSON Schema object"),
    (grammar("regex", "a*+"), "repetition"),
    (grammar("regex", "["), "unclosed character class"),
    (grammar("xml", "a"), "regex"),
    (schema({"type": "string", "not": {"const": "a"}}), "`not`"),
    (schema({"$ref": "#/$defs/loop", "$defs": {"loop": {"$ref": "#/$defs/loop"}}}), "circle"),
    (schema({"enum": ["x" * 70_000]}), "at most 65536 bytes"),
]


async def test_what_cannot_be_followed_is_refused_while_others_run(server: Server) -> None:
    """Before the first byte of a stream, with the place in the client's words; ten others finish unchanged."""
    calls = [GENERATE.call(server.port, f"{i}: Once", max_new_tokens=24, seed=i + 1) for i in range(10)]
    alone = [essence(await call) for call in calls]
    others = [
        asyncio.create_task(GENERATE.call(server.port, f"{i}: Once", max_new_tokens=24, seed=i + 1)) for i in range(10)
    ]
    for value, says in WRONG:
        for route in (GENERATE, GENERATE_STREAM, ROOT):
            answer = await route.post(server.port, "x", **value)
            assert (answer.status, answer.headers["content-type"]) == (422, "application/json"), value
            assert answer.json["error_type"] == "validation"
            assert answer.json["error"].startswith("`parameters.grammar") and says in answer.json["error"], answer.json
    assert [essence(await other) for other in others] == alone


async def test_explosive_grammars_hold_up_nobody(server: Server) -> None:
    """Refused, followed, or given up in mid-answer (422); the server answers meanwhile."""
    linked = {
        "type": "object",
        "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    }
    deep: Any = {"type": "integer"}
    for _ in range(25):
        deep = {"type": "array", "items": deep}
    values = [
        schema({"type": "object", "properties": linked, "required": ["v", "next"]}),
        schema(deep),
        schema({"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(25)}}),
        schema({"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(1500)}}),
        schema({"type": "string", "maxLength": 1_000_000}),
        schema({"enum": [f"the value with number {i}" for i in range(2_000)]}),
        grammar("regex", "(a{1,1000}){1,1000}"),
        grammar("regex", "(.*a){12}.{20}"),
        grammar("regex", ".*e.{1,400}z"),
    ]  # fmt: skip
    streams = [asyncio.create_task(GENERATE_STREAM.call(server.port, "Once", max_new_tokens=60)) for _ in range(4)]
    running = [asyncio.create_task(GENERATE.post(server.port, "Once", max_new_tokens=60, **value)) for value in values]
    while not all(task.done() for task in running):
        assert (await asyncio.wait_for(ask(server.port, "GET", "/health"), 10)).status == 200
        await asyncio.sleep(0.02)
    for value, task in zip(values, running, strict=True):
        answer = await task
        assert answer.status in (200, 422), (value, answer.body)
    assert len({str(essence(await stream)) for stream in streams}) == 1


async def test_a_grammar_that_is_given_up_in_mid_answer_is_one_error(server: Server) -> None:
    """The places from which it may go on grow with every token: the limit on them ends it, and only it."""
    bomb = {"max_new_tokens": 200, "do_sample": True, "seed": 1, **grammar("regex", "(.*[aeiou]){3}.{100}z")}
    alone = await GENERATE.call(server.port, "Once", max_new_tokens=60)
    whole, stream, other = await asyncio.gather(
        GENERATE.post(server.port, "Once", **bomb),
        GENERATE_STREAM.post(server.port, "Once", **bomb),
        GENERATE.call(server.port, "Once", max_new_tokens=60),
    )
    assert essence(other) == essence(alone)
    assert (whole.status, whole.json["error_type"]) == (422, "validation"), whole.body
    assert whole.json["error"].startswith("`parameters.grammar` cannot be followed to the end of the answer")
    assert stream.status == 200 and stream.events[-1] == whole.json and len(stream.events) > 2
    wish = {"prompt": "Once", "max_tokens": 200, "seed": 1, "guided_regex": bomb["grammar"]["value"]}
    openai = await ask(server.port, "POST", "/v1/completions", wish)
    assert (openai.status, openai.json["error"]["param"]) == (400, "guided_regex"), openai.body


async def test_what_is_odd_and_can_be_followed(server: Server) -> None:
    reply = await GENERATE.call(server.port, "x", max_new_tokens=8, **grammar("regex", "a**b"))
    assert set(reply.text) <= {"a", "b"}
    reply = await GENERATE.call(server.port, "Give JSON", max_new_tokens=8, **schema({"x": "y"}))
    assert reply.text and reply.finish_reason in ("eos_token", "length")


async def test_ends_that_a_client_asks_for(server: Server) -> None:
    reply = await GENERATE.call(server.port, "x", max_new_tokens=50, ignore_eos=True, **grammar("regex", "(ha){1,5}"))
    assert (reply.text, reply.finish_reason) == ("hahahahaha", "eos_token")
    reply = await GENERATE.call(server.port, "x", max_new_tokens=3, **grammar("regex", "a b c d e f g"))
    assert reply.finish_reason == "length" and "a b c d e f g".startswith(reply.text)
    reply = await ROOT.call(server.port, "x", max_new_tokens=50, stop=["b c"], **grammar("regex", "a b c d e f g"))
    assert (reply.text, reply.finish_reason) == ("a b c", "stop_sequence")


async def test_the_best_of_several_guided_answers(server: Server) -> None:
    short = {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 150}}
    wish = {"best_of": 2, "do_sample": True, "temperature": 1.5, "max_new_tokens": 60}
    reply = await GENERATE.call(server.port, "Give JSON", **wish, **schema({**PERSON, "properties": short}))
    (other,) = reply.raw["details"]["best_of_sequences"]
    assert reply.finish_reason == other["finish_reason"] == "eos_token"
    for text in (reply.text, other["generated_text"]):
        person = json.loads(text)
        assert list(person) == ["name", "age"] and len(person["name"]) <= 8 and 0 <= person["age"] <= 150


async def test_32_grammars_in_one_batch_are_as_each_alone(server: Server) -> None:
    def wish(i: int) -> dict[str, Any]:
        values = (
            grammar("regex", f"[a-{chr(ord('f') + i % 8)}]{{2,12}}( [0-9]+)?"),
            schema({**PERSON, "properties": {f"k{i}": {"type": "string"}, **PERSON["properties"]}}),  # type: ignore[dict-item]
            schema({"type": "array", "items": {"enum": [i, "x" * (1 + i % 5), None]}, "minItems": 3, "maxItems": 6}),
            {},
        )
        sampling = {"do_sample": True, "temperature": 0.6 + i / 20, "seed": i + 1} if i % 3 else {"seed": i + 1}
        return {"max_new_tokens": 30, **sampling, **values[i % 4]}

    prompts = [f"{i}. The list:" for i in range(32)]
    alone = [await GENERATE.call(server.port, prompt, **wish(i)) for i, prompt in enumerate(prompts)]
    together = await asyncio.gather(*(GENERATE.call(server.port, p, **wish(i)) for i, p in enumerate(prompts)))
    assert list(map(essence, together)) == list(map(essence, alone))
    assert sum(reply.finish_reason == "eos_token" for reply in alone) >= 8
