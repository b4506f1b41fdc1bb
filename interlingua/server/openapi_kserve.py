"""What the OpenAPI document says about KServe's routes beside inference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from interlingua.contract.dialect import DialectSettings
from interlingua.dialects._kserve_table import READY
from interlingua.dialects._openapi import BOOLEAN, INTEGER, STRING, array, nullable, record
from interlingua.dialects._triton_table import COLUMN, ID

Schema = Mapping[str, Any]
_COUNT = INTEGER | {"minimum": 0}
_TENSORS = array(record({"name": STRING, "datatype": STRING, "shape": array(INTEGER)}))
_CONFIG_TENSORS = array(
    record(
        {"name": STRING, "data_type": STRING, "dims": array(INTEGER), "optional": BOOLEAN},
        ("name", "data_type", "dims"),
    )
)
_ERROR = record({"error": STRING, "error_type": STRING})
_WORDS = {
    400: "the body is no such request",
    401: "a key is asked for, and this is none of them",
    403: "the key, or the address, does not allow this",
    404: "another model or version, or no such request",
    413: "the body is too large",
    422: "the body, or the query, is no such request",
    503: "loading, stopping, or the engine makes no progress",
}
_EMPTY = {"description": "nothing in the body"}


def operation(
    summary: str, answer: Schema | None, *statuses: int, body: Schema | None = None, required: bool = True, **more: Any
) -> dict[str, Any]:
    """An operation whose answer is JSON, or nothing; `statuses` are those of its errors."""
    responses: dict[str, Any] = {"200": _EMPTY if answer is None else json_content("", answer)}
    responses |= {str(status): json_content(_WORDS[status], _ERROR) for status in statuses}
    made = {"tags": ["system"], "summary": summary, "responses": responses, **more}
    if body is not None:
        made["requestBody"] = {"required": required, "content": {"application/json": {"schema": body}}}
    return made


def json_content(description: str, schema: Schema) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def paths(wire: DialectSettings) -> dict[str, dict[str, Any]]:
    ready = nullable(READY.rule(COLUMN, wire.lenient_ranges).schema(wire))
    name = ID.rule(COLUMN, wire.lenient_ranges).schema(wire)
    stop = record({"id": name})
    state = record({"name": STRING, "version": STRING, "state": STRING, "reason": STRING})
    slots = record(dict.fromkeys(("total_slots", "free_slots", "available_tokens_length"), _COUNT))
    found: dict[str, dict[str, Any]] = {
        "/v2": {
            "get": operation(
                "the server and what it can do",
                record({"name": STRING, "version": STRING, "extensions": array(STRING)}),
            )
        },
        "/v2/health/live": {"get": operation("200 as soon as the port is open", None)},
        "/v2/health/ready": {"get": operation("200 when requests can be served", None, 503)},
        "/v2/repository/index": {
            "post": operation(
                "the models and their states",
                array(state),
                *(400, 401, 413),
                body=record({"ready": ready}, ()),
                required=False,
            )
        },
        "/v2/models/{model}/stopInfer": {
            "post": operation("end a running request", stop, 400, 401, 404, 413, 503, body=stop)
        },
        "/v2/models/{model}/getSlotCount": {"get": operation("free places and free KV memory", slots, 404, 503)},
    }
    for model in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        found[model] = {"get": operation("the model's tensors", _METADATA, 404, 503)}
        found[model + "/config"] = {"get": operation("the model's configuration", _CONFIG, 404, 503)}
        found[model + "/ready"] = {"get": operation("200 when requests for this model can be served", None, 404, 503)}
    for path, methods in found.items():
        names = [segment[1:-1] for segment in path.split("/") if segment.startswith("{")]
        for method in methods.values():
            if names:
                method["parameters"] = [
                    {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
                ]
    return found


_METADATA = record(
    {"name": STRING, "versions": array(STRING), "platform": STRING, "inputs": _TENSORS, "outputs": _TENSORS}
)
_CONFIG = record(
    {
        "name": STRING,
        "platform": STRING,
        "backend": STRING,
        "version_policy": {"type": "object"},
        "max_batch_size": _COUNT,
        "input": _CONFIG_TENSORS,
        "output": _CONFIG_TENSORS,
        "model_transaction_policy": record({"decoupled": BOOLEAN}),
        "model_name": STRING,
        "input_datatype": STRING,
        "output_datatype": STRING,
        "max_seq_len": _COUNT,
        "npu_mem_size": INTEGER,
        "cpu_mem_size": INTEGER,
        "world_size": _COUNT,
        "model_weight_path": STRING,
        "model_instance_type": STRING,
    }
)
