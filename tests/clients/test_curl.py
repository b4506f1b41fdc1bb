"""curl with the bodies printed in the API documents, as a form (curl's default) and as JSON."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest
from served import Served
from wire_cases import GENERATE, MODEL, ROOT, STREAM, TRITON, TRITON_STREAM

TGI = """{
    "inputs": "My name is Olivier and I",
    "parameters": {
        "decoder_input_details": true,
        "details": true,
        "do_sample": true,
        "max_new_tokens": 20,
        "repetition_penalty": 1.03,
        "return_full_text": false,
        "seed": null,
        "temperature": 0.5,
        "top_k": 10,
        "top_p": 0.95,
        "truncate": null,
        "typical_p": 0.5,
        "watermark": false,
        "stop": null,
        "adapter_id": "None"
    }
}"""
TRITON_BODY = """{
    "id":"a123",
    "text_input": "My name is Olivier and I",
    "parameters": {
        "details": true,
        "do_sample": true,
        "max_new_tokens":5,
        "repetition_penalty": 1.1,
        "seed": 123,
        "temperature": 1,
        "top_k": 10,
        "top_p": 0.99,
        "batch_size":100,
        "typical_p": 0.5,
        "watermark": false,
        "perf_stat": true,
        "priority": 5,
        "timeout": 10
    }
}"""
TGI_KEYS = ["finish_reason", "generated_tokens", "prefill", "prompt_tokens", "seed", "tokens"]
TRITON_KEYS = ["id", "model_name", "model_version", "text_output"]

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def curl(served: Served, path: str, body: str, *options: str) -> str:
    command = ["curl", "-sS", "--fail-with-body", "-N", *options, "--data-binary", "@-", served.url + path]
    return subprocess.run(command, input=body, capture_output=True, text=True, check=True, timeout=60).stdout


def events(text: str) -> list[Any]:
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line]


@pytest.mark.parametrize("options", [(), ("-H", "Content-Type: application/json")])
def test_tgi(served: Served, options: tuple[str, ...]) -> None:
    got = json.loads(curl(served, GENERATE, TGI, *options))
    assert list(got) == ["details", "generated_text"]
    assert list(got["details"]) == TGI_KEYS
    assert len(got["details"]["prefill"]) == got["details"]["prompt_tokens"] == 25
    (same,) = json.loads(curl(served, ROOT, TGI, *options))
    assert list(same["details"]) == TGI_KEYS


def test_tgi_streaming(served: Served) -> None:
    # The document's body asks for prefill details, which a stream cannot give. Without them it streams.
    with pytest.raises(subprocess.CalledProcessError) as refused:
        curl(served, STREAM, TGI)
    assert "`parameters.decoder_input_details`" in json.loads(refused.value.stdout)["error"]
    body = TGI.replace('"decoder_input_details": true', '"decoder_input_details": false')
    got = events(curl(served, STREAM, body))
    assert len(got) == 20
    assert got[-1]["details"]["finish_reason"] == "length"
    assert got[-1]["generated_text"] == "My name is Olivier "[:19]


def test_triton(served: Served) -> None:
    for path in (TRITON, f"/v2/models/{MODEL}/versions/1/generate"):
        got = json.loads(curl(served, path, TRITON_BODY))
        assert list(got) == [*TRITON_KEYS, "details"]
        assert (got["id"], got["details"]["generated_tokens"], len(got["details"]["perf_stat"])) == (
            "a123",
            5,
            5,
        )


def test_triton_streaming(served: Served) -> None:
    got = events(curl(served, TRITON_STREAM, TRITON_BODY))
    assert [list(event) for event in got] == [TRITON_KEYS] * 4 + [[*TRITON_KEYS, "details"]]
    assert len(got[-1]["details"]["perf_stat"]) == 5
