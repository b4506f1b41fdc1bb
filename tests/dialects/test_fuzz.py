"""Random bodies for every dialect, twice: decoder and process refuse or accept them alike, and the process lives on."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from front_ends import INFER
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from page import misfit
from served import Served
from test_kserve import BINARY_CASES, JSON_CASES, LENGTH, ONE_FLAG, SAMPLING, binary, ids_input, text_input
from test_native_routes import PATHS as NATIVE
from test_openai_routes import TABLE, VLLM, body
from wire import SETTINGS, SETUPS, call_or_reply, find_route
from wire_cases import COMMON, GENERATE, HF, INVOCATIONS, MINDIE, MODEL, TRITON_PARAMETERS, all_cases
from wire_client import connect, metric, note, send

from interlingua.contract.dialect import Call
from interlingua.contract.errors import ValidationError
from interlingua.dialects._kserve_table import INPUT_FIELDS, OUTPUT_FIELDS
from interlingua.dialects._openai_table import CHAT_TABLE, COMPLETIONS_TABLE, VLLM_TABLE
from interlingua.server import openapi
from interlingua.server.routes import discover

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "2000"))  # of all tests together


@dataclass(frozen=True)
class Seed:
    """A body of the tables, good or bad, to be damaged."""

    path: str
    body: bytes
    setup: str = "plain"
    headers: Mapping[str, str] = field(default_factory=dict)


TENSOR_BODIES: list[dict[str, Any]] = [
    {"inputs": [text_input()]},
    {"id": "a", "inputs": [text_input(parameters={"max_new_tokens": 2, "seed": 5})], "parameters": {"stop": ["a"]}},
    {"inputs": [ids_input(5, 6)], "outputs": [{"name": "output0", "parameters": {"binary_data": False}}]},
    {"inputs": [text_input(), {**SAMPLING, "data": ['{"temperature": 0.5}']}, {**ONE_FLAG, "data": [False]}]},
]
SEEDS = {
    "tgi, triton": [Seed(case.path, case.body[:2000], case.setup) for case in all_cases()],
    "openai, vllm": [
        Seed(path, body(table, f'"{name}":{text}'), setup)
        for table, name, text, _ in TABLE
        for path, setup in ((table, "plain"), (GENERATE if table == VLLM else INVOCATIONS, "lenient"))
    ],
    "kserve": [
        *(Seed(INFER, json.dumps(one).encode()) for one in TENSOR_BODIES),
        *(Seed(INFER, json.dumps(one).encode()[:2000]) for _, one, _ in JSON_CASES),
        *(Seed(INFER, data, headers=headers) for data, headers in (binary(*case[1:4]) for case in BINARY_CASES)),
    ],
    "native": [
        Seed(path, f'{{{prompt},"stream":{stream},"parameters":{{{parameters}}}}}'.encode())
        for path in NATIVE[:2]
        for prompt in ('"inputs":"ab"', '"input_id":[256,97]')
        for stream in ("true", "false")
        for parameters in ('"details":true', '"temperature":0.5,"seed":7', '"priority":1,"timeout":3')
    ],
}


def is_good(seed: Seed) -> bool:
    """Accepted, and JSON alone."""
    if seed.headers or not isinstance(call_or_reply(seed.path, seed.body, SETUPS[seed.setup]), Call):
        return False
    return len(seed.body) < 1500 and not seed.body.startswith(b"\xef")


GOOD = {kind: [seed for seed in seeds if is_good(seed)] for kind, seeds in SEEDS.items()}
PIECES = [b"\\ud800", b"NaN", b"1e999", b"[" * 70, b'"', b"\xff"]
# Routes of the server's own that read a body, by their place on the page.
SYSTEM = {
    "/tokenize": "/tokenize",
    "/chat_tokenize": "/chat_tokenize",
    "/detokenize": "/detokenize",
    "/v1/tokenizer": "/v1/tokenizer",
    f"/v2/models/{MODEL}/stopInfer": "/v2/models/{model}/stopInfer",
    "/v2/repository/index": "/v2/repository/index",
}
PAGE = openapi.document(discover(), SETTINGS, key=False)["paths"]
PATHS = sorted({*SYSTEM, *(seed.path for seeds in SEEDS.values() for seed in seeds)})
PARAMETERS = sorted({parameter.name for parameter in (*COMMON, *MINDIE, *HF, *TRITON_PARAMETERS)})
FIELDS = sorted({one.name for table in (CHAT_TABLE, COMPLETIONS_TABLE, VLLM_TABLE) for one in table.fields})
TENSORS = sorted({one.name for one in (*INPUT_FIELDS, *OUTPUT_FIELDS)})
WORDS = (
    *("None", "text", "json", "regex", "json_schema", "json_object", "auto", "required", "user", "assistant", "tool"),
    *("BYTES", "BOOL", "UINT32", "http://h/a.png", "data:image/png;base64,AAAA", "tiny", "my-lora", "\ud800"),
    *("http://h.example/a.png", "http://[::1]/a.png", "/data/multimodal_inputs/../a.png", "video_url", "input_audio"),
)
KEYS = (
    *("type", "value", "schema", "text", "image_url", "url", "x", "role", "content", "name", "arguments", "function"),
    *("tool_calls", "tool_call_id", "json_schema", "include_usage", "parameters", "shape", "datatype", "data", "5"),
)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 130)
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.text(max_size=20)
    | st.sampled_from(WORDS)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner),
    max_leaves=12,
)
parameters = st.dictionaries(st.sampled_from(PARAMETERS) | st.text(max_size=5), values, max_size=6)
messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(WORDS), "content": st.text(max_size=9) | values}), max_size=3
)
tensors = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.sampled_from(TENSORS) | values,
            "shape": st.lists(st.integers(-1, 3), max_size=3) | values,
            "datatype": st.sampled_from(["BYTES", "BOOL", "UINT32"]) | values,
        },
        optional={"data": st.lists(scalars, max_size=3) | values, "parameters": parameters | values},
    ),
    max_size=3,
)
prompts = st.text(min_size=1, max_size=9) | values
bodies = st.fixed_dictionaries(
    {},
    optional={
        "inputs": prompts | tensors,
        "outputs": tensors | values,
        "text_input": prompts,
        "prompt": prompts,
        "messages": messages | values,
        "input_id": st.lists(st.integers(-1, 260), max_size=3) | values,
        "id": values | st.sampled_from(["a", "tiny"]),
        "do_decode": values,
        "ready": values,
        "stream": st.booleans() | values,
        "parameters": parameters | values,
    },
)
whole = st.tuples(bodies, st.dictionaries(st.sampled_from(FIELDS), values, max_size=3)).map(lambda two: two[0] | two[1])
raw = whole.map(lambda value: json.dumps(value).encode("utf-8", "surrogatepass")) | st.binary(max_size=200)


def fuzz(share: float) -> settings:
    """Settings of a test that takes its share of the examples. Making whole bodies is the slower kind."""
    return settings(max_examples=int(EXAMPLES * share), deadline=None, suppress_health_check=list(HealthCheck))


@dataclass
class Both:
    """The decoding functions and a real process, which must agree about every body."""

    connections: Mapping[str, http.client.HTTPConnection]
    statuses: dict[str, Counter[int]] = field(default_factory=dict)  # of each dialect
    slowest: tuple[float, str] = (0.0, "")  # seconds of an answer, and from where

    def send(self, seed: Seed, name: str) -> tuple[int, str, bytes]:
        """(status, type, body) of the process's answer, which is counted under `name`."""
        connection = self.connections[seed.setup]
        begun = time.monotonic()
        connection.request("POST", seed.path, seed.body, dict(seed.headers))
        response = connection.getresponse()
        status, kind, answer = response.status, response.headers["content-type"], response.read()
        self.slowest = max(self.slowest, (time.monotonic() - begun, seed.path))
        self.statuses.setdefault(name, Counter())[status] += 1
        assert status < 500
        return status, kind, answer

    def check(self, seed: Seed) -> None:
        if seed.path in SYSTEM:
            assert not misfit(PAGE[SYSTEM[seed.path]]["post"], *self.send(seed, "system"))
            return
        dialect, route, _ = find_route(seed.path)
        lower = {name.lower(): value for name, value in seed.headers.items()}
        outcome = call_or_reply(seed.path, seed.body, SETUPS[seed.setup], lower)
        status, kind, answer = self.send(seed, dialect.name)
        if status != 200 or kind != "application/octet-stream":  # binary tensors
            assert not misfit(route.describe(SETUPS[seed.setup]), status, kind, answer)
        if not isinstance(outcome, Call):
            assert (status, kind, answer) == (outcome.status, "application/json", outcome.body)
            return
        assert outcome.request.max_new_tokens is None or outcome.request.max_new_tokens >= 1
        if status == 200:
            assert not answer.startswith((b'{"error"', b'data: {"error"')) and b'\ndata: {"error"' not in answer
            return
        # What only the served model knows (tokens, media, its own name) may still be refused.
        wrong = dialect.render_error(ValidationError("x", "y")).status
        assert status == wrong or (status == 404 and b"model" in seed.body)
        assert len(answer) < 1000


