"""Rules for fields that OpenAI's routes and vLLM's alone have: conversations, tools, formats, lists of prompts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from interlingua.contract.dialect import DialectSettings
from interlingua.contract.request import (
    ChatMessage,
    Grammar,
    MediaPart,
    Prompt,
    TextPart,
    TextPrompt,
    TokenPrompt,
    ToolCall,
)
from interlingua.dialects._json import show
from interlingua.dialects._parts import MiB
from interlingua.dialects._parts import Prompt as PartsRule
from interlingua.dialects._rules import INT32_MAX, Integer, Refusal, Text

MAX_PROMPTS = 128
MAX_TOOLS = 128
ROLES = ("system", "developer", "user", "assistant", "tool")
_PARTS = PartsRule(max_chars=40 * MiB, image_bytes=20 * MiB, audio_bytes=20 * MiB)
_NAME = Text(1, 64, re.compile(r"[A-Za-z0-9_\-\u4e00-\u9fa5]{1,64}"), "letters, digits, _ and -")
_ID = Integer(0, INT32_MAX)
JSON_OBJECT = Grammar("json_schema", '{"type":"object"}')


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


# --- prompts -------------------------------------------------------------------------------------------------------


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
    for place, item in enumerate(value):
        try:
            _ID.check(item, settings)
        except Refusal:
            suffix = f"{field.removeprefix('prompt')}[{place}]"
            raise Refusal(item, suffix, f"a token id, {_ID.accepts(settings)}") from None
    return TokenPrompt(tuple(value), field)  # type: ignore[arg-type]  # all were checked


# --- conversations -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Messages:
    """The turns of a conversation."""

    type_name: str = "list of messages"

    def check(self, value: object, settings: DialectSettings) -> tuple[ChatMessage, ...]:
        if not isinstance(value, list) or not value:
            raise Refusal(value)
        return tuple(self._message(item, f"[{place}]", settings) for place, item in enumerate(value))

    def _message(self, item: object, place: str, settings: DialectSettings) -> ChatMessage:
        if not isinstance(item, dict):
            raise Refusal(item, place, 'an object {"role": …, "content": …}')
        role = item.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise Refusal(role, f"{place}.role", f"one of {', '.join(ROLES)}")
        calls = self._calls(item.get("tool_calls"), f"{place}.tool_calls", settings) if role == "assistant" else ()
        content = item.get("content")
        if content is None and not calls:
            words = "a string or a non-empty list of parts" + (", or tool_calls given" if role == "assistant" else "")
            raise Refusal(content, f"{place}.content", words)
        call_id = _optional(item, "tool_call_id", place)
        if role == "tool" and not call_id:
            raise Refusal(call_id, f"{place}.tool_call_id", "the id of the call that this answers")
        return ChatMessage(
            role=role,
            parts=None if content is None else self._parts(content, f"{place}.content"),
            name=_optional(item, "name", place),
            reasoning=_optional(item, "reasoning_content", place) or _optional(item, "reasoning", place),
            tool_calls=calls,
            tool_call_id=call_id,
        )

    def _parts(self, content: object, place: str) -> tuple[TextPart | MediaPart, ...]:
        if isinstance(content, str):
            return (TextPart(content),)
        if not isinstance(content, list) or not content:
            raise Refusal(content, place, "a string or a non-empty list of parts")
        return tuple(_part(part, f"{place}[{index}]") for index, part in enumerate(content))

    def _calls(self, value: object, place: str, settings: DialectSettings) -> tuple[ToolCall, ...]:
        if value is None:
            return ()
        if not isinstance(value, list):
            raise Refusal(value, place, "a list of calls")
        calls = []
        for index, item in enumerate(value):
            function = item.get("function") if isinstance(item, dict) else None
            if not isinstance(item, dict) or not isinstance(function, dict):
                words = 'an object {"id", "type": "function", "function": {"name", "arguments"}}'
                raise Refusal(item, f"{place}[{index}]", words)
            name = _checked(_NAME, function.get("name"), f"{place}[{index}].function.name", settings)
            arguments = function.get("arguments", "")
            if isinstance(arguments, dict):  # as templates want them, and some clients send
                arguments = json.dumps(arguments, ensure_ascii=False)
            if not isinstance(arguments, str):
                raise Refusal(arguments, f"{place}[{index}].function.arguments", "the text of a JSON object")
            calls.append(ToolCall(_optional(item, "id", f"{place}[{index}]") or f"call_{index}", name, arguments))
        return tuple(calls)

    def accepts(self, settings: DialectSettings) -> str:
        return f"a non-empty list of messages with a `role` ({', '.join(ROLES)}) and `content`"

    def schema(self, settings: DialectSettings) -> dict[str, Any]:
        text = {"type": "string"}
        part = {"type": "object", "required": ["type"], "properties": {"type": text}}
        content = {"anyOf": [text, {"type": "array", "minItems": 1, "items": part}, {"type": "null"}]}
        optional = {"type": ["string", "null"]}
        properties = {
            "role": {"type": "string", "enum": list(ROLES)},
            "content": content,
            "name": optional,
            "reasoning_content": optional,
            "tool_call_id": optional,
            "tool_calls": {"type": ["array", "null"], "items": {"type": "object"}},
        }
        message = {"type": "object", "required": ["role"], "properties": properties}
        return {"type": "array", "minItems": 1, "items": message}


def _part(part: object, place: str) -> TextPart | MediaPart:
    """A part of a message's content. Text may be empty; what a client keeps of a refusal is text."""
    if isinstance(part, dict) and part.get("type") in ("text", "refusal"):
        text = part.get(part["type"])
        if not isinstance(text, str):
            raise Refusal(text, f"{place}.{part['type']}", "a string")
        return TextPart(text)
    if isinstance(part, dict) and part.get("type") == "input_audio":
        sound = part.get("input_audio")
        data = sound.get("data") if isinstance(sound, dict) else None
        if not isinstance(data, str):
            raise Refusal(sound, f"{place}.input_audio", 'an object {"data": base64, "format": string}')
        return MediaPart("audio", data, f"messages{place}.input_audio")
    found = _PARTS.part(part, place)
    return MediaPart(found.kind, found.source, f"messages{found.field}") if isinstance(found, MediaPart) else found


