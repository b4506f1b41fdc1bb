"""KServe v2 inference, stopInfer and the queries against a real process: answers, and a table of hostile requests."""

from __future__ import annotations

import gzip
import json
import struct
from typing import Any

import pytest
from served import MAX_INPUT, WORDS, Served, say
from wire_cases import MODEL
from wire_client import Got, connect, metric, send, together, triton, wait_until

INFER = f"/v2/models/{MODEL}/infer"
STOP = f"/v2/models/{MODEL}/stopInfer"


def text_input(value: Any = "x", **more: Any) -> dict[str, Any]:
    return {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": [value], **more}


def ids_input(*ids: Any, **more: Any) -> dict[str, Any]:
    return {"name": "input0", "shape": [1, len(ids)], "datatype": "UINT32", "data": list(ids), **more}


def infer(served: Served, *inputs: dict[str, Any], **more: Any) -> Got:
    return send(served.url, INFER, {"inputs": list(inputs), **more})


def binary(head: dict[str, Any] | bytes, tail: bytes, length: int | str | None = None) -> tuple[bytes, dict[str, str]]:
    """(body, headers) of a request with binary data. `length` replaces the true one in the header."""
    data = head if isinstance(head, bytes) else json.dumps(head).encode()
    return data + tail, {"Inference-Header-Content-Length": str(len(data) if length is None else length)}


def packed(*values: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


# --- answers --------------------------------------------------------------------------------------------------------


def test_the_documents_sample(served: Served):
    tensor = ids_input(5, 6, 7, parameters={"max_new_tokens": 3, "temperature": 0.9, "seed": 7, "details": True})
    answer = infer(served, tensor, id="42", outputs=[{"name": "output0"}]).json
    assert answer == {
        "id": "42",
        "model_name": MODEL,
        "model_version": "1",
        "outputs": [{"name": "output0", "shape": [1, 3], "datatype": "UINT32", "data": [5, 6, 7]}],
    }


@pytest.mark.parametrize("data", [[1, 2], [[1, 2]]])
@pytest.mark.parametrize("name", ["", "output0", "anything"])
def test_ids_flat_and_nested_under_any_name(served: Served, data: list[Any], name: str):
    tensor = ids_input(1, 2, data=data, name="tokens")
    answer = infer(served, tensor, outputs=[{"name": name}], parameters={"max_tokens": 2}).json
    assert answer["outputs"] == [{"name": name or "output0", "shape": [1, 2], "datatype": "UINT32", "data": [1, 2]}]


def test_the_nearest_source_of_a_parameter_wins(served: Served):
    sampling = {"name": "sampling_parameters", "shape": [1], "datatype": "BYTES", "data": ['{"max_new_tokens": 1}']}
    own = {"max_new_tokens": 2}
    for inputs, count in (
        ([text_input(parameters=own), sampling], 1),
        ([text_input(parameters=own)], 2),
        ([text_input()], 3),
    ):
        answer = infer(
            served, *inputs, parameters={"max_new_tokens": 3, "ignore_eos": True}, outputs=[{"name": "output0"}]
        )
        assert answer.json["outputs"][0]["shape"] == [1, count]


def test_the_prompt_before_the_text_when_asked_for(served: Served):
    flag = {"name": "exclude_input_in_output", "shape": [1], "datatype": "BOOL", "data": [False]}
    prompt = say(" Paris")
    answer = infer(served, text_input(prompt, shape=[1, 1]), flag).json["outputs"][0]
    assert answer == {"name": "text_output", "shape": [1, 1], "datatype": "BYTES", "data": [prompt + " Paris"]}


def test_infer_and_generate_say_the_same(served: Served):
    prompt = say(*WORDS, "é")
    answer = infer(served, text_input(prompt), parameters={"stop": ["six"], "max_new_tokens": 50}).json
    generated = triton(served.url, f"/v2/models/{MODEL}/generate", prompt, stop=["six"], max_new_tokens=50).json
    assert answer["outputs"][0]["data"] == [generated["text_output"]]


def test_binary_data_both_ways(served: Served):
    text = packed(say("hé").encode())
    head = {
        "inputs": [
            text_input(data=None, parameters={"binary_data_size": len(text)}),
            {"name": "stream", "shape": [1], "datatype": "BOOL", "parameters": {"binary_data_size": 1}},
        ],
        "outputs": [{"name": "output0"}, {"name": "text_output"}],
        "parameters": {"binary_data_output": True},
    }
    body, headers = binary(head, text + b"\x00")
    got = send(served.url, INFER, body, **headers)
    assert got.headers["content-type"] == "application/octet-stream"
    length = int(got.headers["inference-header-content-length"])
    outputs = json.loads(got.body[:length])["outputs"]
    ids = [*"hé".encode(), 257]
    assert [output["parameters"]["binary_data_size"] for output in outputs] == [16, 7]
    assert got.body[length:] == struct.pack("<4I", *ids) + packed("hé".encode())


# --- stopInfer ------------------------------------------------------------------------------------------------------


def test_stop_infer_ends_a_running_request(served: Served):
    slow = say("a" * 200, delay=0.1)
    stopped: list[Got] = []

    def stop() -> None:
        body = {"id": "long-one", "more": [1]}
        wait_until(lambda: stopped.append(send(served.url, STOP, body)) or stopped[-1].status == 200)
        assert stopped[-1].json == body

    wanted = {"id": "long-one", "text_input": slow, "parameters": {"max_new_tokens": 200, "details": True}}
    answer, _ = together(lambda: send(served.url, f"/v2/models/{MODEL}/generate", wanted), stop)
    assert answer.status == 200
    details = answer.json["details"]
    assert details["finish_reason"] == "stop_sequence" and details["generated_tokens"] < 200
    assert answer.json["text_output"] == "a" * details["generated_tokens"]


def test_stop_infer_ends_a_stream_before_its_first_token(served: Served):
    slow = say("a", start_delay=25)
    events, _ = together(
        lambda: (
            send(
                served.url,
                f"/v2/models/{MODEL}/generate_stream",
                {"id": "slow", "text_input": slow, "parameters": {"details": True}},
            ).events
        ),
        lambda: wait_until(lambda: send(served.url, STOP, {"id": "slow"}).status == 200),
    )
    assert [event["text_output"] for event in events] == [""]
    assert events[0]["details"]["finish_reason"] == "stop_sequence" and events[0]["details"]["generated_tokens"] == 0


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (STOP, {"id": "nobody"}, 404),
        (STOP, {}, 400),
        (STOP, {"id": None}, 400),
        (STOP, {"id": ""}, 400),
        (STOP, {"id": "a/b"}, 400),
        (STOP, {"id": "x" * 257}, 400),
        (STOP, {"id": 7}, 400),
        (STOP, b"{", 400),
        ("/v2/models/other/stopInfer", b"{", 404),
    ],
)
def test_stop_infer_refuses(served: Served, path: str, body: Any, status: int):
    got = send(served.url, path, body)
    assert got.status == status and set(got.json) == {"error", "error_type"}


