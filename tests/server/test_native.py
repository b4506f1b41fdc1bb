"""Clients of the native engine, over real sockets: those that leave free everything within a step, those that stay are
all served, and those that are too many are refused at once."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from byte_model import Span
from sockets import Answer, Connection, ask
from tiny_models import write_tiny_model

from interlingua.engine.native.batch import Batch
from interlingua.engine.native.engine import NativeEngine, NativeOptions
from interlingua.hub.files import ModelFiles, from_folder
from interlingua.server.app import build_app
from interlingua.server.routes import discover
from interlingua.server.run import bind, listening
from interlingua.server.settings import ServerSettings
from interlingua.service.prepare import Limits
from interlingua.service.service import ServedModel, Service

VOCAB = 96
PATHS = ("/generate", "/generate_stream", "/v2/models/tiny/generate_stream")


class Letters:
    """One token for each character, in the vocabulary of the tiny models."""

    token_bytes = tuple(bytes([32 + value % 95]) for value in range(VOCAB))
    special_ids = frozenset({1, 2})
    eos_ids = frozenset({2})
    bos_id = None

    def id_to_text(self, token_id: int) -> str:
        return self.token_bytes[token_id].decode()

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        return [3 + byte % (VOCAB - 3) for byte in text.encode()]

    def encode_with_offsets(self, text: str, add_special: bool = True) -> list[Span]:
        return [Span(value, text[at], at, at + 1) for at, value in enumerate(self.encode(text))]


class Steps:
    """Holds every step of the engine until the test allows it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._allowed = threading.Semaphore(0)
        self._free = False
        self.taken = 0  # steps that have begun
        self.fault: Exception | None = None  # what the next step fails with
        run = Batch.run

        def held(batch: Batch, model: Any) -> None:
            self.taken += 1
            if not self._free:
                assert self._allowed.acquire(timeout=60), "the test allowed no further step"
            if self.fault is not None:
                raise self.fault
            run(batch, model)

        monkeypatch.setattr(Batch, "run", held)

    async def begun(self, count: int) -> None:
        """Waits until `count` steps have begun."""
        await until(lambda: self.taken >= count)

    def allow(self) -> None:
        self._allowed.release()

    def allow_all(self) -> None:
        self._free = True
        self._allowed.release(1000)


async def until(holds: Any) -> None:
    for _ in range(6000):
        if holds():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("waited for 30 seconds")


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return from_folder(write_tiny_model("gqa_tied", tmp_path_factory.mktemp("tiny")), "tiny")


class Site:
    def __init__(self, engine: NativeEngine, service: Service, port: int) -> None:
        self.engine, self.service, self.port = engine, service, port

    async def send(self, number: int, prompt: str, tokens: int) -> Connection:
        connection = await Connection.open(self.port)
        connection.send("POST", PATHS[number % len(PATHS)], body(prompt, tokens))
        return connection

    @property
    def empty(self) -> bool:
        stats = self.engine.stats()
        return (self.service.inside, stats.running, stats.waiting, stats.kv_blocks_used) == (0, 0, 0, 0)


def body(prompt: str, tokens: int) -> dict[str, Any]:
    parameters = {"max_new_tokens": tokens, "ignore_eos": True}
    return {"inputs": prompt, "text_input": prompt, "parameters": parameters}


@contextlib.asynccontextmanager
async def serving(files: ModelFiles, limits: Limits | None = None, **options: Any) -> AsyncIterator[Site]:
    engine = NativeEngine(files, NativeOptions(threads=1, kv_memory=1 << 20, prefix_cache=False, **options))
    await engine.start()
    service = Service(limits or Limits())
    service.attach(ServedModel("tiny", engine, Letters()))
    settings = ServerSettings(port=0, stop_grace=0.2)
    listener = bind(settings)
    async with listening(build_app(service, discover(), settings), listener):
        yield Site(engine, service, listener.getsockname()[1])
    assert engine.stats().kv_blocks_used == 0
    metrics = service.metrics
    assert metrics.requests == metrics.successes + sum(metrics.failures.values()), "each has exactly one ending"


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("number", range(len(PATHS)))
@pytest.mark.parametrize("after", [1, 3, 12], ids=["before the first byte", "in prefill", "between tokens"])
async def test_leaving_frees_everything_within_a_step(
    tiny: ModelFiles, steps: Steps, after: int, number: int, how: str
):
    """The prompt takes 8 steps of 16 tokens; the client leaves while step `after` is being computed."""
    async with serving(tiny, max_batch_tokens=16) as site:
        connection = await site.send(number, "x" * 128, 100)
        for step in range(1, after + 1):
            await steps.begun(step)
            if step < after:
                steps.allow()
        getattr(connection, how)()
        await until(lambda: site.service.inside == 0)
        assert site.engine.stats().kv_blocks_used > 0, "the step in the air still holds its memory"
        steps.allow()
        await until(lambda: site.empty)
        assert steps.taken == after
        assert site.service.metrics.failures == {"dropped": 1}
        steps.allow_all()


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_leaving_the_queue(tiny: ModelFiles, steps: Steps, how: str):
    async with serving(tiny, max_batch_size=1) as site:
        first = await site.send(0, "first", 3)
        await steps.begun(1)
        others = [await site.send(number, "queued", 50) for number in range(6)]
        await until(lambda: site.service.inside == 7)
        for connection in others:
            getattr(connection, how)()
        await until(lambda: site.service.inside == 1)
        steps.allow_all()
        assert (await first.answer()).status == 200
        await until(lambda: site.empty)
        assert steps.taken == 3, "no step was spent on those that left"
        assert site.service.metrics.failures == {"dropped": 6}
        first.close()


