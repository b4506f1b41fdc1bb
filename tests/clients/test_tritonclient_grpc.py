"""NVIDIA's own client of the KServe v2 protocol over gRPC, unchanged, against a real process."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from served import Served, say
from wire_cases import MODEL
from wire_client import metric, send, wait_until

tritonclient = pytest.importorskip("tritonclient.grpc", reason="tritonclient[grpc] is not installed")
utils = pytest.importorskip("tritonclient.utils")
service_pb2 = pytest.importorskip("tritonclient.grpc.service_pb2")


@pytest.fixture
def client(served: Served) -> Iterator[Any]:
    with tritonclient.InferenceServerClient(served.urls["grpc"]) as client:
        yield client


def tensor(name: str, values: list[Any], datatype: str = "BYTES") -> Any:
    dtype = {"BYTES": np.object_, "BOOL": np.bool_, "UINT32": np.uint32}[datatype]
    made = tritonclient.InferInput(name, [len(values)], datatype)
    made.set_data_from_numpy(np.array(values, dtype=dtype))
    return made


def text(result: Any) -> str:
    return result.as_numpy("text_output").item().decode()


class Stream:
    """A stream of the client, its responses in a queue."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.responses: queue.Queue[tuple[Any, Any]] = queue.Queue()
        client.start_stream(lambda result, error: self.responses.put((result, error)))

    def send(self, prompt: str, request_id: str, *, stream: bool = True, **parameters: Any) -> None:
        inputs = [tensor("text_input", [prompt]), tensor("stream", [stream], "BOOL")]
        self.client.async_stream_infer(MODEL, inputs, request_id=request_id, parameters=parameters)

    def until_final(self, requests: int = 1) -> list[tuple[Any, Any]]:
        """All responses until so many requests have had their last one."""
        found = []
        while requests:
            found.append(self.responses.get(timeout=30))
            result, error = found[-1]
            if error is not None:
                requests -= 1
            else:
                requests -= result.get_response().parameters["triton_final_response"].bool_param
        return found


def test_queries(client: Any):
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready(MODEL) and client.is_model_ready(MODEL, "1")
    assert not client.is_model_ready("other") and not client.is_model_ready(MODEL, "2")
    server = client.get_server_metadata(as_json=True)
    assert server["name"] == "interlingua" and "binary_tensor_data" in server["extensions"]
    model = client.get_model_metadata(MODEL, as_json=True)
    assert model["name"] == MODEL and model["versions"] == ["1"]
    assert {"name": "input0", "datatype": "UINT32", "shape": ["-1"]} in model["inputs"]
    config = client.get_model_config(MODEL, as_json=True)["config"]
    assert config["name"] == MODEL and config["model_transaction_policy"] == {"decoupled": True}
    assert {"name": "text_input", "data_type": "TYPE_STRING", "dims": ["1"], "optional": True} in config["input"]
    assert config["version_policy"] == {"latest": {"num_versions": 1}}
    index = client.get_model_repository_index(as_json=True)
    assert index == {"models": [{"name": MODEL, "version": "1", "state": "READY"}]}


def test_http_and_grpc_tell_the_same(client: Any, served: Served):
    model = client.get_model_metadata(MODEL).inputs
    over_http = send(served.url, f"/v2/models/{MODEL}", method="GET").json["inputs"]
    assert [{"name": i.name, "datatype": i.datatype, "shape": list(i.shape)} for i in model] == over_http


def test_inference(client: Any):
    sampling = tensor("sampling_parameters", [json.dumps({"max_tokens": 50})])
    result = client.infer(MODEL, [tensor("text_input", [say("hé ", "😀")]), sampling], request_id="mine-1")
    response = result.get_response()
    assert (response.id, response.model_name, response.model_version) == ("mine-1", MODEL, "1")
    assert text(result) == "hé 😀" and response.parameters["triton_final_response"].bool_param
    wanted = [tritonclient.InferRequestedOutput(name) for name in ("output0", "finish_reason")]
    ids = tensor("input0", [97, 98, 4], "UINT32")
    result = client.infer(MODEL, [ids], outputs=wanted, parameters={"max_new_tokens": 3})
    assert result.as_numpy("output0").tolist() == [[97, 98, 4]]
    assert result.as_numpy("finish_reason").tolist() == [b"length"]