def test_stop_infer_by_the_callers_header(served: Served):
    slow = say("a" * 200, delay=0.1)
    wanted = {"inputs": slow, "parameters": {"max_new_tokens": 200, "details": True}}
    answer, _ = together(
        lambda: send(served.url, "/generate", wanted, **{"X-Request-Id": "by-header"}),
        lambda: wait_until(lambda: send(served.url, STOP, {"id": "by-header"}).status == 200),
    )
    assert answer.headers["x-request-id"] == "by-header"
    assert answer.json["details"]["finish_reason"] == "stop_sequence"


# --- queries --------------------------------------------------------------------------------------------------------


def test_slots_count_what_is_inside(served: Served):
    url = served.urls["small"]
    path = f"/v2/models/{MODEL}/getSlotCount"
    idle = send(url, path, method="GET").json
    assert idle["total_slots"] == idle["free_slots"] == 4 and idle["available_tokens_length"] > 0
    slow = say("a" * 50, delay=0.2)
    seen: list[dict[str, int]] = []

    def look() -> None:
        wait_until(lambda: seen.append(send(url, path, method="GET").json) or seen[-1]["free_slots"] == 2)
        send(url, STOP, {"id": "one"})
        send(url, STOP, {"id": "two"})

    def run(name: str) -> Got:
        return send(url, f"/v2/models/{MODEL}/generate", {"id": name, "text_input": slow, "max_tokens": 60})

    together(lambda: run("one"), lambda: run("two"), look)
    wait_until(lambda: send(url, path, method="GET").json == idle)
    assert any(count["available_tokens_length"] < idle["available_tokens_length"] for count in seen)