async def test_one_too_many_is_refused_at_once_and_health_stays_good(tiny: ModelFiles, steps: Steps):
    """Running and waiting requests count together; no step passes while the others are refused."""
    async with serving(tiny, Limits(max_concurrent_requests=4), max_batch_size=2) as site:
        inside = [await site.send(number, "x" * 20, 5) for number in range(4)]
        await until(lambda: site.service.inside == 4)
        await steps.begun(1)
        for path in PATHS:
            refused = await ask(site.port, "POST", path, body("x", 1))
            assert refused.status == 429 and int(refused.headers["retry-after"]) >= 1
            assert refused.json["error_type"] == "overloaded"
        for path in ("/health", "/v2/health/ready", "/ping"):
            assert (await ask(site.port, "GET", path)).status == 200, "a full house is no illness"
        assert steps.taken == 1
        steps.allow_all()
        answers = [await connection.answer() for connection in inside]
        assert [answer.status for answer in answers] == [200] * 4
        assert (await ask(site.port, "POST", "/generate", body("x", 1))).status == 200
        for connection in inside:
            connection.close()


async def test_long_and_short_prompts_are_all_served_in_a_full_house(tiny: ModelFiles):
    """Nobody starves: of 120 that keep the house full, each in turn, all are answered or told at once to come again."""
    async with serving(tiny, Limits(max_concurrent_requests=8), max_batch_tokens=32, max_batch_size=4) as site:
        refusals = 0

        async def insist(number: int) -> Answer:
            nonlocal refusals
            while True:
                text = "x" * (200 if number % 3 == 0 else 2)
                answer = await ask(site.port, "POST", PATHS[number % 3], body(text, 1 + number % 20))
                if answer.status != 429:
                    return answer
                refusals += 1
                await asyncio.sleep(0.01)

        answers = await asyncio.wait_for(asyncio.gather(*(insist(number) for number in range(120))), 120)
        assert [answer.status for answer in answers] == [200] * 120
        assert refusals > 0
        await until(lambda: site.empty)


async def test_health_turns_bad_when_no_step_ends(tiny: ModelFiles, steps: Steps, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("interlingua.service.service._STUCK_AFTER", 0.2)
    async with serving(tiny) as site:
        connection = await site.send(0, "x", 3)
        await steps.begun(1)
        await until(lambda: site.service.ill_health() is not None)
        answer = await ask(site.port, "GET", "/health")
        assert answer.status == 503 and "no progress" in answer.json["error"]
        steps.allow_all()
        assert (await connection.answer()).status == 200
        assert (await ask(site.port, "GET", "/health")).status == 200
        connection.close()


async def test_a_crash_of_the_engine_ends_its_requests_and_health_says_so(
    tiny: ModelFiles, steps: Steps, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    async with serving(tiny) as site:
        whole, stream = [asyncio.create_task(ask(site.port, "POST", path, body("x", 100))) for path in PATHS[:2]]
        await until(lambda: site.service.inside == 2)
        for step in range(1, 6):
            await steps.begun(step)
            steps.allow()
        await steps.begun(6)
        steps.fault = RuntimeError("injected: secret text")
        steps.allow_all()
        answer = await whole
        assert answer.status == 424 and b"secret" not in answer.body
        events = (await stream).events
        assert events[-1]["error_type"] == "generation" and "error" not in events[0]
        assert (await ask(site.port, "GET", "/health")).status == 503
        assert (await ask(site.port, "POST", "/generate", body("x", 1))).status == 503
        assert (await ask(site.port, "GET", "/v2/health/live")).status == 200
        assert site.empty
