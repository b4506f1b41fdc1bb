"""Triton's generate extension: `/v2/models/{model}[/versions/{version}]/generate` and `generate_stream`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson

from interlingua.contract.dialect import Call, Dialect, DialectSettings, Reply, Route, WireRequest
from interlingua.contract.errors import NotFoundError, RequestError, UnknownModelError, ValidationError
from interlingua.contract.events import Answer, FailedEvent, Summary, TextEvent, TextStopped, TextToken
from interlingua.contract.request import GenerationRequest, Priority, Prompt, SamplingRequest, StopMode
from interlingua.dialects import _errors, _sse
from interlingua.dialects._fields import note_unknown, object_field, read_field
from interlingua.dialects._json import cut, parse_object
from interlingua.dialects._parts import text_prompt
from interlingua.dialects._tgi_table import DEFAULT_TOP_K
from interlingua.dialects._triton_openapi import describe
from interlingua.dialects._triton_table import COLUMN, ID, PARAMETERS, TEXT_INPUT

STATUSES: _errors.Statuses = {
    **_errors.TGI_STATUSES,
    "validation": (400, "validation"),
    "generation": (500, "generation"),
}

VERSION = "1"  # the only one there is
_MAX_NEW_TOKENS = 20
_NAMES = {name: f"parameters.{name}" for name in PARAMETERS.names}
_ROOT_FIELDS = (ID.name, TEXT_INPUT.name, "parameters")


def decode(wire: WireRequest, settings: DialectSettings, *, stream: bool) -> Call:
    """Decodes a body of either route.

    Raises:
        NotFoundError: the path names an unknown model or version; found before the body is looked at.
        ValidationError: the body is wrong.
    """
    model = check_model(settings.model_name, **wire.path_params)
    document = parse_object(wire.body, settings.max_json_depth)
    client_id = read_field(document, ID, COLUMN, settings)
    parts = read_field(document, TEXT_INPUT, COLUMN, settings)
    if parts is None:
        raise ValidationError(TEXT_INPUT.name, "is required")
    given = object_field(document, "parameters")
    nested = PARAMETERS.read(document, given, "parameters.", COLUMN, settings)
    at_root = PARAMETERS.read(document, document.root, "", COLUMN, settings)
    document.close()
    note_unknown(
        wire.request_id,
        ("", document.root, lambda name: name in _ROOT_FIELDS or name in PARAMETERS),
        ("parameters.", given, PARAMETERS.__contains__),
    )

    values = at_root | nested
    names = _NAMES | {name: name for name in at_root if name not in nested}
    prompt = text_prompt(parts, TEXT_INPUT.name)
    request = make_request(wire.request_id, client_id, model, prompt, values, names)
    encoder = TritonEncoder(
        id=wire.request_id if client_id is None else client_id,
        model=model,
        prefix=prompt.text if request.return_full_text else "",
        details=request.details,
        perf_stat=request.details and values.get("perf_stat", False),
    )
    return Call(request, stream, encoder)


def make_request(
    request_id: str,
    client_id: str | None,
    model: str,
    prompt: Prompt,
    values: Mapping[str, Any],
    names: dict[str, str],
) -> GenerationRequest:
    """The request of checked parameters.

    Args:
        values: by their names in `PARAMETERS`.
        names: the wire name of each parameter that errors may name; that of `max_new_tokens` is set to
            the one that counts.
    """
    max_new_tokens = values.get("max_new_tokens")
    if max_new_tokens is None and "max_tokens" in values:
        max_new_tokens = values["max_tokens"]
        names["max_new_tokens"] = names["max_tokens"]
    return GenerationRequest(
        request_id=request_id,
        prompt=prompt,
        client_id=client_id,
        max_new_tokens=_MAX_NEW_TOKENS if max_new_tokens is None else max_new_tokens,
        sampling=_sampling(values),
        stop=values.get("stop", ()) + values.get("stop_words", ()),
        stop_mode=StopMode.CUT,
        ignore_eos=values.get("ignore_eos", False),
        return_full_text=not values.get("exclude_input_in_output", True),
        details=values.get("details", False),
        priority=values.get("priority", Priority.LOWEST),
        timeout=values.get("timeout"),
        model=model,
        field_names=tuple(names.items()),
    )


def check_model(served: str, model: str, version: str = VERSION) -> str:
    """The name of the served model, if a client's words mean it. Raises NotFoundError."""
    if model != served:
        raise UnknownModelError(cut(model), served)
    if version != VERSION:
        raise NotFoundError(f'model "{model}" has no version "{cut(version)}"; it has version {VERSION}')
    return model