@pytest.fixture(scope="module")
def both(served: Served) -> Iterator[Both]:
    connections = {name: connect(served.urls[name]) for name in SETUPS}
    fuzzed = Both(connections)
    yield fuzzed
    for connection in connections.values():
        connection.close()
    for name in SETUPS:
        url = served.urls[name]
        assert send(url, "/health", method="GET").status == 200
        assert metric(url, "tgi_batch_current_size") == metric(url, "tgi_queue_size") == 0
    total = sum(sum(counts.values()) for counts in fuzzed.statuses.values())
    figures = {
        "requests": total,
        "statuses": fuzzed.statuses,
        "slowest_ms": round(fuzzed.slowest[0] * 1e3, 1),
        "slowest_at": fuzzed.slowest[1],
    }
    note("bodies", figures)


@fuzz(0.3)
@given(st.sampled_from(PATHS), raw, st.sampled_from(sorted(SETUPS)))
def test_any_body(both: Both, path: str, body: bytes, setup: str) -> None:
    both.check(Seed(path, body, setup))


@pytest.mark.parametrize("kind", SEEDS)
def test_every_kind_of_seed_can_be_served(both: Both, kind: str) -> None:
    """Undamaged, so that damage begins at what works."""
    assert GOOD[kind]
    for seed in SEEDS[kind][:: max(1, len(SEEDS[kind]) // 50)]:
        both.check(seed)


def places(value: object) -> list[tuple[Any, Any]]:
    """Every (object or list, key) inside a JSON value."""
    if not isinstance(value, dict | list):
        return []
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    return [(value, key) for key in keys] + [place for key in keys for place in places(value[key])]


def mixed(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Fields of both, also of their parameters."""
    both = one | other
    if isinstance(one.get("parameters"), dict) and isinstance(other.get("parameters"), dict):
        both["parameters"] = one["parameters"] | other["parameters"]
    return both


@fuzz(0.4)
@given(st.sampled_from(sorted(SEEDS)), st.data())
def test_good_bodies_mixed_and_with_one_value_changed(both: Both, kind: str, data: st.DataObject) -> None:
    """Many of these are served: what goes alone may go together."""
    seed = data.draw(st.sampled_from(GOOD[kind]))
    document = json.loads(seed.body)
    for _ in range(data.draw(st.integers(0, 3))):
        other = data.draw(st.sampled_from([one for one in GOOD[kind] if one.path == seed.path]))
        document = mixed(document, json.loads(other.body))
    if data.draw(st.booleans()):
        container, key = data.draw(st.sampled_from(places(document)))
        container[key] = data.draw(scalars | values)
    both.check(Seed(seed.path, json.dumps(document).encode("utf-8", "surrogatepass"), seed.setup))


@fuzz(0.3)
@given(st.sampled_from(sorted(SEEDS)), st.data())
def test_damaged_bodies(both: Both, kind: str, data: st.DataObject) -> None:
    """Bytes changed, cut or doubled in bodies of the tables."""
    seed = data.draw(st.sampled_from(SEEDS[kind]))
    body = bytearray(seed.body)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, max(len(body) - 1, 0)))
        piece = data.draw(st.binary(max_size=3) | st.sampled_from(PIECES))
        body[place : place + data.draw(st.integers(0, 3))] = piece
    headers = seed.headers
    if headers and data.draw(st.booleans()):  # the JSON may have another length now
        headers = {LENGTH: str(int(headers[LENGTH]) + len(body) - len(seed.body))} if headers[LENGTH].isdigit() else {}
    both.check(Seed(seed.path, bytes(body), seed.setup, headers))
