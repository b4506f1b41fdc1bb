"""How the tests call a dialect: as the server does, without a server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from wire_cases import MODEL

from interlingua.contract.dialect import Call, Dialect, DialectSettings, Reply, Route, WireRequest
from interlingua.contract.errors import RequestError
from interlingua.dialects import kserve, native, openai, tgi, triton, vllm

DIALECTS: tuple[Dialect, ...] = (
    tgi.DIALECT,
    triton.DIALECT,
    kserve.DIALECT,
    native.DIALECT,
    openai.DIALECT,
    vllm.DIALECT,
)
SETTINGS = DialectSettings(model_name=MODEL, vocab_size=256)
SETUPS: Mapping[str, DialectSettings] = {
    "plain": SETTINGS,
    "lenient": DialectSettings(model_name=MODEL, vocab_size=256, lenient_ranges=True),
    "hf": DialectSettings(model_name=MODEL, vocab_size=256, tgi_profile="hf"),
    "mindie": DialectSettings(model_name=MODEL, vocab_size=256, tgi_profile="mindie"),
}


def find_route(path: str) -> tuple[Dialect, Route, dict[str, str]]:
    """The route of a path, as the server would find it, with the values of the template's variables."""
    for dialect in DIALECTS:
        for route in dialect.routes:
            pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(route.path))
            if match := re.fullmatch(pattern, path):
                return dialect, route, match.groupdict()
    raise LookupError(path)


def call(
    path: str, body: bytes, settings: DialectSettings = SETTINGS, headers: Mapping[str, str] | None = None
) -> Call:
    _, route, variables = find_route(path)
    wire = WireRequest(
        method="POST", path=path, path_params=variables, headers=headers or {}, body=body, request_id="generated-1"
    )
    return route.decode(wire, settings)


def call_or_reply(
    path: str, body: bytes, settings: DialectSettings = SETTINGS, headers: Mapping[str, str] | None = None
) -> Call | Reply:
    """What a client would get: the call, or the rendered refusal."""
    try:
        return call(path, body, settings, headers)
    except RequestError as error:
        return find_route(path)[0].render_error(error)


def attribute(value: Any, dotted: str) -> Any:
    for name in dotted.split("."):
        value = getattr(value, name)
    return value
