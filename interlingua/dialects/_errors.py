"""The error shape that TGI and Triton routes share: `{"error", "error_type"}`."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from interlingua.contract.dialect import Reply
from interlingua.contract.errors import (
    InterlinguaError,
    MethodNotAllowedError,
    OverloadedError,
    UnauthorizedError,
)

Statuses = Mapping[str, tuple[int, str]]  # kind of error -> status, error_type

TGI_STATUSES: Statuses = {
    "request": (500, "generation"),  # a fault inside the server
    "validation": (422, "validation"),
    "payload_too_large": (413, "validation"),
    "unauthorized": (401, "unauthorized"),
    "not_found": (404, "not_found"),
    "method_not_allowed": (405, "not_found"),
    "overloaded": (429, "overloaded"),
    "unavailable": (503, "healthcheck"),
    "timeout": (504, "timeout"),
    "generation": (424, "generation"),
    "incomplete_generation": (500, "incomplete_generation"),
}


def _status(error: InterlinguaError, statuses: Statuses) -> tuple[int, str]:
    """What is no kind of request error (a cancelled stream, an engine's death) counts as a fault inside."""
    return statuses.get(error.kind, statuses["request"])


def body(error: InterlinguaError, statuses: Statuses) -> bytes:
    """The JSON object alone, as it also stands in a stream's error event."""
    message = error.message.encode("utf-8", "replace").decode()  # foreign text in it may hold lone surrogates
    return orjson.dumps({"error": message, "error_type": _status(error, statuses)[1]})


def reply(error: InterlinguaError, statuses: Statuses) -> Reply:
    return Reply(_status(error, statuses)[0], body(error, statuses), headers(error))


def headers(error: InterlinguaError) -> tuple[tuple[str, str], ...]:
    """What HTTP says of an error in headers, whatever the shape of its body."""
    if isinstance(error, MethodNotAllowedError):
        return (("allow", ", ".join(error.allowed)),)
    if isinstance(error, OverloadedError):
        return (("retry-after", str(error.retry_after)),)
    if isinstance(error, UnauthorizedError):
        return (("www-authenticate", "Bearer"),)
    return ()
