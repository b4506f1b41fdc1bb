"""The generated documentation and the OpenAPI page against the tables and the decoder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from page import matches
from wire import DIALECTS, SETUPS, call_or_reply, find_route
from wire_cases import all_cases

from interlingua.contract.dialect import Call
from interlingua.dialects import _reference

ROOT = Path(__file__).parents[2]


def test_the_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "dialects.md").read_text() == _reference.page(), "run scripts/make-docs"


@pytest.mark.parametrize(
    ("section", "others"),
    [("Native", ("/invocations", "/generate", "rofile")), ("vLLM", ("server-sent events",))],
)
def test_a_table_of_fields_speaks_of_its_own_routes(section: str, others: tuple[str, ...]) -> None:
    """Rows are shared between tables, and words about routes are not."""
    text = _reference.page().partition(f"\n## {section}\n")[2].partition("\n### Fields\n")[2].partition("\n### ")[0]
    assert text.count("\n| `") > 10
    assert not [word for word in others if word in text]


def test_make_docs_checks() -> None:
    command = [str(ROOT / "scripts" / "make-docs"), "--check", "dialects"]
    subprocess.run(command, check=True, env={**os.environ, "PYTHON": sys.executable})


# What no schema says: combinations, sums, rounding, and values that are good but do not work yet.
BEYOND = re.compile(r"not yet|oops|value\":\"\[|best_of|prefill on a stream|grammar \{|stop=\[\"s")


@pytest.mark.parametrize(("setup", "path"), sorted({(case.setup, case.path) for case in all_cases()}))
def test_the_openapi_schema_agrees_with_the_decoder(setup: str, path: str) -> None:
    """Under the settings that rule, not under the defaults: that is what the page shows."""
    _, route, _ = find_route(path)
    schema = route.describe(SETUPS[setup])["requestBody"]["content"]["application/json"]["schema"]
    for case in all_cases():
        if case.path != path or case.setup != setup:
            continue
        if isinstance(call_or_reply(path, case.body, SETUPS[setup]), Call):
            assert matches(json.loads(case.body.removeprefix(b"\xef\xbb\xbf")), schema), case.id
        elif case.field.startswith("parameters.") and not BEYOND.search(case.name):
            assert not matches(json.loads(case.body), schema), case.id


def test_operations_are_complete() -> None:
    for dialect in DIALECTS:
        for route in dialect.routes:
            operation = route.describe(SETUPS["plain"])
            assert operation["summary"]
            assert "200" in operation["responses"]
            assert {"401", "413", "429", "503", "504"} <= set(operation["responses"])
            json.dumps(operation, allow_nan=False)
            names = re.findall(r"\{(\w+)\}", route.path)
            assert [parameter["name"] for parameter in operation.get("parameters", [])] == names
