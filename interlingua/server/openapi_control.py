"""What the OpenAPI document says about the routes that run the server, and those that show tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from interlingua.contract.dialect import DialectSettings
from interlingua.dialects._control_table import (
    ADD_SPECIAL,
    COLUMN,
    DO_DECODE,
    LORA_NAME,
    LORA_PATH,
    MASTER_MODELS,
    PROMPT,
    TOKEN_STRINGS,
    TOKENS,
)
from interlingua.dialects._fields import Field
from interlingua.dialects._openai_openapi import chat_body
from interlingua.dialects._openapi import INTEGER, STRING, array, nullable, object_of, record
from interlingua.dialects._tgi_table import INPUTS, MINDIE
from interlingua.server.openapi_kserve import operation

_COUNT = INTEGER | {"minimum": 0}
_STATUS = record(
    {
        "service": record({"roleStatus": STRING, "currentRole": STRING}),
        "resource": record(
            dict.fromkeys(
                (
                    *("availSlotsNum", "availBlockNum", "waitingRequestNum", "runningRequestNum", "swappedRequestNum"),
                    *("freeNpuBlockNums", "freeCpuBlockNums", "totalNpuBlockNums", "totalCpuBlockNums"),
                ),
                _COUNT,
            )
        ),
        "linkStatus": record({"peers": array(STRING)}),
    }
)
_CONFIG = record(
    {"modelName": STRING}
    | dict.fromkeys(("maxSeqLen", "npuMemSize", "cpuMemSize", "worldSize", "maxOutputLen", "cacheBlockSize"), INTEGER)
)
_METRIC = record(
    {"metric": array(record({"__name__": STRING, "job": STRING, "instance": STRING})), "value": STRING},
)
_SPAN = record({"id": _COUNT, "text": STRING, "start": _COUNT, "stop": _COUNT})
_VLLM_TOKENS = record(
    {"count": _COUNT, "max_model_len": _COUNT, "tokens": array(_COUNT), "token_strs": nullable(array(STRING))}
)
_TEXT = {"200": {"description": "a sentence", "content": {"text/plain": {}}}}
_ADMIN = (401, 403, 413, 422, 503)
# What changes the server's state, and asks for the admin key where there is one.
ADMIN = frozenset(("/stopService", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"))


def paths(wire: DialectSettings) -> dict[str, dict[str, Any]]:
    def body(rows: Sequence[Field], *required: Field) -> dict[str, Any]:
        return object_of(rows, COLUMN, wire, [row.name for row in required])

    inputs = object_of([INPUTS], MINDIE, wire, [INPUTS.name])
    of_inputs = inputs["properties"]
    shapes = {
        "anyOf": [inputs, body([PROMPT, ADD_SPECIAL, TOKEN_STRINGS], PROMPT), chat_body(wire)],
        "description": "`inputs` asks for TGI's list, `prompt` and `messages` for vLLM's object.",
    }
    tokenizer = record(of_inputs | body([DO_DECODE])["properties"], [INPUTS.name])
    probe = {"type": "string", "pattern": "^timed(-[0-9]{1,3})?$"}
    mode = {"name": "mode", "in": "query", "schema": {"type": "string", "enum": ["Force"]}}
    status = {"get": operation("what runs, what waits, and what KV memory is free", _STATUS, 503)}
    load = operation(
        "load an adapter", None, *_ADMIN, body=body([LORA_NAME, LORA_PATH, *MASTER_MODELS], LORA_NAME, LORA_PATH)
    )
    unload = operation("unload an adapter", None, *_ADMIN, body=body([LORA_NAME], LORA_NAME))
    for made in (load, unload):
        made["responses"] |= _TEXT
    return {
        "/tokenize": {
            "post": operation(
                "the tokens of a text",
                {"anyOf": [array(_SPAN) | {"description": "`start` and `stop` are bytes of UTF-8."}, _VLLM_TOKENS]},
                *(401, 413, 422, 503),
                body=shapes,
            )
        },
        "/detokenize": {
            "post": operation(
                "the text of token ids",
                record({"prompt": STRING}),
                *(401, 413, 422, 503),
                body=body([TOKENS], TOKENS),
            )
        },
        "/chat_tokenize": {
            "post": operation(
                "the text that the chat template makes of a conversation, and its tokens",
                record({"tokenize_response": array(_SPAN), "templated_text": STRING}),
                *(401, 413, 422, 503),
                body=chat_body(wire),
            )
        },
        "/v1/tokenizer": {
            "post": operation(
                "how many tokens a text has",
                record({"token_number": _COUNT, "tokens": array(STRING)}),
                *(401, 413, 422, 503),
                body=tokenizer,
            )
        },
        "/health/{probe}": {
            "get": operation(
                "timed-T: 200 when the engine makes a token within T seconds",
                record({"status": STRING}),
                *(404, 503),
                parameters=[{"name": "probe", "in": "path", "required": True, "schema": probe}],
            )
        },
        "/stopService": {
            "get": operation("end what runs, then the server", None, 401, 403, 422, 503, parameters=[mode])
        },
        "/v1/config": {"get": operation("the limits of the served model", _CONFIG, 503)},
        "/v1/status": status,
        "/v2/status": status,
        "/metrics-json": {
            "get": operation("five figures as JSON", record({"resultType": STRING, "result": array(_METRIC)}), 503)
        },
        "/v1/load_lora_adapter": {"post": load},
        "/v1/unload_lora_adapter": {"post": unload},
    }
