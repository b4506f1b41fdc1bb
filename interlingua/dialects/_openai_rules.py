"""Rules for fields that OpenAI's routes and vLLM's alone have: prompts and options.

Those for conversations and for formats of answers are in `_chat_rules` and `_format_rules`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from interlingua.contract.dialect import DialectSettings
from interlingua.contract.request import Prompt, TextPart, TextPrompt, TokenPrompt
from interlingua.dialects._bounds import MAX_IDS, MAX_PROMPTS
from interlingua.dialects._rules import INT32_MAX, Integer, Refusal, Text

FUNCTION_NAME = Text(1, 64, re.compile(r"[A-Za-z0-9_\-\u4e00-\u9fa5]{1,64}"), "letters, digits, _ and -")
_ID = Integer(0, INT32_MAX)


@dataclass(frozen=True, slots=True)
class JsonObject:
    """Any JSON object."""

    type_name: str = "object"

    def check(self, value: object, settings: DialectSettings) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise Refusal(value)
        return value

    def accepts(self, settings: DialectSettings) -> str:
        return "an object"

    def schema(self, settings: DialectSettings) -> dict[str, Any]:
        return {"type": "object"}


@dataclass(frozen=True, slots=True)
class Refused:
    """A field of which one value alone works: what it means when absent. `words` say what to do instead."""

    neutral: tuple[object, ...]
    words: str
    type_name: str = "any"

    def check(self, value: object, settings: DialectSettings) -> None:
        if not any(type(value) is type(one) and value == one for one in self.neutral):
            raise Refusal(value)

    def accepts(self, settings: DialectSettings) -> str:
        neutral = " or ".join(json.dumps(value) for value in (None, *self.neutral))
        return f"{neutral}: {self.words}"

    def schema(self, settings: DialectSettings) -> dict[str, Any]:
        return {"anyOf": [{"enum": [None, *self.neutral]}]}


@dataclass(frozen=True, slots=True)
class LogitBias:
    """Token ids, as the strings that keys of JSON are, to what is added to their scores."""

    type_name: str = "object"

    def check(self, value: object, settings: DialectSettings) -> tuple[tuple[int, float], ...]:
        if not isinstance(value, dict):
            raise Refusal(value)
        if len(value) > settings.vocab_size:  # before millions of them are read
            raise Refusal(value, expected=f"an object of at most {settings.vocab_size} ids", given=f"{len(value)}")
        biases: dict[int, float] = {}
        for key, bias in value.items():
            if not re.fullmatch(r"[0-9]{1,10}", key):
                raise Refusal(key, expected="an object whose keys are token ids")
            if type(bias) not in (int, float) or not -100 <= bias <= 100:
                raise Refusal(bias, f".{key}", "a number ≥ -100 and ≤ 100")
            biases[int(key)] = float(bias)
        return tuple(sorted(biases.items()))

    def accepts(self, settings: DialectSettings) -> str:
        return "an object of token ids to numbers ≥ -100 and ≤ 100"

    def schema(self, settings: DialectSettings) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}}


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """`include_usage`: one more chunk, with the counts, before the end."""

    type_name: str = "object"

    def check(self, value: object, settings: DialectSettings) -> bool:
        if not isinstance(value, dict):
            raise Refusal(value)
        usage = value.get("include_usage")
        if usage is not None and not isinstance(usage, bool):
            raise Refusal(usage, ".include_usage", "true or false")
        return bool(usage)

    def accepts(self, settings: DialectSettings) -> str:
        return 'an object {"include_usage": true or false}'

    def schema(self, settings: DialectSettings) -> dict[str, Any]:
        return {"type": "object", "properties": {"include_usage": {"type": ["boolean", "null"]}}}


@dataclass(frozen=True, slots=True)
class Prompts:
    """Completions: a string, ids, or a list of either. A tuple of prompts, which know their places in the field."""

    max_prompts: int = MAX_PROMPTS
    type_name: str = "string, list of strings, list of ids or list of such lists"

    def check(self, value: object, settings: DialectSettings) -> tuple[Prompt, ...]:
        if isinstance(value, str):
            return (_text(value, "prompt", ""),)
        if not isinstance(value, list) or not value:
            raise Refusal(value)
        if type(value[0]) is int:
            return (_ids(value, "prompt", settings),)
        if len(value) > self.max_prompts:
            raise Refusal(value, expected=f"a list of at most {self.max_prompts} prompts", given=f"{len(value)}")
        prompts: list[Prompt] = []
        for place, item in enumerate(value):
            suffix = f"[{place}]"
            if isinstance(item, str):
                prompts.append(_text(item, f"prompt{suffix}", suffix))
            elif isinstance(item, list):
                prompts.append(_ids(item, f"prompt{suffix}", settings))
            else:
                raise Refusal(item, suffix, "a string or a list of token ids")
        return tuple(prompts)

    def accepts(self, settings: DialectSettings) -> str:
        return (
            f"a non-empty string or list of token ids, or a list of at most {self.max_prompts} of them; ids are "
            f"in 0..{INT32_MAX}"
        )

    def schema(self, settings: DialectSettings) -> dict[str, Any]:
        text = {"type": "string", "minLength": 1}
        ids = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0, "maximum": INT32_MAX}}
        lists = [{"type": "array", "minItems": 1, "maxItems": self.max_prompts, "items": one} for one in (text, ids)]
        return {"anyOf": [text, ids, *lists]}


def _text(value: str, field: str, suffix: str) -> TextPrompt:
    if not value:
        raise Refusal(value, suffix, "a non-empty string")
    return TextPrompt((TextPart(value),), field)


def _ids(value: list[object], field: str, settings: DialectSettings) -> TokenPrompt:
    if not value:
        raise Refusal(value, field.removeprefix("prompt"), "a non-empty list of token ids")
    if len(value) > MAX_IDS:
        words = f"a list of at most {MAX_IDS} token ids"
        raise Refusal(value, field.removeprefix("prompt"), words, f"{len(value)}")
    for place, item in enumerate(value):
        try:
            _ID.check(item, settings)
        except Refusal:
            suffix = f"{field.removeprefix('prompt')}[{place}]"
            raise Refusal(item, suffix, f"a token id, {_ID.accepts(settings)}") from None
    return TokenPrompt(tuple(value), field)  # type: ignore[arg-type]  # all were checked


def checked_at(rule: Text, value: object, place: str, settings: DialectSettings) -> str:
    """The value at a place inside a field, which a refusal names. Raises Refusal."""
    try:
        return rule.check(value, settings)
    except Refusal:
        raise Refusal(value, place, rule.accepts(settings)) from None
