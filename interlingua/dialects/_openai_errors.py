"""OpenAI's error object: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import orjson

from interlingua.contract.dialect import Reply
from interlingua.contract.errors import InterlinguaError, UnknownModelError, ValidationError
from interlingua.dialects import _errors

_INVALID = "invalid_request_error"
# kind of error -> status, `type`
STATUSES: _errors.Statuses = {
    "request": (500, "server_error"),  # a fault inside the server
    "validation": (400, _INVALID),
    "payload_too_large": (413, _INVALID),
    "unauthorized": (401, _INVALID),
    "forbidden": (403, _INVALID),
    "not_found": (404, _INVALID),
    "method_not_allowed": (405, _INVALID),
    "overloaded": (429, "rate_limit_error"),
    "unavailable": (503, "server_error"),
    "timeout": (504, "server_error"),
    "generation": (500, "server_error"),
    "incomplete_generation": (500, "server_error"),
}
# kind of error -> `code`; others have none
CODES = {
    "unauthorized": "invalid_api_key",
    "overloaded": "rate_limit_exceeded",
    "unavailable": "service_unavailable",
    "timeout": "timeout",
    "payload_too_large": "payload_too_large",
}


def body(error: InterlinguaError) -> bytes:
    """The JSON object alone, as it also stands in a stream's error event."""
    message = error.message.encode("utf-8", "replace").decode()  # foreign text in it may hold lone surrogates
    param = error.field or None if isinstance(error, ValidationError) else None
    code = CODES.get(error.kind)
    if isinstance(error, UnknownModelError):
        param, code = "model", "model_not_found"
    kind = STATUSES.get(error.kind, STATUSES["request"])[1]
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


def reply(error: InterlinguaError) -> Reply:
    return Reply(STATUSES.get(error.kind, STATUSES["request"])[0], body(error), _errors.headers(error))
