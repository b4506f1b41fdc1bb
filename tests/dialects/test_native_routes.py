"""The native routes against a real process: answers, events, refusals."""

from __future__ import annotations

from typing import Any

import pytest
from served import Served, say
from wire_client import Got, send

from interlingua.dialects._native_table import PARAMETERS

PATHS = ("/infer", "/infer_token", "/native/infer")


def infer(served: Served, inputs: Any = "ab", path: str = "/infer", **more: Any) -> Got:
    return send(served.url, path, {"inputs": inputs, **more})


@pytest.mark.parametrize("path", PATHS)
def test_answers(served: Served, path: str):
    prompt = say("hé", " Paris")
    assert infer(served, prompt, path).json == {"generated_text": "hé Paris"}
    answer = infer(served, prompt, path, parameters={"details": True, "seed": 18446744073709551615}).json
    assert list(answer) == ["generated_text", "details"]
    details = answer["details"]
    assert list(details) == ["finish_reason", "generated_tokens", "seed", "generated_token_ids"]
    assert (details["finish_reason"], details["generated_tokens"], details["seed"]) == ("eos_token", 5, 2**64 - 1)
    assert details["generated_token_ids"] == [*"hé".encode(), 264, 257]
    by_ids = send(served.url, path, {"input_id": [256, *b"ab"], "inputs": None, "parameters": {"max_new_tokens": 2}})
    assert by_ids.json == infer(served, "ab", path, parameters={"max_new_tokens": 2}).json == {"generated_text": "a"}


@pytest.mark.parametrize("details", [False, True])
def test_events(served: Served, details: bool):
    events = infer(served, say("hé", "!"), stream=True, parameters={"details": details}).events
    times = ["prefill_time", "decode_time"] if details else []
    assert [list(event) for event in events] == [[*times, "token"]] * 4 + [
        [*times, "token", "generated_text", "details"]
    ]
    assert [event["token"]["id"] for event in events] == [[104], [195], [169], [33], [257]]
    assert [event["token"]["text"] for event in events] == ["h", "", "é", "!", ""]
    assert events[-1]["generated_text"] == "hé!"
    if details:
        assert [event["prefill_time"] is None for event in events] == [False, True, True, True, True]
        assert [event["decode_time"] is None for event in events] == [True, False, False, False, False]
        assert all(type(event["prefill_time"] or event["decode_time"] or 0) is int for event in events)
        assert list(events[-1]["details"]) == ["finish_reason", "generated_tokens", "seed"]
    else:
        assert events[-1]["details"] is None


def test_a_fault_in_a_stream_is_one_event(served: Served):
    events = infer(served, say("abc", fail_at=2), stream=True).events
    assert [set(event) for event in events] == [{"token"}, {"token"}, {"error", "error_type"}]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "inputs"),
        ({"inputs": None}, "inputs"),
        ({"inputs": "a", "input_id": [1]}, "inputs"),
        ({"inputs": ""}, "inputs"),
        ({"inputs": []}, "inputs"),
        ({"inputs": 1}, "inputs"),
        ({"inputs": "\ud800"}, ""),
        ({"input_id": []}, "input_id"),
        ({"input_id": "1"}, "input_id"),
        ({"input_id": [1, -1]}, "input_id[1]"),
        ({"input_id": [1.0]}, "input_id[0]"),
        ({"input_id": [True]}, "input_id[0]"),
        ({"input_id": [2**40]}, "input_id[0]"),
        ({"input_id": [1_048_576]}, "input_id"),
        ({"input_id": [[1]]}, "input_id[0]"),
        ({"inputs": "a", "stream": 1}, "stream"),
        ({"inputs": "a", "parameters": []}, "parameters"),
        ({"inputs": "a", "parameters": {"top_p": 1.0}}, "parameters.top_p"),
        ({"inputs": "a", "parameters": {"top_k": 0}}, "parameters.top_k"),
        ({"inputs": "a", "parameters": {"priority": 6}}, "parameters.priority"),
        ({"inputs": "a", "parameters": {"timeout": 3601}}, "parameters.timeout"),
        ({"inputs": "a", "parameters": {"max_new_tokens": 0}}, "parameters.max_new_tokens"),
    ],
)
def test_refusals(served: Served, body: Any, field: str):
    for path in PATHS:
        for stream in ({}, {"stream": True}):
            got = send(served.url, path, {**stream, **body})
            assert got.status == 422 and got.json["error_type"] == "validation", got.body
            message: str = got.json["error"]
            assert (message.split("`")[1] if message.startswith("`") else "") == field, message


def test_unknown_fields_and_methods(served: Served):
    unknown = {"stop": ["a"], "truncate": 1, "batch_size": 0, "x": {}}
    assert infer(served, say("abc"), parameters=unknown, y=1).json == {"generated_text": "abc"}
    got = send(served.url, "/infer", method="GET")
    assert (got.status, got.json["error_type"]) == (405, "not_found")


def test_the_table_is_that_of_the_vendor():
    assert set(PARAMETERS.names) == {
        *("temperature", "top_k", "top_p", "typical_p", "do_sample", "seed", "repetition_penalty", "watermark"),
        *("max_new_tokens", "details", "priority", "timeout"),
    }
