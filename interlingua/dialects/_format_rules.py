"""Rules for fields that hold an answer to a format: `response_format`, vLLM's `guided_*` and their successor."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from interlingua.contract.dialect import DialectSettings
from interlingua.contract.request import Grammar
from interlingua.dialects._bounds import MAX_CHOICES
from interlingua.dialects._openai_rules import FUNCTION_NAME, checked_at
from interlingua.dialects._rules import GrammarRule, Refusal, schema_grammar

JSON_OBJECT = Grammar("json_schema", '{"type":"object"}')
_TGI_GRAMMAR = GrammarRule()
# Types of `response_format`, and the keys that may hold what the type alone does not say.
_FORMATS = {
    "text": (),
    "json_object": ("value",),
    "json_schema": ("json_schema", "value"),
    "json": ("value",),
    "regex": ("value",),
}


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """OpenAI's `response_format`, or a grammar as TGI writes it there: with a `value`. None for text."""

    type_name: str = "object"

    def check(self, value: object, settings: DialectSettings) -> Grammar | None:
        if not isinstance(value, dict):
            raise Refusal(value)
        kind, named, body = value.get("type"), value.get("json_schema"), value.get("value")
        if not isinstance(kind, str) or kind not in _FORMATS:
            raise Refusal(kind, ".type", f"one of {', '.join(json.dumps(one) for one in _FORMATS)}")
        for key, given in (("json_schema", named), ("value", body)):
            if given is not None and key not in _FORMATS[kind]:
                raise Refusal(given, f".{key}", f"absent with type {json.dumps(kind)}")
        if kind in ("json", "regex") or body is not None:
            if named is not None:
                raise Refusal(body, ".value", "absent beside json_schema")
            return _TGI_GRAMMAR.check(value, settings)
        if kind == "text":
            return None
        if kind == "json_object":
            return JSON_OBJECT
        if not isinstance(named, dict):
            raise Refusal(named, ".json_schema", 'an object {"name": …, "schema": …}')
        checked_at(FUNCTION_NAME, named.get("name"), ".json_schema.name", settings)
        return schema_grammar(named.get("schema"), ".json_schema.schema", settings)

    def accepts(self, settings: DialectSettings) -> str:
        return (
            'an object {"type": "text" | "json_object" | "json_schema", "json_schema": {"name": …, "schema": …}}, '
            'or TGI\'s {"type": "json" | "json_object" | "json_schema" | "regex", "value": …}'
        )

    def schema(self, settings: DialectSettings) -> dict[str, Any]:
        def variant(kind: str, **more: Any) -> dict[str, Any]:
            properties = {"type": {"type": "string", "enum": [kind]}, **more}
            absent = {key: {"type": "null"} for key in ("json_schema", "value") if key not in more}
            return {"type": "object", "required": list(properties), "properties": properties | absent}

        named = {
            "type": "object",
            "required": ["name", "schema"],
            "properties": {
                "name": FUNCTION_NAME.schema(settings),
                "schema": {"type": "object"},
                "strict": {"type": ["boolean", "null"]},
            },
        }
        own = [variant("text"), variant("json_object"), variant("json_schema", json_schema=named)]
        grammars = [
            one | {"properties": one["properties"] | {"json_schema": {"type": "null"}}}
            for one in _TGI_GRAMMAR.schema(settings)["oneOf"]
        ]
        return {"oneOf": [*own, *grammars]}


@dataclass(frozen=True, slots=True)
class Guided:
    """One of vLLM's `guided_*` fields."""

    kind: Literal["json", "regex", "choice", "grammar"]

    @property
    def type_name(self) -> str:
        return {"json": "object or string", "choice": "list of strings"}.get(self.kind, "string")

    def check(self, value: object, settings: DialectSettings) -> Grammar:
        if self.kind == "json":
            return schema_grammar(value, "", settings)
        if self.kind == "choice":
            if not isinstance(value, list) or not value or not all(isinstance(one, str) and one for one in value):
                raise Refusal(value)
            if len(value) > MAX_CHOICES:
                raise Refusal(value, expected=f"a list of at most {MAX_CHOICES} strings", given=f"{len(value)}")
            return Grammar("choice", orjson.dumps(value).decode())
        if not isinstance(value, str) or not value:
            raise Refusal(value)
        return Grammar("regex" if self.kind == "regex" else "lark", value)

    def accepts(self, settings: DialectSettings) -> str:
        return {
            "json": "a JSON Schema object, or the text of one",
            "regex": "a non-empty regular expression",
            "choice": f"a list of 1 to {MAX_CHOICES} non-empty strings",
            "grammar": "a non-empty Lark grammar",
        }[self.kind]

    def schema(self, settings: DialectSettings) -> dict[str, Any]:
        text = {"type": "string", "minLength": 1}
        if self.kind == "json":
            return {"type": ["object", "string"]}
        return (
            {"type": "array", "minItems": 1, "maxItems": MAX_CHOICES, "items": text} if self.kind == "choice" else text
        )


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
