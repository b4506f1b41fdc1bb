"""What the OpenAPI page says about the native routes."""

from __future__ import annotations

from typing import Any

from interlingua.contract.dialect import DialectSettings
from interlingua.dialects import _errors
from interlingua.dialects._native_table import COLUMN, INPUT_ID, INPUTS, PARAMETERS, STREAM
from interlingua.dialects._openapi import (
    EVENT_STREAM,
    FINISH_REASON,
    INTEGER,
    STRING,
    array,
    event,
    nullable,
    object_of,
    operation,
    record,
)

_DETAILS = {"finish_reason": FINISH_REASON, "generated_tokens": INTEGER, "seed": INTEGER}
ANSWER = record(
    {"generated_text": STRING, "details": record(_DETAILS | {"generated_token_ids": array(INTEGER)})},
    ("generated_text",),
)
EVENT = record(
    {
        "prefill_time": nullable(INTEGER),
        "decode_time": nullable(INTEGER),
        "token": record({"id": array(INTEGER), "text": STRING}),
        "generated_text": STRING,
        "details": nullable(record(_DETAILS)),
    },
    ("token",),
)


def describe(statuses: _errors.Statuses, settings: DialectSettings) -> dict[str, Any]:
    """The operation object of either route."""
    root = object_of([INPUTS, INPUT_ID, STREAM], COLUMN, settings)
    root["properties"]["parameters"] = nullable(object_of(PARAMETERS.fields, COLUMN, settings))
    return operation(
        summary="Generate text from text or token ids",
        description="`stream` chooses between one object and events; the last event has `generated_text`.",
        body=root,
        answers={"application/json": ANSWER},
        streams={EVENT_STREAM: [event(EVENT)]},
        statuses=statuses,
    )
