"""The engine as its contract promises: solo equality in any company, one ending each, nothing left behind."""

from __future__ import annotations

import asyncio
import random
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_models import F32, tiny_weights, write_safetensors, write_tiny_model

from interlingua.contract.events import (
    EngineEvent,
    FailedEvent,
    FinishedEvent,
    FinishReason,
    StartedEvent,
    TokenEvent,
)
from interlingua.contract.request import PreparedRequest, SamplingParams
from interlingua.engine.native._native import KV_BLOCK
from interlingua.engine.native.batch import Batch
from interlingua.engine.native.engine import NativeEngine, NativeOptions
from interlingua.engine.native.scheduler import Chunk
from interlingua.hub.files import ModelFiles, from_folder

VOCAB = 96
BLOCK_BYTES = 2 * 2 * 32 * 2 * 2 * KV_BLOCK  # layers, kv heads, padded head, k and v, fp16


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return from_folder(write_tiny_model("gqa_tied", tmp_path_factory.mktemp("tiny")), "tiny")


def make_request(
    seed: int,
    prompt: int,
    new: int,
    *,
    sample: bool = True,
    priority: int = 5,
    logprobs: bool = False,
    stops: bool = True,
) -> PreparedRequest:
    draw = random.Random(seed)
    kinds = [
        {},
        {"temperature": 0.7, "top_k": 8},
        {"top_p": 0.8},
        {"typical_p": 0.6, "repetition_penalty": 1.3},
        {"frequency_penalty": 0.5},
    ]
    sampling = SamplingParams(do_sample=sample, seed=seed, **kinds[seed % len(kinds)] if sample else {})
    return PreparedRequest(
        request_id=str(seed),
        prompt_ids=tuple(draw.randrange(3, VOCAB) for _ in range(prompt)),
        max_new_tokens=new,
        sampling=sampling,
        stop_token_ids=frozenset({2}) if stops else frozenset(),
        prompt_logprobs=logprobs,
        top_n_tokens=seed % 3,
        priority=priority,
    )


async def collect(engine: NativeEngine, request: PreparedRequest, after: int | None = None) -> list[EngineEvent]:
    """All events of a request; with `after`, the client leaves after that many."""
    events: list[EngineEvent] = []
    stream = engine.generate(request)
    try:
        async for event in stream:
            events.append(event)
            if after is not None and len(events) >= after:
                break
    finally:
        await stream.aclose()
    return events


def essence(events: list[EngineEvent]) -> list[object]:
    """What must not depend on company: everything but times and cache hits."""
    out: list[object] = []
    for event in events:
        if isinstance(event, TokenEvent):
            out.append((event.token_id, event.logprob, event.top, event.finish_reason))
        elif isinstance(event, StartedEvent):
            out.append(("started", event.prompt_logprobs))
        else:
            out.append(event)
    return out


async def idle(engine: NativeEngine) -> None:
    """Waits (with a generous limit) until nothing runs, then demands that nothing is held."""
    for _ in range(500):
        stats = engine.stats()
        if not stats.running and not stats.waiting and not stats.kv_blocks_used:
            break
        await asyncio.sleep(0.01)
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.kv_blocks_used) == (0, 0, 0)
    assert engine._model.sampler_count == 0
    assert engine.failure is None
    assert engine._scheduler is not None
    engine._scheduler.check_integrity()


class Running:
    """An engine for the length of a `with`."""

    def __init__(self, files: ModelFiles, **options: object) -> None:
        self.engine = NativeEngine(files, NativeOptions(**{"threads": 2, **options}))  # type: ignore[arg-type]

    async def __aenter__(self) -> NativeEngine:
        await self.engine.start()
        return self.engine

    async def __aexit__(self, *_: object) -> None:
        await self.engine.stop()


GROUPS = (5, 7)  # requests of `solo` with two more each for the same prompt; the first asks for its logprobs


def children(parent: int, request: PreparedRequest) -> list[PreparedRequest]:
    """As the service makes them for `n` answers."""
    return [
        replace(
            request,
            request_id=f"{parent}.{child}",
            prompt_logprobs=False,
            sampling=replace(request.sampling, seed=1000 * parent + child),
        )
        for child in (1, 2)
    ]


