"""LangChain's `HuggingFaceEndpoint`, unchanged. It sends typical_p 0.95 and temperature 0.8 each time."""

from __future__ import annotations

from pathlib import Path

import pytest
from client_process import call
from served import Served, say


@pytest.mark.parametrize("kind", ["invoke", "ainvoke", "stream", "astream"])
def test_endpoint(served: Served, clients_python: Path, kind: str) -> None:
    prompt = say("alpha", " beta", " gamma")
    results = call(
        clients_python,
        "langchain_calls.py",
        served.url,
        [
            {"kind": kind, "prompt": prompt},
            {"kind": kind, "prompt": prompt, "arguments": {"stop_sequences": [" beta"]}},
            {
                "kind": kind,
                "prompt": "Hello",
                "arguments": {"max_new_tokens": 3, "top_k": 5, "seed": 7, "do_sample": True, "truncate": 4},
            },
        ],
    )
    whole, stopped, short = ("".join(one) for one in results)
    assert whole.removesuffix("</s>") == "alpha beta gamma"  # its streams show special tokens
    assert stopped == "alpha"
    assert short.removeprefix("<s>") in ("lo", "ll", "el")
