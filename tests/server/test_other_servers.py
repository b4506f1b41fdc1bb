"""The application under an ASGI server that is not ours: called directly, message by message."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from byte_model import house, script

from interlingua.contract.dialect import Reply
from interlingua.contract.events import Answer
from interlingua.dialects._openai_answers import CompletionEncoder
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


async def test_answers_with_many_choices_and_alternatives_are_encoded_off_the_loop(monkeypatch: pytest.MonkeyPatch):
    """One choice of 20 tokens is not worth a thread; 64 of them with 5 alternatives each are."""
    home = house(Script(ids=(97,) * 20))
    app = build_app(home.service, discover())
    threads: list[bool] = []
    encode = CompletionEncoder.answer

    def noted(self: CompletionEncoder, answer: Answer) -> Reply:
        threads.append(threading.current_thread() is threading.main_thread())
        return encode(self, answer)

    monkeypatch.setattr(CompletionEncoder, "answer", noted)
    for more in ({}, {"n": 64, "logprobs": 5}):
        body = {"prompt": "x", "max_tokens": 20, **more}
        caller = Caller("/v1/completions", body)
        await app(caller.scope, caller.receive, caller.send)
        answer = json.loads(caller.sent[1]["body"])
        assert [choice["text"] for choice in answer["choices"]] == ["a" * 20] * body.get("n", 1)
    assert threads == [True, False]
    await home.emptied()
