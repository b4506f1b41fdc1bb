"""Rules for conversations: messages, the functions that a model may call, and whether it must."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from interlingua.contract.dialect import DialectSettings
from interlingua.contract.request import ChatMessage, MediaPart, TextPart, ToolCall
from interlingua.dialects._bounds import MAX_ARGUMENTS, MAX_MEDIA, MAX_MESSAGES, MAX_PARTS, MAX_TOOL_CALLS, MAX_TOOLS
from interlingua.dialects._openai_rules import FUNCTION_NAME, checked_at
from interlingua.dialects._parts import MiB
from interlingua.dialects._parts import Prompt as PartsRule
from interlingua.dialects._rules import Refusal

ROLES = ("system", "developer", "user", "assistant", "tool")
_SOUNDS = ("mp3", "wav", "flac")
_PARTS = PartsRule(max_chars=40 * MiB, image_bytes=20 * MiB, audio_bytes=20 * MiB)


@dataclass(frozen=True, slots=True)
class Messages:
    """The turns of a conversation."""

    type_name: str = "list of messages"

    def check(self, value: object, settings: DialectSettings) -> tuple[ChatMessage, ...]:
        if not isinstance(value, list) or not value:
            raise Refusal(value)
        if len(value) > MAX_MESSAGES:
            raise Refusal(value, expected=f"a list of at most {MAX_MESSAGES} messages", given=f"{len(value)}")
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
        if len(content) > MAX_PARTS:
            raise Refusal(content, place, f"a list of at most {MAX_PARTS} parts", f"{len(content)}")
        parts = tuple(_part(part, f"{place}[{index}]") for index, part in enumerate(content))
        media = sum(isinstance(part, MediaPart) for part in parts)
        if media > MAX_MEDIA:
            raise Refusal(content, place, f"a list with at most {MAX_MEDIA} media parts", f"{media}")
        return parts

    def _calls(self, value: object, place: str, settings: DialectSettings) -> tuple[ToolCall, ...]:
        if value is None:
            return ()
        if not isinstance(value, list):
            raise Refusal(value, place, "a list of calls")
        if len(value) > MAX_TOOL_CALLS:
            raise Refusal(value, place, f"a list of at most {MAX_TOOL_CALLS} calls", f"{len(value)}")
        calls = []
        for index, item in enumerate(value):
            function = item.get("function") if isinstance(item, dict) else None
            if not isinstance(item, dict) or not isinstance(function, dict):
                words = 'an object {"id", "type": "function", "function": {"name", "arguments"}}'
                raise Refusal(item, f"{place}[{index}]", words)
            name = checked_at(FUNCTION_NAME, function.get("name"), f"{place}[{index}].function.name", settings)
            arguments = function.get("arguments", "")
            if isinstance(arguments, dict):  # as templates want them, and some clients send
                arguments = json.dumps(arguments, ensure_ascii=False)
            if not isinstance(arguments, str):
                raise Refusal(arguments, f"{place}[{index}].function.arguments", "the text of a JSON object")
            if len(arguments) > MAX_ARGUMENTS:
                words = f"a string of at most {MAX_ARGUMENTS} characters"
                raise Refusal(arguments, f"{place}[{index}].function.arguments", words, f"{len(arguments)} characters")
            calls.append(ToolCall(_optional(item, "id", f"{place}[{index}]") or f"call_{index}", name, arguments))
        return tuple(calls)

    def accepts(self, settings: DialectSettings) -> str:
        return f"a list of 1 to {MAX_MESSAGES} messages with a `role` ({', '.join(ROLES)}) and `content`"

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
        return {"type": "array", "minItems": 1, "maxItems": MAX_MESSAGES, "items": message}


def _part(part: object, place: str) -> TextPart | MediaPart:
    """A part of a message's content. Text may be empty; what a client keeps of a refusal is text."""
    if isinstance(part, dict) and part.get("type") in ("text", "refusal"):
        text = part.get(part["type"])
        if not isinstance(text, str):
            raise Refusal(text, f"{place}.{part['type']}", "a string")
        return TextPart(text)
    if isinstance(part, dict) and part.get("type") == "input_audio":
        sound = part.get("input_audio")
        data, form = (sound.get("data"), sound.get("format")) if isinstance(sound, dict) else (None, None)
        if not isinstance(data, str) or form not in _SOUNDS:
            words = f'an object {{"data": base64, "format": one of {", ".join(_SOUNDS)}}}'
            raise Refusal(sound, f"{place}.input_audio", words)
        found: TextPart | MediaPart = _PARTS.audio(data, f"{place}.input_audio.data")
    else:
        found = _PARTS.part(part, place)
    return replace(found, field=f"messages{found.field}") if isinstance(found, MediaPart) else found


def _optional(item: Mapping[str, Any], name: str, place: str) -> str | None:
    value = item.get(name)
    if value is not None and not isinstance(value, str):
        raise Refusal(value, f"{place}.{name}", "a string")
    return value


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
            name = checked_at(FUNCTION_NAME, function.get("name"), f"[{place}].function.name", settings)
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
                "name": FUNCTION_NAME.schema(settings),
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
    """OpenAI's choices; and what TGI takes beside them: the bare name of a function, and an object without `type`."""

    type_name: str = "string or object"

    def check(self, value: object, settings: DialectSettings) -> ToolChoice:
        if value == "none" or value == "auto" or value == "required":
            return ToolChoice(value)
        if isinstance(value, str) and value:
            return ToolChoice("named", value)
        if not isinstance(value, dict):
            raise Refusal(value)
        if value.get("type") not in (None, "function"):
            raise Refusal(value["type"], ".type", '"function"')
        function = value.get("function")
        if not isinstance(function, dict):
            raise Refusal(function, ".function", 'an object {"name": …}')
        name = function.get("name")
        if not isinstance(name, str) or not name:
            raise Refusal(name, ".function.name", "a non-empty string")
        return ToolChoice("named", name)

    def accepts(self, settings: DialectSettings) -> str:
        return '"none", "auto", "required", {"type": "function", "function": {"name": …}} or a function\'s name alone'

    def schema(self, settings: DialectSettings) -> dict[str, Any]:
        named = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string", "minLength": 1}}}
        properties = {"type": {"enum": ["function", None]}, "function": named}
        return {
            "anyOf": [
                {"type": "string", "minLength": 1, "description": "none, auto, required, or a function's name"},
                {"type": "object", "required": ["function"], "properties": properties},
            ]
        }
