"""What the OpenAPI page says about Triton's routes."""

from __future__ import annotations

from typing import Any

from interlingua.contract.dialect import DialectSettings
from interlingua.dialects import _errors
from interlingua.dialects._openapi import (
    EVENT_STREAM,
    FINISH_REASON,
    INTEGER,
    NULL,
    STRING,
    array,
    event,
    nullable,
    object_of,
    operation,
    record,
)
from interlingua.dialects._triton_table import COLUMN, ID, PARAMETERS, TEXT_INPUT

_COSTS = array(array(INTEGER) | {"minItems": 2, "maxItems": 2})
_DETAILS = record(
    {
        "finish_reason": FINISH_REASON,
        "generated_tokens": INTEGER,
        "first_token_cost": NULL,
        "decode_cost": NULL,
        "perf_stat": nullable(_COSTS),
    }
)
ANSWER = record(
    {"id": STRING, "model_name": STRING, "model_version": NULL, "text_output": STRING, "details": _DETAILS},
    required=("id", "model_name", "model_version", "text_output"),
)


def describe(stream: bool, versioned: bool, statuses: _errors.Statuses, settings: DialectSettings) -> dict[str, Any]:
    """The operation object of one route."""
    root = object_of([ID, TEXT_INPUT, *PARAMETERS.fields], COLUMN, settings, required=["text_input"])
    root["properties"]["parameters"] = nullable(object_of(PARAMETERS.fields, COLUMN, settings))
    return operation(
        summary="Stream text" if stream else "Generate text",
        description=(
            "Parameters stand in `parameters` or at the top level; `parameters` wins. "
            + ("Events carry new text; the last one holds the details." if stream else "`stream` is ignored.")
        ),
        body=root,
        answers={} if stream else {"application/json": ANSWER},
        streams={EVENT_STREAM: [event(ANSWER)]} if stream else {},
        statuses=statuses,
        path_parameters=("model", "version") if versioned else ("model",),
    )
