"""vLLM's `/generate`: `prompt` and sampling parameters at the top level, `{"text": [...]}` back.

On `/generate` itself the body tells it from TGI's, which owns the path (`tgi`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from interlingua.contract.dialect import Call, Dialect, DialectSettings, Reply, Route, WireRequest
from interlingua.contract.errors import RequestError
from interlingua.contract.events import Answer, FailedEvent, TextEvent, TextToken
from interlingua.contract.request import GenerationRequest
from interlingua.dialects import _errors, _sse
from interlingua.dialects._errors import TGI_STATUSES
from interlingua.dialects._openai_answers import Shown, all_answers
from interlingua.dialects._openai_openapi import describe_vllm
from interlingua.dialects._openai_table import MAX_COMPLETION_TOKENS, VLLM, VLLM_TABLE
from interlingua.dialects._parts import text_prompt
from interlingua.dialects.openai import check_best_of, common, grammar_of, read

_PATH = "/vllm/generate"


def decode(wire: WireRequest, settings: DialectSettings) -> Call:
    """Decodes a body. Raises ValidationError."""
    values = read(wire, VLLM_TABLE, VLLM, "prompt", settings)
    prompt = text_prompt(values["prompt"], "prompt")
    grammar, source = grammar_of(values)
    request = GenerationRequest(
        request_id=wire.request_id,
        prompt=prompt,
        best_of=check_best_of(values, 1),
        **common(
            values,
            most=values.get("max_tokens", MAX_COMPLETION_TOKENS),
            grammar=grammar,
            names={"max_new_tokens": "max_tokens", "grammar": source},
        ),
    )
    encoder = VllmEncoder(
        prompt=prompt.text,
        n=request.n,
        shown=Shown(special=not values.get("skip_special_tokens", True)),
        framing=settings.vllm_stream,
    )
    return Call(request, values.get("stream", False), encoder)


@dataclass(slots=True, kw_only=True)
class VllmEncoder:
    """Turns one call's events into vLLM's JSON: always the prompt and all of the text so far, of all answers."""

    prompt: str
    n: int
    shown: Shown
    framing: str
    texts: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.texts = [self.prompt] * self.n

    @property
    def media_type(self) -> str:
        return _sse.VLLM_FRAMES[self.framing][0] if self.framing in _sse.VLLM_FRAMES else _sse.MEDIA_TYPE

    def stream_headers(self) -> tuple[tuple[str, str], ...]:
        return _sse.HEADERS

    def event(self, event: TextEvent) -> bytes:
        if isinstance(event, FailedEvent):
            return self._frame(_errors.body(event.error, TGI_STATUSES))
        if not isinstance(event, TextToken):
            return b""
        text = self.shown.text(event)
        if not text and event.summary is None:
            return b""
        self.texts[event.choice] += text
        return self._frame(orjson.dumps({"text": self.texts}))

    def end(self) -> bytes:
        return b""

    def answer(self, answer: Answer) -> Reply:
        texts = [
            self.prompt + "".join([self.shown.text(token) for token in one.tokens])
            for one in all_answers(answer)[: self.n]
        ]
        return Reply(200, orjson.dumps({"text": texts}))

    def _frame(self, data: bytes) -> bytes:
        frames = _sse.VLLM_FRAMES
        return data + frames[self.framing][1] if self.framing in frames else _sse.frame_json(data)


def _render_error(error: RequestError) -> Reply:
    return _errors.reply(error, TGI_STATUSES)


def _owns(path: str) -> bool:
    return path.startswith("/vllm/")


def _describe(settings: DialectSettings) -> dict[str, Any]:
    return describe_vllm(TGI_STATUSES, settings)


DIALECT = Dialect(
    name="vllm",
    title="vLLM",
    prefix="",  # its own path is below it already
    routes=(Route(method="POST", path=_PATH, decode=decode, describe=_describe),),
    render_error=_render_error,
    owns=_owns,
)
