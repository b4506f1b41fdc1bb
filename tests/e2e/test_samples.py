"""The sample requests of the documents that users have, answered with every key of the sample answers."""

from __future__ import annotations

import math
from typing import Any

from calls import GENERATE, MODEL
from server import Server
from sockets import ask

PROMPT = "My name is Olivier and I"
TOKEN = {"id": 0, "logprob": None, "special": None, "text": "test"}

TGI_REQUEST: dict[str, Any] = {
    "inputs": PROMPT,
    "parameters": {
        "decoder_input_details": True,
        "details": True,
        "do_sample": True,
        "max_new_tokens": 20,
        "repetition_penalty": 1.03,
        "return_full_text": False,
        "seed": None,
        "temperature": 0.5,
        "top_k": 10,
        "top_p": 0.95,
        "truncate": None,
        "typical_p": 0.5,
        "watermark": False,
        "stop": None,
        "adapter_id": "None",
    },
}
TGI_ANSWER: dict[str, Any] = {
    "details": {
        "finish_reason": "length",
        "generated_tokens": 1,
        "prefill": [TOKEN],
        "prompt_tokens": 74,
        "seed": 42,
        "tokens": [TOKEN],
    },
    "generated_text": "am a Frenchman living in the UK.",
}

TRITON_REQUEST: dict[str, Any] = {
    "id": "a123",
    "text_input": PROMPT,
    "parameters": {
        "details": True,
        "do_sample": True,
        "max_new_tokens": 5,
        "repetition_penalty": 1.1,
        "seed": 123,
        "temperature": 1,
        "top_k": 10,
        "top_p": 0.99,
        "batch_size": 100,
        "typical_p": 0.5,
        "watermark": False,
        "perf_stat": True,
        "priority": 5,
        "timeout": 10,
    },
}
TRITON_ANSWER: dict[str, Any] = {
    "id": "a123",
    "model_name": "llama_65b",
    "model_version": None,
    "text_output": "live in Paris, France",
    "details": {
        "finish_reason": "length",
        "generated_tokens": 5,
        "first_token_cost": None,
        "decode_cost": None,
        "perf_stat": [[5735, 17], [297, 8], [3681, 7], [29892, 7], [3444, 7]],
    },
}

# The examples of the fields in Hugging Face's schema.
HF_REQUEST: dict[str, Any] = {
    "inputs": PROMPT,
    "parameters": {
        "adapter_id": None,
        "best_of": 1,
        "decoder_input_details": True,
        "details": True,
        "do_sample": True,
        "frequency_penalty": 0.1,
        "grammar": None,
        "max_new_tokens": 20,
        "repetition_penalty": 1.03,
        "return_full_text": False,
        "seed": None,
        "stop": ["photographer"],
        "temperature": 0.5,
        "top_k": 10,
        "top_n_tokens": 5,
        "top_p": 0.95,
        "truncate": None,
        "typical_p": 0.95,
        "watermark": True,
    },
    "stream": False,
}
HF_ANSWER = [
    {
        "details": {**TGI_ANSWER["details"], "top_tokens": [[TOKEN]]},
        "generated_text": "am a Frenchman living in the UK.",
    }
]


def shape(value: Any) -> Any:
    """The keys of a JSON value in their order; of a list, the one shape that all items have."""
    if isinstance(value, dict):
        return [(key, shape(item)) for key, item in value.items()]
    if isinstance(value, list):
        shapes = [shape(item) for item in value]
        assert all(one == shapes[0] for one in shapes), value
        return ["list", *shapes[:1]]
    return "leaf"


def check_tgi(answer: Any) -> None:
    """That the values of a TGI answer to `PROMPT` make sense together."""
    details = answer["details"]
    prefill, tokens = details["prefill"], details["tokens"]
    assert details["finish_reason"] in ("length", "eos_token", "stop_sequence")
    assert details["generated_tokens"] == len(tokens)
    assert 1 <= len(tokens) <= 20
    assert details["prompt_tokens"] == len(prefill)
    assert "".join(token["text"] for token in prefill) == PROMPT
    assert prefill[0]["logprob"] is None
    assert all(type(token["id"]) is int and type(token["special"]) is bool for token in (*prefill, *tokens))
    assert all(math.isfinite(token["logprob"]) and token["logprob"] < 0 for token in (*prefill[1:], *tokens))
    assert "".join(token["text"] for token in tokens if not token["special"]) == answer["generated_text"]
    assert len(answer["generated_text"]) > 3
    assert 1 <= details["seed"] < 2**53


async def test_sample_of_the_tgi_document(server: Server) -> None:
    reply = await ask(server.port, "POST", "/generate", TGI_REQUEST)
    assert reply.status == 200, reply.body
    assert shape(reply.json) == shape(TGI_ANSWER)
    check_tgi(reply.json)
    text = reply.json["generated_text"]
    replay = {**TGI_REQUEST, "parameters": {**TGI_REQUEST["parameters"], "seed": reply.json["details"]["seed"]}}
    assert (await ask(server.port, "POST", "/generate", replay)).json["generated_text"] == text


async def test_sample_of_the_triton_document(server: Server) -> None:
    reply = await ask(server.port, "POST", f"/v2/models/{MODEL}/generate", TRITON_REQUEST)
    assert reply.status == 200, reply.body
    answer = reply.json
    assert shape(answer) == shape(TRITON_ANSWER)
    assert (answer["id"], answer["model_name"], answer["model_version"]) == ("a123", MODEL, None)
    details = answer["details"]
    assert (details["first_token_cost"], details["decode_cost"]) == (None, None)
    assert details["finish_reason"] == "length"
    rows = details["perf_stat"]
    assert details["generated_tokens"] == len(rows) == 5
    assert all(len(row) == 2 and type(row[0]) is int and type(row[1]) is int for row in rows)
    assert all(0 <= milliseconds < 10_000 for _, milliseconds in rows)
    # The same tokens as another route says, and the same text.
    parameters = {
        name: TRITON_REQUEST["parameters"][name]
        for name in ("do_sample", "repetition_penalty", "seed", "temperature", "top_k", "top_p", "typical_p")
    }
    other = await GENERATE.call(server.port, PROMPT, max_new_tokens=5, **parameters)
    assert ([row[0] for row in rows], answer["text_output"]) == (other.ids, other.text)


async def test_examples_of_the_hugging_face_schema(server: Server) -> None:
    reply = await ask(server.port, "POST", "/", HF_REQUEST)
    assert reply.status == 200, reply.body
    (answer,) = reply.json
    # Every step has its n likeliest tokens, and more of them at a tie.
    top_tokens = answer["details"]["top_tokens"]
    assert shape(reply.json) == shape(HF_ANSWER)
    check_tgi(answer)
    assert len(top_tokens) == answer["details"]["generated_tokens"]
    for tokens in top_tokens:
        logprobs = [token["logprob"] for token in tokens]
        assert len(tokens) >= 5 and logprobs == sorted(logprobs, reverse=True)


async def test_smallest_request_of_the_hugging_face_schema(server: Server) -> None:
    reply = await ask(server.port, "POST", "/", {"inputs": PROMPT, "parameters": {"max_new_tokens": 3}})
    assert reply.status == 200, reply.body
    assert reply.json[0]["details"]["prefill"] == []
    assert list(reply.json[0]) == ["details", "generated_text"]  # details unless told otherwise
