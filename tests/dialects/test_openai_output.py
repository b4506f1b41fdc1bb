"""What a model says, told apart: the same pieces whatever tokens it came in."""

from __future__ import annotations

import random
from typing import Any

import pytest

from interlingua.contract.dialect import ChatFormat
from interlingua.dialects._openai_output import Reader

HERMES = ChatFormat("hermes", ("<think>", "</think>"))
LLAMA3 = ChatFormat("llama3")
MISTRAL = ChatFormat("mistral")
FG = ("f", "g")


def read(texts: list[str], *args: Any, **more: Any) -> list[tuple[str, int, str | None, str]]:
    """The pieces of an answer, neighbours joined: (kind, call, name, text)."""
    reader = Reader(*args, **more)
    pieces = [piece for text in texts for piece in reader.push(text)] + reader.finish()
    joined: list[tuple[str, int, str | None, str]] = []
    for piece in pieces:
        assert piece.text or piece.name is not None, "no piece is empty"
        if joined and piece.name is None and joined[-1][:2] == (piece.kind, piece.call):
            joined[-1] = (*joined[-1][:3], joined[-1][3] + piece.text)
        else:
            joined.append((piece.kind, piece.call, piece.name, piece.text))
    return joined


def text(words: str) -> tuple[str, int, str | None, str]:
    return ("content", 0, None, words)


def call(number: int, name: str, arguments: str) -> tuple[str, int, str | None, str]:
    return ("call", number, name, arguments)


def reasoning(words: str) -> tuple[str, int, str | None, str]:
    return ("reasoning", 0, None, words)


AWKWARD = '{"a": "x}\\"]{", "b": [1, {"c": null}], "é": "\\u00e9"}'
CASES: list[tuple[str, tuple[Any, ...], dict[str, Any], list[Any]]] = [
    # plain text
    ("  plain text ", (HERMES,), {}, [text("  plain text ")]),
    ("<tool_call>x</tool_call>", (HERMES,), {}, [text("<tool_call>x</tool_call>")]),
    ("a < b <tool_ x", (HERMES, FG), {}, [text("a < b <tool_ x")]),
    ("a <tool_call", (HERMES, FG), {}, [text("a <tool_call")]),
    ("", (HERMES, FG), {}, []),
    # reasoning
    ("<think>\nhm so\n</think>\n\nHello  <b> ", (HERMES,), {}, [reasoning("hm so"), text("Hello  <b> ")]),
    ("\n<think></think>\n\nHello", (HERMES,), {}, [text("Hello")]),
    ("well\n</think>\n\nHello", (HERMES,), {"reasoning": True}, [reasoning("well"), text("Hello")]),
    ("cut off ", (HERMES,), {"reasoning": True}, [reasoning("cut off ")]),
    ("no <think> here</think>", (HERMES,), {}, [text("no <think> here</think>")]),
    ("<think>x</think>y", (LLAMA3,), {}, [text("<think>x</think>y")]),
    # Hermes, Qwen
    (f'<tool_call>\n{{"name": "f", "arguments": {AWKWARD}}}\n</tool_call>', (HERMES, FG), {}, [call(0, "f", AWKWARD)]),
    (
        '<think>a</think>So:\n<tool_call>{"arguments": {"x": 1}, "name": "f"}</tool_call>\n'
        '<tool_call>{"name": "g", "arguments": {}}</tool_call> and',
        (HERMES, FG),
        {},
        [reasoning("a"), text("So:"), call(0, "f", '{"x": 1}'), call(1, "g", "{}"), text("and")],
    ),
    ('<tool_call>{"name": "f"}</tool_call>', (HERMES, FG), {}, [call(0, "f", "{}")]),
    ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', (HERMES, FG), {}, [call(0, "f", '{"a": 1}')]),
    ('<tool_call>{"name": "f", "arguments": {"a": 1', (HERMES, FG), {}, [call(0, "f", '{"a": 1')]),
    (
        '<tool_call>{"name": "other", "arguments": {}}</tool_call> ok',
        (HERMES, FG),
        {},
        [text('<tool_call>{"name": "other", "arguments": {}}</tool_call> ok')],
    ),
    ("<tool_call>f(1)</tool_call>", (HERMES, FG), {}, [text("<tool_call>f(1)</tool_call>")]),
    ('<tool_call>{"nam', (HERMES, FG), {}, [text('<tool_call>{"nam')]),
    ('<tool_call>{"name": 1}</tool_call>', (HERMES, FG), {}, [text('<tool_call>{"name": 1}</tool_call>')]),
    (
        '<tool_call>{"name": "f"}</tool_call><tool_call>{"name": "g"}</tool_call>',
        (HERMES, FG),
        {"most": 1},
        [call(0, "f", "{}")],
    ),
    # Llama 3
    (
        '\n{"name": "f", "parameters": {"x": 1}}; {"name":"g","parameters":{}}',
        (LLAMA3, FG),
        {},
        [call(0, "f", '{"x": 1}'), call(1, "g", "{}")],
    ),
    ('<|python_tag|>{"name": "f", "parameters": {}}', (LLAMA3, FG), {}, [call(0, "f", "{}")]),
    ('{"answer": 42} is it', (LLAMA3, FG), {}, [text('{"answer": 42} is it')]),
    ('I say {"name": "f", "parameters": {}}', (LLAMA3, FG), {}, [text('I say {"name": "f", "parameters": {}}')]),
    # Mistral
    (
        'Hi [TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]',
        (MISTRAL, FG),
        {},
        [text("Hi"), call(0, "f", '{"x": 1}'), call(1, "g", "{}")],
    ),
    # what a grammar has made
    (
        '[{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]',
        (HERMES, FG),
        {"guided": "calls"},
        [call(0, "f", '{"x": 1}'), call(1, "g", "{}")],
    ),
    ('{"x": "<tool_call>"}', (HERMES, ("f",)), {"guided": "arguments"}, [call(0, "f", '{"x": "<tool_call>"}')]),
]


