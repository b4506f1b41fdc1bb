"""What the OpenAPI page says about OpenAI's routes and vLLM's."""

from __future__ import annotations

from typing import Any

from interlingua.contract.dialect import DialectSettings
from interlingua.dialects._errors import Statuses
from interlingua.dialects._openai_errors import STATUSES
from interlingua.dialects._openai_table import (
    CHAT,
    CHAT_TABLE,
    COMPLETIONS,
    COMPLETIONS_TABLE,
    VLLM,
    VLLM_TABLE,
)
from interlingua.dialects._openapi import (
    EVENT_STREAM,
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
from interlingua.dialects._sse import VLLM_FRAMES

_OPTIONAL_STRING: Schema = {"type": ["string", "null"]}
_REASON: Schema = {"type": ["string", "null"], "enum": ["stop", "length", "tool_calls", None]}
ERROR = record(
    {"error": record({"message": STRING, "type": STRING, "param": _OPTIONAL_STRING, "code": _OPTIONAL_STRING})}
)
USAGE = record({"prompt_tokens": INTEGER, "completion_tokens": INTEGER, "total_tokens": INTEGER})
_NAMED = {"token": STRING, "logprob": LOGPROB, "bytes": array(INTEGER)}
_CHAT_LOGPROBS = nullable(
    record(
        {"content": array(record({**_NAMED, "top_logprobs": array(record(_NAMED))})), "refusal": _OPTIONAL_STRING},
        required=("content",),
    )
)
_FUNCTION = record({"name": STRING, "arguments": STRING}, required=("arguments",))
_CALL = record({"index": INTEGER, "id": STRING, "type": STRING, "function": _FUNCTION}, required=("function",))
_MESSAGE = {
    "role": STRING,
    "content": _OPTIONAL_STRING,
    "refusal": _OPTIONAL_STRING,
    "reasoning_content": STRING,
    "tool_calls": array(_CALL),
}
_COMPLETION_LOGPROBS = nullable(
    record(
        {
            "tokens": array(STRING),
            "token_logprobs": array(LOGPROB),
            "top_logprobs": array({"type": ["object", "null"], "additionalProperties": {"type": "number"}}),
            "text_offset": array(INTEGER),
        }
    )
)


def _answer(choice: Schema, *, chunk: bool = False) -> Schema:
    properties = {
        "id": STRING,
        "object": STRING,
        "created": INTEGER,
        "model": STRING,
        "system_fingerprint": STRING,
        "choices": array(choice),
        "usage": nullable(USAGE),
    }
    return record(properties, required=[name for name in properties if name != "usage" or not chunk])


def _choice(**own: Schema) -> Schema:
    return record({"index": INTEGER, **own, "finish_reason": _REASON})


CHAT_ANSWER = _answer(
    _choice(message=record(_MESSAGE, required=("role", "content", "refusal")), logprobs=_CHAT_LOGPROBS)
)
CHAT_CHUNK = _answer(_choice(delta=record(_MESSAGE, required=()), logprobs=_CHAT_LOGPROBS), chunk=True)
COMPLETION = _answer(_choice(text=STRING, logprobs=_COMPLETION_LOGPROBS))
COMPLETION_CHUNK = _answer(_choice(text=STRING, logprobs=_COMPLETION_LOGPROBS), chunk=True)
VLLM_ANSWER = record({"text": array(STRING)})
DONE = record({"data": {"type": "string", "enum": ["[DONE]"]}})


def chat_body(settings: DialectSettings) -> Schema:
    return object_of(CHAT_TABLE.fields, CHAT, settings, required=["messages"])


def completions_body(settings: DialectSettings) -> Schema:
    return object_of(COMPLETIONS_TABLE.fields, COMPLETIONS, settings, required=["prompt"])


def vllm_body(settings: DialectSettings) -> Schema:
    return object_of(VLLM_TABLE.fields, VLLM, settings, required=["prompt"])


def vllm_streams(settings: DialectSettings) -> dict[str, list[Schema]]:
    """What may come in a stream of vLLM's, by the media type that the operator has chosen."""
    if settings.vllm_stream in VLLM_FRAMES:
        return {VLLM_FRAMES[settings.vllm_stream][0]: [VLLM_ANSWER]}
    return {EVENT_STREAM: [event(VLLM_ANSWER)]}


def describe_chat(settings: DialectSettings) -> dict[str, Any]:
    """The operation object of chat completions."""
    return _describe("Answer a conversation", chat_body(settings), CHAT_ANSWER, CHAT_CHUNK)


def describe_completions(settings: DialectSettings) -> dict[str, Any]:
    """The operation object of completions."""
    return _describe("Complete texts", completions_body(settings), COMPLETION, COMPLETION_CHUNK)


def _describe(summary: str, body: Schema, answer: Schema, chunk: Schema) -> dict[str, Any]:
    return operation(
        summary=summary,
        description="With `stream` true the answer comes as chunks, and `data: [DONE]` ends them.",
        body=body,
        answers={"application/json": answer},
        streams={EVENT_STREAM: [event(chunk), DONE]},
        statuses=STATUSES,
        error=ERROR,
    )


def describe_vllm(statuses: Statuses, settings: DialectSettings) -> dict[str, Any]:
    """The operation object of vLLM's `/generate`."""
    return operation(
        summary="Complete a text",
        description=(
            "The same body is taken on `/generate`, where `prompt` tells it from TGI's. With `stream` true the answer "
            "comes as JSON objects, each with all of the text so far."
        ),
        body=vllm_body(settings),
        answers={"application/json": VLLM_ANSWER},
        streams=vllm_streams(settings),
        statuses=statuses,
    )
