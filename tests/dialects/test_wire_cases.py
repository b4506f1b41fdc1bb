"""The whole table of cases against the pure decoding functions."""

from __future__ import annotations

import json

import pytest
from wire import SETUPS, attribute, call_or_reply
from wire_cases import Case, all_cases

from interlingua.contract.dialect import Call, Reply

CASES = all_cases()


def test_the_table_is_large_and_has_no_doubles() -> None:
    assert len(CASES) >= 400
    requests = [(case.setup, case.path, case.body) for case in CASES]
    assert len(set(requests)) >= 0.97 * len(requests)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_case(case: Case) -> None:
    assert _fault(case) == ""


def _fault(case: Case) -> str:
    """What is wrong with the outcome of a case; "" if nothing."""
    outcome = call_or_reply(case.path, case.body, SETUPS[case.setup])
    if isinstance(outcome, Call):
        if case.status != 200:
            return f"accepted, should be {case.status}"
        return next(
            (
                f"{name} is {got!r}, should be {wanted!r}"
                for name, wanted in case.expect.items()
                if (got := attribute(outcome.request, name)) != wanted
                or isinstance(got, bool) != isinstance(wanted, bool)
            ),
            "",
        )
    return check_refusal(case, outcome.status, outcome.body) if case.status != 200 else f"refused: {outcome.body!r}"


def check_refusal(case: Case, status: int, body: bytes) -> str:
    """What is wrong with the answer to a case that must be refused; "" if nothing."""
    if status != case.status:
        return f"status {status}, should be {case.status}: {body!r}"
    error = json.loads(body)
    if sorted(error) != ["error", "error_type"] or error["error_type"] != case.error_type:
        return f"shape {error}"
    message: str = error["error"]
    named = message.split("`")[1] if message.startswith("`") else ""
    # Inside a list or a grammar the place is named too: `parameters.stop[1]`, `parameters.grammar.value`.
    inner = case.field not in ("inputs", "text_input", "parameters") and named.startswith(
        (case.field + "[", case.field + ".")
    )
    if named != case.field and not inner:
        return f"names `{named}`, should be `{case.field}`: {message}"
    return "" if case.says in message else f"does not say {case.says!r}: {message}"


def test_reply_type() -> None:
    assert isinstance(call_or_reply("/generate", b""), Reply)
