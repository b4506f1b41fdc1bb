"""The fields of the native routes: rows of TGI's table as `/generate` has them, and two of Triton's."""

from __future__ import annotations

import dataclasses

from interlingua.dialects import _tgi_table, _triton_table
from interlingua.dialects._fields import Field, Table
from interlingua.dialects._rules import UINT32_MAX, Integer, IntegerList

COLUMN = "native"
COLUMNS = (COLUMN,)


def _as_ours(field: Field, column: str, **words: str) -> Field:
    """A row of another table, under the name of our own column. `words` replace what it says of its own routes."""
    rules = {COLUMN: field.rules[column]}
    if "lenient" in field.rules:
        rules["lenient"] = field.rules["lenient"]
    return dataclasses.replace(field, rules=rules, defaults={COLUMN: field.defaults[column]}, **words)


INPUTS = _as_ours(_tgi_table.INPUTS, _tgi_table.MINDIE)
INPUT_ID = Field(
    name="input_id",
    rules={COLUMN: IntegerList(Integer(0, UINT32_MAX))},
    defaults={COLUMN: "required"},
    effect="The prompt as token ids, in place of `inputs`.",
    note="Exactly one of the two must be given.",
)
STREAM = _as_ours(_tgi_table.STREAM, _tgi_table.MINDIE, effect="Answer with an event for each token.")
_OWN_WORDS = {"do_sample": {"note": ""}}  # TGI's note is about its other profile
PARAMETERS = Table.of(
    COLUMNS,
    (
        *(
            _as_ours(field, _tgi_table.MINDIE, **_OWN_WORDS.get(name, {}))
            for name in (
                *("details", "do_sample", "max_new_tokens", "repetition_penalty", "seed"),
                *("temperature", "top_k", "top_p", "typical_p", "watermark"),
            )
            for field in _tgi_table.PARAMETERS.fields
            if field.name == name
        ),
        *(
            _as_ours(field, _triton_table.COLUMN)
            for field in _triton_table.PARAMETERS.fields
            if field.name in ("priority", "timeout")
        ),
    ),
)