def _optional(item: Mapping[str, Any], name: str, place: str) -> str | None:
    value = item.get(name)
    if value is not None and not isinstance(value, str):
        raise Refusal(value, f"{place}.{name}", "a string")
    return value


def _checked(rule: Text, value: object, place: str, settings: DialectSettings) -> str:
    try:
        return rule.check(value, settings)
    except Refusal:
        raise Refusal(value, place, rule.accepts(settings)) from None


# --- tools ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tools:
    """Functions that the model may call. As sent, for the template; every name once."""

    type_name: str = "list of tools"

    def check(self, value: object, settings: DialectSettings) -> tuple[Mapping[str, Any], ...]:
        if not isinstance(value, list):
            raise Refusal(value)
        if len(value) > MAX_TOOLS:
            raise Refusal(value, given=f"{len(value)}")
        names: set[str] = set()
        for place, tool in enumerate(value):
            function = tool.get("function") if isinstance(tool, dict) else None
            if not isinstance(function, dict) or tool.get("type") != "function":
                raise Refusal(tool, f"[{place}]", 'an object {"type": "function", "function": {"name": …}}')
            name = _checked(_NAME, function.get("name"), f"[{place}].function.name", settings)
            if name in names:
                raise Refusal(name, f"[{place}].function.name", "a name that no other tool has")
            names.add(name)
            for key in ("parameters", "description"):
                kind, words = (dict, "a JSON Schema object") if key == "parameters" else (str, "a string")
                if function.get(key) is not None and not isinstance(function[key], kind):
                    raise Refusal(function[key], f"[{place}].function.{key}", words)
        return tuple(value)

    def accepts(self, settings: DialectSettings) -> str:
        return f'a list of at most {MAX_TOOLS} objects {{"type": "function", "function": {{"name": …}}}}'

    def schema(self, settings: DialectSettings) -> dict[str, Any]:
        function = {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": _NAME.schema(settings),
                "description": {"type": ["string", "null"]},
                "parameters": {"type": ["object", "null"]},
                "strict": {"type": ["boolean", "null"]},
            },
        }
        properties = {"type": {"type": "string", "enum": ["function"]}, "function": function}
        tool = {"type": "object", "required": ["type", "function"], "properties": properties}
        return {"type": "array", "maxItems": MAX_TOOLS, "items": tool}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether the model may, must not or must call a function, or which one."""

    mode: Literal["none", "auto", "required", "named"]
    name: str = ""


@dataclass(frozen=True, slots=True)
class ToolChoiceRule:
    type_name: str = "string or object"

    def check(self, value: object, settings: DialectSettings) -> ToolChoice:
        if value == "none" or value == "auto" or value == "required":
            return ToolChoice(value)
        if isinstance(value, dict) and value.get("type") == "function":
            function = value.get("function")
            name = function.get("name") if isinstance(function, dict) else None
            if isinstance(name, str) and name:
                return ToolChoice("named", name)
        raise Refusal(value)

    def accepts(self, settings: DialectSettings) -> str:
        return '"none", "auto", "required" or {"type": "function", "function": {"name": …}}'

    def schema(self, settings: DialectSettings) -> dict[str, Any]:
        named = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string", "minLength": 1}}}
        function = {"type": "string", "enum": ["function"]}
        properties = {"type": function, "function": named}
        return {
            "anyOf": [
                {"type": "string", "enum": ["none", "auto", "required"]},
                {"type": "object", "required": ["type", "function"], "properties": properties},
            ]
        }


# --- formats of answers --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """OpenAI's `response_format`. None for text."""

    type_name: str = "object"

    def check(self, value: object, settings: DialectSettings) -> Grammar | None:
        if not isinstance(value, dict):
            raise Refusal(value)
        kind = value.get("type")
        if kind == "text":
            return None
        if kind == "json_object":
            return JSON_OBJECT
        if kind != "json_schema":
            raise Refusal(kind, ".type", 'one of "text", "json_object" and "json_schema"')
        named = value.get("json_schema")
        if not isinstance(named, dict):
            raise Refusal(named, ".json_schema", 'an object {"name": …, "schema": …}')
        _checked(_NAME, named.get("name"), ".json_schema.name", settings)
        return schema_grammar(named.get("schema"), ".json_schema.schema")

    def accepts(self, settings: DialectSettings) -> str:
        return 'an object {"type": "text" | "json_object" | "json_schema", "json_schema": {"name": …, "schema": …}}'

    def schema(self, settings: DialectSettings) -> dict[str, Any]:
        def variant(kind: str, **more: Any) -> dict[str, Any]:
            properties = {"type": {"type": "string", "enum": [kind]}, **more}
            return {"type": "object", "required": list(properties), "properties": properties}

        named = {
            "type": "object",
            "required": ["name", "schema"],
            "properties": {
                "name": _NAME.schema(settings),
                "schema": {"type": "object"},
                "strict": {"type": ["boolean", "null"]},
            },
        }
        return {"oneOf": [variant("text"), variant("json_object"), variant("json_schema", json_schema=named)]}


