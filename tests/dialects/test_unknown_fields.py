"""Unknown fields are accepted, change nothing and are named in one debug line."""

from __future__ import annotations

import logging

import pytest
from wire import call
from wire_cases import GENERATE, TRITON

from interlingua.dialects import _fields

PLAIN = b'{"inputs":"x","parameters":{"top_k":3}}'
UNKNOWN = b'{"inputs":"x","extra":[1],"parameters":{"top_k":3,"stop_sequences":["a"],"max_tokens":5}}'


def test_they_change_nothing() -> None:
    assert call(GENERATE, PLAIN).request == call(GENERATE, UNKNOWN).request


@pytest.mark.parametrize(
    ("path", "prompt"), [("/v1/completions", b'"prompt":"x"'), ("/vllm/generate", b'"prompt":"x"')]
)
def test_what_another_dialect_knows_is_unknown_all_the_same(path: str, prompt: bytes) -> None:
    """OpenAI's routes and vLLM's have no `watermark`."""
    assert call(path, b"{%b}" % prompt).request == call(path, b'{%b,"watermark":true,"typical_p":0.5}' % prompt).request


def test_one_debug_line_names_them(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger=_fields.__name__):
        call(GENERATE, UNKNOWN)
        call(TRITON, b'{"text_input":"x","stop":"a","other":1,"parameters":{"bad_words":""}}')
        call(GENERATE, PLAIN)
    assert [record.getMessage().split(": ")[1] for record in caplog.records] == [
        "unknown fields extra, parameters.stop_sequences, parameters.max_tokens have no effect",
        "unknown fields other, parameters.bad_words have no effect",
    ]


def test_nothing_is_logged_otherwise(caplog: pytest.LogCaptureFixture) -> None:
    call(GENERATE, UNKNOWN)
    assert not caplog.records
