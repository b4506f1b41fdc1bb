"""The whole table of cases against a real process: statuses, shapes, and that it outlives them all."""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit

import pytest
from page import misfit
from served import Served
from test_wire_cases import check_refusal
from wire import SETUPS, find_route
from wire_cases import Case, all_cases

CASES = all_cases()
GROUPS = sorted({(case.setup, case.path) for case in CASES})


@pytest.mark.parametrize(("setup", "path"), GROUPS, ids=lambda part: str(part))
def test_cases(served: Served, setup: str, path: str) -> None:
    address = urlsplit(served.urls[setup])
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
    wrong = [
        f"{case.id}: {fault}"
        for case in CASES
        if (case.setup, case.path) == (setup, path) and (fault := _fault(connection, case))
    ]
    connection.close()
    assert not wrong, "\n".join(wrong[:20])


def _fault(connection: http.client.HTTPConnection, case: Case) -> str:
    connection.request("POST", case.path, case.body)
    response = connection.getresponse()
    body = response.read()
    kind = response.headers["content-type"]
    _, route, _ = find_route(case.path)
    if fault := misfit(route.describe(SETUPS[case.setup]), response.status, kind, body):
        return fault
    if case.status != 200:
        return check_refusal(case, response.status, body) or ("" if kind == "application/json" else f"type {kind}")
    if response.status != 200:
        # The process has a real context: prompts of the table that are too long for it are refused by tokens.
        # And the scripted engine follows no grammar.
        expected = (b" tokens, got " in body and len(case.body) > 1000) or b"`parameters.grammar` is not supp" in body
        return "" if expected else f"{response.status}: {body!r}"
    return "" if kind == "application/json" or b"error" not in body else f"events {body!r}"


def test_nothing_is_left_behind(served: Served) -> None:
    for setup, url in served.urls.items():
        if setup == "grpc":
            continue
        address = urlsplit(url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
        connection.request("GET", "/health")
        assert connection.getresponse().read() == b"", setup
        connection.request("GET", "/metrics")
        metrics = connection.getresponse().read().decode()
        connection.close()
        assert "tgi_queue_size 0" in metrics, setup