def _sampling(values: Mapping[str, Any]) -> SamplingRequest:
    do_sample: bool | None = values.get("do_sample")
    if do_sample is None:
        do_sample = not values.keys().isdisjoint(("temperature", "top_k", "top_p", "typical_p"))
    return SamplingRequest(
        do_sample=do_sample,
        temperature=values.get("temperature"),
        top_k=values.get("top_k"),
        top_p=values.get("top_p"),
        typical_p=values.get("typical_p"),
        repetition_penalty=values.get("repetition_penalty"),
        seed=values.get("seed"),
        watermark=values.get("watermark", False),
        use_model_defaults=True,
        default_top_k=DEFAULT_TOP_K,
    )


@dataclass(slots=True)
class TritonEncoder:
    """Turns one call's events into Triton's JSON. `prefix` is the prompt when it belongs to the output."""

    id: str
    model: str
    prefix: str
    details: bool
    perf_stat: bool
    media_type: str = _sse.MEDIA_TYPE
    costs: list[tuple[int, int]] = field(default_factory=list)  # (token id, milliseconds) of a stream so far

    def stream_headers(self) -> tuple[tuple[str, str], ...]:
        return _sse.HEADERS

    def event(self, event: TextEvent) -> bytes:
        if isinstance(event, TextToken):
            if self.perf_stat:
                self.costs.append(_cost(event))
            # No flag tells a special token here, so its text must not be in the joined stream.
            body = self._head("" if event.special else event.text)
            if self.details and event.summary is not None:
                body["details"] = self._details(event.summary, self.costs)
            return _sse.frame(body)
        if isinstance(event, TextStopped):
            body = self._head("")
            if self.details:
                body["details"] = self._details(event.summary, self.costs)
            return _sse.frame(body)
        if isinstance(event, FailedEvent):
            return _sse.frame_json(_errors.body(event.error, STATUSES))
        return b""

    def end(self) -> bytes:
        return b""

    def answer(self, answer: Answer) -> Reply:
        body = self._head(self.prefix + answer.summary.text)
        if self.details:
            body["details"] = self._details(answer.summary, [_cost(token) for token in answer.tokens])
        return Reply(200, orjson.dumps(body))

    def _head(self, text: str) -> dict[str, Any]:
        return {"id": self.id, "model_name": self.model, "model_version": None, "text_output": text}

    def _details(self, summary: Summary, costs: list[tuple[int, int]]) -> dict[str, Any]:
        return {
            "finish_reason": summary.finish_reason.value,
            "generated_tokens": summary.generated_tokens,
            "first_token_cost": None,
            "decode_cost": None,
            "perf_stat": costs if self.perf_stat else None,
        }


def _cost(token: TextToken) -> tuple[int, int]:
    return token.id, round(token.elapsed_ms)


def _render_error(error: RequestError) -> Reply:
    return _errors.reply(error, STATUSES)


def _owns(path: str) -> bool:
    return path == "/v2" or path.startswith(("/v2/", "/triton"))


DIALECT = Dialect(
    name="triton",
    title="Triton, generate extension",
    prefix="/triton",
    routes=tuple(
        Route(
            method="POST",
            path=f"/v2/models/{{model}}{version}/{verb}",
            decode=partial(decode, stream=stream),
            describe=partial(describe, stream, bool(version), STATUSES),
        )
        for version in ("", "/versions/{version}")
        for verb, stream in (("generate", False), ("generate_stream", True))
    ),
    render_error=_render_error,
    owns=_owns,
)
