"""The operator's limits: the last value inside is taken, the next is refused with the limit and the setting's name."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from wire import SETTINGS, call_or_reply
from wire_cases import GENERATE, ROOT, STREAM, TRITON

from interlingua.contract.dialect import Call, Reply
from interlingua.service.prepare import Limits


def nested(levels: int) -> Any:
    return [] if levels == 1 else [nested(levels - 1)]


# (setting, its value, path, parameters just inside, parameters just outside, the field that is named)
LIMITS: list[tuple[str, int, str, dict[str, Any], dict[str, Any], str]] = [
    ("max_stop_sequences", 2, ROOT, {"stop": ["a", "b"]}, {"stop": ["a", "b", "c"]}, "stop"),
    ("max_stop_sequences", 7, ROOT, {"stop": ["a"] * 7}, {"stop": ["a"] * 8}, "stop"),
    ("max_stop_sequences", 0, ROOT, {"stop": []}, {"stop": ["a"]}, "stop"),
    ("max_best_of", 4, ROOT, {"best_of": 4, "do_sample": True}, {"best_of": 5, "do_sample": True}, "best_of"),
    ("max_best_of", 1, GENERATE, {"best_of": 1, "do_sample": True}, {"best_of": 2, "do_sample": True}, "best_of"),
    ("max_top_n_tokens", 9, STREAM, {"top_n_tokens": 9}, {"top_n_tokens": 10}, "top_n_tokens"),
    ("max_top_n_tokens", 1, GENERATE, {"top_n_tokens": 1}, {"top_n_tokens": 2}, "top_n_tokens"),
]


@pytest.mark.parametrize(("setting", "value", "path", "inside", "outside", "field"), LIMITS)
def test_limits(
    setting: str, value: int, path: str, inside: dict[str, Any], outside: dict[str, Any], field: str
) -> None:
    settings = replace(SETTINGS, **{setting: value})
    good, bad = (
        call_or_reply(path, json.dumps({"inputs": "x", "parameters": parameters}).encode(), settings)
        for parameters in (inside, outside)
    )
    assert isinstance(good, Call), good
    assert isinstance(bad, Reply) and bad.status == 422
    message = json.loads(bad.body)["error"]
    assert message.startswith(f"`parameters.{field}`") and str(value) in message and setting in message


@pytest.mark.parametrize(("path", "prompt", "status"), [(GENERATE, "inputs", 422), (TRITON, "text_input", 400)])
def test_depth(path: str, prompt: str, status: int) -> None:
    settings = replace(SETTINGS, max_json_depth=10)
    good, bad = (  # the root is a level, too
        call_or_reply(path, json.dumps({prompt: "x", "y": nested(levels)}).encode(), settings) for levels in (9, 10)
    )
    assert isinstance(good, Call)
    assert isinstance(bad, Reply) and bad.status == status and "10 levels" in json.loads(bad.body)["error"]


def test_defaults() -> None:
    """As the documents and TGI have them."""
    assert (SETTINGS.max_stop_sequences, SETTINGS.max_best_of, SETTINGS.max_top_n_tokens) == (4, 2, 5)
    assert (SETTINGS.tgi_profile, SETTINGS.lenient_ranges) == ("auto", False)
    limits = Limits()
    assert (limits.max_seq_len, limits.max_input_token_len, limits.max_iter_times) == (None, None, None)
    assert (limits.max_concurrent_requests, limits.timeout, limits.truncation) == (512, 600.0, "off")
    assert (limits.max_prompt_chars, limits.max_prompt_tokens) == (4_194_304, 1_048_576)