def test_the_index_of_models(served: Served):
    ready = {"name": MODEL, "version": "1", "state": "READY", "reason": ""}
    for body in (b"", {}, {"ready": True}, {"ready": False}, {"ready": None}):
        assert send(served.url, "/v2/repository/index", body).json == [ready]
    for body in ({"ready": 1}, {"ready": "true"}, [], b"{"):
        assert send(served.url, "/v2/repository/index", body).status == 400


def test_queries_below_the_prefix_and_of_other_models(served: Served):
    for path in ("/v2", f"/v2/models/{MODEL}", f"/v2/models/{MODEL}/config", f"/v2/models/{MODEL}/versions/1/ready"):
        plain, prefixed = (send(served.url, prefix + path, method="GET") for prefix in ("", "/triton"))
        assert (plain.status, plain.body) == (prefixed.status, prefixed.body) and plain.status == 200
    for path in ("", "/config", "/ready", "/getSlotCount", "/versions/2", "/versions/2/config"):
        got = send(served.url, "/v2/models/" + ("other" if "versions" not in path else MODEL) + path, method="GET")
        assert got.status == 404 and set(got.json) == {"error", "error_type"}


# --- hostile requests -----------------------------------------------------------------------------------------------

SIZED = {"binary_data_size": 5}
ONE_TEXT = {"inputs": [text_input(data=None, parameters=SIZED)]}
ONE_FLAG = {"name": "stream", "shape": [1], "datatype": "BOOL", "data": [True]}
SAMPLING = {"name": "sampling_parameters", "shape": [1], "datatype": "BYTES"}

