"""How much of anything a body may hold: each row of `dialects/_bounds.py` at its edge."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire import call
from wire_cases import MODEL

from interlingua.contract.errors import ValidationError
from interlingua.dialects import _bounds as most
from interlingua.dialects import _json
from interlingua.dialects._json import parse_object

TEXT_PART = {"type": "text", "text": "x"}
USER = {"role": "user", "content": "x"}
CHAT, COMPLETIONS, VLLM = "/v1/chat/completions", "/v1/completions", "/vllm/generate"
TRITON, INFER = f"/v2/models/{MODEL}/generate", f"/v2/models/{MODEL}/infer"


def turn(**more: Any) -> dict[str, Any]:
    return {"messages": [USER, {"role": "assistant", **more}]}


def tool_call(arguments: str = "{}") -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}


def tools(count: int) -> list[Any]:
    return [{"type": "function", "function": {"name": f"f{number}"}} for number in range(count)]


def tensors(count: int) -> list[Any]:
    one = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["x"]}
    return [one] + [one | {"name": f"t{number}"} for number in range(count - 1)]


# (path, the field that a refusal names, the bound, a body that holds so many)
LISTS: list[tuple[str, str, int, Any]] = [
    ("/generate", "inputs", most.MAX_PARTS, lambda n: {"inputs": [TEXT_PART] * n}),
    ("/", "inputs", most.MAX_PARTS, lambda n: {"inputs": [TEXT_PART] * n}),
    (TRITON, "text_input", most.MAX_PARTS, lambda n: {"text_input": [TEXT_PART] * n}),
    (
        TRITON,
        "parameters.decodeTime",
        most.MAX_IDS,
        lambda n: {"text_input": "x", "parameters": {"decodeTime": [1] * n}},
    ),
    (VLLM, "prompt", most.MAX_PARTS, lambda n: {"prompt": [TEXT_PART] * n}),
    (VLLM, "stop_token_ids", most.MAX_IDS, lambda n: {"prompt": "x", "stop_token_ids": [1] * n}),
    ("/infer", "input_id", most.MAX_IDS, lambda n: {"input_id": [1] * n}),
    (CHAT, "messages", most.MAX_MESSAGES, lambda n: {"messages": [USER] * n}),
    (CHAT, "messages[0].content", most.MAX_PARTS, lambda n: {"messages": [USER | {"content": [TEXT_PART] * n}]}),
    (CHAT, "messages[1].tool_calls", most.MAX_TOOL_CALLS, lambda n: turn(tool_calls=[tool_call()] * n)),
    (
        CHAT,
        "messages[1].tool_calls[0].function.arguments",
        most.MAX_ARGUMENTS,
        lambda n: turn(tool_calls=[tool_call('{"a":"' + "x" * (n - 8) + '"}')]),
    ),
    (CHAT, "tools", most.MAX_TOOLS, lambda n: {"messages": [USER], "tools": tools(n)}),
    (CHAT, "stop_token_ids", most.MAX_IDS, lambda n: {"messages": [USER], "stop_token_ids": [1] * n}),
    (CHAT, "guided_choice", most.MAX_CHOICES, lambda n: {"messages": [USER], "guided_choice": ["x"] * n}),
    (COMPLETIONS, "prompt", most.MAX_PROMPTS, lambda n: {"prompt": ["x"] * n}),
    (COMPLETIONS, "prompt", most.MAX_IDS, lambda n: {"prompt": [1] * n}),
    (COMPLETIONS, "prompt[0]", most.MAX_IDS, lambda n: {"prompt": [[1] * n]}),
    (INFER, "inputs", most.MAX_TENSORS, lambda n: {"inputs": tensors(n)}),
]


@pytest.mark.parametrize(("path", "field", "bound", "body"), LISTS, ids=lambda value: str(value)[:30])
def test_lists(path: str, field: str, bound: int, body: Any) -> None:
    """The bound itself is taken, or refused for another reason; one more is refused by its name, range and number."""
    with pytest.raises(ValidationError) as caught:
        call(path, json.dumps(body(bound + 1)).encode())
    assert caught.value.field == field
    assert str(bound) in caught.value.problem and str(bound + 1) in caught.value.problem
    try:
        call(path, json.dumps(body(bound)).encode())
    except ValidationError as other:
        assert field == "inputs" and path == INFER, f"only prompts are missing here: {other}"


# (what is written so often, the body without it)
COUNTED = [(b"[]", 0), (b'"a":1', 1), (b"1", 2)]


@pytest.mark.parametrize(("unit", "row"), COUNTED, ids=["arrays", "members", "values"])
def test_the_body_as_a_whole(unit: bytes, row: int) -> None:
    _, limit, words = most.BODY[row]
    opening, closing = (b'{"x":{', b"}}") if row == 1 else (b'{"x":[', b"]}")
    # The root is one of the containers, its field one of the members; values are told apart by their commas.
    room = {0: limit - 2, 1: limit - 1, 2: limit + 1}[row]
    assert parse_object(opening + b",".join([unit] * room) + closing, 64).root
    with pytest.raises(ValidationError, match=f"must hold at most {limit} {words}, got {limit + 1}"):
        parse_object(opening + b",".join([unit] * (room + 1)) + closing, 64)


@pytest.mark.parametrize("unit", [b"[]", b"1"])
def test_a_body_without_strings_is_counted_too(unit: bytes) -> None:
    """Its root is no object, which shows when all of it has been made."""
    with pytest.raises(ValidationError, match="the body must hold at most"):
        parse_object(b"[" + b",".join([unit] * (2 * most.MAX_IDS + 2)) + b"]", 64)


def test_strings_may_hold_any_number_of_them() -> None:
    text = '[{,:}]\\"' * 500_000
    assert parse_object(json.dumps({"inputs": text}).encode(), 64).root["inputs"] == text


pieces = st.lists(st.sampled_from([b'"', b"\\", b"[", b"a" * 9, b",", b"\n"]), max_size=60).map(b"".join)


@given(text=pieces, piece=st.integers(1, 20))
def test_strings_are_taken_out_piece_by_piece_as_at_once(text: bytes, piece: int) -> None:
    """Whatever the text is, and wherever it is cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_json, "_PIECE", piece)
        assert _json._without_strings(text) == _json._STRING.sub(b"", text)
