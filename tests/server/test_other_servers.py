"""The application under an ASGI server that is not ours: called directly, message by message."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from byte_model import house, script

from interlingua.engine.echo import Script
from interlingua.server.app import build_app
from interlingua.server.routes import discover


class Caller:
    """The server's side of one request."""

    def __init__(self, path: str, body: object) -> None:
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "headers": [(b"host", b"test")],
        }
        data = json.dumps(body).encode()
        half = len(data) // 2
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        for piece, more in ((data[:half], True), (data[half:], False)):
            self._incoming.put_nowait({"type": "http.request", "body": piece, "more_body": more})
        self.sent: list[dict[str, Any]] = []
        self.pieces = asyncio.Semaphore(0)

    async def receive(self) -> dict[str, Any]:
        return await self._incoming.get()

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
        self.pieces.release()

    def leave(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})


async def test_an_answer_comes_piece_by_piece():
    home = house(script("abc"))
    app = build_app(home.service, discover())
    caller = Caller("/generate_stream", {"inputs": "x"})
    await app(caller.scope, caller.receive, caller.send)
    start, *pieces = caller.sent
    assert start["status"] == 200
    assert [piece["more_body"] for piece in pieces] == [True, True, True, False]
    assert all(piece["body"].count(b"data: ") == 1 for piece in pieces)
    await home.emptied()


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
@pytest.mark.parametrize("plan", [Script(start_delay=30), Script(ids=(97,) * 500, delay=0.002)])
async def test_a_disconnect_message_aborts(plan: Script, path: str):
    home = house(plan)
    app = build_app(home.service, discover())
    caller = Caller(path, {"inputs": "x", "parameters": {"max_new_tokens": 500}})
    running = asyncio.create_task(app(caller.scope, caller.receive, caller.send))  # type: ignore[arg-type]
    await asyncio.sleep(0.05)
    caller.leave()
    await asyncio.wait_for(running, 1.0)
    assert not caller.sent or caller.sent[-1]["more_body"]
    await home.emptied(0.1)
    assert home.service.metrics.failures == {"dropped": 1}


async def test_a_disconnect_in_the_body_is_no_fault():
    home = house()
    app = build_app(home.service, discover())
    caller = Caller("/generate", {"inputs": "x"})
    caller._incoming = asyncio.Queue()
    caller.leave()
    await app(caller.scope, caller.receive, caller.send)
    assert caller.sent == [] and home.service.metrics.failures == {"dropped": 1}


async def test_the_lifespan_is_acknowledged():
    app = build_app(house().service, discover())
    incoming = iter(("lifespan.startup", "lifespan.shutdown"))
    sent: list[str] = []

    async def receive() -> dict[str, Any]:
        return {"type": next(incoming)}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message["type"])

    await app({"type": "lifespan"}, receive, send)  # type: ignore[arg-type]
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


async def test_details_of_very_long_answers_are_encoded_off_the_loop():
    home = house(Script(ids=(97,) * 12_000), max_context=20_000)
    app = build_app(home.service, discover())
    caller = Caller("/generate", {"inputs": "x", "parameters": {"max_new_tokens": 12_000, "details": True}})
    await app(caller.scope, caller.receive, caller.send)
    answer = json.loads(caller.sent[1]["body"])
    assert len(answer["details"]["tokens"]) == 12_000 and answer["generated_text"] == "a" * 12_000
    await home.emptied()