# (name, JSON of the request, field that the message names)
JSON_CASES: list[tuple[str, Any, str]] = [
    ("no inputs", {}, "inputs"),
    ("inputs null", {"inputs": None}, "inputs"),
    ("inputs empty", {"inputs": []}, "inputs"),
    ("inputs an object", {"inputs": {}}, "inputs"),
    ("too many inputs", {"inputs": [text_input()] * 33}, "inputs"),
    ("input a string", {"inputs": ["x"]}, "inputs[0]"),
    ("two prompts", {"inputs": [text_input(), ids_input(1)]}, "inputs[1].name"),
    ("one prompt twice", {"inputs": [text_input(), text_input()]}, "inputs[1].name"),
    ("no prompt", {"inputs": [ONE_FLAG]}, "inputs"),
    ("name missing", {"inputs": [text_input(name=None)]}, "inputs[0].name"),
    ("name empty", {"inputs": [text_input(name="")]}, "inputs[0].name"),
    ("name huge", {"inputs": [ids_input(1, name="n" * 100_000)]}, "inputs[0].name"),
    ("name a number", {"inputs": [text_input(name=1)]}, "inputs[0].name"),
    ("unknown name", {"inputs": [text_input(name="prompt")]}, "inputs[0].name"),
    ("unknown name of no datatype", {"inputs": [text_input(name="prompt", datatype="FP32")]}, "inputs[0].name"),
    ("unknown name beside", {"inputs": [ids_input(5, name="max_tokens"), text_input()]}, "inputs[0].name"),
    ("unknown name behind", {"inputs": [ids_input(1), ids_input(5, name="max_tokens")]}, "inputs[1].name"),
    ("two unknown names", {"inputs": [ids_input(1, name="a"), ids_input(5, name="b")]}, "inputs[1].name"),
    ("datatype of another", {"inputs": [text_input(datatype="BOOL", data=[True])]}, "inputs[0].datatype"),
    ("datatype unknown", {"inputs": [text_input(datatype="FP32")]}, "inputs[0].datatype"),
    ("datatype in small letters", {"inputs": [ids_input(1, datatype="uint32")]}, "inputs[0].datatype"),
    ("datatype INT64", {"inputs": [ids_input(1, datatype="INT64")]}, "inputs[0].datatype"),
    ("datatype an array", {"inputs": [ids_input(1, datatype=["UINT32"])]}, "inputs[0].datatype"),
    ("shape missing", {"inputs": [text_input(shape=None)]}, "inputs[0].shape"),
    ("shape empty", {"inputs": [text_input(shape=[])]}, "inputs[0].shape"),
    ("shape negative", {"inputs": [text_input(shape=[-1])]}, "inputs[0].shape"),
    ("shape zero", {"inputs": [ids_input(shape=[1, 0])]}, "inputs[0].shape"),
    ("shape of floats", {"inputs": [text_input(shape=[1.0])]}, "inputs[0].shape"),
    ("shape of booleans", {"inputs": [text_input(shape=[True])]}, "inputs[0].shape"),
    ("shape huge", {"inputs": [ids_input(1, shape=[2**63])]}, "inputs[0].shape"),
    ("shape of two huge ones", {"inputs": [ids_input(1, shape=[2**32, 2**32])]}, "inputs[0].shape"),
    ("shape over the limit", {"inputs": [ids_input(1, shape=[1, 1_048_577])]}, "inputs[0].shape"),
    ("shape of three", {"inputs": [ids_input(1, shape=[1, 1, 1])]}, "inputs[0].shape"),
    ("shape of a batch", {"inputs": [text_input(shape=[2, 1], data=["a", "b"])]}, "inputs[0].shape"),
    ("shape a string", {"inputs": [text_input(shape="1")]}, "inputs[0].shape"),
    ("two texts", {"inputs": [text_input(shape=[2], data=["a", "b"])]}, "inputs[0].shape"),
    ("two flags", {"inputs": [text_input(), {**ONE_FLAG, "shape": [2], "data": [True, True]}]}, "inputs[1].shape"),
    ("data missing", {"inputs": [text_input(data=None)]}, "inputs[0].data"),
    ("data a string", {"inputs": [text_input(data="x")]}, "inputs[0].data"),
    ("fewer data than the shape", {"inputs": [ids_input(1, shape=[1, 2])]}, "inputs[0].data"),
    ("more data than the shape", {"inputs": [ids_input(1, 2, shape=[1])]}, "inputs[0].data"),
    ("nested too deep", {"inputs": [ids_input(1, data=[[[1]]])]}, "inputs[0].data[0]"),
    ("nested for one dimension", {"inputs": [ids_input(1, shape=[1], data=[[1]])]}, "inputs[0].data[0]"),
    ("text a number", {"inputs": [text_input(1)]}, "inputs[0].data[0]"),
    ("text null", {"inputs": [text_input(None)]}, "inputs[0].data[0]"),
    ("flag a number", {"inputs": [text_input(), {**ONE_FLAG, "data": [1]}]}, "inputs[1].data[0]"),
    ("id negative", {"inputs": [ids_input(1, -1)]}, "inputs[0].data[1]"),
    ("id of 33 bits", {"inputs": [ids_input(2**32)]}, "inputs[0].data[0]"),
    ("id huge", {"inputs": [ids_input(10**300)]}, "inputs[0].data[0]"),
    ("id a float", {"inputs": [ids_input(1.0)]}, "inputs[0].data[0]"),
    ("id a boolean", {"inputs": [ids_input(True)]}, "inputs[0].data[0]"),
    ("id past the vocabulary", {"inputs": [ids_input(4_000_000_000)]}, "input0"),
    ("too many ids", {"inputs": [ids_input(*[1] * (MAX_INPUT + 1))]}, "input0"),
    ("empty text", {"inputs": [text_input("")]}, "text_input"),
    (
        "shared memory",
        {"inputs": [text_input(parameters={"shared_memory_region": "r"})]},
        "inputs[0].parameters.shared_memory_region",
    ),
    ("parameters an array", {"inputs": [text_input(parameters=[])]}, "inputs[0].parameters"),
    ("request parameters a string", {"inputs": [text_input()], "parameters": "x"}, "parameters"),
    ("parameter out of range", {"inputs": [text_input(parameters={"top_p": 1.5})]}, "inputs[0].parameters.top_p"),
    ("request parameter out of range", {"inputs": [text_input()], "parameters": {"seed": 0}}, "parameters.seed"),
    ("timeout in microseconds", {"inputs": [text_input()], "parameters": {"timeout": 5_000_000}}, "parameters.timeout"),
    ("sampling no JSON", {"inputs": [text_input(), {**SAMPLING, "data": ["{"]}]}, "sampling_parameters"),
    ("sampling an array", {"inputs": [text_input(), {**SAMPLING, "data": ["[]"]}]}, "sampling_parameters"),
    ("sampling empty", {"inputs": [text_input(), {**SAMPLING, "data": [""]}]}, "sampling_parameters"),
    (
        "sampling nested",
        {"inputs": [text_input(), {**SAMPLING, "data": ['{"a":' + "[" * 90 + "]" * 90 + "}"]}]},
        "sampling_parameters",
    ),
    (
        "sampling out of range",
        {"inputs": [text_input(), {**SAMPLING, "data": ['{"temperature": 0}']}]},
        "sampling_parameters.temperature",
    ),
    (
        "sampling of text numbers",
        {"inputs": [text_input(), {**SAMPLING, "data": ['{"max_tokens": "5"}']}]},
        "sampling_parameters.max_tokens",
    ),
    (
        "sampling NaN",
        {"inputs": [text_input(), {**SAMPLING, "data": ['{"temperature": NaN}']}]},
        "sampling_parameters.temperature",
    ),
    (
        "prompt in the output of ids",
        {"inputs": [ids_input(1)], "parameters": {"exclude_input_in_output": False}},
        "parameters.exclude_input_in_output",
    ),
    ("outputs an object", {"inputs": [text_input()], "outputs": {}}, "outputs"),
    ("output a string", {"inputs": [text_input()], "outputs": ["text_output"]}, "outputs[0]"),
    ("output unknown", {"inputs": [text_input()], "outputs": [{"name": "logits"}]}, "outputs[0].name"),
    ("output without a name", {"inputs": [text_input()], "outputs": [{}]}, "outputs[0].name"),
    ("output name huge", {"inputs": [ids_input(1)], "outputs": [{"name": "n" * 257}]}, "outputs[0].name"),
    ("output twice", {"inputs": [text_input()], "outputs": [{"name": "output0"}] * 2}, "outputs[1].name"),
    ("two outputs of ids", {"inputs": [ids_input(1)], "outputs": [{"name": "a"}, {"name": "b"}]}, "outputs[0].name"),
    ("too many outputs", {"inputs": [text_input()], "outputs": [{"name": "output0"}] * 33}, "outputs"),
    (
        "binary_data a number",
        {"inputs": [text_input()], "outputs": [{"name": "output0", "parameters": {"binary_data": 1}}]},
        "outputs[0].parameters.binary_data",
    ),
    (
        "binary_data_output a string",
        {"inputs": [text_input()], "parameters": {"binary_data_output": "true"}},
        "parameters.binary_data_output",
    ),
    (
        "classification",
        {"inputs": [text_input()], "outputs": [{"name": "text_output", "parameters": {"classification": 3}}]},
        "outputs[0].parameters.classification",
    ),
    ("id with a slash", {"id": "../x", "inputs": [text_input()]}, "id"),
    ("id empty", {"id": "", "inputs": [text_input()]}, "id"),
    ("id huge", {"id": "i" * 1_000_000, "inputs": [text_input()]}, "id"),
    ("id an object", {"id": {}, "inputs": [text_input()]}, "id"),
    (
        "binary size without binary data",
        {"inputs": [text_input(data=None, parameters=SIZED)]},
        "inputs[0].parameters.binary_data_size",
    ),
]
FLAG_OF = {"name": "stream", "shape": [1], "datatype": "BOOL", "parameters": {"binary_data_size": 1}}
IDS_OF = {"name": "input0", "shape": [2], "datatype": "UINT32", "parameters": {"binary_data_size": 8}}
# (name, head, binary data, header in place of the true one, field that the message names)
LENGTH = "Inference-Header-Content-Length"
BINARY_CASES: list[tuple[str, Any, bytes, Any, str]] = [
    ("header beyond the body", ONE_TEXT, packed(b"x"), 10**6, LENGTH),
    ("header of 40 digits", ONE_TEXT, packed(b"x"), "9" * 40, LENGTH),
    ("header negative", ONE_TEXT, packed(b"x"), -5, LENGTH),
    ("header zero", ONE_TEXT, packed(b"x"), 0, LENGTH),
    ("header no number", ONE_TEXT, packed(b"x"), "1e2", LENGTH),
    ("header too short", ONE_TEXT, packed(b"x"), 10, ""),
    ("header too long", ONE_TEXT, packed(b"x"), len(json.dumps(ONE_TEXT)) + 2, ""),
    ("size beyond the body", ONE_TEXT, b"\x01", None, "inputs[0].parameters.binary_data_size"),
    ("no binary data", ONE_TEXT, b"", None, "inputs[0].parameters.binary_data_size"),
    ("data left over", ONE_TEXT, packed(b"x") + b"more", None, "inputs"),
    ("element longer than the data", ONE_TEXT, b"\xff\xff\xff\xffx", None, "inputs[0].data"),
    ("element shorter than the data", ONE_TEXT, b"\x00\x00\x00\x00x", None, "inputs[0].data"),
    (
        "two elements for one",
        {"inputs": [text_input(data=None, parameters={"binary_data_size": 10})]},
        packed(b"x", b"y"),
        None,
        "inputs[0].data",
    ),
    (
        "none for one",
        {"inputs": [text_input(data=None, parameters={"binary_data_size": 0})]},
        b"",
        None,
        "inputs[0].data",
    ),
    ("text no UTF-8", ONE_TEXT, packed(b"\xff"), None, "inputs[0].data[0]"),
    ("data in both forms", {"inputs": [text_input(parameters=SIZED)]}, packed(b"x"), None, "inputs[0].data"),
    ("flag of two", {"inputs": [FLAG_OF]}, b"\x02", None, "inputs[0].data[0]"),
    (
        "ids of odd length",
        {"inputs": [{**IDS_OF, "parameters": {"binary_data_size": 7}}]},
        b"\0" * 7,
        None,
        "inputs[0].data",
    ),
    ("more ids than the shape", {"inputs": [{**IDS_OF, "shape": [1]}]}, b"\0" * 8, None, "inputs[0].data"),
    ("id past the vocabulary", {"inputs": [IDS_OF]}, b"\xff" * 8, None, "input0"),
    (
        "size a float",
        {"inputs": [{**IDS_OF, "parameters": {"binary_data_size": 8.0}}]},
        b"\0" * 8,
        None,
        "inputs[0].parameters.binary_data_size",
    ),
    (
        "size negative",
        {"inputs": [{**IDS_OF, "parameters": {"binary_data_size": -8}}]},
        b"\0" * 8,
        None,
        "inputs[0].parameters.binary_data_size",
    ),
    ("sizes that overlap", {"inputs": [IDS_OF, FLAG_OF]}, b"\0" * 8, None, "inputs[1].parameters.binary_data_size"),
]


