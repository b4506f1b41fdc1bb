"""The parameters of TGI's native request: one row each, one column per profile, one for the lenient ranges.

`mindie` is the contract of `/generate` and `/generate_stream`, `hf` that of `/` and `/invocations`. `lenient`
is what TGI 3.x or the vendor's server really takes: `--lenient-ranges` chooses it; it is never narrower.
"""

from __future__ import annotations

import re

from interlingua.dialects._fields import Field, Table
from interlingua.dialects._parts import MiB, Prompt
from interlingua.dialects._rules import (
    INT32_MAX,
    LENIENT_PROMPT_CHARS,
    MAX_PROMPT_CHARS,
    UINT32_MAX,
    UINT64_MAX,
    Boolean,
    GrammarRule,
    Integer,
    Number,
    Rule,
    Stops,
    Text,
)

MINDIE = "mindie"
HF = "hf"
COLUMNS = (MINDIE, HF)
DEFAULT_TOP_K = 1000  # of profile mindie, while sampling, when the model's files name none

_BASE_MODEL = "the base model"
NO_ADAPTER = "None"  # as an adapter's name: the base model
ADAPTER = re.compile(r"[A-Za-z0-9._/-]{1,256}")


def _both(rule: Rule, lenient: Rule | None = None) -> dict[str, Rule]:
    return _each(rule, rule, lenient)


def _each(mindie: Rule, hf: Rule, lenient: Rule | None = None) -> dict[str, Rule]:
    rules = {MINDIE: mindie, HF: hf}
    return rules if lenient is None else rules | {"lenient": lenient}


def _same(default: str) -> dict[str, str]:
    return {MINDIE: default, HF: default}


_POSITIVE = Number(above=0)

INPUTS = Field(
    name="inputs",
    rules=_both(
        Prompt(max_chars=MAX_PROMPT_CHARS, image_bytes=40 * MiB, audio_bytes=40 * MiB),
        Prompt(max_chars=LENIENT_PROMPT_CHARS, image_bytes=40 * MiB, audio_bytes=40 * MiB),
    ),
    defaults=_same("required"),
    effect="The prompt. Text parts of a list are joined with nothing between them.",
    note="Media parts are checked, then refused while the model reads text only.",
)

STREAM = Field(
    name="stream",
    rules=_both(Boolean()),
    defaults=_same("false"),
    effect="On `/` and `/invocations`: answer with events instead of a list of one. Ignored on `/generate`.",
)

