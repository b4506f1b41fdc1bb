"""The OpenAPI document, gathered from what the dialects say of their routes."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from typing import Any

import interlingua
from interlingua.contract.dialect import Dialect, DialectSettings
from interlingua.server import models, openapi_control, openapi_kserve

_KEY = "key"
_ORDER = ("openai", "tgi", "vllm", "kserve", "triton")  # as most people look for them; others follow by name
_JSON_ERROR = {
    "type": "object",
    "required": ["error", "error_type"],
    "properties": {"error": {"type": "string"}, "error_type": {"type": "string"}},
}


def document(
    dialects: Sequence[Dialect],
    wire: DialectSettings,
    *,
    key: bool,
    admin_key: bool = False,
    served: Container[tuple[str, str]] | None = None,
) -> dict[str, Any]:
    """Every route at its own path, with the ranges and defaults of these settings.

    That each route also stands below its dialect's prefix is said in the tags.

    Args:
        key: every POST asks for a key, and so do the lists of models.
        admin_key: what changes the server's state asks for the admin key.
        served: methods and paths of the address that is described; None = all of them.
    """
    paths: dict[str, dict[str, Any]] = {}
    for dialect in dialects:
        for route in dialect.routes:
            operation = {"tags": [dialect.name], **route.describe(wire)}
            names = re.findall(r"{(\w+)}", route.path)
            if names and "parameters" not in operation:
                operation["parameters"] = [
                    {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
                ]
            paths.setdefault(route.path, {})[route.method.lower()] = operation
    for path, methods in (_SYSTEM | openapi_kserve.paths(wire) | openapi_control.paths(wire) | models.PATHS).items():
        paths.setdefault(path, {}).update(methods)
    if served is not None:
        paths = {
            path: here
            for path, methods in paths.items()
            if (here := {method: methods[method] for method in methods if (method.upper(), path) in served})
        }
    asks = False
    for path, methods in paths.items():
        for method, operation in methods.items():
            if admin_key if path in openapi_control.ADMIN else key and (method == "post" or path in models.PATHS):
                methods[method] = {**operation, "security": [{_KEY: []}]}
                asks = True
    used = {operation["tags"][0] for methods in paths.values() for operation in methods.values()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "interlingua", "version": interlingua.__version__},
        "tags": [tag for tag in _tags(dialects) if tag["name"] in used],
        "paths": paths,
        **({"components": {"securitySchemes": {_KEY: {"type": "http", "scheme": "bearer"}}}} if asks else {}),
    }


def _tags(dialects: Sequence[Dialect]) -> list[dict[str, str]]:
    """Names for programs, titles for people (`x-displayName`, as most pages that show such documents read it)."""

    def place(dialect: Dialect) -> tuple[int, str]:
        return (_ORDER.index(dialect.name) if dialect.name in _ORDER else len(_ORDER)), dialect.name

    return [
        {
            "name": dialect.name,
            "x-displayName": dialect.title or dialect.name,
            "description": f"Every route also stands below `{dialect.prefix}`." if dialect.prefix else "",
        }
        for dialect in sorted(dialects, key=place)
    ] + [
        {
            "name": "system",
            "x-displayName": "Operation",
            "description": "Health, models and tokens, and what runs the server.",
        }
    ]


def _operation(summary: str, responses: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"tags": ["system"], "summary": summary, "responses": responses, **more}


def _json(description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


_UNAVAILABLE = {"503": _json("loading, stopping, or the engine makes no progress", _JSON_ERROR)}
_HEALTH = {
    "get": _operation(
        "200 when requests can be served", {"200": {"description": "nothing in the body"}, **_UNAVAILABLE}
    )
}
_COUNT = {"type": "integer", "minimum": 0}
_WORDS = {"type": "string"}
_NOTHING = {"type": "null"}  # a key of the servers whose clients read it, of which there is nothing to say here
_SERVED_MODEL = {
    "model_id": _WORDS,
    "model_sha": _NOTHING,
    "model_dtype": _WORDS,
    "model_device_type": _WORDS,
    "model_pipeline_tag": _WORDS,
}
_LIMITS = (
    *("max_concurrent_requests", "max_best_of", "max_stop_sequences", "max_input_length", "max_input_tokens"),
    *("max_total_tokens", "max_client_batch_size"),
)
_UNKNOWN = ("max_batch_total_tokens", "max_waiting_tokens", "waiting_served_ratio", "validation_workers")


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": dict(properties)}


_INFO = _object(
    {
        **_SERVED_MODEL,
        **dict.fromkeys(_LIMITS, _COUNT),
        **dict.fromkeys((*_UNKNOWN, "sha", "docker_label"), _NOTHING),
        "router": _WORDS,
        "version": _WORDS,
        "models": {"type": "array", "items": _object({**_SERVED_MODEL, "max_total_tokens": _COUNT})},
    }
)
_SYSTEM: dict[str, dict[str, Any]] = {
    "/health": _HEALTH,
    "/ping": _HEALTH,
    "/": {"get": _HEALTH["get"] | {"description": "For a browser (`Accept: text/html`) the body is a page."}},
    "/info": {"get": _operation("the model and its limits", {"200": _json("", _INFO), **_UNAVAILABLE})},
    "/metrics": {
        "get": _operation(
            "counters and gauges for Prometheus", {"200": {"description": "", "content": {"text/plain": {}}}}
        )
    },
}
