"""The engine's thread dies in the program itself. The fault comes from outside: the program has no switch for it."""

from __future__ import annotations

import asyncio

from server import running
from sockets import ask

FAULTY = """
import sys
from interlingua.cli.main import main
from interlingua.engine.native.batch import Batch

run, steps = Batch.run, iter(range(30))

def broken(batch, model):
    if next(steps, None) is None:
        raise RuntimeError("injected")
    run(batch, model)

Batch.run = broken
sys.exit(main())
"""


async def test_a_dead_engine_ends_its_requests_and_then_the_process() -> None:
    """A supervisor sees an exit code other than 0 and starts the server again."""
    with running(["--kv-memory", "64MiB"], program=("-c", FAULTY)) as server:
        body = {"inputs": "x", "parameters": {"max_new_tokens": 500, "ignore_eos": True}}
        stream, whole = await asyncio.wait_for(
            asyncio.gather(*(ask(server.port, "POST", path, body) for path in ("/generate_stream", "/generate"))), 60
        )
        assert stream.events[-1]["error_type"] == "generation" and "injected" not in stream.body.decode()
        assert whole.status == 424
        assert await asyncio.to_thread(server.process.wait, 30) == 1
    assert any("injected" in line for line in server.errors), "the operator sees why"
    assert any("the engine has died" in line for line in server.errors)
