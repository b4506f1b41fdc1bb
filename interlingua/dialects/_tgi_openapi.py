"""What the OpenAPI page says about TGI's routes."""

from __future__ import annotations

from typing import Any

from interlingua.contract.dialect import DialectSettings
from interlingua.dialects import _errors
from interlingua.dialects._openai_openapi import (
    CHAT_ANSWER,
    CHAT_CHUNK,
    COMPLETION,
    COMPLETION_CHUNK,
    DONE,
    VLLM_ANSWER,
    chat_body,
    completions_body,
    vllm_body,
    vllm_streams,
)
from interlingua.dialects._openapi import (
    BOOLEAN,
    EVENT_STREAM,
    FINISH_REASON,
    INTEGER,
    LOGPROB,
    STRING,
    Schema,
    array,
    event,
    nullable,
    object_of,
    operation,
    record,
)
from interlingua.dialects._tgi_table import INPUTS, PARAMETERS, STREAM

_DETAIL = record({"id": INTEGER, "logprob": LOGPROB, "special": BOOLEAN, "text": STRING})
_TOKEN = record({"id": INTEGER, "text": STRING, "logprob": LOGPROB, "special": BOOLEAN})

_SEQUENCE = record(
    {
        "generated_text": STRING,
        "finish_reason": FINISH_REASON,
        "generated_tokens": INTEGER,
        "seed": INTEGER,
        "prefill": array(_DETAIL),
        "tokens": array(_DETAIL),
        "top_tokens": array(array(_DETAIL)),
    },
    required=("generated_text", "finish_reason", "generated_tokens", "seed", "prefill", "tokens"),
)
_DETAILS = record(
    {
        "finish_reason": FINISH_REASON,
        "generated_tokens": INTEGER,
        "prefill": array(_DETAIL),
        "prompt_tokens": INTEGER,
        "seed": INTEGER,
        "tokens": array(_DETAIL),
        "best_of_sequences": array(_SEQUENCE),
        "top_tokens": array(array(_DETAIL)),
    },
    required=("finish_reason", "generated_tokens", "prefill", "prompt_tokens", "seed", "tokens"),
)
ANSWER = record({"details": _DETAILS, "generated_text": STRING}, required=("generated_text",))

_STREAM_DETAILS = record(
    {"finish_reason": FINISH_REASON, "generated_tokens": INTEGER, "seed": INTEGER, "input_length": INTEGER}
)
EVENT = record(
    {
        "index": INTEGER | {"minimum": 1},
        "token": _TOKEN,
        "top_tokens": array(_TOKEN),
        "generated_text": {"type": ["string", "null"]},
        "details": nullable(_STREAM_DETAILS),
    },
    required=("index", "token", "generated_text", "details"),
)

_DESCRIPTIONS = {
    "/": "The route of Hugging Face's clients. Answers with a list of one, with events if `stream` is true.",
    "/generate": "Answers with one object; `stream` is ignored. A body with `prompt` is vLLM's, see `/vllm/generate`.",
    "/generate_stream": "Answers with one event per token; the last one has the whole text and the details.",
    "/invocations": "SageMaker's route: as `/`. Without `inputs`, a body with `messages` or `prompt` is OpenAI's.",
}


def describe(
    path: str,
    profile: str,
    stream: bool | None,
    listed: bool,
    statuses: _errors.Statuses,
    settings: DialectSettings,
) -> dict[str, Any]:
    """The operation object of one route. `stream` is None where the body decides."""
    parameters = object_of(PARAMETERS.fields, profile, settings)
    root = object_of([INPUTS] if stream is not None else [INPUTS, STREAM], profile, settings, required=["inputs"])
    root["properties"]["parameters"] = nullable(parameters)
    answers: dict[str, Schema] = {}
    if stream is not True:
        answers["application/json"] = array(ANSWER) | {"minItems": 1, "maxItems": 1} if listed else ANSWER
    streams: dict[str, list[Schema]] = {} if stream is False else {EVENT_STREAM: [event(EVENT)]}
    if path == "/generate":
        root = {"anyOf": [root, vllm_body(settings)]}
        answers["application/json"] = {"anyOf": [answers["application/json"], VLLM_ANSWER]}
        streams = vllm_streams(settings)
    elif path == "/invocations":
        root = {"anyOf": [root, chat_body(settings), completions_body(settings)]}
        answers["application/json"] = {"anyOf": [answers["application/json"], CHAT_ANSWER, COMPLETION]}
        streams[EVENT_STREAM] += [event(CHAT_CHUNK), event(COMPLETION_CHUNK), DONE]
    return operation(
        summary="Generate text" if stream is False else "Stream text" if stream else "Generate or stream text",
        description=_DESCRIPTIONS[path],
        body=root,
        answers=answers,
        streams=streams,
        statuses=statuses,
    )
