"""The fields of the routes that load and unload adapters, and of those that count tokens."""

from __future__ import annotations

from interlingua.dialects._fields import Field
from interlingua.dialects._rules import (
    INT32_MAX,
    LENIENT_PROMPT_CHARS,
    MAX_PROMPT_CHARS,
    Boolean,
    Integer,
    IntegerList,
    Rule,
    Text,
)

COLUMN = "control"


def _row(name: str, rule: Rule, absent: str, effect: str) -> Field:
    return Field(name=name, rules={COLUMN: rule}, defaults={COLUMN: absent}, effect=effect)


LORA_NAME = _row("lora_name", Text(1, 256), "required", "The name by which requests choose the adapter.")
LORA_PATH = _row("lora_path", Text(1, 4096), "required", "The adapter's folder, in PEFT's format.")
# The vendor's server and its documents have different names for the same field.
MASTER_MODELS = tuple(
    _row(name, Text(1, 256), "none", "The model that the adapter is for: the served one.")
    for name in ("master_model", "master_mode")
)
PROMPT = Field(
    name="prompt",
    rules={COLUMN: Text(1, MAX_PROMPT_CHARS), "lenient": Text(1, LENIENT_PROMPT_CHARS)},
    defaults={COLUMN: "`inputs` instead"},
    effect="The text, in vLLM's shape of the body.",
)
DO_DECODE = _row("do_decode", Boolean(), "true", "false leaves `tokens` empty.")
ADD_SPECIAL = _row("add_special_tokens", Boolean(), "true", "false leaves the tokenizer's own special tokens out.")
TOKEN_STRINGS = _row("return_token_strs", Boolean(), "false", "true adds `token_strs`, the text of each token.")
TOKENS = _row("tokens", IntegerList(Integer(0, INT32_MAX)), "required", "The ids whose text is wanted.")
