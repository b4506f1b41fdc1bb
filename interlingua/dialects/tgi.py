"""TGI's native text routes: `/`, `/generate`, `/generate_stream` and `/invocations`.

Two profiles of one table give the ranges and defaults (`_tgi_table`). Which one rules a route is the
operator's choice; what a route does with `stream`, and whether it answers with a list, is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from interlingua.contract.dialect import Call, Dialect, DialectSettings, Reply, Route, WireRequest
from interlingua.contract.errors import RequestError, ValidationError
from interlingua.contract.events import Answer, FailedEvent, TextEvent, TextToken, TokenText
from interlingua.contract.request import GenerationRequest, SamplingRequest, StopMode
from interlingua.dialects import _errors, _sse, openai, vllm
from interlingua.dialects._errors import TGI_STATUSES
from interlingua.dialects._fields import note_unknown, object_field, read_field
from interlingua.dialects._json import Document, parse_object
from interlingua.dialects._parts import text_prompt
from interlingua.dialects._tgi_openapi import describe
from interlingua.dialects._tgi_table import DEFAULT_TOP_K, HF, INPUTS, MINDIE, NO_ADAPTER, PARAMETERS, STREAM

_ROOT = "/"
_GENERATE = "/generate"
_GENERATE_STREAM = "/generate_stream"
_INVOCATIONS = "/invocations"
_MAX_NEW_TOKENS = {MINDIE: 20, HF: 1024}
_STOP_MODES = {MINDIE: StopMode.CUT, HF: StopMode.KEEP}
_FIELD_NAMES = (
    *((name, f"parameters.{name}") for name in PARAMETERS.names),
    ("prompt_logprobs", "parameters.decoder_input_details"),
)


@dataclass(frozen=True, slots=True)
class _Place:
    """What a route does whichever profile rules it. `stream` is None where the body decides."""

    path: str
    profile: str
    stream: bool | None
    listed: bool = False

    def decode(self, wire: WireRequest, settings: DialectSettings) -> Call:
        document = parse_object(wire.body, settings.max_json_depth)
        other = _other_dialect(document, self.path)
        if other is not None:
            return other(wire, settings)
        profile = self._profile(settings)
        stream = self._stream(document, profile, settings)
        parts = read_field(document, INPUTS, profile, settings)
        if parts is None:
            raise ValidationError("inputs", "is required")
        given = object_field(document, "parameters")
        values = PARAMETERS.read(document, given, "parameters.", profile, settings)
        document.close()
        note_unknown(
            wire.request_id,
            ("", document.root, ("inputs", "parameters", "stream").__contains__),
            ("parameters.", given, PARAMETERS.__contains__),
        )

        prompt = text_prompt(parts, "inputs")
        sampled = sampling(values, profile)
        _check_combinations(values, sampled.do_sample, stream)
        prefill: bool = values.get("decoder_input_details", False)
        full_text: bool = values.get("return_full_text", False)
        adapter = values.get("adapter_id", NO_ADAPTER)
        request = GenerationRequest(
            request_id=wire.request_id,
            prompt=prompt,
            max_new_tokens=values.get("max_new_tokens", _MAX_NEW_TOKENS[profile]),
            sampling=sampled,
            stop=values.get("stop", ()),
            stop_mode=_STOP_MODES[profile],
            ignore_eos=values.get("ignore_eos", False),
            truncate=values.get("truncate") or None,
            return_full_text=full_text,
            details=values.get("details", profile == HF) or prefill,
            prompt_logprobs=prefill,
            top_n_tokens=values.get("top_n_tokens", 0),
            grammar=values.get("grammar"),
            best_of=values.get("best_of") or 1,
            adapter_id=None if adapter == NO_ADAPTER else adapter,
            field_names=_FIELD_NAMES,
        )
        text = prompt.text
        encoder = TgiEncoder(
            prefix=text if full_text else "",
            characters=len(text),
            details=request.details,
            top_n_tokens=request.top_n_tokens,
            listed=self.listed,
            compute_type=settings.compute_type,
        )
        return Call(request, stream, encoder)

    def describe(self, settings: DialectSettings) -> dict[str, Any]:
        """The OpenAPI operation object."""
        return describe(self.path, self._profile(settings), self.stream, self.listed, TGI_STATUSES, settings)

    def _profile(self, settings: DialectSettings) -> str:
        return self.profile if settings.tgi_profile == "auto" else settings.tgi_profile

    def _stream(self, document: Document, profile: str, settings: DialectSettings) -> bool:
        if self.stream is not None:
            return self.stream
        return bool(read_field(document, STREAM, profile, settings))


def _other_dialect(document: Document, path: str) -> Callable[[WireRequest, DialectSettings], Call] | None:
    """Whose body it is, if not TGI's: `/generate` is vLLM's too, and `/invocations` takes what OpenAI's routes take."""
    root = document.root
    if path == _GENERATE and root.get("prompt") is not None:
        return vllm.decode
    if path == _INVOCATIONS and root.get("inputs") is None:
        if root.get("messages") is not None:
            return openai.decode_chat
        if root.get("prompt") is not None:
            return openai.decode_completions
    return None


