"""Rules: what a field of a body may be. A rule checks a value, says what it accepts, writes its schema.

All three come from the same numbers, so messages, OpenAPI page and generated documentation cannot drift.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from interlingua.contract.dialect import DialectSettings
from interlingua.contract.errors import ValidationError
from interlingua.contract.request import Grammar
from interlingua.dialects._bounds import MAX_IDS
from interlingua.dialects._json import parse_object

INT32_MAX = 2**31 - 1
UINT32_MAX = 2**32 - 1
UINT64_MAX = 2**64 - 1
MAX_PROMPT_CHARS = 4 * 1024 * 1024
LENIENT_PROMPT_CHARS = 10 * MAX_PROMPT_CHARS  # the vendor server's own default
# Halfway between the largest 32-bit float and the next power of two: from here on a value rounds to infinity.
_FLOAT32_OVERFLOW = 3.4028235677973366e38
# Half of the smallest 32-bit float: up to here a value rounds to zero.
_FLOAT32_UNDERFLOW = 7.006492321624085e-46


class Refusal(Exception):  # noqa: N818 - a verdict that `_fields` turns into the error
    """A value that a rule does not take.

    `value` is the culprit and `suffix` its place inside the field (`[2]`). `expected` and `given` replace the
    rule's own words and the value's text where something more exact can be said.
    """

    def __init__(self, value: object, suffix: str = "", expected: str | None = None, given: str | None = None) -> None:
        super().__init__(expected or "")
        self.value = value
        self.suffix = suffix
        self.expected = expected
        self.given = given


class Rule(Protocol):
    """What a field may be. Rules never see null: that means absent, everywhere."""

    def check(self, value: object, settings: DialectSettings) -> Any:
        """The value as the rest of the dialect wants it. Raises Refusal."""
        ...

    def accepts(self, settings: DialectSettings) -> str:
        """What is accepted, to stand after "must be"."""
        ...

    def schema(self, settings: DialectSettings) -> dict[str, Any]:
        """The JSON Schema of the value."""
        ...

    @property
    def type_name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Boolean:
    """true and false alone; 0, 1 and "true" are refused."""

    type_name: str = "boolean"

    def check(self, value: object, settings: DialectSettings) -> bool:
        if value is True or value is False:
            return value
        raise Refusal(value)

    def accepts(self, settings: DialectSettings) -> str:
        return "true or false"

    def schema(self, settings: DialectSettings) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer literal in `low..high`; `20.0`, `"20"`, `true` are none. `high` may name a setting."""

    low: int
    high: int | str
    type_name: str = "integer"

    def check(self, value: object, settings: DialectSettings) -> int:
        if type(value) is int and self.low <= value <= self._high(settings):
            return value
        raise Refusal(value)

    def accepts(self, settings: DialectSettings) -> str:
        name = f" ({self.high})" if isinstance(self.high, str) else ""
        return f"an integer in {self.low}..{self._high(settings)}{name}"

    def schema(self, settings: DialectSettings) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.low, "maximum": self._high(settings)}

    def _high(self, settings: DialectSettings) -> int:
        if isinstance(self.high, str):
            return int(getattr(settings, self.high))
        return self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number, finite as a 32-bit float. `above` or `at_least` is set; the upper end may be open.

    Limits are compared as doubles: `1e-6` is not above `1e-6`. What rounds to zero as a 32-bit float is zero.
    """

    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None
    type_name: str = "number"

    def check(self, value: object, settings: DialectSettings) -> float:
        if type(value) is not float and type(value) is not int:
            raise Refusal(value)
        number = float(value) if abs(value) < _FLOAT32_OVERFLOW else math.inf  # also false for NaN
        if number == math.inf:
            raise Refusal(value, expected=self.accepts(settings) + ", finite as a 32-bit float")
        if -_FLOAT32_UNDERFLOW <= number <= _FLOAT32_UNDERFLOW:
            number = 0.0
        if (
            (self.above is not None and number <= self.above)
            or (self.at_least is not None and number < self.at_least)
            or (self.below is not None and number >= self.below)
            or (self.at_most is not None and number > self.at_most)
        ):
            raise Refusal(value)
        return number

    def accepts(self, settings: DialectSettings) -> str:
        limits = (("> ", self.above), ("≥ ", self.at_least), ("< ", self.below), ("≤ ", self.at_most))
        return "a number " + " and ".join(f"{sign}{limit:g}" for sign, limit in limits if limit is not None)

    def schema(self, settings: DialectSettings) -> dict[str, Any]:
        limits = {
            "exclusiveMinimum": _FLOAT32_UNDERFLOW if self.above == 0 else self.above,
            "minimum": self.at_least,
            "exclusiveMaximum": _FLOAT32_OVERFLOW if self.below is None and self.at_most is None else self.below,
            "maximum": self.at_most,
        }
        return {"type": "number"} | {key: limit for key, limit in limits.items() if limit is not None}


@dataclass(frozen=True, slots=True)
class Text:
    """A string of `low..high` characters that matches `pattern` wholly. `words` says the pattern in prose."""

    low: int
    high: int
    pattern: re.Pattern[str] | None = None
    words: str = ""
    type_name: str = "string"

    def check(self, value: object, settings: DialectSettings) -> str:
        if not isinstance(value, str):
            raise Refusal(value)
        if not self.low <= len(value) <= self.high:
            raise Refusal(value, given=None if len(value) < self.low else f"{len(value)} characters")
        if self.pattern is not None and not self.pattern.fullmatch(value):
            raise Refusal(value)
        return value

    def accepts(self, settings: DialectSettings) -> str:
        return f"a string of {self.low} to {self.high} characters" + (f" out of {self.words}" if self.words else "")

    def schema(self, settings: DialectSettings) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "string", "minLength": self.low, "maxLength": self.high}
        if self.pattern is not None:
            schema["pattern"] = f"^{self.pattern.pattern}$"
        return schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Stops:
    """Stop strings: one string or a list, returned as a tuple. `[]` means none; an empty string is refused.

    `items` may name a setting; `chars` (of one string) is None where `total` (of all) is the only limit. A search for
    stops takes some 300 bytes for each of their characters.
    `empty_is_none` takes a bare `""` as none, which is how one of the protocols writes "no stop words".
    """

    items: int | str
    chars: int | None = None
    total: int = 32768
    empty_is_none: bool = False
    type_name: str = "string or list of strings"

    def check(self, value: object, settings: DialectSettings) -> tuple[str, ...]:
        if isinstance(value, str):
            if value == "" and self.empty_is_none:
                return ()
            self._check_one(value, "")
            self._check_total(value, (value,))
            return (value,)
        if not isinstance(value, list):
            raise Refusal(value)
        limit = self._items(settings)
        if len(value) > limit:
            name = f" ({self.items})" if isinstance(self.items, str) else ""
            raise Refusal(value, expected=f"a list of at most {limit} strings{name}", given=f"{len(value)}")
        for place, item in enumerate(value):
            self._check_one(item, f"[{place}]")
        self._check_total(value, value)
        return tuple(value)

    def _check_total(self, value: object, stops: Sequence[str]) -> None:
        if (total := sum(map(len, stops))) > self.total:
            raise Refusal(value, expected=f"at most {self.total} characters in all", given=f"{total}")

    def _check_one(self, item: object, suffix: str) -> None:
        if not isinstance(item, str) or item == "":
            raise Refusal(item, suffix, self._one())
        if self.chars is not None and len(item) > self.chars:
            raise Refusal(item, suffix, self._one(), given=f"{len(item)} characters")

    def _one(self) -> str:
        return "a non-empty string" if self.chars is None else f"a string of 1 to {self.chars} characters"

    def _items(self, settings: DialectSettings) -> int:
        return int(getattr(settings, self.items)) if isinstance(self.items, str) else self.items

    def accepts(self, settings: DialectSettings) -> str:
        name = f" ({self.items})" if isinstance(self.items, str) else ""
        empty = '"" (none), ' if self.empty_is_none else ""
        most = f"{self._items(settings)} such{name}, {self.total} characters in all"
        return f"{empty}{self._one()} or a list of at most {most}"

    def schema(self, settings: DialectSettings) -> dict[str, Any]:
        one: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": self.chars or self.total}
        bare = one if not self.empty_is_none else {**one, "minLength": 0}
        return {"anyOf": [bare, {"type": "array", "items": one, "maxItems": self._items(settings)}]}


@dataclass(frozen=True, slots=True)
class IntegerList:
    """A list of at most `items` integers, each within `item`."""

    item: Integer
    items: int = MAX_IDS
    type_name: str = "list of integers"

    def check(self, value: object, settings: DialectSettings) -> tuple[int, ...]:
        if not isinstance(value, list):
            raise Refusal(value)
        if len(value) > self.items:
            raise Refusal(value, expected=f"a list of at most {self.items} integers", given=f"{len(value)}")
        for place, item in enumerate(value):
            try:
                self.item.check(item, settings)
            except Refusal:
                raise Refusal(item, f"[{place}]", self.item.accepts(settings)) from None
        return tuple(value)

    def accepts(self, settings: DialectSettings) -> str:
        return f"a list of at most {self.items}, each of it {self.item.accepts(settings)}"

    def schema(self, settings: DialectSettings) -> dict[str, Any]:
        return {"type": "array", "items": self.item.schema(settings), "maxItems": self.items}


@dataclass(frozen=True, slots=True)
class GrammarRule:
    """TGI's three grammar types. Only the shape is checked here; whether it can be followed is found out later."""

    type_name: str = "object"

    def check(self, value: object, settings: DialectSettings) -> Grammar:
        if not isinstance(value, dict):
            raise Refusal(value)
        kind, body = value.get("type"), value.get("value")
        if kind == "json_object":  # TGI's other name for it
            kind = "json"
        if kind not in ("json", "json_schema", "regex"):
            raise Refusal(kind, ".type", 'one of "json", "json_schema" and "regex"')
        if kind == "regex":
            if not isinstance(body, str):
                raise Refusal(body, ".value", "a string")
            return Grammar("regex", body)
        suffix = ".value"
        if kind == "json_schema":
            if not isinstance(body, Mapping):
                raise Refusal(body, suffix, "an object with the key `schema`")
            name = body.get("name")
            if name is not None and not isinstance(name, str):
                raise Refusal(name, ".value.name", "a string")
            body, suffix = body.get("schema"), ".value.schema"
        return schema_grammar(body, suffix, settings, implied=True)

    def accepts(self, settings: DialectSettings) -> str:
        return 'an object {"type": "json" | "json_schema" | "regex", "value": …}'

    def schema(self, settings: DialectSettings) -> dict[str, Any]:
        def variant(kinds: list[str], value: dict[str, Any]) -> dict[str, Any]:
            properties = {"type": {"type": "string", "enum": kinds}, "value": value}
            return {"type": "object", "required": ["type", "value"], "properties": properties}

        json_text: dict[str, Any] = {
            "type": ["object", "string"],
            "description": "a JSON Schema, or its text",
        }
        named = {
            "type": "object",
            "required": ["schema"],
            "properties": {"name": {"type": ["string", "null"]}, "schema": json_text},
        }
        return {
            "oneOf": [
                variant(["json", "json_object"], json_text),
                variant(["json_schema"], named),
                variant(["regex"], {"type": "string"}),
            ]
        }


def schema_grammar(schema: object, suffix: str, settings: DialectSettings, *, implied: bool = False) -> Grammar:
    """The grammar of a JSON Schema that came as an object or as a string holding one.

    With `implied` one that has `properties` and no type is an object's, as in TGI, whose own examples leave the type
    out: by the standard alone any text or number would fit it too.
    """
    expected = f"a JSON Schema object of at most {settings.max_json_depth} levels, or the text of one"
    if isinstance(schema, str):
        try:
            document = parse_object(schema.encode(), settings.max_json_depth)
            document.close()
        except ValidationError:
            raise Refusal(schema, suffix, expected) from None
        schema = document.root
    if not isinstance(schema, dict):
        raise Refusal(schema, suffix, expected)
    if implied and "properties" in schema and "type" not in schema:
        schema = {"type": "object"} | schema
    try:
        return Grammar("json_schema", orjson.dumps(schema).decode())
    except orjson.JSONEncodeError:  # an integer of more than 64 bits, in a body that is refused anyway
        return Grammar("json_schema", json.dumps(schema))
