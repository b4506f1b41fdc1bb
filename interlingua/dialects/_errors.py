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


def _status(error: InterlinguaError, statuses: Statuses) -> tuple[int, str]:
    """What is no kind of request error (a cancelled stream, an engine's death) counts as a fault inside."""
    return statuses.get(error.kind, statuses["request"])


def body(error: InterlinguaError, statuses: Statuses) -> bytes:
    """The JSON object alone, as it also stands in a stream's error event."""
    message = error.message.encode("utf-8", "replace").decode()  # foreign text in it may hold lone surrogates
    return orjson.dumps({"error": message, "error_type": _status(error, statuses)[1]})


def reply(error: InterlinguaError, statuses: Statuses) -> Reply:
    status = _status(error, statuses)[0]
    headers: tuple[tuple[str, str], ...] = ()
    if isinstance(error, MethodNotAllowedError):
        headers = (("allow", ", ".join(error.allowed)),)
    elif isinstance(error, OverloadedError):
        headers = (("retry-after", str(error.retry_after)),)
    elif isinstance(error, UnauthorizedError):
        headers = (("www-authenticate", "Bearer"),)
    return Reply(status, body(error, statuses), headers)