@pytest.mark.parametrize(("answer", "args", "more", "pieces"), CASES, ids=[case[0][:40] for case in CASES])
def test_pieces_do_not_depend_on_the_tokens(
    answer: str, args: tuple[Any, ...], more: dict[str, Any], pieces: list[Any]
) -> None:
    rng = random.Random(1)
    assert read([answer], *args, **more) == pieces
    for size in (1, 2, 3, 7):
        assert read([answer[at : at + size] for at in range(0, len(answer), size)], *args, **more) == pieces
    for _ in range(20):
        cuts = sorted(rng.randrange(len(answer) + 1) for _ in range(5))
        parts = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
        assert read(parts, *args, **more) == pieces


def test_text_is_not_held_back_longer_than_needed() -> None:
    reader = Reader(HERMES, FG)
    assert [piece.text for piece in reader.push("Hello")] == ["Hello"]
    assert reader.push(" <tool") == []  # may be a call, and the space its own
    assert [piece.text for piece in reader.push("box> x")] == [" <toolbox> x"]


def test_arguments_are_passed_on_as_they_come() -> None:
    reader = Reader(HERMES, FG)
    assert [piece.name for piece in reader.push('<tool_call>{"name": "f", ')] == ["f"]
    assert [piece.text for piece in reader.push('"arguments": {"a": "bc')] == ['{"a": "bc']
    assert [piece.text for piece in reader.push('d"}}')] == ['d"}']
    assert reader.calls == 1


def test_long_arguments_take_linear_time() -> None:
    arguments = '{"a": "' + "x" * 300_000 + '"}'
    answer = f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
    parts = [answer[at : at + 3] for at in range(0, len(answer), 3)]
    assert read(parts, HERMES, FG) == [call(0, "f", arguments)]
