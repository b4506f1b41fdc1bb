"""Strict JSON bodies: what `orjson` leaves open is decided here, once for all dialects.

A leading byte order mark is dropped. Invalid UTF-8, lone surrogates, NaN and Infinity, nesting past the
limit, an empty body and a root that is no object are refused. Duplicate keys: the last one wins.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

import orjson

from interlingua.contract.errors import ValidationError
from interlingua.dialects._bounds import BODY

_BOM = b"\xef\xbb\xbf"
# Possessive, and it takes an unclosed string to the end: one pass, whatever the bytes are.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
# As many whole strings as there are, each with what stands before it.
_UNITS = re.compile(rb'(?:[^"]*+"[^"\\]*+(?:\\.[^"\\]*+)*+")*+', re.DOTALL)
_PIECE = 1 << 18  # bytes that one operation of `re` looks at: it holds the interpreter's lock
_OPENING = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_NON_FINITE = re.compile(rb"NaN|Infinity|[0-9][eE]\+?[0-9]{3}|(?<![0-9])[0-9]{300}")
_LONE_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_TOLERANT_LIMIT = 1 << 20  # bytes; the slow second look at a bad body is for messages only
_SHOWN = 80  # characters of a client's value that an error repeats


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed body. `raw` is kept because a message must repeat a number as the client wrote it.

    `non_finite` marks a body that is JSON but for NaN, Infinity or numbers past a double. It is refused in
    any case: by the field that holds the value, which gives the better message, else by `close`.
    """

    root: dict[str, Any]
    raw: bytes
    non_finite: bool = False

    def close(self) -> None:
        """Call when all fields were checked. Raises ValidationError if a non-finite number is left."""
        if self.non_finite:
            raise ValidationError(
                "", "the body is not valid JSON: NaN, Infinity and numbers beyond a double are refused"
            )

    def show(self, key: str, value: object) -> str:
        """`value` of field `key` for a message, at most 80 characters; numbers as they stand in the body."""
        if isinstance(value, float):
            return self._raw_number(key, value) or repr(value)
        return show(value)

    def _raw_number(self, key: str, value: float) -> str | None:
        # `"key"` followed by a colon can only be a key: inside a string its quotes would be escaped.
        pattern = rb'"' + re.escape(key.encode()) + rb'"\s*:\s*(-?(?:[0-9][0-9.eE+-]*|NaN|Infinity))'
        found = None
        for match in re.finditer(pattern, self.raw):
            text = match[1].decode()
            if (number := _float(text)) is not None and (number == value or (math.isnan(number) and math.isnan(value))):
                found = text
        return None if found is None else cut(found)


def parse_object(body: bytes, max_depth: int) -> Document:
    """Parses a request body whose root must be an object.

    Args:
        body: the bytes as received, complete.
        max_depth: how many containers may stand inside each other, the root included.

    Raises:
        ValidationError: the body is empty, is no JSON, holds too much, is nested too deep or its root is no object.
    """
    if body.startswith(_BOM):
        body = body[len(_BOM) :]
    _check_size(body)
    non_finite = False
    try:
        root = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        root = _second_look(body)
        if root is None:
            raise _malformed(body, error, max_depth) from None
        non_finite = True
    # A body without that many brackets cannot be that deep: the usual case costs two scans.
    if body.count(b"{") + body.count(b"[") > max_depth and _deeper_than(body, max_depth):
        raise _too_deep(max_depth)
    if not isinstance(root, dict):
        raise ValidationError("", f"the body must be a JSON object, got {json_type(root)}")
    return Document(root, body, non_finite)


def json_type(value: object) -> str:
    """The name of a parsed value's type in words of JSON, with its article."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, int | float):
        return "a number"
    return "an array" if isinstance(value, list) else "an object"


def show(value: object) -> str:
    """A parsed value for a message: scalars as JSON of at most 80 characters, containers by their type."""
    if isinstance(value, list | tuple):
        return f"an array of {len(value)}"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, str):
        return cut(json.dumps(value[: _SHOWN + 1], ensure_ascii=False))
    if isinstance(value, int) and not isinstance(value, bool):
        return cut(str(value)) if value.bit_length() < 10_000 else "an integer of more than 3000 digits"
    return json.dumps(value)


def cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _check_size(body: bytes) -> None:
    """Raises ValidationError for a body that holds more than `BODY` says. The usual one costs a few quick scans."""
    bare: bytes | None = None
    for marks, limit, words in BODY:
        if _count(body, marks) <= limit:
            continue
        bare = _without_strings(body) if bare is None else bare
        if (count := _count(bare, marks)) > limit:
            raise ValidationError("", f"the body must hold at most {limit} {words}, got {count}")


def _count(text: bytes, marks: bytes) -> int:
    return sum(text.count(mark) for mark in marks)


def _without_strings(text: bytes) -> bytes:
    """JSON text, valid or not, without its strings; piece by piece, so that other threads have their turn."""
    pieces: list[bytes] = []
    start, size = 0, _PIECE
    while start + size < len(text):
        match = _UNITS.match(text, start, start + size)
        assert match is not None  # it matches nothing, too
        if match.end() > start:
            pieces.append(_STRING.sub(b"", text[start : match.end()]))
            start, size = match.end(), _PIECE
        elif (quote := text.find(b'"', start)) == start:  # a string that is longer
            size *= 2
        else:  # `find` is far quicker than `re` where no string is
            end = quote if quote > start else len(text)
            pieces.append(text[start:end])
            start = end
    pieces.append(_STRING.sub(b"", text[start:]))
    return b"".join(pieces)


def _deeper_than(body: bytes, limit: int) -> bool:
    """Whether valid JSON text nests more than `limit` containers. At C speed, whatever its shape."""
    brackets = _without_strings(body).translate(_OPENING, _NOT_BRACKETS)
    for _ in range(limit):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")  # takes exactly the innermost level away
    return bool(brackets)


def _second_look(body: bytes) -> object | None:
    """The tolerant parse of a body whose only fault is non-finite numbers; None if that is not it."""
    if len(body) > _TOLERANT_LIMIT or not _NON_FINITE.search(body) or _LONE_SURROGATE.search(body):
        return None
    try:
        return json.loads(body)  # type: ignore[no-any-return]
    except (ValueError, RecursionError):
        return None


def _malformed(body: bytes, error: orjson.JSONDecodeError, max_depth: int) -> ValidationError:
    if not body.strip():
        return ValidationError("", "the body is empty: a JSON object is required")
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as bad:
        return ValidationError("", f"the body is not valid UTF-8 (byte {bad.start})")
    if error.msg.endswith("surrogate in string"):
        return ValidationError("", "the body holds an unpaired surrogate escape")
    # The parser gives up far below our limit; brackets still open where it stopped tell that from a mistake.
    before = _without_strings(body[: error.pos]).translate(_OPENING, _NOT_BRACKETS)
    if before.count(b"[") - before.count(b"]") > max_depth:
        return _too_deep(max_depth)
    return ValidationError("", f"the body is not valid JSON (line {error.lineno}, column {error.colno})")


def _too_deep(max_depth: int) -> ValidationError:
    return ValidationError("", f"the body is nested more than {max_depth} levels deep")


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
