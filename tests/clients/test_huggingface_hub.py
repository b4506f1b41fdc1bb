"""`huggingface_hub.InferenceClient`, unchanged, in two versions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from client_process import call
from served import Served, say
from wire_cases import MODEL

KINDS = ["sync", "async"]
# Every parameter that the method has, with a value that works today.
EVERYTHING = {
    "adapter_id": "None",
    "best_of": 1,
    "do_sample": True,
    "frequency_penalty": 0.1,
    "max_new_tokens": 7,
    "repetition_penalty": 1.2,
    "return_full_text": True,
    "seed": 42,
    "stop": ["never"],
    "temperature": 0.5,
    "top_k": 10,
    "top_n_tokens": 2,
    "top_p": 0.9,
    "truncate": 5,
    "typical_p": 0.9,
    "watermark": False,
}


@pytest.fixture(scope="session", params=["this", "older"])
def python(request: pytest.FixtureRequest) -> Path:
    if request.param == "this":
        return Path(sys.executable)
    path: Path = request.getfixturevalue("clients_python")
    return path


def calls(python: Path, served: Served, kind: str, *calls_: tuple[str, dict[str, Any]]) -> list[Any]:
    wanted = [{"kind": kind, "prompt": prompt, "arguments": arguments} for prompt, arguments in calls_]
    return call(python, "hub_calls.py", served.url, wanted)[1:]


@pytest.mark.parametrize("kind", KINDS)
def test_text_and_details(served: Served, python: Path, kind: str) -> None:
    prompt = say("alpha", " beta")
    text, details, everything = calls(
        python,
        served,
        kind,
        (prompt, {}),
        (prompt, {"details": True}),
        ("Hello there", {**EVERYTHING, "details": True, "decoder_input_details": True}),
    )
    assert text == details["generated_text"] == "alpha beta"
    assert details["details"]["finish_reason"] == "eos_token"
    assert [token["text"] for token in details["details"]["tokens"]] == ["alpha", " beta", "</s>"]
    assert everything["generated_text"].startswith("Hello there")
    assert everything["details"]["seed"] == 42
    assert [token["text"] for token in everything["details"]["prefill"]] == ["<s>", *"here"]
    assert len(everything["details"]["top_tokens"]) == len(everything["details"]["tokens"])


@pytest.mark.parametrize("kind", KINDS)
def test_streams(served: Served, python: Path, kind: str) -> None:
    texts, events = calls(
        python,
        served,
        kind,
        (say("alpha", "é", "\u2028", " beta"), {"stream": True}),
        ("Hello there", {**EVERYTHING, "details": True, "stream": True}),
    )
    assert "".join(texts[:-1]) == "alphaé\u2028 beta"
    joined = "".join(event["token"]["text"] for event in events if not event["token"]["special"])
    assert events[-1]["generated_text"] == "Hello there" + joined
    assert [event["index"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["details"]["input_length"] == 5
    assert events[-1]["details"]["seed"] == 42


@pytest.mark.parametrize("kind", KINDS)
def test_errors(served: Served, python: Path, kind: str) -> None:
    got = calls(
        python,
        served,
        kind,
        ("x", {"top_p": 1.5}),
        ("x", {"top_p": 1.5, "stream": True}),
        ("x", {"grammar": {"type": "regex", "value": "a+"}}),
        (say("abc", fail_at=2), {"stream": True}),
        (say("abc", fail_at=0), {}),
    )
    assert [one["raised"] for one in got] == ["ValidationError"] * 3 + ["GenerationError"] * 2
    assert "`parameters.top_p`" in got[0]["text"] and "1.5" in got[0]["text"]
    assert "not supported by the echo engine" in got[2]["text"]


@pytest.mark.parametrize("kind", KINDS)
def test_chat_on_a_plain_url(served: Served, python: Path, kind: str) -> None:
    """The client writes a placeholder for the model ("dummy", before "tgi") when its user named none."""
    messages = [{"role": "user", "content": say("alpha", " beta")}]
    job = {"kind": kind, "method": "chat_completion", "prompt": messages}
    jobs = [job, job | {"arguments": {"stream": True}}]
    _, whole, chunks = call(python, "hub_calls.py", served.url, jobs)
    assert whole["choices"][0]["message"]["content"] == "alpha beta"
    assert (
        "".join(chunk["choices"][0]["delta"]["content"] or "" for chunk in chunks if chunk["choices"]) == "alpha beta"
    )
    assert {answer["model"] for answer in (whole, *chunks)} == {MODEL}


def chat_errors(python: Path, served: Served, *arguments: dict[str, Any]) -> list[str]:
    prompt = [{"role": "user", "content": "x"}]
    job = {"kind": "sync", "method": "chat_completion", "prompt": prompt}
    return [
        one["text"] for one in call(python, "hub_calls.py", served.url, [job | {"arguments": a} for a in arguments])[1:]
    ]


def test_grammars_of_chats_as_its_docstring_writes_them(served: Served, python: Path) -> None:
    """They reach the engine, which here takes none."""
    schema = {"properties": {"location": {"type": "string"}}, "required": ["location"]}
    formats = [
        {"type": "json", "value": schema},
        {"type": "json_object", "value": schema},
        {"type": "regex", "value": "a+"},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    ]
    for text in chat_errors(python, served, *({"response_format": one} for one in formats)):
        assert "`response_format`" in text and "not supported by the echo engine" in text


def test_its_own_type_for_a_function_to_call(served: Served, python: Path) -> None:
    """`ChatCompletionInputToolChoiceClass` has no `type`. A call is a grammar, which the engine here refuses."""
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
    choices = [{"function": {"name": "weather"}}, "weather"]
    for text in chat_errors(python, served, *({"tools": [tool], "tool_choice": one} for one in choices)):
        assert "`tool_choice`" in text and "not supported by the echo engine" in text
