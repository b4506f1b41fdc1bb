"""NVIDIA's own client of the KServe v2 protocol over HTTP, unchanged, against a real process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from served import MAX_TOTAL, Served, say
from wire_cases import MODEL

tritonclient = pytest.importorskip("tritonclient.http", reason="tritonclient[http] is not installed")
utils = pytest.importorskip("tritonclient.utils")


@pytest.fixture
def client(served: Served) -> Iterator[Any]:
    with tritonclient.InferenceServerClient(served.url.removeprefix("http://")) as client:
        yield client


def tensor(name: str, values: list[Any], datatype: str = "BYTES", *, binary: bool = True) -> Any:
    dtype = {"BYTES": np.object_, "BOOL": np.bool_, "UINT32": np.uint32}[datatype]
    made = tritonclient.InferInput(name, [len(values)], datatype)
    made.set_data_from_numpy(np.array(values, dtype=dtype), binary_data=binary)
    return made


def text(result: Any) -> str:
    value = result.as_numpy("text_output").item()  # bytes when it came as binary data
    return value.decode() if isinstance(value, bytes) else str(value)


def test_health(client: Any):
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready(MODEL) and client.is_model_ready(MODEL, "1")
    assert not client.is_model_ready("other") and not client.is_model_ready(MODEL, "2")


def test_metadata(client: Any):
    server = client.get_server_metadata()
    assert server["name"] == "interlingua" and "binary_tensor_data" in server["extensions"]
    for version in ("", "1"):
        model = client.get_model_metadata(MODEL, version)
        assert model["name"] == MODEL and model["versions"] == ["1"]
        assert {"name": "text_input", "datatype": "BYTES", "shape": [1]} in model["inputs"]
        assert {"name": "output0", "datatype": "UINT32", "shape": [-1]} in model["outputs"]
        config = client.get_model_config(MODEL, version)
        assert config["name"] == config["model_name"] == MODEL
        assert config["model_transaction_policy"] == {"decoupled": True} and config["max_seq_len"] == MAX_TOTAL
        kinds = {"BYTES": "TYPE_STRING", "BOOL": "TYPE_BOOL", "UINT32": "TYPE_UINT32"}
        assert [(entry["name"], entry["data_type"]) for entry in config["input"]] == [
            (entry["name"], kinds[entry["datatype"]]) for entry in model["inputs"]
        ]
    assert client.get_model_repository_index() == [{"name": MODEL, "version": "1", "state": "READY", "reason": ""}]


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False, None])
@pytest.mark.parametrize("base", ["", "/triton"])
def test_text(served: Served, binary_in: bool, binary_out: bool | None, base: str):
    with tritonclient.InferenceServerClient(served.url.removeprefix("http://") + base) as client:
        inputs = [
            tensor("text_input", [say("hé ", "😀", "!")], binary=binary_in),
            tensor("sampling_parameters", [json.dumps({"max_tokens": 50})], binary=binary_in),
            tensor("stream", [False], "BOOL", binary=binary_in),
        ]
        outputs = None
        if binary_out is not None:
            outputs = [tritonclient.InferRequestedOutput("text_output", binary_data=binary_out)]
        result = client.infer(MODEL, inputs, request_id="mine-1", outputs=outputs)
    response = result.get_response()
    assert (response["id"], response["model_name"], response["model_version"]) == ("mine-1", MODEL, "1")
    assert text(result) == "hé 😀!"
    assert ("data" in result.get_output("text_output")) == (binary_out is False)


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("name", ["output0", "tokens"])
def test_token_ids(client: Any, binary: bool, name: str):
    result = client.infer(
        MODEL,
        [tensor("input0", [97, 98, 4], "UINT32", binary=binary)],
        outputs=[tritonclient.InferRequestedOutput(name, binary_data=binary)],
        parameters={"max_new_tokens": 3},
    )
    ids = result.as_numpy(name)
    assert ids.dtype == np.uint32 and ids.tolist() == [[97, 98, 4]]


def test_outputs_beside_the_text(client: Any):
    flags = [tensor(f"return_{name}", [True], "BOOL") for name in ("finish_reason", "num_input_tokens")]
    wanted = [tritonclient.InferRequestedOutput(name) for name in ("num_output_tokens", "output0", "text_output")]
    result = client.infer(
        MODEL, [tensor("text_input", ["abc"]), *flags], outputs=wanted, parameters={"max_new_tokens": 2}
    )
    assert result.as_numpy("num_output_tokens").tolist() == [2]
    assert result.as_numpy("num_input_tokens").tolist() == [4]  # with the BOS
    assert result.as_numpy("finish_reason").tolist() == ["length"]
    assert result.as_numpy("output0").tolist() == [[256, 97]] and text(result) == "a"
    assert [output["name"] for output in result.get_response()["outputs"]] == [
        *("num_output_tokens", "output0", "text_output"),
        *("finish_reason", "num_input_tokens"),
    ]


def test_asynchronous_calls(client: Any):
    waiting = [client.async_infer(MODEL, [tensor("text_input", [say(f"{n}!")])]) for n in range(8)]
    assert [text(handle.get_result()) for handle in waiting] == [f"{n}!" for n in range(8)]


def test_errors(client: Any):
    def message(call: Any, status: str) -> str:
        with pytest.raises(utils.InferenceServerException) as caught:
            call()
        assert caught.value.status() == status
        return str(caught.value.message())

    good = tensor("text_input", ["x"])
    assert "other" in message(lambda: client.infer("other", [good]), "404")
    assert "version" in message(lambda: client.infer(MODEL, [good], model_version="3"), "404")
    assert "other" in message(lambda: client.get_model_metadata("other"), "404")
    assert "`parameters.top_p`" in message(lambda: client.infer(MODEL, [good], parameters={"top_p": 2}), "400")
    assert "`id`" in message(lambda: client.infer(MODEL, [good], request_id="a b"), "400")
    assert "neither" in message(lambda: client.infer(MODEL, [tensor("stream", [True], "BOOL")]), "400")
    assert "gzip" in message(lambda: client.infer(MODEL, [good], request_compression_algorithm="gzip"), "400")
    shared = tritonclient.InferInput("text_input", [1], "BYTES")
    shared.set_shared_memory("region", 10)
    assert "shared memory" in message(lambda: client.infer(MODEL, [shared]), "400")
    classes = tritonclient.InferRequestedOutput("text_output", class_count=3)
    assert "classification" in message(lambda: client.infer(MODEL, [good], outputs=[classes]), "400")
