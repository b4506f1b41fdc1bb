"""The parts of strict JSON that the table of cases cannot show: exact texts, cost, the parsed value."""

from __future__ import annotations

import contextlib
import time

import pytest

from interlingua.contract.errors import ValidationError
from interlingua.dialects._json import parse_object, show


def refusal(body: bytes, depth: int = 64) -> str:
    with pytest.raises(ValidationError) as caught:
        parse_object(body, depth)
    return caught.value.message


def test_place_of_a_mistake() -> None:
    assert refusal(b'{"a":1,\n"b":}') == "the body is not valid JSON (line 2, column 5)"


def test_depth_counts_the_root() -> None:
    assert parse_object(b'{"a":[{}]}', 3).root == {"a": [{}]}
    assert refusal(b'{"a":[{}]}', 2) == "the body is nested more than 2 levels deep"


def test_depth_ignores_brackets_in_strings() -> None:
    body = b'{"a":"[[[[\\"[[[\\\\","b":["]]]]{{{{"]}'
    assert parse_object(body, 2).root["b"] == ["]]]]{{{{"]


def test_a_mistake_among_many_brackets_is_no_depth() -> None:
    assert "not valid JSON" in refusal(b'{"a":[' + b"[]," * 200 + b"}")


@pytest.mark.parametrize("unit", [b"[],", b'{"a":[]},', b"[1],", b'"[",'])
@pytest.mark.parametrize("count", [30_000, 1_000_000])
def test_wide_bodies_are_checked_quickly(unit: bytes, count: int) -> None:
    """Millions of bytes of brackets: a hang here would stop the event loop. Too many of them are refused."""
    body = b'{"a":[' + unit * count + b"1]}"
    start = time.perf_counter()
    with contextlib.nullcontext() if count < 65_536 or unit == b'"[",' else pytest.raises(ValidationError):
        parse_object(body, 64)
    assert time.perf_counter() - start < 10


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":"' + b'\\"' * 1_000_000,
        b'{"a":' + b'"' * 2_000_001,
        b'{"a":"' + b"\\" * 2_000_001,
        b'{"a":' + b"[" * 2_000_000,
        b'{"a":' + (b"1" * 299 + b",") * 3_000,
        b'{"a":"' + b"\\ud83d" * 300_000,
        b'{"top_k"' + b" " * 2_000_000,
    ],
    ids=lambda body: body[:12].decode(),
)
def test_malformed_bodies_are_refused_quickly(body: bytes) -> None:
    start = time.perf_counter()
    assert refusal(body)
    assert time.perf_counter() - start < 10


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1e39", "1e39"),
        ("20.0", "20.0"),
        ("2e1", "2e1"),
        ("18446744073709551616", "18446744073709551616"),
        ("-9223372036854775809", "-9223372036854775809"),
        ("NaN", "NaN"),
        ("-Infinity", "-Infinity"),
        ("1e400", "1e400"),
        ("1" * 90 + ".5", "1" * 80 + "…"),
    ],
)
def test_numbers_are_shown_as_written(text: str, shown: str) -> None:
    document = parse_object(f'{{"x":5, "key" : {text}}}'.encode(), 64)
    assert document.show("key", document.root["key"]) == shown


def test_of_two_equal_keys_the_right_number_is_shown() -> None:
    document = parse_object(b'{"key":1.50,"p":{"key":2.50}}', 64)
    assert document.show("key", document.root["key"]) == "1.50"
    assert document.show("key", 2.5) == "2.50"


def test_a_key_written_with_escapes_is_shown_by_value() -> None:
    document = parse_object(b'{"k\\u0065y":2.50}', 64)
    assert document.show("key", document.root["key"]) == "2.5"


def test_values_in_messages_are_short() -> None:
    assert show("x" * 5_000_000) == '"' + "x" * 79 + "…"
    assert show(["a"] * 7) == "an array of 7"
    assert show({"a": 1}) == "an object"
    assert show(10**5000) == "an integer of more than 3000 digits"
    assert show(None) == "null"
    assert show(True) == "true"


def test_non_finite_numbers_are_always_refused_in_the_end() -> None:
    document = parse_object(b'{"a":[NaN]}', 64)
    with pytest.raises(ValidationError):
        document.close()
    parse_object(b'{"a":["NaN"]}', 64).close()


def test_huge_integers() -> None:
    assert "NaN" not in refusal(b'{"a":' + b"1" * 5000 + b"}")  # too long even for the second look
    document = parse_object(b'{"a":' + b"1" * 400 + b"}", 64)
    assert document.non_finite
