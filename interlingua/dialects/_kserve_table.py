"""The tensors that the served model takes and gives, for decoding, model metadata and documentation alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from interlingua.dialects._fields import Field
from interlingua.dialects._rules import Boolean
from interlingua.dialects._tensors import BOOL, BYTES, UINT32
from interlingua.dialects._triton_table import COLUMN

BINARY_LENGTH = "inference-header-content-length"
SAMPLING_INPUT = "sampling_parameters"
IDS_INPUT = "input0"
TEXT_OUTPUT, IDS_OUTPUT = "text_output", "output0"
# Of the protocol's own parameters these are read elsewhere, or mean nothing to one model without batches.
KNOWN_PARAMETERS = frozenset(
    {"binary_data_output", "sequence_id", "sequence_start", "sequence_end", "triton_enable_empty_final_response"}
)


@dataclass(frozen=True, slots=True)
class TensorField:
    """A row: one input or output of the model. A size of -1 is any."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    effect: str


_ONE = (1,)
INPUT_FIELDS = (
    TensorField("text_input", BYTES, _ONE, "The prompt as text."),
    TensorField(IDS_INPUT, UINT32, (-1,), "The prompt as token ids, in place of `text_input`; [n] or [1, n]."),
    TensorField(SAMPLING_INPUT, BYTES, _ONE, "The text of a JSON object with the parameters of `generate`."),
    TensorField("stream", BOOL, _ONE, "gRPC's ModelStreamInfer: a response for each token. No effect elsewhere."),
    TensorField("exclude_input_in_output", BOOL, _ONE, "false puts the prompt before `text_output`. Absent: true."),
    TensorField("return_finish_reason", BOOL, _ONE, "Adds the output `finish_reason`."),
    TensorField("return_num_input_tokens", BOOL, _ONE, "Adds the output `num_input_tokens`."),
    TensorField("return_num_output_tokens", BOOL, _ONE, "Adds the output `num_output_tokens`."),
)
OUTPUT_FIELDS = (
    TensorField(TEXT_OUTPUT, BYTES, _ONE, "The text; what a prompt of text gets when `outputs` is absent."),
    TensorField(IDS_OUTPUT, UINT32, (-1,), "The ids of all generated tokens, [1, n]; what a prompt of ids gets."),
    TensorField("finish_reason", BYTES, _ONE, '`eos_token`, `stop_sequence` or `length`; "" before a stream\'s end.'),
    TensorField("num_input_tokens", UINT32, _ONE, "Tokens of the prompt."),
    TensorField("num_output_tokens", UINT32, _ONE, "Tokens of this response."),
)
READY = Field(
    name="ready",
    rules={COLUMN: Boolean()},
    defaults={COLUMN: "false"},
    effect="true leaves models out of the index that cannot be used now.",
)
INPUTS = tuple(field.name for field in INPUT_FIELDS)
FLAGS = tuple(field.name for field in INPUT_FIELDS if field.datatype == BOOL)
OUTPUTS: Mapping[str, str] = {field.name: field.datatype for field in OUTPUT_FIELDS}
EXTRA_OUTPUTS = tuple(name for name in OUTPUTS if name not in (TEXT_OUTPUT, IDS_OUTPUT))
