"""The scheduler without a model: whatever arrives, a sequence is in a step once, and all of them get done."""

from __future__ import annotations

import random
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from interlingua.contract.request import PreparedRequest, SamplingParams
from interlingua.engine.native.blocks import BlockPool
from interlingua.engine.native.scheduler import Scheduler
from interlingua.engine.native.sequence import Sequence

BLOCK = 4


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@st.composite
def arrivals(draw: st.DrawFn) -> list[tuple[int, Sequence]]:
    """Sequences with the step of their arrival; prompts share beginnings, priorities are mixed."""
    out: list[tuple[int, Sequence]] = []
    for number in range(draw(st.integers(2, 10))):
        ids = tuple([draw(st.integers(1, 2))] * draw(st.integers(1, 24)))
        request = PreparedRequest(
            request_id=str(number),
            prompt_ids=ids,
            max_new_tokens=draw(st.integers(1, 20)),
            sampling=SamplingParams(),
            stop_token_ids=frozenset(),
            priority=draw(st.integers(1, 5)),
        )
        out.append((draw(st.integers(0, 20)), Sequence(request, number, 0.0, number, list(ids))))
    return out


@settings(max_examples=400, deadline=None)
@given(
    work=arrivals(),
    blocks=st.integers(11, 18),  # 44 positions hold the longest request
    budget=st.sampled_from([5, 16, 64]),
    size=st.sampled_from([2, 4, 16]),
    caching=st.booleans(),
    tick=st.sampled_from([0.0, 1.0, 6.0]),
)
def test_steps(
    work: list[tuple[int, Sequence]], blocks: int, budget: int, size: int, caching: bool, tick: float
) -> None:
    clock = Clock()
    scheduler = Scheduler(
        BlockPool(blocks, caching),
        block_size=BLOCK,
        max_batch_tokens=budget,
        max_batch_size=size,
        caching=caching,
        clock=clock,
    )
    left = list(work)
    for step in range(5000):
        for item in [item for item in left if item[0] <= step]:
            left.remove(item)
            item[1].arrived = clock.now
            scheduler.add(item[1])
        if not left and not scheduler.running and not scheduler.waiting:
            break
        chunks = scheduler.schedule()
        assert chunks or not (scheduler.running or scheduler.waiting), "work is left and nothing moves"
        names = [chunk.sequence.number for chunk in chunks]
        assert len(set(names)) == len(names), "a sequence is in the batch twice"
        assert all(1 <= chunk.count <= chunk.sequence.pending for chunk in chunks)
        assert sum(chunk.count for chunk in chunks) <= budget and len(chunks) <= size
        done = [chunk.sequence for chunk in chunks if chunk.completes]
        scheduler.finish((chunk, chunk.count) for chunk in chunks)
        for sequence in done:
            sequence.ids.append(3 + sequence.generated % 3)
            if sequence.generated >= sequence.request.max_new_tokens:
                scheduler.remove(sequence)
        scheduler.check_integrity()
        clock.now += tick
    else:
        raise AssertionError("the work does not end")
    assert scheduler.pool.held == 0


def test_who_is_admitted_stays() -> None:
    """Room that the running ones are about to need is not given away: nobody is admitted only to be preempted."""
    scheduler = Scheduler(BlockPool(12, False), block_size=BLOCK, max_batch_tokens=8, max_batch_size=8, caching=False)

    def add(number: int, prompt: int) -> Sequence:
        request = PreparedRequest(
            request_id=str(number),
            prompt_ids=tuple(range(prompt)),
            max_new_tokens=8,
            sampling=SamplingParams(),
            stop_token_ids=frozenset(),
        )
        sequence = Sequence(request, number, 0.0, number, list(request.prompt_ids))
        scheduler.add(sequence)
        return sequence

    first, second, third = add(0, 20), add(1, 9), add(2, 9)
    order: list[int] = []
    for _ in range(60):
        chunks = scheduler.schedule()
        order += [chunk.sequence.number for chunk in chunks if chunk.sequence.number not in order]
        scheduler.finish((chunk, chunk.count) for chunk in chunks)
        for chunk in chunks:
            if chunk.sequence.pending == 0:
                chunk.sequence.ids.append(1)
                if chunk.sequence.generated == 8:
                    scheduler.remove(chunk.sequence)
    assert [s.generated for s in (first, second, third)] == [8, 8, 8]
    assert order == [0, 1, 2]
    assert scheduler.preemptions == 0  # the first two end with all 12 blocks: the third waits for one of them