@pytest.fixture(scope="module")
def solo(tiny: ModelFiles) -> dict[PreparedRequest, list[object]]:
    """Requests and what each answers alone, with no cache and a roomy pool."""
    requests = [
        make_request(i, 3 + 11 * i % 90, 8 + 5 * i % 40, sample=i % 4 != 0, logprobs=i % 5 == 0) for i in range(12)
    ]
    requests += [child for parent in GROUPS for child in children(parent, requests[parent])]

    async def run() -> dict[PreparedRequest, list[object]]:
        async with Running(tiny, prefix_cache=False) as engine:
            return {request: essence(await collect(engine, request)) for request in requests}

    return asyncio.run(run())


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_company(tiny: ModelFiles, solo: dict[PreparedRequest, list[object]], data: st.DataObject) -> None:
    """Random arrivals, aborts, chunk sizes and tiny pools: every survivor answers as it does alone."""
    requests = list(solo)
    prompts = [requests[parent].prompt_ids for parent in GROUPS]
    grouped = [place for place, request in enumerate(requests) if request.prompt_ids in prompts]
    pick = st.integers(0, len(requests) - 1) | st.sampled_from(grouped)
    picks = data.draw(st.lists(pick, min_size=1, max_size=14))
    leaves = data.draw(st.lists(st.none() | st.integers(1, 12), min_size=len(picks), max_size=len(picks)))
    delays = data.draw(st.lists(st.integers(0, 3), min_size=len(picks), max_size=len(picks)))
    blocks = data.draw(st.integers(5, 12))
    options = {
        "kv_memory": blocks * BLOCK_BYTES,
        "max_batch_tokens": data.draw(st.sampled_from([16, 40, 512])),
        "max_batch_size": data.draw(st.sampled_from([1, 3, 64])),
        "prefix_cache": data.draw(st.booleans()),
        "threads": data.draw(st.sampled_from([1, 2])),
        "speculate": data.draw(st.sampled_from([0, 1, 6])),
    }

    async def client(
        engine: NativeEngine, request: PreparedRequest, leave: int | None, delay: int
    ) -> list[EngineEvent]:
        await asyncio.sleep(delay / 1000)
        group = str(prompts.index(request.prompt_ids)) if request.prompt_ids in prompts else None
        return await collect(engine, replace(request, group=group), leave)

    async def run() -> None:
        async with Running(tiny, **options) as engine:
            tasks = [client(engine, requests[p], leave, d) for p, leave, d in zip(picks, leaves, delays, strict=True)]
            answers = await asyncio.wait_for(asyncio.gather(*tasks), 60)
            await idle(engine)
        for pick, leave, events in zip(picks, leaves, answers, strict=True):
            expected = solo[requests[pick]]
            assert essence(events) == (expected if leave is None else expected[: len(events)])
            assert leave is not None or isinstance(events[-1], FinishedEvent)

    asyncio.run(run())


@pytest.mark.parametrize("cache", [False, True])
async def test_a_group_shares_its_prompt_and_answers_as_alone(
    tiny: ModelFiles, monkeypatch: pytest.MonkeyPatch, cache: bool
) -> None:
    """The prompt's tokens are computed once, whatever the cache; all members get the same beginnings bit for bit."""
    request = make_request(7, 75, 20, logprobs=True)  # two whole blocks and a part
    members = [replace(request, group="g"), *(replace(child, group="g") for child in children(7, request))]
    async with Running(tiny, prefix_cache=False) as engine:
        alone = [essence(await collect(engine, replace(member, group=None))) for member in members]
    rows = 0
    run = Batch.run

    def count(batch: Batch, *rest: object) -> None:
        nonlocal rows
        rows += len(batch.tokens)
        run(batch, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Batch, "run", count)
    async with Running(tiny, prefix_cache=cache, max_batch_tokens=16) as engine:
        together = await asyncio.wait_for(asyncio.gather(*(collect(engine, member) for member in members)), 60)
        await idle(engine)
    assert [essence(events) for events in together] == alone
    assert len({str(answer) for answer in alone}) == 3, "the seeds make no difference"
    generated = sum(isinstance(event, TokenEvent) for events in together for event in events)
    assert rows == 75 - 1 + generated  # each token but the last of an answer, and each member's last prompt token


