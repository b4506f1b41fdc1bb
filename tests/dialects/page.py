"""What the API page promises, held against real values: the schemas of requests and of every kind of answer."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any


def strict(text: str | bytes) -> Any:
    """The value of JSON text. Raises ValueError, also for NaN and infinities."""

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def matches(value: Any, schema: dict[str, Any], *, exact: bool = False) -> bool:
    """Whether a value fits a schema, as far as our pages use JSON Schema. Text of JSON is looked into.

    With `exact` an object may have no properties but those that the schema knows, where it knows any.
    """
    for key in ("anyOf", "oneOf"):
        if key in schema:
            fitting = [one for one in schema[key] if matches(value, one, exact=exact)]
            if not fitting or (key == "oneOf" and len(fitting) != 1):
                return False
    if "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(_is(value, kind) for kind in types):
            return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if isinstance(value, str) and "contentSchema" in schema:
        assert schema["contentMediaType"] == "application/json"
        try:
            return matches(strict(value), schema["contentSchema"], exact=exact)
        except ValueError:
            return False
    if isinstance(value, str):
        return schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", math.inf) and (
            "pattern" not in schema or re.search(schema["pattern"], value) is not None
        )
    if isinstance(value, list):
        fits = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", math.inf)
        return fits and all(matches(item, schema.get("items", {}), exact=exact) for item in value)
    if isinstance(value, dict):
        if any(name not in value for name in schema.get("required", ())):
            return False
        known = schema.get("properties", {})
        if exact and known and not value.keys() <= known.keys():
            return False
        return all(matches(value[name], one, exact=exact) for name, one in known.items() if name in value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return schema.get("minimum", -math.inf) <= value <= schema.get("maximum", math.inf) and schema.get(
            "exclusiveMinimum", -math.inf
        ) < value < schema.get("exclusiveMaximum", math.inf)
    return True


def _is(value: Any, kind: str) -> bool:
    if kind == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "number":
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    types = {"string": str, "boolean": bool, "array": list, "object": dict, "null": type(None)}
    return isinstance(value, types[kind])


def misfit(operation: Mapping[str, Any], status: int, media_type: str, body: bytes) -> str:
    """What of an answer the page's operation does not say; "" = it says all of it.

    Streams are looked at event by event, and every byte of them must belong to one.
    """
    response = operation["responses"].get(str(status))
    if response is None:
        return f"status {status} is not on the page"
    kind = media_type.partition(";")[0]
    if kind not in response["content"]:
        return f"type {media_type} of {status} is not on the page"
    schema = response["content"][kind]["schema"]
    items: list[Any]
    try:
        if kind == "text/event-stream":
            frames = body.split(b"\n\n")
            if frames.pop() or not all(frame.startswith(b"data: ") and b"\n" not in frame for frame in frames):
                return f"framed otherwise: {body[-300:]!r}"
            items = [{"data": frame.removeprefix(b"data: ").decode()} for frame in frames]
        elif kind == "application/x-ndjson":
            items = [strict(line) for line in body.removesuffix(b"\n").split(b"\n")]
        else:
            items = [strict(body)]
    except ValueError as problem:
        return f"{problem}: {body[:300]!r}"
    return next(
        (f"does not fit the page: {str(item)[:600]}" for item in items if not matches(item, schema, exact=True)), ""
    )