def refused(got: Got, field: str) -> None:
    assert got.status == 400, got.body
    assert got.json["error_type"] == "validation" and set(got.json) == {"error", "error_type"}
    message: str = got.json["error"]
    assert (message.split("`")[1] if message.startswith("`") else "") == field, message
    assert len(message) < 500


@pytest.mark.parametrize(("body", "field"), [case[1:] for case in JSON_CASES], ids=[case[0] for case in JSON_CASES])
def test_hostile_json(served: Served, body: Any, field: str):
    refused(send(served.url, INFER, body), field)


NAMES = (
    "must be one of text_input, input0, sampling_parameters, stream, exclude_input_in_output, return_finish_reason, "
    "return_num_input_tokens, return_num_output_tokens, or any other of a lone UINT32 prompt, got "
)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        ({"name": "prompt", "shape": [1], "datatype": "BYTES", "data": ["x"]}, '"prompt"'),
        (
            {"name": "max_tokens", "shape": [1], "datatype": "INT32", "data": [5]},
            '"max_tokens", a parameter: its place is sampling_parameters or an object `parameters`',
        ),
    ],
)
def test_an_unknown_input_is_told_the_names(served: Served, tensor: dict[str, Any], words: str):
    answer = infer(served, text_input(), tensor).json
    assert answer["error"] == f"`inputs[1].name` {NAMES}{words}"


