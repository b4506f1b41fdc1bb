"""What the OpenAPI page says about inference with tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from interlingua.contract.dialect import DialectSettings
from interlingua.dialects import _errors
from interlingua.dialects._bounds import MAX_IDS, MAX_TENSORS
from interlingua.dialects._kserve_table import INPUT_FIELDS, OUTPUT_FIELDS, TensorField
from interlingua.dialects._openapi import BOOLEAN, INTEGER, STRING, array, nullable, object_of, operation, record
from interlingua.dialects._tensors import BOOL, BYTES, MAX_NAME, UINT32
from interlingua.dialects._triton_table import COLUMN, ID, PARAMETERS

_NAME = STRING | {"maxLength": MAX_NAME}
_SHAPE = array(INTEGER | {"minimum": 1, "maximum": MAX_IDS}) | {"minItems": 1, "maxItems": 2}
_DATATYPE = {"type": "string", "enum": [BYTES, BOOL, UINT32]}
_DATA = array({"type": ["string", "boolean", "integer", "array"]})
_SIZE = record({"binary_data_size": INTEGER | {"minimum": 0}}, ())
_OUTPUT = record(
    {"name": STRING, "shape": array(INTEGER), "datatype": _DATATYPE, "data": _DATA, "parameters": _SIZE},
    ("name", "shape", "datatype"),
)
ANSWER = record(
    {"id": STRING, "model_name": STRING, "model_version": STRING, "outputs": array(_OUTPUT)},
)


def describe(versioned: bool, statuses: _errors.Statuses, settings: DialectSettings) -> dict[str, Any]:
    """The operation object of one route."""
    parameters = object_of(PARAMETERS.fields, COLUMN, settings)
    own = record(parameters["properties"] | {"binary_data_size": nullable(INTEGER)}, ())
    tensor = record(
        {"name": _NAME, "shape": _SHAPE, "datatype": _DATATYPE, "data": nullable(_DATA), "parameters": nullable(own)},
        ("name", "shape", "datatype"),
    )
    flag = record({"binary_data": nullable(BOOLEAN)}, ())
    body = record(
        {
            "id": nullable(ID.rule(COLUMN, settings.lenient_ranges).schema(settings)),
            "inputs": array(tensor) | {"minItems": 1, "maxItems": MAX_TENSORS},
            "outputs": nullable(
                array(record({"name": _NAME, "parameters": nullable(flag)}, ("name",))) | {"maxItems": MAX_TENSORS}
            ),
            "parameters": nullable(record(parameters["properties"] | {"binary_data_output": nullable(BOOLEAN)}, ())),
        },
        ("inputs",),
    )
    return operation(
        summary="Infer with tensors",
        description=(
            f"Inputs: {_names(INPUT_FIELDS)}. Outputs: {_names(OUTPUT_FIELDS)}. With the header "
            "`Inference-Header-Content-Length` binary data follow the JSON."
        ),
        body=body,
        answers={"application/json": ANSWER, "application/octet-stream": STRING},
        statuses=statuses,
        path_parameters=("model", "version") if versioned else ("model",),
    )


def _names(fields: Iterable[TensorField]) -> str:
    return ", ".join(f"`{field.name}` ({field.datatype})" for field in fields)
