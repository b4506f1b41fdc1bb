"""The KV pool's pages come ahead of their use: in idle moments alone, and without a change to what the pool holds."""

from __future__ import annotations

import asyncio
import ctypes
import os
import platform
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from native_runner import Runner, load
from tiny_models import tiny_prompt, write_tiny_model

from interlingua.contract.events import EngineEvent, FinishedEvent
from interlingua.contract.request import PreparedRequest, SamplingParams
from interlingua.engine.native import engine as engine_module
from interlingua.engine.native._native import Model
from interlingua.engine.native.batch import Batch
from interlingua.engine.native.engine import NativeEngine, NativeOptions
from interlingua.hub.files import ModelFiles, from_folder

POOL = (64 << 20) + 5 * 16384  # the last large page is not whole
PIECE = 2 << 20
PAGE = os.sysconf("SC_PAGESIZE")
LIMIT = 60  # seconds; hang detector

pytestmark = pytest.mark.skipif(
    tuple(map(int, platform.release().split(".")[:2])) < (5, 14), reason="needs Linux 5.14, which can populate pages"
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return from_folder(write_tiny_model("gqa_tied", tmp_path_factory.mktemp("tiny")), "tiny")


def resident(model: Model) -> npt.NDArray[np.bool_]:
    """Whether each page of the KV pool is in memory."""
    pages = np.zeros(-(-model.kv_bytes // PAGE), np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    address = ctypes.c_void_p(model.kv_block(0, 0).ctypes.data)
    failed = libc.mincore(address, ctypes.c_size_t(model.kv_bytes), pages.ctypes.data_as(ctypes.c_void_p))
    assert not failed, os.strerror(ctypes.get_errno())
    return pages & 1 == 1


def test_pieces_are_resident_and_hold_what_they_held(tiny: ModelFiles) -> None:
    loaded = load(tiny, kv_memory=POOL, threads=2)
    model, runner = loaded.model, Runner(loaded)
    ids = tiny_prompt("gqa_tied").tolist()
    blocks = [loaded.kv_blocks - 1, 700, 3, *runner.blocks(len(ids))]
    runner.step([(ids, 0, blocks)])
    held = runner.kv(blocks, 2)
    assert any(block.any() for block in held)
    assert not resident(model).all()
    done = 0
    while done < model.kv_bytes:
        before, done = done, model.touch_kv(done)
        assert done == min(model.kv_bytes, before + PIECE)
        assert resident(model)[: done // PAGE].all()
    assert resident(model).all()
    assert model.touch_kv(done) == done
    for block, was in zip(runner.kv(blocks, 2), held, strict=True):
        np.testing.assert_array_equal(block, was)
    assert not any(block.any() for block in runner.kv([1000, 2000], 2))
    with pytest.raises(ValueError, match="no such byte"):
        model.touch_kv(model.kv_bytes + 1)


async def all_resident(engine: NativeEngine) -> None:
    for _ in range(100 * LIMIT):
        if resident(engine._model).all():
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"{resident(engine._model).mean():.0%} of the pool is in memory")


async def answer(engine: NativeEngine) -> list[EngineEvent]:
    request = PreparedRequest(
        request_id="one",
        prompt_ids=tuple(range(3, 60)),
        max_new_tokens=8,
        sampling=SamplingParams(),
        stop_token_ids=frozenset(),
    )
    return [event async for event in engine.generate(request)]


def started(files: ModelFiles) -> NativeEngine:
    return NativeEngine(files, NativeOptions(threads=1, kv_memory=POOL))


async def test_an_idle_engine_has_its_pool_in_memory(tiny: ModelFiles) -> None:
    engine = started(tiny)
    await engine.start()
    await all_resident(engine)
    assert isinstance((await answer(engine))[-1], FinishedEvent)
    await engine.stop()


class Gate:
    """In the place of `available_memory`: holds the engine thread up before its third piece."""

    def __init__(self) -> None:
        self.looks = 0
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self) -> int:
        self.looks += 1
        if self.looks == 3:
            self.reached.set()
            assert self.opened.wait(LIMIT)
        return 1 << 50

    async def held(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, LIMIT)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    made = Gate()
    monkeypatch.setattr(engine_module, "_LOOK_AGAIN", PIECE)
    monkeypatch.setattr(engine_module, "available_memory", made)
    return made


async def test_a_request_waits_for_one_piece(tiny: ModelFiles, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    looks_at_steps = []
    run: Callable[[Batch, Model], None] = Batch.run

    def noting(batch: Batch, model: Model) -> None:
        looks_at_steps.append(gate.looks)
        run(batch, model)

    monkeypatch.setattr(Batch, "run", noting)
    engine = started(tiny)
    await engine.start()
    await gate.held()
    asking = asyncio.create_task(answer(engine))
    await asyncio.sleep(0)  # it is posted
    gate.opened.set()
    assert isinstance((await asyncio.wait_for(asking, LIMIT))[-1], FinishedEvent)
    assert set(looks_at_steps) == {3}, "the pool waits while requests run"
    await all_resident(engine)
    await engine.stop()


async def test_stopping_waits_for_one_piece(tiny: ModelFiles, gate: Gate) -> None:
    engine = started(tiny)
    await engine.start()
    await gate.held()
    stopping = asyncio.create_task(engine.stop())
    await asyncio.sleep(0)
    gate.opened.set()
    await asyncio.wait_for(stopping, LIMIT)
    assert engine._thread is not None and not engine._thread.is_alive()
    assert gate.looks == 3 and not resident(engine._model).all()


class Machine:
    """In the place of `available_memory`: what a machine has free that had `free` before the pool's first page came."""

    def __init__(self, free: int, taken_by_another: int = 0) -> None:
        self.free = free
        self.taken_by_another = taken_by_another  # after the first look
        self.looks = 0
        self.engine: NativeEngine | None = None

    def __call__(self) -> int:
        assert self.engine is not None
        self.looks += 1
        left = self.free - int(resident(self.engine._model).sum()) * PAGE
        return left if self.looks == 1 else left - self.taken_by_another

    async def started(self, files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> NativeEngine:
        monkeypatch.setattr(engine_module, "available_memory", self)
        self.engine = started(files)
        await self.engine.start()
        return self.engine


async def test_a_pool_of_most_of_the_memory_is_taken_whole(tiny: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(POOL + POOL // 8)
    engine = await machine.started(tiny, monkeypatch)
    await all_resident(engine)
    await engine.stop()
    assert machine.looks == 2, "not once for every piece"


async def test_what_another_takes_meanwhile_stops_it(tiny: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_LOOK_AGAIN", 4 * PIECE)
    machine = Machine(POOL + POOL // 8, taken_by_another=PIECE)
    engine = await machine.started(tiny, monkeypatch)
    for _ in range(100 * LIMIT):
        if machine.looks == 2:
            break
        await asyncio.sleep(0.01)
    assert isinstance((await answer(engine))[-1], FinishedEvent)
    await engine.stop()
    pieces = int(resident(engine._model).sum()) * PAGE / PIECE
    assert 4 <= pieces <= 5, "and one that the answer used"


def short() -> int:
    return POOL + POOL // 8 - 1


def unreadable() -> int:
    return len(Path("/nothing").read_bytes())


@pytest.mark.parametrize("memory", [short, unreadable])
async def test_where_memory_is_short_pages_come_with_use(
    tiny: ModelFiles, memory: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "available_memory", memory)
    engine = started(tiny)
    await engine.start()
    assert isinstance((await answer(engine))[-1], FinishedEvent)
    await engine.stop()
    assert resident(engine._model).sum() <= PIECE // PAGE, "what the answer used, in whole large pages"