@pytest.mark.parametrize(
    ("head", "tail", "header", "field"), [case[1:] for case in BINARY_CASES], ids=[case[0] for case in BINARY_CASES]
)
def test_hostile_binary(served: Served, head: Any, tail: bytes, header: Any, field: str):
    body, headers = binary(head, tail, header)
    refused(send(served.url, INFER, body, **headers), field)


@pytest.mark.parametrize(
    "path",
    [
        "/v2/models/../infer",
        "/v2/models/..%2F..%2Fetc/infer",
        "/v2/models/%00/infer",
        "/v2/models/%2e%2e/infer",
        f"/v2/models/{MODEL}/versions/../infer",
        f"/v2/models/{MODEL}/versions/%2e/infer",
        f"/v2/models/{MODEL}/versions/1%00/infer",
        f"/v2/models/{MODEL}/versions/01/infer",
        f"/v2/models/{MODEL}/versions//infer",
        f"/v2/models/{MODEL}/versions/-1/infer",
        f"/v2/models//{MODEL}/infer",
        f"/v2//models/{MODEL}/infer",
        f"/v2/models/{MODEL}/infer/",
        f"/v2/models/{MODEL.upper()}/infer",
        "/v2/models/" + "m" * 20_000 + "/infer",
        f"/v2/models/{MODEL}/versions/" + "1" * 20_000 + "/infer",
    ],
)
def test_path_tricks(served: Served, path: str):
    got = send(served.url, path, {"inputs": [text_input()]})
    assert got.status == 404 and set(got.json) == {"error", "error_type"}
    assert len(got.json["error"]) < 41_000


