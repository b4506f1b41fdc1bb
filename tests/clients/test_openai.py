"""The official `openai` client, sync and async, unchanged: with the scripted engine, and with the real model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel
from served import Served, say
from wire_cases import MODEL

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


class Weather(BaseModel):
    """The weather of a city."""

    city: str
    unit: Literal["celsius", "fahrenheit"]


class Place(BaseModel):
    name: str
    big: bool


class Answer(BaseModel):
    capital: Place
    population: Literal["small", "large"]


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=served.url + "/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


# --- the scripted engine -------------------------------------------------------------------------------------------


def test_chat(client: OpenAI) -> None:
    whole = client.chat.completions.create(
        model=MODEL,
        messages=user(say("alpha", " beta")),
        n=2,
        seed=1,
        temperature=0.5,
        top_p=0.9,
        presence_penalty=0.1,
        frequency_penalty=0.1,
        logit_bias={"5": -1},
        logprobs=True,
        top_logprobs=2,
        stop=["never"],
        max_completion_tokens=20,
        user="somebody",
        store=False,
        metadata={"a": "b"},
    )
    assert [choice.message.content for choice in whole.choices] == ["alpha beta"] * 2
    assert [choice.finish_reason for choice in whole.choices] == ["stop"] * 2
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert [(entry.token, entry.bytes) for entry in logprobs.content] == [
        ("alpha", list(b"alpha")),
        (" beta", list(b" beta")),
    ]
    assert all(len(entry.top_logprobs) == 2 for entry in logprobs.content)
    assert whole.usage is not None and whole.usage.completion_tokens == 6
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + 6


def test_stream(client: OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=user(say("alpha", "é", "\u2028", " beta")),
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "alphaé\u2028 beta"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage is not None and chunks[-1].usage.completion_tokens > 0


def test_stream_helper_gathers_tool_calls(client: OpenAI) -> None:
    script = say('<tool_call>{"name": "weather", "arguments": {"city": ', '"Zürich"', "}}</tool_call>")
    with client.chat.completions.stream(model=MODEL, messages=user(script), tools=[WEATHER]) as stream:
        kinds = {event.type for event in stream}
        message = stream.get_final_completion().choices[0].message
    assert "tool_calls.function.arguments.delta" in kinds and "tool_calls.function.arguments.done" in kinds
    assert message.tool_calls is not None
    (call,) = message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Zürich"})


def test_a_turn_with_tools_and_back(client: OpenAI) -> None:
    script = say('<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>')
    first = client.chat.completions.create(model=MODEL, messages=user(script), tools=[WEATHER])
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls" and message.tool_calls is not None
    second = client.chat.completions.create(
        model=MODEL,
        messages=[
            *user(script),
            message,  # type: ignore[list-item]  # as the client's own documents show it
            {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": say("sunny")},
        ],
        tools=[WEATHER],
    )
    assert second.choices[0].message.content == "sunny"


def test_reasoning_comes_apart(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=user(say("<think>hm</think>", "\n\nso")))
    message = answer.choices[0].message
    assert (message.content, message.model_extra) == ("so", {"reasoning_content": "hm"})


def test_completions(client: OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt=[say("alpha"), say(" beta")], logprobs=2, echo=True, max_tokens=5
    )
    assert [choice.text for choice in answer.choices] == [say("alpha") + "alpha", say(" beta") + " beta"]
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].logprobs is not None and answer.choices[0].logprobs.tokens is not None
    assert answer.choices[0].logprobs.tokens[-1] == "alpha"
    texts = client.completions.create(model=MODEL, prompt=[72, 105], stream=True)
    assert "".join(chunk.choices[0].text for chunk in texts) == "Hi"


def test_models(client: OpenAI) -> None:
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).object == "model"
    assert client.models.retrieve("a/b_c.d-1").id == "a/b_c.d-1"


def test_errors_are_the_clients_own(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model=MODEL, messages=user("x"), top_p=7)
    assert (bad.value.param, bad.value.type) == ("top_p", "invalid_request_error")
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=MODEL, messages=user("x"), n=0, stream=True)
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="other", messages=user("x"))
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model=MODEL, messages=user(say("abc", fail_at=1)))
    with pytest.raises(openai.APIError, match="the script said so"):
        list(client.chat.completions.create(model=MODEL, messages=user(say("abc", fail_at=2)), stream=True))


async def test_async_many_at_once(served: Served) -> None:
    async with AsyncOpenAI(base_url=served.url + "/v1", api_key="none", max_retries=0, timeout=60) as client:

        async def whole(number: int) -> str | None:
            answer = await client.chat.completions.create(model=MODEL, messages=user(say(f"n {number}")))
            return answer.choices[0].message.content

        async def streamed(number: int) -> str:
            stream = await client.chat.completions.create(model=MODEL, messages=user(say(f"n {number}")), stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        assert await asyncio.gather(*map(whole, range(20))) == [f"n {number}" for number in range(20)]
        assert await asyncio.gather(*map(streamed, range(20))) == [f"n {number}" for number in range(20)]
        stream = await client.chat.completions.create(
            model=MODEL, messages=user(say(*["a"] * 100, delay=0.05)), stream=True
        )
        async for _ in stream:
            break
        await stream.close()  # the client leaves; the server's books are checked by the other tests


# --- the real model ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(real_server: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=real_server + "/v1", api_key="none", max_retries=0, timeout=120) as made:
        yield made


REAL = "smollm2-135m-instruct"


def test_the_demo_model_answers(real: OpenAI) -> None:
    answer = real.chat.completions.create(
        model=REAL, messages=user("Name the capital of France."), temperature=0, max_tokens=30
    )
    choice = answer.choices[0]
    assert choice.message.content is not None and "Paris" in choice.message.content
    assert choice.finish_reason == "stop"
    chunks = real.chat.completions.create(
        model=REAL, messages=user("Name the capital of France."), temperature=0, max_tokens=30, stream=True
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == choice.message.content


def test_penalties_count_the_answer_alone(real: OpenAI) -> None:
    def first(**penalties: float) -> Any:
        answer = real.completions.create(
            model=REAL, prompt="cat cat cat", max_tokens=1, temperature=0, logprobs=5, **penalties
        )  # type: ignore[call-overload]
        return answer.choices[0].logprobs, answer.choices[0].text

    assert first() == first(frequency_penalty=2, presence_penalty=2)


@pytest.mark.bit_exact
def test_logprobs_are_the_raw_models(real: OpenAI) -> None:
    def first(**fields: Any) -> Any:
        answer = real.chat.completions.create(
            model=REAL, messages=user("Name a colour"), max_tokens=1, logprobs=True, top_logprobs=3, seed=1, **fields
        )
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None and logprobs.content is not None
        return [(entry.token, entry.logprob) for entry in logprobs.content[0].top_logprobs]

    plain = first()
    assert plain == first(top_p=0.5) == first(temperature=0.1)
    assert len(plain) == 3 and [value for _, value in plain] == sorted((value for _, value in plain), reverse=True)


@pytest.mark.bit_exact
def test_seed_replays(real: OpenAI) -> None:
    def once() -> list[str | None]:
        answer = real.chat.completions.create(model=REAL, messages=user("Tell a story"), seed=-7, max_tokens=16, n=2)
        return [choice.message.content for choice in answer.choices]

    texts = once()
    assert texts == once() and texts[0] != texts[1]


def test_parse_gives_a_model(real: OpenAI) -> None:
    answer = real.chat.completions.parse(
        model=REAL,
        messages=user("What is the capital of France?"),
        response_format=Answer,
        temperature=0,
        max_tokens=200,
    )
    parsed = answer.choices[0].message.parsed
    assert isinstance(parsed, Answer) and answer.choices[0].finish_reason == "stop"


def test_json_object(real: OpenAI) -> None:
    answer = real.chat.completions.create(
        model=REAL,
        messages=user("Describe a cat in JSON."),
        response_format={"type": "json_object"},
        temperature=0,
        max_tokens=300,
    )
    content = answer.choices[0].message.content
    assert content is not None and content.startswith("{")
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(content), dict)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "Weather"}}])
@pytest.mark.parametrize("stream", [False, True])
def test_forced_calls_fit_their_schema(real: OpenAI, choice: Any, stream: bool) -> None:
    fields: dict[str, Any] = {
        "model": REAL,
        "messages": user("What is the weather in Paris?"),
        "tools": [openai.pydantic_function_tool(Weather), openai.pydantic_function_tool(Place)],
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "temperature": 0,
        "max_tokens": 200,
    }
    if stream:
        with real.chat.completions.stream(**fields) as events:
            for _ in events:
                pass
            answer = events.get_final_completion()
    else:
        answer = real.chat.completions.parse(**fields)
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.choices[0].message.content is None
    calls = answer.choices[0].message.tool_calls
    assert calls is not None and len(calls) == 1
    assert isinstance(calls[0].function.parsed_arguments, Weather | Place)
    if choice != "required":
        assert isinstance(calls[0].function.parsed_arguments, Weather)


def test_guided_fields_of_vllm(real: OpenAI) -> None:
    for extra, allowed in (
        ({"guided_choice": ["yes", "no"]}, {"yes", "no"}),
        ({"guided_regex": "(left|right)"}, {"left", "right"}),
        ({"structured_outputs": {"choice": ["red", "blue"]}}, {"red", "blue"}),
    ):
        answer = real.chat.completions.create(model=REAL, messages=user("Choose."), max_tokens=20, extra_body=extra)
        assert answer.choices[0].message.content in allowed
    with pytest.raises(openai.BadRequestError) as bad:
        real.chat.completions.create(model=REAL, messages=user("x"), extra_body={"guided_regex": "["})
    assert bad.value.param == "guided_regex"
