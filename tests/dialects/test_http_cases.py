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

from interlingua.contract.dialect import DialectSettings

CASES = all_cases()
GROUPS = sorted({(case.setup, case.path) for case in CASES})


@pytest.mark.parametrize(("setup", "path"), GROUPS, ids=lambda part: str(part))
def test_cases(served: Served, setup: str, path: str) -> None:
    address = urlsplit(served.urls[setup])
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
    wrong = [
        f"{case.id}: {problem}"
        for case in CASES
        if (case.setup, case.path) == (setup, path)
        and (problem := fault(connection, case, SETUPS[setup], b"`parameters.grammar` is not supp"))
    ]
    connection.close()
    assert not wrong, "\n".join(wrong[:20])


def fault(connection: http.client.HTTPConnection, case: Case, settings: DialectSettings, *beyond: bytes) -> str:
    """What is wrong with the answer to a case; "" if nothing.

    A process has a real context: prompts of the table that are too long for it are refused by their tokens. A message
    with one of `beyond` tells of something else that only this process lacks.
    """
    connection.request("POST", case.path, case.body)
    response = connection.getresponse()
    body = response.read()
    kind = response.headers["content-type"]
    _, route, _ = find_route(case.path)
    if wrong := misfit(route.describe(settings), response.status, kind, body):
        return wrong
    if case.status != 200:
        return check_refusal(case, response.status, body) or ("" if kind == "application/json" else f"type {kind}")
    if response.status != 200:
        expected = (b" tokens, got " in body and len(case.body) > 1000) or any(words in body for words in beyond)
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