def test_random_histories() -> None:
    """Crowded pools with ageing priorities and departures: where a victim of preemption once stood in a step twice."""
    for seed in range(1000):
        draw = random.Random(seed)
        clock = Clock()
        blocks = draw.randint(8, 20)
        limit = blocks * BLOCK
        scheduler = Scheduler(
            BlockPool(blocks),
            block_size=BLOCK,
            max_batch_tokens=draw.choice([8, 12, 16]),
            max_batch_size=8,
            clock=clock,
        )
        number = 0
        for _ in range(60):
            clock.now += draw.choice([0.0, 0.0, 0.0, 3.0])
            if draw.random() < 0.3:
                ids = [1] * draw.choice([4, 8, 12])
                ids += [draw.randint(2, 9) for _ in range(draw.choice([0, 0, 1, 3, 20]))]
                for _ in range(draw.randint(1, 2)):
                    request = PreparedRequest(
                        request_id=str(number),
                        prompt_ids=tuple(ids[: limit // 2]),
                        max_new_tokens=limit // 2,
                        sampling=SamplingParams(),
                        stop_token_ids=frozenset(),
                        priority=draw.randint(1, 5),
                    )
                    scheduler.add(Sequence(request, number, clock.now, number, list(request.prompt_ids)))
                    number += 1
            chunks = scheduler.schedule()
            assert chunks or not (scheduler.running or scheduler.waiting), f"seed {seed}: nothing moves"
            names = [chunk.sequence.number for chunk in chunks]
            assert len(set(names)) == len(names), f"seed {seed}: a sequence is in the batch twice"
            done = [chunk.sequence for chunk in chunks if chunk.completes]
            scheduler.finish((chunk, chunk.count) for chunk in chunks)
            for sequence in done:
                sequence.ids.append(7)
            for sequence in [*scheduler.running, *scheduler.waiting]:
                if len(sequence.ids) >= limit - 1 or (sequence in scheduler.running and draw.random() < 0.03):
                    scheduler.remove(sequence)
            scheduler.check_integrity()


def _sequence(number: int, prompt: int, tokens: int = 50) -> Sequence:
    request = PreparedRequest(
        request_id=str(number),
        prompt_ids=tuple(range(prompt)),
        max_new_tokens=tokens,
        sampling=SamplingParams(),
        stop_token_ids=frozenset(),
    )
    return Sequence(request, number, 0.0, number, list(range(prompt)))


def _roomy(budget: int = 512) -> Scheduler:
    pool = BlockPool(10_000, False)
    return Scheduler(pool, block_size=BLOCK, max_batch_tokens=budget, max_batch_size=64, caching=False)


def _step(scheduler: Scheduler) -> dict[int, int]:
    """Rows per sequence of one step, whose choices are then appended."""
    chunks = scheduler.schedule()
    done = [chunk.sequence for chunk in chunks if chunk.completes]
    scheduler.finish((chunk, chunk.count) for chunk in chunks)
    for sequence in done:
        sequence.ids.append(1)
    return {chunk.sequence.number: chunk.count for chunk in chunks}


def test_prompts_leave_running_streams_their_pace() -> None:
    """Beside decodes a prompt gets rows for about two more steps' time, and fewer the longer its context is."""
    for decodes in (1, 8, 32):
        scheduler = _roomy()
        for number in range(decodes):
            scheduler.add(_sequence(number, 2))
        assert len(_step(scheduler)) == decodes
        scheduler.add(_sequence(99, 4000))
        shares = []
        for _ in range(4000):
            rows = _step(scheduler)
            assert sum(rows.values()) <= 3 * (decodes + 8)
            shares.append(rows[99])
            if sum(shares) >= 4000:
                break
        assert sum(shares) == 4000 and shares[0] > shares[-2] > 0


def test_alone_a_prompt_takes_the_whole_step() -> None:
    scheduler = _roomy()
    scheduler.add(_sequence(0, 2000))
    assert [_step(scheduler)[0] for _ in range(4)] == [512, 512, 512, 464]


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    scheduler = _roomy()
    scheduler.add(_sequence(0, 3000))
    scheduler.add(_sequence(1, 100))
    assert _step(scheduler) == {0: 256, 1: 100}