def test_the_server_lives_on_after_all_of_them(served: Served):
    assert infer(served, text_input(say("alive"))).json["outputs"][0]["data"] == ["alive"]


# --- bugs that other servers had --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"inputs":"x",}',
        b'{"inputs":[{"name":"text_input","shape":[1],"datatype":"BYTES","data":["smile \\ud83d"]}]}',
        b'{"inputs":[{"name":"text_input","shape":[1],"datatype":"BYTES","data":["\\ude00 end"]}]}',
        b'{"inputs":[{"name":"text_input","shape":[1],"datatype":"BYTES","data":["\xff"]}]}',
        b'{"inputs":[{"name":"input0","shape":[1],"datatype":"UINT32","data":[1e400]}]}',
        b'{"inputs":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_bodies_that_are_no_requests(served: Served, body: bytes):
    for headers in ({}, {"Inference-Header-Content-Length": str(len(body))} if body else {}):
        got = send(served.url, INFER, body, **headers)
        assert got.status == 400 and got.json["error_type"] == "validation", got.body


def test_pairs_of_surrogates_and_a_byte_order_mark_are_fine(served: Served):
    prompt = json.dumps(say("ok"))
    tensor = b'{"name":"text_input","shape":[1],"datatype":"BYTES","data":[%s]}'
    body = b'\xef\xbb\xbf{"x":"\\ud83d\\ude00","inputs":[' + tensor + b"]}"
    assert send(served.url, INFER, body % prompt.encode()).json["outputs"][0]["data"] == ["ok"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        *((path, 400) for path in (INFER, STOP, "/v2/repository/index", f"/v2/models/{MODEL}/generate")),
        *((path, 400) for path in ("/v1/chat/completions", "/v1/completions")),
        *((path, 422) for path in ("/", "/generate", "/generate_stream", "/infer", "/vllm/generate")),
        *((path, 422) for path in ("/tokenize", "/detokenize", "/chat_tokenize", "/v1/tokenizer")),
    ],
)
def test_a_packed_body_is_refused_for_that(served: Served, path: str, status: int):
    packed_body = gzip.compress(b'{"id":"a"}')
    got = send(served.url, path, packed_body, **{"Content-Encoding": "gzip"})
    error = got.json["error"] if path[:4] != "/v1/" or path == "/v1/tokenizer" else got.json["error"]["message"]
    assert (got.status, error) == (
        status,
        '`Content-Encoding` must be identity: bodies are not unpacked, got "gzip"',
    )