async def test_preemption_happens_and_is_invisible(tiny: ModelFiles) -> None:
    """Sixteen requests that each need a good part of the pool: all finish as alone, some were preempted."""
    requests = [make_request(100 + i, 10, 120, sample=True, stops=False) for i in range(16)]
    async with Running(tiny, prefix_cache=False) as engine:
        alone = [essence(await collect(engine, r)) for r in requests]
    async with Running(tiny, kv_memory=8 * BLOCK_BYTES) as engine:
        together = await asyncio.wait_for(asyncio.gather(*(collect(engine, r) for r in requests)), 60)
        assert engine.stats().preemptions_total > 0
        await idle(engine)
    assert [essence(events) for events in together] == alone


async def test_drafts_are_invisible(tiny: ModelFiles) -> None:
    """Answers that repeat themselves, of every kind of sampling: fewer steps, and the same events but for times."""
    repeating = SamplingParams(repetition_penalty=0.5)
    requests = [
        replace(make_request(40 + i, 12, 60, stops=i % 2 == 0), sampling=sampling, min_new_tokens=20 * (i % 2))
        for i, sampling in enumerate(
            [
                repeating,
                SamplingParams(repetition_penalty=0.6, frequency_penalty=0.2),
                SamplingParams(do_sample=True, temperature=0.4, repetition_penalty=0.5, seed=3),
                SamplingParams(do_sample=True, temperature=0.8, top_p=0.9, presence_penalty=-1.0, seed=4),
                SamplingParams(do_sample=True, temperature=1.0, seed=5),
            ]
        )
    ]
    requests.append(replace(requests[0], prompt_logprobs=True, top_n_tokens=4))
    async with Running(tiny, speculate=0) as engine:
        plain = [essence(await collect(engine, r)) for r in requests]
        plain_steps = engine.stats().steps_total
    for company in (False, True):
        async with Running(tiny, speculate=6, kv_memory=12 * BLOCK_BYTES) as engine:
            if company:
                drafted = await asyncio.wait_for(asyncio.gather(*(collect(engine, r) for r in requests)), 60)
            else:
                drafted = [await collect(engine, r) for r in requests]
            stats = engine.stats()
            await idle(engine)
        assert [essence(events) for events in drafted] == plain
        assert 0 < stats.accepted_tokens_total <= stats.drafted_tokens_total
        assert stats.generated_tokens_total == sum(len(events) - 2 for events in plain)
        assert company or stats.steps_total == plain_steps - stats.accepted_tokens_total


async def test_warm_cache_is_invisible(tiny: ModelFiles) -> None:
    request = make_request(7, 100, 20)
    async with Running(tiny) as engine:
        cold = await collect(engine, request)
        warm = await collect(engine, request)
        longer = make_request(7, 100, 40)
        await collect(engine, longer)
        again = await collect(engine, request)
        await idle(engine)
    started = warm[0]
    assert isinstance(started, StartedEvent)
    assert started.cached_tokens >= 96, "the second run must use the cache"
    assert essence(cold) == essence(warm) == essence(again)


async def test_length_beats_eos(tiny: ModelFiles) -> None:
    request = make_request(4, 5, 30, sample=False)
    async with Running(tiny) as engine:
        tokens = [e for e in await collect(engine, request) if isinstance(e, TokenEvent)]
        third = PreparedRequest(
            request_id="eos",
            prompt_ids=request.prompt_ids,
            max_new_tokens=30,
            sampling=request.sampling,
            stop_token_ids=frozenset({tokens[2].token_id}),
        )
        ended = [e for e in await collect(engine, third) if isinstance(e, TokenEvent)]
        first = next(i for i, t in enumerate(tokens) if t.token_id == tokens[2].token_id)
        assert len(ended) == first + 1
        assert ended[-1].finish_reason is FinishReason.EOS
        limited = PreparedRequest(
            request_id="len",
            prompt_ids=request.prompt_ids,
            max_new_tokens=first + 1,
            sampling=request.sampling,
            stop_token_ids=frozenset({tokens[2].token_id}),
        )
        last = [e for e in await collect(engine, limited) if isinstance(e, TokenEvent)][-1]
        assert last.finish_reason is FinishReason.LENGTH