def sampling(values: Mapping[str, Any], profile: str) -> SamplingRequest:
    temperature, top_k = values.get("temperature"), values.get("top_k")
    top_p, typical_p = values.get("top_p"), values.get("typical_p")
    do_sample: bool | None = values.get("do_sample")
    if profile == HF:
        # TGI: its clients send do_sample=false on every call, and the warpers still switch sampling on.
        do_sample = (
            do_sample is True
            or (temperature is not None and temperature != 1)
            or top_k is not None
            or (top_p is not None and top_p < 1)
            or (typical_p is not None and typical_p < 1)
        )
    elif do_sample is None:
        do_sample = any(value is not None for value in (temperature, top_k, top_p, typical_p))
    return SamplingRequest(
        do_sample=do_sample,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        typical_p=typical_p,
        repetition_penalty=values.get("repetition_penalty"),
        frequency_penalty=values.get("frequency_penalty"),
        frequency_over="all",
        seed=values.get("seed"),
        watermark=values.get("watermark", False),
        use_model_defaults=profile == MINDIE,
        default_top_k=DEFAULT_TOP_K if profile == MINDIE else 0,
    )


def _check_combinations(values: Mapping[str, Any], sampled: bool, stream: bool) -> None:
    """Rules over several fields, then what is good but does not work yet. Raises ValidationError."""
    best_of = values.get("best_of", 1)
    if stream and best_of != 1:
        raise ValidationError("parameters.best_of", f"must be 1 on a stream, got {best_of}")
    if best_of > 1:
        if not sampled:
            raise ValidationError("parameters.best_of", f"over 1 needs sampling, got {best_of} without do_sample")
        if "seed" in values:
            raise ValidationError("parameters.best_of", f"over 1 excludes a seed, got {best_of} with a seed")
    if stream and values.get("decoder_input_details"):
        raise ValidationError("parameters.decoder_input_details", "must be false on a stream, got true")