@pytest.mark.parametrize("encoding", ["", "identity", "Identity"])
def test_a_body_that_says_it_is_plain_is_read(served: Served, encoding: str):
    body = {"inputs": [text_input(say("ok"))]}
    assert send(served.url, INFER, body, **{"Content-Encoding": encoding}).status == 200


@pytest.mark.parametrize("path", [INFER, "/infer", STOP, "/v2/repository/index", "/v1/tokenizer", "/tokenize"])
def test_bodies_over_the_limit(served: Served, path: str):
    url = served.urls["small"]
    got = send(url, path, b'{"id":"' + b"x" * 100_000 + b'"}')
    assert got.status == 413 and set(got.json) == {"error", "error_type"}
    chunked = b"".join(b"%x\r\n%s\r\n" % (20_000, b" " * 20_000) for _ in range(6)) + b"0\r\n\r\n"
    connection = connect(url)
    connection.putrequest("POST", path)
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()
    connection.send(chunked)
    response = connection.getresponse()
    assert response.status == 413 and set(json.loads(response.read())) == {"error", "error_type"}
    connection.close()


@pytest.mark.parametrize("path", [INFER, "/infer"])
def test_overload_refuses_at_once_and_permits_come_back(served: Served, path: str):
    url = served.urls["small"]
    prompt = say("abc", delay=0.02)
    body = {"inputs": [text_input(prompt)]} if path == INFER else {"inputs": prompt}
    statuses = [got.status for got in together(*[lambda: send(url, path, body)] * 40)]
    assert set(statuses) == {200, 429} and statuses.count(200) >= 4
    refused = next(got for got in together(*[lambda: send(url, path, body)] * 40) if got.status == 429)
    assert refused.json["error_type"] == "overloaded" and refused.headers["retry-after"]
    assert [got.status for got in together(*[lambda: send(url, path, body)] * 4)] == [200] * 4


@pytest.mark.parametrize("path", [INFER, "/infer"])
def test_a_request_whose_time_passes_in_the_queue_does_not_run(served: Served, path: str):
    url = served.urls["small"]
    steps = metric(url, "interlingua_generated_tokens_total")
    parameters = {"timeout": 1, "max_new_tokens": 5}
    prompt = say("abc")
    body = {"inputs": [text_input(prompt)] if path == INFER else prompt, "parameters": parameters}
    long = {"id": "long", "text_input": say("a", start_delay=25)}

    def wait_and_stop() -> Got:
        wait_until(lambda: metric(url, "interlingua_requests_inside") == 1)
        got = send(url, path, body)
        assert send(url, STOP, {"id": "long"}).status == 200
        return got

    _, late = together(lambda: send(url, f"/v2/models/{MODEL}/generate", long), wait_and_stop)
    assert (late.status, late.json["error_type"]) == (504, "timeout")
    assert metric(url, "interlingua_generated_tokens_total") == steps
