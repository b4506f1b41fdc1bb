"""What breaks inside one request ends that request alone, in the middle of a batch of every kind of row."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from test_engine import Running, collect, essence, idle, make_request
from test_sampler_rows import requests
from tiny_models import write_tiny_model

from interlingua.contract.errors import GenerationError
from interlingua.contract.events import EngineEvent, FailedEvent, FinishedEvent, TokenEvent
from interlingua.contract.request import PreparedRequest, SamplingParams
from interlingua.engine.native._native import Model
from interlingua.engine.native.batch import Batch
from interlingua.engine.native.drafts import Drafter
from interlingua.engine.native.engine import NativeEngine
from interlingua.engine.native.sequence import Sequence as Row
from interlingua.hub.files import ModelFiles, from_folder

AFTER = 5  # tokens that the victim makes before it breaks


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return from_folder(write_tiny_model("mha_untied", tmp_path_factory.mktemp("tiny")), "tiny")


def injected(*_: object) -> object:
    raise RuntimeError("injected")


def break_rows(
    monkeypatch: pytest.MonkeyPatch, victim: str, before: Callable[[Model, Row], object] | None, after: bool = False
) -> None:
    """Does `before` to the victim's row in the step for its token number `AFTER`; with `after` behind that step."""
    run = Batch.run

    def step(batch: Batch, model: Model, *rest: object) -> None:
        rows = [c.sequence for c in batch.chunks if c.sequence.request.request_id == victim]
        hit = [row for row in rows if row.generated == AFTER]
        if not after:
            for row in hit:
                assert before is not None
                before(model, row)
        run(batch, model, *rest)  # type: ignore[arg-type]
        if after:
            for row in hit:
                assert before is not None
                before(model, row)

    monkeypatch.setattr(Batch, "run", step)


def lose_sampler(model: Model, row: Row) -> None:
    model.remove_sampler(row.slot)


async def among_all(
    files: ModelFiles, victim: PreparedRequest, inject: Callable[[], None]
) -> tuple[list[object], list[EngineEvent]]:
    """Runs the victim among 32 kinds of rows, which must answer as alone. Returns what it says alone and so."""
    others = requests()
    async with Running(files, prefix_cache=False, speculate=0) as engine:
        alone = [essence(await collect(engine, request)) for request in [*others, victim]]
    async with Running(files, max_batch_tokens=4096) as engine:
        inject()
        every: Sequence[PreparedRequest] = [*others[:16], victim, *others[16:]]
        answers = await asyncio.wait_for(asyncio.gather(*(collect(engine, request) for request in every)), 60)
        broken = answers.pop(16)
        await idle(engine)
        for request, events, expected in zip(others, answers, alone, strict=False):
            assert essence(events) == expected, request.sampling
        spared = replace(victim, request_id="spared")
        assert essence(await collect(engine, spared)) == alone[-1], "the engine has taken harm"
        await idle(engine)
    return alone[-1], broken


def victim_of(**changes: object) -> PreparedRequest:
    changes = {"request_id": "victim", "top_n_tokens": 0, **changes}
    return replace(make_request(41, 20, 30, stops=False), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("where", ["before its step", "behind its step"])
async def test_a_sampler_that_breaks_in_mid_answer(
    tiny: ModelFiles, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Its state in C++ is gone: choosing throws in a worker thread, or asking for the alternatives does afterwards."""
    late = where == "behind its step"
    victim = victim_of(top_n_tokens=3 if late else 0)
    expected, broken = await among_all(tiny, victim, lambda: break_rows(monkeypatch, "victim", lose_sampler, late))
    assert essence(broken)[:-1] == expected[: 1 + AFTER]
    failed = broken[-1]
    assert isinstance(failed, FailedEvent) and isinstance(failed.error, GenerationError)
    assert failed.error.message == "the request's decoding state has failed"


async def test_a_sampler_that_cannot_be_built(tiny: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    add_sampler = NativeEngine._add_sampler

    def add(engine: NativeEngine, request: PreparedRequest) -> int:
        return int(injected()) if request.request_id == "victim" else add_sampler(engine, request)  # type: ignore[call-overload]

    _, broken = await among_all(tiny, victim_of(), lambda: monkeypatch.setattr(NativeEngine, "_add_sampler", add))
    assert [type(event) for event in broken] == [FailedEvent]


async def test_a_drafter_that_breaks_costs_only_its_guesses(
    tiny: ModelFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    victim = victim_of(prompt_ids=(5, 6, 7, 8) * 5)  # repeats itself, so that guesses are made
    propose = Drafter.propose

    def fail(drafter: Drafter, ids: Sequence[int], room: int) -> Sequence[int]:
        return propose(drafter, ids, room) if tuple(ids[:20]) != victim.prompt_ids else injected()  # type: ignore[return-value]

    expected, answered = await among_all(tiny, victim, lambda: monkeypatch.setattr(Drafter, "propose", fail))
    assert essence(answered) == expected
    assert "drafting failed and is off for it" in caplog.text


async def test_a_drafter_that_cannot_learn_ends_its_request(tiny: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """One ending, also where the fault comes when the last token of the step has been told."""
    victim = victim_of(prompt_ids=(5, 6, 7, 8) * 5, max_new_tokens=60, sampling=SamplingParams())
    async with Running(tiny, speculate=6) as engine:
        monkeypatch.setattr(Drafter, "learn", injected)
        neighbour = make_request(3, 20, 30, stops=False)  # no guesses: its text does not repeat itself
        events, other = await asyncio.gather(
            collect(engine, victim), collect(engine, replace(neighbour, top_n_tokens=1))
        )
        await idle(engine)
    assert isinstance(events[-1], FailedEvent) and isinstance(other[-1], FinishedEvent)
    assert sum(isinstance(event, FinishedEvent | FailedEvent) for event in events) == 1
    assert sum(isinstance(event, TokenEvent) for event in other) == 30


async def test_a_broken_member_of_a_group_leaves_the_others_their_prompt(
    tiny: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that computes the prompt for all breaks in its first step of decoding."""
    members = [
        replace(victim_of(group="g"), request_id=name, sampling=replace(victim_of().sampling, seed=place))
        for place, name in enumerate(("victim", "second", "third"))
    ]
    async with Running(tiny, prefix_cache=False) as engine:
        alone = [essence(await collect(engine, replace(member, group=None))) for member in members]
    async with Running(tiny, prefix_cache=False) as engine:
        monkeypatch.setattr("test_faults.AFTER", 1)
        break_rows(monkeypatch, "victim", lose_sampler)
        together = await asyncio.wait_for(asyncio.gather(*(collect(engine, member) for member in members)), 60)
        await idle(engine)
    assert isinstance(together[0][-1], FailedEvent)
    assert [essence(events) for events in together[1:]] == alone[1:]