PARAMETERS = Table.of(
    COLUMNS,
    (
        Field(
            name="max_new_tokens",
            rules=_both(Integer(1, INT32_MAX), Integer(1, UINT32_MAX)),
            defaults={MINDIE: "20", HF: "1024, or the room left if that is less"},
            effect="The most tokens to generate; `max_iter_times` and the context's end cut it as well.",
        ),
        Field(
            name="do_sample",
            rules=_both(Boolean()),
            defaults={
                MINDIE: "true if temperature, top_k, top_p or typical_p is given",
                HF: "false",
            },
            effect="Sample instead of taking the likeliest token.",
            note="Profile hf samples also when temperature ≠ 1, top_k is given, top_p < 1 or typical_p < 1.",
        ),
        Field(
            name="temperature",
            rules=_each(Number(above=1e-6), _POSITIVE, _POSITIVE),
            defaults={MINDIE: "the model's generation_config.json, else 1.0", HF: "1.0"},
            effect="Divides the scores; higher is more random.",
        ),
        Field(
            name="top_k",
            rules=_both(Integer(1, INT32_MAX)),
            defaults={
                MINDIE: f"generation_config.json, then config.json, else {DEFAULT_TOP_K}",
                HF: "off",
            },
            effect="Keeps the k likeliest tokens while sampling. At or over the vocabulary: off.",
        ),
        Field(
            name="top_p",
            rules=_each(Number(above=1e-6, below=1), Number(above=0, at_most=1), Number(above=0, at_most=1)),
            defaults={MINDIE: "the model's generation_config.json, else off", HF: "off"},
            effect="Keeps the smallest set of likeliest tokens whose probabilities reach p.",
        ),
        Field(
            name="typical_p",
            rules=_both(Number(above=0, at_most=1)),
            defaults=_same("off"),
            effect="Locally typical sampling with mass p; 1 is off.",
        ),
        Field(
            name="repetition_penalty",
            rules=_both(_POSITIVE),
            defaults={MINDIE: "the model's generation_config.json when sampling, else 1.0", HF: "1.0"},
            effect="Makes tokens of prompt and output less likely (over 1) or likelier (under 1); 1 is off.",
        ),
        Field(
            name="frequency_penalty",
            rules=_both(Number(above=-2, at_most=2), Number(at_least=-2, at_most=2)),
            defaults=_same("0.0"),
            effect="Subtracts f × count / length over prompt and output; 0 is off.",
        ),
        Field(
            name="seed",
            rules=_both(Integer(1, UINT64_MAX), Integer(0, UINT64_MAX)),
            defaults=_same("drawn from 1..2^53−1"),
            effect="The random seed. The one used is returned, for greedy answers too.",
        ),
        Field(
            name="stop",
            rules=_each(
                Stops(items=1024, chars=1024),
                Stops(items="max_stop_sequences"),
                Stops(items=1024),
            ),
            defaults=_same("none"),
            effect="Ends the answer when one of the strings appears in new text.",
            note="Profile mindie ends the text right before the stop, profile hf right after it.",
        ),
        Field(
            name="truncate",
            rules=_each(Integer(1, INT32_MAX), Integer(0, INT32_MAX), Integer(0, INT32_MAX)),
            defaults=_same("off"),
            effect="Keeps the last n tokens of the prompt, a BOS token included. 0 is off.",
        ),
        Field(
            name="return_full_text",
            rules=_both(Boolean()),
            defaults=_same("false"),
            effect="Puts the prompt, as sent, before the generated text.",
        ),
        Field(
            name="details",
            rules=_both(Boolean()),
            defaults={MINDIE: "false", HF: "true"},
            effect="Adds `details` to the answer, or to the last event.",
        ),
        Field(
            name="decoder_input_details",
            rules=_both(Boolean()),
            defaults=_same("false"),
            effect="Fills `details.prefill` with the prompt's tokens; implies `details`.",
            note="Refused on streams.",
        ),
        Field(
            name="top_n_tokens",
            rules=_both(Integer(1, "max_top_n_tokens"), Integer(0, "max_top_n_tokens")),
            defaults=_same("none"),
            effect="Adds the n likeliest tokens at each step, ties at the last rank included.",
        ),
        Field(
            name="ignore_eos",
            rules=_both(Boolean()),
            defaults=_same("false"),
            effect="Goes on past the end-of-sequence token.",
            note="An extension of this server.",
        ),
        Field(
            name="best_of",
            rules=_both(Integer(1, "max_best_of"), Integer(0, "max_best_of")),
            defaults=_same("1"),
            effect="Generates n answers and returns the one with the best mean logprob.",
            note="Over 1: when sampling, without a seed, not streamed. `details.best_of_sequences` has the others.",
        ),
        Field(
            name="watermark",
            rules=_both(Boolean()),
            defaults=_same("false"),
            effect="Favours a share of all tokens, drawn anew after each token: the text can be recognised later.",
            note="Share and strength: `--watermark-gamma`, `--watermark-delta`.",
        ),
        Field(
            name="grammar",
            rules=_both(GrammarRule()),
            defaults=_same("none"),
            effect="Holds the answer to a JSON Schema or a regular expression; what cannot be followed is refused.",
        ),
        Field(
            name="adapter_id",
            rules=_both(Text(1, 256, ADAPTER, "letters, digits and . _ / -")),
            defaults=_same(_BASE_MODEL),
            effect="The LoRA adapter to use; the word `None` is the base model. An unknown id is refused.",
        ),
    ),
)
