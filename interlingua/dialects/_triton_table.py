"""The parameters of Triton's text routes, with Triton's own names beside the document's.

All of them may stand in `parameters` or at the top level of the body.
"""

from __future__ import annotations

import re

from interlingua.dialects._fields import Field, Table
from interlingua.dialects._parts import MiB, Prompt
from interlingua.dialects._rules import (
    INT32_MAX,
    LENIENT_PROMPT_CHARS,
    MAX_PROMPT_CHARS,
    UINT64_MAX,
    Boolean,
    Integer,
    IntegerList,
    Number,
    Rule,
    Stops,
    Text,
)
from interlingua.dialects._tgi_table import DEFAULT_TOP_K

COLUMN = "triton"
COLUMNS = (COLUMN,)


def _rules(rule: Rule, lenient: Rule | None = None) -> dict[str, Rule]:
    return {COLUMN: rule} if lenient is None else {COLUMN: rule, "lenient": lenient}


def _default(words: str) -> dict[str, str]:
    return {COLUMN: words}


_UNUSED = "Checked; has no effect on this server."

ID = Field(
    name="id",
    rules=_rules(Text(1, 256, re.compile(r"[A-Za-z0-9_-]{1,256}"), "letters, digits, _ and -")),
    defaults=_default("generated"),
    effect="Names the request; comes back in the answer and in every event.",
)

TEXT_INPUT = Field(
    name="text_input",
    rules=_rules(
        Prompt(max_chars=MAX_PROMPT_CHARS, image_bytes=20 * MiB, audio_bytes=20 * MiB),
        Prompt(max_chars=LENIENT_PROMPT_CHARS, image_bytes=40 * MiB, audio_bytes=40 * MiB),
    ),
    defaults=_default("required"),
    effect="The prompt. Text parts of a list are joined with nothing between them.",
    note="Media parts are checked, then refused while the model reads text only.",
)

PARAMETERS = Table.of(
    COLUMNS,
    (
        Field(
            name="details",
            rules=_rules(Boolean()),
            defaults=_default("false"),
            effect="Adds `details` to the answer, or to the last event.",
        ),
        Field(
            name="do_sample",
            rules=_rules(Boolean()),
            defaults=_default("true if temperature, top_k, top_p or typical_p is given"),
            effect="Sample instead of taking the likeliest token.",
        ),
        Field(
            name="max_new_tokens",
            rules=_rules(Integer(1, INT32_MAX)),
            defaults=_default("20"),
            effect="The most tokens to generate; `max_iter_times` and the context's end cut it as well.",
        ),
        Field(
            name="repetition_penalty",
            rules=_rules(Number(above=0)),
            defaults=_default("the model's generation_config.json when sampling, else 1.0"),
            effect="Makes tokens of prompt and output less likely (over 1) or likelier (under 1); 1 is off.",
        ),
        Field(
            name="seed",
            rules=_rules(Integer(1, UINT64_MAX), Integer(0, UINT64_MAX)),
            defaults=_default("drawn from 1..2^53−1"),
            effect="The random seed.",
        ),
        Field(
            name="temperature",
            rules=_rules(Number(above=1e-6), Number(above=0)),
            defaults=_default("the model's generation_config.json, else 1.0"),
            effect="Divides the scores; higher is more random.",
        ),
        Field(
            name="top_k",
            rules=_rules(Integer(0, INT32_MAX)),
            defaults=_default(f"generation_config.json, then config.json, else {DEFAULT_TOP_K}"),
            effect="Keeps the k likeliest tokens while sampling. 0, or at or over the vocabulary: off.",
        ),
        Field(
            name="top_p",
            rules=_rules(Number(above=1e-6, at_most=1), Number(above=0, at_most=1)),
            defaults=_default("the model's generation_config.json, else 1.0"),
            effect="Keeps the smallest set of likeliest tokens whose probabilities reach p; 1 is off.",
        ),
        Field(
            name="batch_size",
            rules=_rules(Integer(1, INT32_MAX)),
            defaults=_default("1"),
            effect=_UNUSED,
        ),
        Field(
            name="typical_p",
            rules=_rules(Number(above=0, at_most=1)),
            defaults=_default("off"),
            effect="Locally typical sampling with mass p; 1 is off.",
        ),
        Field(
            name="watermark",
            rules=_rules(Boolean()),
            defaults=_default("false"),
            effect="Favours a share of all tokens, drawn anew after each token: the text can be recognised later.",
            note="Share and strength: `--watermark-gamma`, `--watermark-delta`.",
        ),
        Field(
            name="perf_stat",
            rules=_rules(Boolean()),
            defaults=_default("false"),
            effect="With details: fills `details.perf_stat` with [token id, milliseconds] of every token.",
        ),
        Field(
            name="priority",
            rules=_rules(Integer(1, 5)),
            defaults=_default("5"),
            effect="Place in the queue, 1 first. A waiting request gains a level every 10 seconds.",
        ),
        Field(
            name="timeout",
            rules=_rules(Integer(1, 3600), Integer(1, 65535)),
            defaults=_default("the server's, 600"),
            effect="Seconds until the request is ended: 504 before the first byte, an error event after it.",
        ),
        Field(
            name="firstTokenCost",
            rules=_rules(Integer(0, UINT64_MAX)),
            defaults=_default("none"),
            effect=_UNUSED,
        ),
        Field(
            name="decodeTime",
            rules=_rules(IntegerList(Integer(0, UINT64_MAX))),
            defaults=_default("none"),
            effect=_UNUSED,
        ),
        Field(
            name="max_tokens",
            rules=_rules(Integer(1, INT32_MAX)),
            defaults=_default("none"),
            effect="Triton's name for max_new_tokens, which wins when both are given.",
        ),
        Field(
            name="stop",
            rules=_rules(Stops(items=1024, chars=1024), Stops(items=1024)),
            defaults=_default("none"),
            effect="Ends the answer right before one of the strings appears in new text.",
        ),
        Field(
            name="stop_words",
            rules=_rules(
                Stops(items=1024, chars=1024, empty_is_none=True),
                Stops(items=1024, empty_is_none=True),
            ),
            defaults=_default("none"),
            effect="As stop; with both given, all strings count.",
        ),
        Field(
            name="stream",
            rules=_rules(Boolean()),
            defaults=_default("none"),
            effect="Checked; the route alone decides whether the answer streams.",
        ),
        Field(
            name="exclude_input_in_output",
            rules=_rules(Boolean()),
            defaults=_default("true"),
            effect="false puts the prompt, as sent, before the answer's text; events carry new text only.",
        ),
        Field(
            name="ignore_eos",
            rules=_rules(Boolean()),
            defaults=_default("false"),
            effect="Goes on past the end-of-sequence token.",
            note="An extension of this server.",
        ),
    ),
)