def test_a_stream_has_a_response_for_each_token(client: Any):
    stream = Stream(client)
    stream.send(say("h", "é", " Paris"), "s1")
    found = stream.until_final()
    assert all(error is None and result.get_response().id == "s1" for result, error in found)
    assert [text(result) for result, _ in found] == ["h", "", "é", " Paris", ""]
    finals = [result.get_response().parameters["triton_final_response"].bool_param for result, _ in found]
    assert finals == [False] * 4 + [True]
    stream.send(say("whole"), "s2", stream=False)
    assert [text(result) for result, _ in stream.until_final()] == ["whole"]
    client.stop_stream()


def test_requests_of_one_stream_run_side_by_side_and_fail_alone(client: Any):
    stream = Stream(client)
    for n in range(4):
        stream.send(say(f"{n}" * 5, delay=0.02), f"n{n}", max_new_tokens=20)
    stream.send("x", "wrong", top_p=7)
    stream.send(say("abc", fail_at=2), "faulty")
    found = stream.until_final(6)
    client.stop_stream()
    joined: dict[str, str] = {}
    for result, error in found:
        if error is None:
            name = result.get_response().id
            joined[name] = joined.get(name, "") + text(result)
    assert joined == {"n0": "00000", "n1": "11111", "n2": "22222", "n3": "33333", "faulty": "ab"}
    errors = sorted(error.message() for _, error in found if error is not None)
    assert len(errors) == 2 and errors[0].startswith("`parameters.top_p`") and errors[1] == "the script said so"


def test_a_client_that_leaves_frees_its_requests(client: Any, served: Served):
    stream = Stream(client)
    for n in range(3):
        stream.send(say("a" * 100, delay=0.2), f"left-{n}", max_new_tokens=500)
    stream.responses.get(timeout=30)
    assert metric(served.url, "interlingua_requests_inside") == 3
    client.stop_stream(cancel_requests=True)
    wait_until(lambda: metric(served.url, "interlingua_requests_inside") == 0)
    waiting = client.async_infer(MODEL, [tensor("text_input", [say("a", start_delay=25)])], lambda result, error: None)
    wait_until(lambda: metric(served.url, "interlingua_requests_inside") == 1)
    waiting.cancel()
    wait_until(lambda: metric(served.url, "interlingua_requests_inside") == 0)


def test_stop_infer_ends_a_request_of_grpc(client: Any, served: Served):
    stream = Stream(client)
    stream.send(say("a" * 200, delay=0.1), "g1", max_new_tokens=500)
    stream.responses.get(timeout=30)
    assert send(served.url, f"/v2/models/{MODEL}/stopInfer", {"id": "g1"}).status == 200
    assert stream.until_final()[-1][1] is None
    client.stop_stream()


def refused(client: Any, code: str, inputs: list[Any], model: str = MODEL, **more: Any) -> str:
    with pytest.raises(utils.InferenceServerException) as caught:
        client.infer(model, inputs, **more)
    assert caught.value.status() == f"StatusCode.{code}", caught.value
    return str(caught.value.message())


def test_errors(client: Any):
    good = tensor("text_input", ["x"])
    assert "other" in refused(client, "NOT_FOUND", [good], "other")
    assert "version" in refused(client, "NOT_FOUND", [good], model_version="7")
    assert refused(client, "INVALID_ARGUMENT", [good], request_id="a/b").startswith("`id`")
    assert refused(client, "INVALID_ARGUMENT", [good], parameters={"seed": 0}).startswith("`parameters.seed`")
    # The document's seconds, not Triton's microseconds.
    assert refused(client, "INVALID_ARGUMENT", [good], timeout=5_000_000).startswith("`parameters.timeout`")
    assert refused(client, "INVALID_ARGUMENT", [good, good]).startswith("`inputs[1].name`")
    slow = tensor("text_input", [say("a", start_delay=25)])
    assert "time limit" in refused(client, "DEADLINE_EXCEEDED", [slow], timeout=1)
    assert "script" in refused(client, "INTERNAL", [tensor("text_input", [say("a", fail_at=0)])])
    with pytest.raises(utils.InferenceServerException, match="NOT_FOUND"):
        client.get_model_metadata("other")


