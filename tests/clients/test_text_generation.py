"""`text_generation.Client` and `AsyncClient`, unchanged, plain and streaming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from client_process import call
from served import Served, say

KINDS = ["generate", "async generate"]
STREAMS = ["generate_stream", "async generate_stream"]
PROGRAM = "text_generation_calls.py"
EVERYTHING = {
    "do_sample": True,
    "max_new_tokens": 7,
    "repetition_penalty": 1.2,
    "return_full_text": True,
    "seed": 2**64 - 1,
    "stop_sequences": ["never"],
    "temperature": 0.5,
    "top_k": 10,
    "top_p": 0.9,
    "truncate": 5,
    "typical_p": 0.9,
    "watermark": True,
    "top_n_tokens": 2,
    "frequency_penalty": 0.1,
}


def one(python: Path, url: str, kind: str, prompt: str, **arguments: Any) -> Any:
    return call(python, PROGRAM, url, [{"kind": kind, "prompt": prompt, "arguments": arguments}])[0]


@pytest.mark.parametrize("kind", KINDS)
def test_generate(served: Served, clients_python: Path, kind: str) -> None:
    got = one(clients_python, served.url, kind, say("alpha", " beta"))
    assert got["generated_text"] == "alpha beta"
    assert got["details"]["finish_reason"] == "eos_token"
    assert [token["text"] for token in got["details"]["tokens"]] == ["alpha", " beta", "</s>"]
    assert got["details"]["tokens"][2]["special"] is True


@pytest.mark.parametrize("kind", KINDS)
def test_generate_with_everything(served: Served, clients_python: Path, kind: str) -> None:
    arguments = {**EVERYTHING, "decoder_input_details": True}
    got = one(clients_python, served.url, kind, "Hello there", **arguments)
    details = got["details"]
    assert got["generated_text"].startswith("Hello there")
    assert details["seed"] == 2**64 - 1
    assert [token["text"] for token in details["prefill"]] == ["<s>", *"here"]
    assert details["prefill"][0]["logprob"] is None
    assert [len(tops) for tops in details["top_tokens"]] == [2] * len(details["tokens"])


@pytest.mark.parametrize("kind", STREAMS)
def test_stream(served: Served, clients_python: Path, kind: str) -> None:
    events = one(clients_python, served.url, kind, "Hello there", **EVERYTHING)
    text = "".join(event["token"]["text"] for event in events if not event["token"]["special"])
    assert events[-1]["generated_text"] == "Hello there" + text
    assert events[-1]["details"]["seed"] == 2**64 - 1
    assert events[-1]["details"]["generated_tokens"] == len(events)
    assert all(event["details"] is None for event in events[:-1])
    assert all(len(event["top_tokens"]) == 2 for event in events)


@pytest.mark.parametrize("kind", [*KINDS, *STREAMS])
def test_its_stop_text_is_kept(served: Served, clients_python: Path, kind: str) -> None:
    got = one(clients_python, served.url, kind, say("alpha", " beta"), stop_sequences=["ha"])
    last = got[-1] if isinstance(got, list) else got
    assert (last["generated_text"], last["details"]["finish_reason"]) == ("alpha", "stop_sequence")


@pytest.mark.parametrize("kind", [*KINDS, *STREAMS])
def test_errors_become_the_clients_own_classes(served: Served, clients_python: Path, kind: str) -> None:
    calls = [
        {"kind": kind, "prompt": "x" * 2000},
        {"kind": kind, "prompt": "x", "arguments": {"stop_sequences": list("abcde")}},
        {"kind": kind, "prompt": say("abc", fail_at=2)},
        {"kind": kind, "prompt": say("abc", fail_at=0)},
    ]
    got = call(clients_python, PROGRAM, served.url, calls)
    assert [result["raised"] for result in got] == ["ValidationError"] * 2 + ["GenerationError"] * 2
    assert "`parameters.stop`" in got[1]["text"]


def test_best_of(served: Served, clients_python: Path) -> None:
    got = one(clients_python, served.url, "generate", "x", best_of=2, do_sample=True)
    sequences = got["details"]["best_of_sequences"]
    assert len(sequences) == 1 and sequences[0]["generated_text"] == got["generated_text"] == "x"
    assert sequences[0]["seed"] != got["details"]["seed"]