@dataclass(frozen=True, slots=True)
class TgiEncoder:
    """Turns one call's events into TGI's JSON. `prefix` is the prompt when the full text was asked for."""

    prefix: str
    characters: int
    details: bool
    top_n_tokens: int
    listed: bool
    compute_type: str
    media_type: str = _sse.MEDIA_TYPE

    def stream_headers(self) -> tuple[tuple[str, str], ...]:
        return (*self._compute_headers(), *_sse.HEADERS)

    def event(self, event: TextEvent) -> bytes:
        if isinstance(event, TextToken):
            return _sse.frame(self._stream_event(event))
        if isinstance(event, FailedEvent):
            return _sse.frame_json(_errors.body(event.error, TGI_STATUSES))
        return b""

    def end(self) -> bytes:
        return b""

    def answer(self, answer: Answer) -> Reply:
        summary = answer.summary
        body: dict[str, Any] = {}
        if self.details:
            details: dict[str, Any] = {
                "finish_reason": summary.finish_reason.value,
                "generated_tokens": summary.generated_tokens,
                "prefill": [_detail(token) for token in answer.prefill],
                "prompt_tokens": summary.prompt_tokens,
                "seed": summary.seed,
                "tokens": [_detail(token) for token in answer.tokens],
            }
            if answer.alternatives:
                details["best_of_sequences"] = [self._sequence(other) for other in answer.alternatives]
            if self.top_n_tokens:
                details["top_tokens"] = _top_tokens(answer)
            body["details"] = details
        body["generated_text"] = self.prefix + summary.text
        return Reply(200, orjson.dumps([body] if self.listed else body), self._answer_headers(answer))

    def _sequence(self, other: Answer) -> dict[str, Any]:
        """An answer that was not the best, in TGI's order of keys."""
        summary = other.summary
        sequence: dict[str, Any] = {
            "generated_text": self.prefix + summary.text,
            "finish_reason": summary.finish_reason.value,
            "generated_tokens": summary.generated_tokens,
            "seed": summary.seed,
            "prefill": [_detail(token) for token in other.prefill],
            "tokens": [_detail(token) for token in other.tokens],
        }
        if self.top_n_tokens:
            sequence["top_tokens"] = _top_tokens(other)
        return sequence

    def _stream_event(self, token: TextToken) -> dict[str, Any]:
        event: dict[str, Any] = {
            "index": token.index,
            "token": {"id": token.id, "text": token.text, "logprob": token.logprob, "special": token.special},
        }
        if self.top_n_tokens:
            event["top_tokens"] = [
                {"id": top.id, "text": top.text, "logprob": top.logprob, "special": top.special} for top in token.top
            ]
        summary = token.summary
        event["generated_text"] = None if summary is None else self.prefix + summary.text
        event["details"] = (
            None
            if summary is None or not self.details
            else {
                "finish_reason": summary.finish_reason.value,
                "generated_tokens": summary.generated_tokens,
                "seed": summary.seed,
                "input_length": summary.prompt_tokens,
            }
        )
        return event

    def _compute_headers(self) -> tuple[tuple[str, str], ...]:
        return (("x-compute-type", self.compute_type), ("x-compute-characters", str(self.characters)))

    def _answer_headers(self, answer: Answer) -> tuple[tuple[str, str], ...]:
        summary, timing = answer.summary, answer.summary.timing
        inference = timing.finished - timing.started
        milliseconds = {
            "x-total-time": timing.finished - timing.arrived,
            "x-validation-time": timing.queued - timing.arrived,
            "x-queue-time": timing.started - timing.queued,
            "x-inference-time": inference,
            "x-time-per-token": inference / max(summary.generated_tokens, 1),
        }
        return (
            *self._compute_headers(),
            ("x-compute-time", f"{max(timing.finished - timing.arrived, 0.0):.9g}"),
            *((name, str(max(int(seconds * 1000), 0))) for name, seconds in milliseconds.items()),
            ("x-prompt-tokens", str(summary.prompt_tokens)),
            ("x-generated-tokens", str(summary.generated_tokens)),
        )


def _detail(token: TextToken | TokenText) -> dict[str, Any]:
    return {"id": token.id, "logprob": token.logprob, "special": token.special, "text": token.text}


def _top_tokens(answer: Answer) -> list[list[dict[str, Any]]]:
    return [[_detail(top) for top in token.top] for token in answer.tokens]


def _render_error(error: RequestError) -> Reply:
    return _errors.reply(error, TGI_STATUSES)


def _owns(path: str) -> bool:
    """Every path that is not versioned: the other shapes of error begin with `/v1`, `/v2` or a prefix."""
    return not path.startswith(("/v1/", "/v2/", "/openai", "/triton")) and path not in ("/v1", "/v2")


_PLACES = (
    _Place(_ROOT, HF, None, listed=True),
    _Place(_GENERATE, MINDIE, False),
    _Place(_GENERATE_STREAM, MINDIE, True),
    _Place(_INVOCATIONS, HF, None, listed=True),
)

DIALECT = Dialect(
    name="tgi",
    title="TGI (Text Generation Inference)",
    prefix="/tgi",
    routes=tuple(
        Route(method="POST", path=place.path, decode=place.decode, describe=place.describe) for place in _PLACES
    ),
    render_error=_render_error,
    owns=_owns,
)