def raw_request(**changes: Any) -> Any:
    request = service_pb2.ModelInferRequest(model_name=MODEL)
    item = request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    request.raw_input_contents.append(b"\x01\0\0\0x")
    for name, value in changes.items():
        if name in ("name", "datatype"):
            setattr(item, name, value)
        elif name == "shape":
            item.shape[:] = value
        elif name == "raw":
            request.raw_input_contents[:] = value
        elif name == "contents":
            item.contents.bytes_contents[:] = value
        else:
            setattr(request, name, value)
    return request


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"raw": []}, "inputs[0].data"),
        ({"raw": [b"\x01\0\0\0x", b""]}, "raw_input_contents"),
        ({"raw": [b""]}, "inputs[0].data"),
        ({"raw": [b"\xff\xff\xff\xffx"]}, "inputs[0].data"),
        ({"raw": [b"\x01\0\0"]}, "inputs[0].data"),
        ({"raw": [b"\x01\0\0\0\xff"]}, "inputs[0].data[0]"),
        ({"raw": [b"\x01\0\0\0xmore"]}, "inputs[0].data"),
        ({"contents": [b"y"]}, "inputs[0].contents"),
        ({"raw": [], "contents": [b"\xff"]}, "inputs[0].contents[0]"),
        ({"raw": [], "contents": [b"a", b"b"]}, "inputs[0].data"),
        ({"shape": [-1]}, "inputs[0].shape"),
        ({"shape": []}, "inputs[0].shape"),
        ({"shape": [2**62]}, "inputs[0].shape"),
        ({"shape": [1, 1, 1]}, "inputs[0].shape"),
        ({"shape": [2]}, "inputs[0].data"),
        ({"name": ""}, "inputs[0].name"),
        ({"name": "n" * 300}, "inputs[0].name"),
        ({"datatype": "FP32"}, "inputs[0].datatype"),
        ({"datatype": ""}, "inputs[0].datatype"),
        ({"datatype": "UINT32"}, "inputs[0].data"),
        ({"id": "../x"}, "id"),
        ({"id": "i" * 100_000}, "id"),
    ],
)
def test_hostile_requests(client: Any, served: Served, changes: dict[str, Any], field: str):
    grpc = pytest.importorskip("grpc")
    call = client._client_stub.ModelInfer
    with pytest.raises(grpc.RpcError) as caught:
        call(raw_request(**changes), timeout=30)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    message = caught.value.details()
    assert message.startswith(f"`{field}`") and len(message) < 500, message
    assert call(raw_request(), timeout=30).outputs[0].name == "text_output"


@pytest.mark.parametrize("model", ["../x", "", "\0", "m" * 100_000])
def test_model_names_that_play_tricks(client: Any, model: str):
    grpc = pytest.importorskip("grpc")
    with pytest.raises(grpc.RpcError) as caught:
        client._client_stub.ModelInfer(raw_request(model_name=model), timeout=30)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND and len(caught.value.details()) < 500


def test_our_messages_have_the_numbers_of_the_clients():
    """Every field of ours is the client's: name, number, type, and whether it repeats."""
    from interlingua.server.rpc import kserve_pb2

    model_config_pb2 = pytest.importorskip("tritonclient.grpc.model_config_pb2")
    theirs = dict(service_pb2.DESCRIPTOR.message_types_by_name) | dict(
        model_config_pb2.DESCRIPTOR.message_types_by_name
    )
    checked = 0

    def compare(mine: Any, other: Any) -> None:
        nonlocal checked
        for field in mine.fields:
            twin = other.fields_by_name[field.name]
            assert (field.number, field.type, field.is_repeated) == (twin.number, twin.type, twin.is_repeated), (
                field.full_name
            )
            checked += 1
        for inner in mine.nested_types:
            compare(inner, other.nested_types_by_name[inner.name])

    for name, message in kserve_pb2.DESCRIPTOR.message_types_by_name.items():
        compare(message, theirs[name])
    numbers = {value.name: value.number for value in model_config_pb2.DataType.DESCRIPTOR.values}
    for value in kserve_pb2.DataType.DESCRIPTOR.values:
        assert numbers[value.name] == value.number
    assert checked > 80
