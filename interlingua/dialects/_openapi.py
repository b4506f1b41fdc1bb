"""OpenAPI operation objects, made from the tables of fields that decoding checks with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from interlingua.contract.dialect import DialectSettings
from interlingua.dialects._errors import Statuses
from interlingua.dialects._fields import Field

Schema = dict[str, Any]

_ERROR_WORDS = {
    400: "The request is wrong; the message names the field, its range and the value.",
    401: "No key, or a wrong one.",
    403: "Not for this caller.",
    404: "No such route or model.",
    405: "The route does not take this method.",
    413: "The body is over the limit.",
    422: "The request is wrong; the message names the field, its range and the value.",
    424: "The engine failed on this request.",
    429: "No place is free. Nothing was queued; try again.",
    500: "The engine failed, or ended without a last token.",
    503: "The server is loading, stopping or stuck.",
    504: "The request's own time limit has passed.",
}


def operation(
    *,
    summary: str,
    description: str,
    body: Schema,
    answers: Mapping[str, Schema],
    statuses: Statuses,
    streams: Mapping[str, Sequence[Schema]] | None = None,
    error: Schema | None = None,
    path_parameters: Iterable[str] = (),
) -> dict[str, Any]:
    """One operation.

    Args:
        body: the schema of the request.
        answers: media type -> schema of a good answer.
        statuses: of the errors, as the dialect renders them.
        streams: media type -> schemas of what may come in a stream, one after another; an error may, too.
        error: the schema of every error; None = `{"error", "error_type"}`.
        path_parameters: names of the template's variables, in order.
    """
    good = dict(answers)
    late = error or _error(sorted({kind for _, kind in statuses.values()}))
    for media_type, items in (streams or {}).items():
        good[media_type] = {"anyOf": [*items, event(late) if media_type == EVENT_STREAM else late]}
    responses: dict[str, Any] = {
        "200": {
            "description": "The answer.",
            "content": {media_type: {"schema": schema} for media_type, schema in good.items()},
        }
    }
    for status in sorted({status for status, _ in statuses.values()}):
        types = sorted({kind for code, kind in statuses.values() if code == status})
        responses[str(status)] = {
            "description": _ERROR_WORDS[status],
            "content": {"application/json": {"schema": error or _error(types)}},
        }
    result: dict[str, Any] = {
        "summary": summary,
        "description": description,
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": responses,
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in path_parameters
    ]
    return result | ({"parameters": parameters} if parameters else {})


def object_of(fields: Iterable[Field], column: str, settings: DialectSettings, required: Iterable[str] = ()) -> Schema:
    """An object with these fields. Unknown ones are accepted, null is good for the optional ones."""
    required = list(required)
    properties = {}
    for field in fields:
        schema = field.rule(column, settings.lenient_ranges).schema(settings)
        if field.name not in required:
            schema = nullable(schema)
        words = [field.effect]
        if field.name not in required and (default := field.defaults.get(column)):
            words.append(f"Absent: {default}.")
        if field.note:
            words.append(field.note)
        properties[field.name] = schema | {"description": " ".join(words)}
    return record(properties, required)


def nullable(schema: Schema) -> Schema:
    kind = schema.get("type")
    if kind is not None:
        return schema | {"type": [*([kind] if isinstance(kind, str) else kind), "null"]}
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return {"anyOf": [*schema[key], {"type": "null"}]}
    raise ValueError("a schema without a type")


def record(properties: Mapping[str, Schema], required: Iterable[str] | None = None) -> Schema:
    """An object; all of its properties are required unless `required` says otherwise."""
    names = list(properties if required is None else required)
    schema: Schema = {"type": "object", "properties": dict(properties)}
    return schema | ({"required": names} if names else {})


def event(data: Schema) -> Schema:
    """A server-sent event whose data is JSON text of this schema."""
    return record({"data": {"type": "string", "contentMediaType": "application/json", "contentSchema": data}})


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _error(types: list[str]) -> Schema:
    return record({"error": {"type": "string"}, "error_type": {"type": "string", "enum": types}})


EVENT_STREAM = "text/event-stream"
STRING: Schema = {"type": "string"}
BOOLEAN: Schema = {"type": "boolean"}
INTEGER: Schema = {"type": "integer"}
NULL: Schema = {"type": "null"}
LOGPROB: Schema = {"type": ["number", "null"]}
FINISH_REASON: Schema = {"type": "string", "enum": ["eos_token", "stop_sequence", "length"]}
