"""Random bodies, twice: decoder and real process refuse or accept them alike, and the process lives on."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from served import Served
from wire import SETUPS, call_or_reply
from wire_cases import COMMON, HF, MINDIE, TRITON_PARAMETERS, Case, all_cases
from wire_client import connect, metric, note, send

from interlingua.contract.dialect import Call

CASES = all_cases()
PATHS = sorted({case.path for case in CASES})
PIECES = [b"\\ud800", b"NaN", b"1e999", b"[" * 70, b'"', b"\xff"]
NAMES = sorted({parameter.name for parameter in (*COMMON, *MINDIE, *HF, *TRITON_PARAMETERS)})
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "1700"))  # of both tests together

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.text(max_size=20)
    | st.sampled_from(["None", "text", "json", "regex", "http://h/a.png", "data:image/png;base64,AAAA", "\ud800"])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["type", "value", "schema", "text", "image_url", "url", "x"]), inner)
    ),
    max_leaves=12,
)
parameters = st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), values, max_size=6)
bodies = st.fixed_dictionaries(
    {},
    optional={
        "inputs": values,
        "text_input": values,
        "prompt": values,
        "id": values,
        "stream": values,
        "parameters": parameters | values,
        "temperature": values,
        "stop": values,
    },
)


def fuzz(share: float) -> settings:
    """Settings of a test that takes its share of the examples. Making whole bodies is the slower kind."""
    return settings(max_examples=int(EXAMPLES * share), deadline=None, suppress_health_check=list(HealthCheck))


raw = bodies.map(lambda body: json.dumps(body).encode("utf-8", "surrogatepass")) | st.binary(max_size=200)


@dataclass
class Both:
    """The decoding functions and a real process, which must agree about every body."""

    connections: Mapping[str, http.client.HTTPConnection]
    statuses: Counter[int] = field(default_factory=Counter)
    slowest: float = 0.0  # seconds of an answer

    def check(self, path: str, body: bytes, setup: str) -> None:
        outcome = call_or_reply(path, body, SETUPS[setup])
        connection = self.connections[setup]
        begun = time.monotonic()
        connection.request("POST", path, body)
        response = connection.getresponse()
        status, kind, answer = response.status, response.headers["content-type"], response.read()
        self.slowest = max(self.slowest, time.monotonic() - begun)
        self.statuses[status] += 1
        if isinstance(outcome, Call):
            assert outcome.request.max_new_tokens is not None and outcome.request.max_new_tokens >= 1
            # What only the served model knows (tokens, media) may still be refused.
            assert status in (200, 400 if path.startswith("/v2") else 422)
            if status == 200 and kind != "application/json":
                frames = answer.split(b"\n\n")
                assert frames.pop() == b"" and frames
                assert "error" not in json.loads(frames[-1].removeprefix(b"data: "))
                return
        else:
            assert status == outcome.status
            assert status in (400, 404, 422)
        value = json.loads(answer)
        assert kind == "application/json"
        if status != 200:
            assert set(value) == {"error", "error_type"}
            assert len(value["error"]) < 600


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
    total = sum(fuzzed.statuses.values())
    note("bodies", {"requests": total, "statuses": fuzzed.statuses, "slowest_ms": round(fuzzed.slowest * 1e3, 1)})


@fuzz(0.35)
@given(st.sampled_from(PATHS), raw, st.sampled_from(sorted(SETUPS)))
def test_any_body(both: Both, path: str, body: bytes, setup: str) -> None:
    both.check(path, body, setup)


@fuzz(0.65)
@given(st.sampled_from(CASES), st.data())
def test_damaged_good_bodies(both: Both, case: Case, data: st.DataObject) -> None:
    """Bytes changed, cut or doubled in bodies of the table."""
    body = bytearray(case.body[:2000])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, max(len(body) - 1, 0)))
        piece = data.draw(st.binary(max_size=3) | st.sampled_from(PIECES))
        body[place : place + data.draw(st.integers(0, 3))] = piece
    both.check(case.path, bytes(body), case.setup)