async def test_priority_orders_the_queue(tiny: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one place in the batch, the urgent request that came last is the next to start."""
    from interlingua.engine.native import engine as module

    gate = threading.Event()
    original = module.build_batch

    def held(chunks: list[Chunk]) -> Batch:
        """The first step waits until all requests have come."""
        assert gate.wait(30)
        return original(chunks)

    monkeypatch.setattr(module, "build_batch", held)
    async with Running(tiny, max_batch_size=1) as engine:
        order: list[str] = []

        async def run(name: str, request: PreparedRequest) -> None:
            stream = engine.generate(request)
            assert isinstance(await anext(stream), StartedEvent)
            order.append(name)
            async for _ in stream:
                pass

        jobs = [asyncio.create_task(run("first", make_request(1, 20, 30, priority=5)))]
        for _ in range(30_000):
            if engine.stats().running:
                break
            await asyncio.sleep(0.001)
        for name, priority in (("slow", 5), ("middle", 3), ("urgent", 1)):
            jobs.append(asyncio.create_task(run(name, make_request(priority, 20, 30, priority=priority))))
        await asyncio.sleep(0)
        gate.set()
        await asyncio.wait_for(asyncio.gather(*jobs), 60)
        assert order == ["first", "urgent", "middle", "slow"]


async def test_stop_ends_everything(tiny: ModelFiles) -> None:
    engine = NativeEngine(tiny, NativeOptions(threads=1))
    await engine.start()
    tasks = [asyncio.create_task(collect(engine, make_request(i, 10, 150, sample=False))) for i in range(4)]
    await asyncio.sleep(0.02)
    await engine.stop()
    await engine.stop()
    for events in await asyncio.wait_for(asyncio.gather(*tasks), 10):
        assert isinstance(events[-1], FinishedEvent | FailedEvent)
    late = await asyncio.wait_for(collect(engine, make_request(9, 3, 3)), 10)
    assert isinstance(late[-1], FailedEvent)


async def test_engine_fault_ends_every_request(tiny: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash of the engine thread: each request gets one failure, nothing hangs, health can see it."""
    from interlingua.engine.native import engine as module

    steps = 0

    def broken(chunks: object) -> object:
        nonlocal steps
        steps += 1
        if steps > 5:
            raise RuntimeError("injected")
        return original(chunks)  # type: ignore[arg-type]

    original = module.build_batch
    monkeypatch.setattr(module, "build_batch", broken)
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    engine = NativeEngine(tiny, NativeOptions(threads=1))
    await engine.start()
    answers = await asyncio.wait_for(
        asyncio.gather(*(collect(engine, make_request(i, 10, 100, sample=False, stops=False)) for i in range(3))), 10
    )
    assert all(isinstance(events[-1], FailedEvent) for events in answers)
    assert engine.failure is not None
    await engine.stop()  # readers are told first: the clean-up may still run
    assert engine.stats().kv_blocks_used == 0
    assert not engine._inbox


async def test_leaving_a_dead_engine_leaves_nothing_behind(tiny: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that goes after the fault, before it was told of it."""

    def broken(chunks: object) -> object:
        raise RuntimeError("injected")

    monkeypatch.setattr("interlingua.engine.native.engine.build_batch", broken)
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    engine = NativeEngine(tiny, NativeOptions(threads=1))
    await engine.start()
    task = asyncio.create_task(collect(engine, make_request(1, 10, 10)))
    await asyncio.sleep(0)
    assert engine._thread is not None
    engine._thread.join(30)  # on the event loop: the reader cannot have heard yet
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not engine._inbox and not engine._open


async def test_a_step_that_hangs_keeps_nobody_waiting(tiny: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck, release = threading.Event(), threading.Event()

    def hang(batch: Batch, *_: object) -> None:
        stuck.set()
        release.wait()

    monkeypatch.setattr(Batch, "run", hang)
    monkeypatch.setattr("interlingua.engine.native.engine._JOIN_SECONDS", 0.1)
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    engine = NativeEngine(tiny, NativeOptions(threads=1))
    await engine.start()
    tasks = [asyncio.create_task(collect(engine, make_request(i, 10, 10))) for i in range(3)]
    await asyncio.to_thread(stuck.wait, 30)
    await engine.stop()
    for events in await asyncio.wait_for(asyncio.gather(*tasks), 30):
        assert [type(event) for event in events] == [FailedEvent]
    release.set()
    assert engine._thread is not None
    await asyncio.to_thread(engine._thread.join, 30)
    assert not engine._thread.is_alive()


async def test_vanishing_readers(tiny: ModelFiles) -> None:
    """A hundred that leave: before the first event, in prefill, in decode; by closing and by cancellation."""
    async with Running(tiny, max_batch_tokens=16) as engine:

        async def leave(i: int) -> None:
            task = asyncio.create_task(collect(engine, make_request(i, 5 + i % 80, 60), after=1 + i % 9))
            if i % 3 == 0:
                await asyncio.sleep(i % 7 / 1000)
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        await asyncio.wait_for(asyncio.gather(*(leave(i) for i in range(100))), 60)
        await idle(engine)
        assert engine.stats().generated_tokens_total < 100 * 60


async def test_prompt_that_cannot_fit_ends_at_once(tiny: ModelFiles) -> None:
    async with Running(tiny, kv_memory=4 * BLOCK_BYTES) as engine:
        assert engine.info.max_context == 4 * KV_BLOCK
        events = await asyncio.wait_for(collect(engine, make_request(1, 4 * KV_BLOCK + 1, 5)), 10)
        assert [type(event) for event in events] == [FailedEvent]
        fits = await asyncio.wait_for(collect(engine, make_request(2, 4 * KV_BLOCK - 1, 1)), 10)
        assert isinstance(fits[-1], FinishedEvent)
        await idle(engine)


def test_bad_models(tiny: ModelFiles, tmp_path: Path) -> None:
    from interlingua.contract.errors import ModelError
    from interlingua.engine.native.load import load_model

    with pytest.raises(ModelError, match=r"unsupported architecture 'T5'.*LlamaForCausalLM"):
        load_model(_with_config(tiny, architectures=["T5"]), NativeOptions())
    with pytest.raises(ModelError, match="rope scaling 'spiral'"):
        load_model(_with_config(tiny, rope_scaling={"rope_type": "spiral"}), NativeOptions())
    with pytest.raises(ModelError, match="shape"):
        load_model(_with_config(tiny, intermediate_size=128), NativeOptions())
    with pytest.raises(ModelError, match=r"^--isa: .*available: scalar"):
        load_model(tiny, NativeOptions(isa="sse9"))
    for name in ("model.norm.weight", "model.layers.1.self_attn.k_proj.bias"):
        with pytest.raises(ModelError, match=rf"tensor {name} has shape \(7,\); the configuration says"):
            load_model(_with_tensor(tmp_path / name, name, np.zeros(7, np.float32)), NativeOptions())
    whole = tiny.paths[0].read_bytes()
    cut = tmp_path / "cut"
    cut.mkdir()
    (cut / "config.json").write_bytes((tiny.paths[0].parent / "config.json").read_bytes())
    (cut / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match="truncated"):
        load_model(from_folder(cut, "cut"), NativeOptions())


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": {"x": 1}},
        {"architectures": [["LlamaForCausalLM"]]},
        *({"hidden_size": value} for value in (0, -64, 3, "x", None, [])),
        *({"num_attention_heads": value} for value in (0, -1, 3, 2**40, float("nan"), float("inf"))),
        *({"num_hidden_layers": value} for value in (0, -1, 3, 2**31)),
        *({"intermediate_size": value} for value in (0, 2**31)),
        *({"head_dim": value} for value in (-1, 7, 2**40)),
        *({"vocab_size": value} for value in (0, 97)),
        *({"max_position_embeddings": value} for value in (0, 2**40)),
        *({"sliding_window": value} for value in (-1, 2**31)),
        *({"rope_theta": value} for value in (-1, float("nan"))),
        {"rms_norm_eps": float("nan")},
        *(
            {"rope_scaling": value}
            for value in (3, "x", {"rope_type": "linear"}, {"rope_type": "linear", "factor": "x"})
        ),
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 0}},
    ],
    ids=repr,
)
def test_bad_configurations(tiny: ModelFiles, changes: dict[str, object]) -> None:
    """One clear error, whatever stands in config.json."""
    from interlingua.contract.errors import ModelError
    from interlingua.engine.native.load import load_model

    with pytest.raises(ModelError):
        load_model(_with_config(tiny, **changes), NativeOptions(threads=1, kv_memory=1 << 20))


def _with_tensor(folder: Path, name: str, values: F32) -> ModelFiles:
    """The model of `tiny` with one tensor replaced or added."""
    write_tiny_model("gqa_tied", folder)
    write_safetensors(folder / "model.safetensors", {**tiny_weights("gqa_tied"), name: values}, "float32")
    return from_folder(folder, "changed")


def _with_config(files: ModelFiles, **changes: object) -> ModelFiles:
    return replace(files, config={**files.config, **changes})


async def test_ids_the_model_does_not_have_end_alone(tiny: ModelFiles) -> None:
    """Past this border an id is an index into memory."""
    good = make_request(1, 10, 5)
    bad = [
        replace(good, prompt_ids=(3, VOCAB)),
        replace(good, prompt_ids=(3, -1)),
        replace(good, stop_token_ids=frozenset({VOCAB})),
        replace(good, sampling=replace(good.sampling, logit_bias=((VOCAB + 7, 1.0),))),
        replace(good, prompt_ids=()),
        replace(good, max_new_tokens=100_000),
    ]
    async with Running(tiny) as engine:
        answers = await asyncio.wait_for(asyncio.gather(*(collect(engine, request) for request in [good, *bad])), 30)
        assert isinstance(answers[0][-1], FinishedEvent)
        assert all([type(event) for event in events] == [FailedEvent] for events in answers[1:])
        await idle(engine)


async def test_readers_are_told_even_if_cleaning_up_fails(tiny: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault lies in the state that the clean-up itself needs: still nobody waits for ever."""

    def broken(*_: object) -> None:
        raise RuntimeError("injected")

    monkeypatch.setattr("interlingua.engine.native.scheduler.Scheduler.remove", broken)
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    engine = NativeEngine(tiny, NativeOptions(threads=1))
    await engine.start()
    requests = [make_request(i, 10, 3 if i == 0 else 100, sample=False, stops=False) for i in range(3)]
    answers = await asyncio.wait_for(asyncio.gather(*(collect(engine, request) for request in requests)), 10)
    assert isinstance(answers[0][-1], FinishedEvent), "what had finished was handed over before the fault"
    assert all(isinstance(events[-1], FailedEvent) for events in answers[1:])
    await engine.stop()


async def test_a_fault_while_a_request_is_taken_in_ends_it_with_the_rest(
    tiny: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is out of the inbox and not in the scheduler yet has a reader, too."""

    def broken(*_: object) -> None:
        raise RuntimeError("injected")

    monkeypatch.setattr("threading.excepthook", lambda _: None)
    engine = NativeEngine(tiny, NativeOptions(threads=1))
    await engine.start()
    runs = asyncio.create_task(collect(engine, make_request(0, 10, 100, sample=False, stops=False)))
    while not engine.stats().running:  # noqa: ASYNC110 - the engine has no event for it
        await asyncio.sleep(0.001)
    monkeypatch.setattr("interlingua.engine.native.engine.Sequence", broken)
    late = [asyncio.create_task(collect(engine, make_request(i, 10, 3, sample=False, stops=False))) for i in (1, 2)]
    for events in await asyncio.wait_for(asyncio.gather(runs, *late), 10):
        assert isinstance(events[-1], FailedEvent)
    await engine.stop()
