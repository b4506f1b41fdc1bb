"""The vendor server's native text routes: `/infer` and `/infer_token`, one shape of body for both."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from interlingua.contract.dialect import Call, Dialect, DialectSettings, Reply, Route, WireRequest
from interlingua.contract.errors import RequestError, ValidationError
from interlingua.contract.events import Answer, FailedEvent, Summary, TextEvent, TextStopped, TextToken
from interlingua.contract.request import GenerationRequest, Priority, Prompt, StopMode, TokenPrompt
from interlingua.dialects import _errors, _sse
from interlingua.dialects._errors import TGI_STATUSES
from interlingua.dialects._fields import note_unknown, object_field, read_field
from interlingua.dialects._json import Document, parse_object
from interlingua.dialects._native_openapi import describe
from interlingua.dialects._native_table import COLUMN, INPUT_ID, INPUTS, PARAMETERS, STREAM
from interlingua.dialects._parts import text_prompt
from interlingua.dialects._tgi_table import MINDIE
from interlingua.dialects.tgi import sampling

_MAX_NEW_TOKENS = 20
_ROOT_FIELDS = (INPUTS.name, INPUT_ID.name, STREAM.name, "parameters")
_FIELD_NAMES = tuple((name, f"parameters.{name}") for name in PARAMETERS.names)


def decode(wire: WireRequest, settings: DialectSettings) -> Call:
    """Decodes a body of either route. Raises ValidationError."""
    document = parse_object(wire.body, settings.max_json_depth)
    prompt = _prompt(document, settings)
    stream: bool = read_field(document, STREAM, COLUMN, settings) or False
    given = object_field(document, "parameters")
    values = PARAMETERS.read(document, given, "parameters.", COLUMN, settings)
    document.close()
    note_unknown(
        wire.request_id,
        ("", document.root, _ROOT_FIELDS.__contains__),
        ("parameters.", given, PARAMETERS.__contains__),
    )
    details: bool = values.get("details", False)
    request = GenerationRequest(
        request_id=wire.request_id,
        prompt=prompt,
        max_new_tokens=values.get("max_new_tokens", _MAX_NEW_TOKENS),
        sampling=sampling(values, MINDIE),
        stop_mode=StopMode.CUT,
        details=details,
        priority=values.get("priority", Priority.LOWEST),
        timeout=values.get("timeout"),
        field_names=_FIELD_NAMES,
    )
    return Call(request, stream, NativeEncoder(details))


def _prompt(document: Document, settings: DialectSettings) -> Prompt:
    parts = read_field(document, INPUTS, COLUMN, settings)
    ids = read_field(document, INPUT_ID, COLUMN, settings)
    if (parts is None) == (ids is None):
        problem = "is required, or `input_id`" if parts is None else "must be absent beside `input_id`"
        raise ValidationError(INPUTS.name, problem)
    return TokenPrompt(ids, INPUT_ID.name) if parts is None else text_prompt(parts, INPUTS.name)


@dataclass(slots=True)
class NativeEncoder:
    """Turns one call's events into the native JSON."""

    details: bool
    media_type: str = _sse.MEDIA_TYPE

    def stream_headers(self) -> tuple[tuple[str, str], ...]:
        return _sse.HEADERS

    def event(self, event: TextEvent) -> bytes:
        if isinstance(event, TextToken):
            # No flag tells a special token here, so its text must not be in the joined stream.
            token = {"id": [event.id], "text": "" if event.special else event.text}
            return _sse.frame(self._times(event) | {"token": token} | self._ending(event.summary))
        if isinstance(event, TextStopped):
            return _sse.frame({"token": {"id": [], "text": ""}} | self._ending(event.summary))
        if isinstance(event, FailedEvent):
            return _sse.frame_json(_errors.body(event.error, TGI_STATUSES))
        return b""

    def end(self) -> bytes:
        return b""

    def answer(self, answer: Answer) -> Reply:
        body: dict[str, Any] = {"generated_text": answer.summary.text}
        if self.details:
            body["details"] = self._details(answer.summary)
            body["details"]["generated_token_ids"] = [token.id for token in answer.tokens]
        return Reply(200, orjson.dumps(body))

    def _times(self, token: TextToken) -> dict[str, Any]:
        """Whole milliseconds: the first event's hold the prefill, each other's are those since the one before."""
        if not self.details:
            return {}
        spent = round(token.elapsed_ms)
        first = token.index == 1
        return {"prefill_time": spent if first else None, "decode_time": None if first else spent}

    def _ending(self, summary: Summary | None) -> dict[str, Any]:
        if summary is None:
            return {}
        return {"generated_text": summary.text, "details": self._details(summary) if self.details else None}

    def _details(self, summary: Summary) -> dict[str, Any]:
        return {
            "finish_reason": summary.finish_reason.value,
            "generated_tokens": summary.generated_tokens,
            "seed": summary.seed,
        }


def _render_error(error: RequestError) -> Reply:
    return _errors.reply(error, TGI_STATUSES)


DIALECT = Dialect(
    name="native",
    title="Native",
    prefix="/native",
    routes=tuple(
        Route(method="POST", path=path, decode=decode, describe=partial(describe, TGI_STATUSES))
        for path in ("/infer", "/infer_token")
    ),
    render_error=_render_error,
    owns=lambda path: path in ("/infer", "/infer_token"),
)
