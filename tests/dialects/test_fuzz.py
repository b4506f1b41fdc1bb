"""Random bodies: decoding gives a call or a RequestError that the dialect can render, whatever comes."""

from __future__ import annotations

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wire import SETUPS, call_or_reply
from wire_cases import COMMON, HF, MINDIE, TRITON_PARAMETERS, all_cases

from interlingua.contract.dialect import Call, DialectSettings

PATHS = sorted({case.path for case in all_cases()})
NAMES = sorted({parameter.name for parameter in (*COMMON, *MINDIE, *HF, *TRITON_PARAMETERS)})
FUZZ = settings(max_examples=700, deadline=None, suppress_health_check=list(HealthCheck))

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.text(max_size=20)
    | st.sampled_from(
        ["None", "text", "json", "regex", "http://h/a.png", "data:image/png;base64,AAAA", "\ud800"]
    )
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["type", "value", "schema", "text", "image_url", "url", "x"]), inner
        )
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
raw = bodies.map(lambda body: json.dumps(body).encode("utf-8", "surrogatepass")) | st.binary(max_size=200)


def _check(path: str, body: bytes, setup: DialectSettings) -> None:
    outcome = call_or_reply(path, body, setup)
    if isinstance(outcome, Call):
        assert outcome.request.max_new_tokens is not None and outcome.request.max_new_tokens >= 1
        return
    assert outcome.status in (400, 404, 422)
    error = json.loads(outcome.body)
    assert set(error) == {"error", "error_type"}
    assert len(error["error"]) < 600


@FUZZ
@given(st.sampled_from(PATHS), raw, st.sampled_from(sorted(SETUPS)))
def test_any_body(path: str, body: bytes, setup: str) -> None:
    _check(path, body, SETUPS[setup])


@FUZZ
@given(st.sampled_from(all_cases()), st.data())
def test_damaged_good_bodies(case: object, data: st.DataObject) -> None:
    """Bytes changed, cut or doubled in bodies of the table."""
    body = bytearray(case.body[:2000])  # type: ignore[attr-defined]
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, max(len(body) - 1, 0)))
        piece = data.draw(
            st.binary(max_size=3) | st.sampled_from([b"\\ud800", b"NaN", b"1e999", b"[" * 70, b'"', b"\xff"])
        )
        body[place : place + data.draw(st.integers(0, 3))] = piece
    _check(case.path, bytes(body), SETUPS[case.setup])  # type: ignore[attr-defined]