@dataclass(frozen=True, slots=True)
class Guided:
    """One of vLLM's `guided_*` fields."""

    kind: Literal["json", "regex", "choice", "grammar"]

    @property
    def type_name(self) -> str:
        return {"json": "object or string", "choice": "list of strings"}.get(self.kind, "string")

    def check(self, value: object, settings: DialectSettings) -> Grammar:
        if self.kind == "json":
            return schema_grammar(value, "")
        if self.kind == "choice":
            if not isinstance(value, list) or not value or not all(isinstance(one, str) and one for one in value):
                raise Refusal(value)
            return Grammar("choice", orjson.dumps(value).decode())
        if not isinstance(value, str) or not value:
            raise Refusal(value)
        return Grammar("regex" if self.kind == "regex" else "lark", value)

    def accepts(self, settings: DialectSettings) -> str:
        return {
            "json": "a JSON Schema object, or the text of one",
            "regex": "a non-empty regular expression",
            "choice": "a non-empty list of non-empty strings",
            "grammar": "a non-empty Lark grammar",
        }[self.kind]

    def schema(self, settings: DialectSettings) -> dict[str, Any]:
        text = {"type": "string", "minLength": 1}
        if self.kind == "json":
            return {"type": ["object", "string"]}
        return {"type": "array", "minItems": 1, "items": text} if self.kind == "choice" else text


@dataclass(frozen=True, slots=True)
class StructuredOutputs:
    """vLLM's newer field: an object with one of `json`, `regex`, `choice`, `grammar`, `json_object`."""

    type_name: str = "object"

    def check(self, value: object, settings: DialectSettings) -> Grammar:
        if not isinstance(value, dict):
            raise Refusal(value)
        given = [(key, value[key]) for key in (*_GUIDED, "json_object") if value.get(key) not in (None, False)]
        if len(given) != 1:
            raise Refusal(value, given=f"{len(given)} of them")
        key, wanted = given[0]
        if key == "json_object":
            if wanted is not True:
                raise Refusal(wanted, ".json_object", "true")
            return JSON_OBJECT
        rule = Guided(key)  # type: ignore[arg-type]  # one of _GUIDED
        try:
            return rule.check(wanted, settings)
        except Refusal:
            raise Refusal(wanted, f".{key}", rule.accepts(settings)) from None

    def accepts(self, settings: DialectSettings) -> str:
        return f"an object with exactly one of {', '.join(_GUIDED)} and json_object"

    def schema(self, settings: DialectSettings) -> dict[str, Any]:
        kinds: dict[str, Any] = {key: Guided(key).schema(settings) for key in _GUIDED}  # type: ignore[arg-type]
        return {"type": "object", "properties": kinds | {"json_object": {"type": "boolean"}}}


_GUIDED = ("json", "regex", "choice", "grammar")


def schema_grammar(schema: object, suffix: str) -> Grammar:
    """The grammar of a JSON Schema that came as an object or as a string holding one."""
    if isinstance(schema, str):
        try:
            schema = orjson.loads(schema)
        except orjson.JSONDecodeError:
            raise Refusal(schema, suffix, "a JSON Schema object, or the text of one") from None
    if not isinstance(schema, dict):
        raise Refusal(schema, suffix, "a JSON Schema object", None if schema is not None else show(schema))
    try:
        return Grammar("json_schema", orjson.dumps(schema).decode())
    except orjson.JSONEncodeError:  # a number that is refused anyway, or has more than 64 bits
        return Grammar("json_schema", json.dumps(schema))
