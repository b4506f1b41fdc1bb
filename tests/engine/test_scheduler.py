"""The scheduler without a model: whatever arrives, a sequence is in a step once, and all of them get done."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlingua.contract.request import PreparedRequest, SamplingParams
from interlingua.engine.native.blocks import BlockPool
from interlingua.engine.native.pace import LEAST_ROWS
from interlingua.engine.native.scheduler import AGING_SECONDS, Chunk, Scheduler
from interlingua.engine.native.sequence import Sequence

BLOCK = 4


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@st.composite
def arrivals(draw: st.DrawFn) -> list[tuple[int, Sequence]]:
    """Sequences with the step of their arrival; prompts share beginnings, priorities are mixed, some are in groups."""
    out: list[tuple[int, Sequence]] = []
    groups = [tuple([3] * draw(st.integers(1, 24))) for _ in range(2)]
    for number in range(draw(st.integers(2, 10))):
        group = draw(st.none() | st.integers(0, 1))
        ids = tuple([draw(st.integers(1, 2))] * draw(st.integers(1, 24))) if group is None else groups[group]
        request = PreparedRequest(
            request_id=str(number),
            prompt_ids=ids,
            max_new_tokens=draw(st.integers(1, 20)),
            sampling=SamplingParams(),
            stop_token_ids=frozenset(),
            prompt_logprobs=draw(st.sampled_from([False, False, False, True])),
            group=None if group is None else str(group),
            priority=draw(st.integers(1, 5)),
        )
        out.append((draw(st.integers(0, 20)), Sequence(request, number, 0.0, number, list(ids))))
    return out


class Memory:
    """What the KV blocks hold: at each position the ids up to there, or what was left by others."""

    def __init__(self, blocks: int) -> None:
        self.content: list[list[tuple[int, ...]]] = [[()] * BLOCK for _ in range(blocks)]

    def copy(self, source: int, target: int) -> None:
        self.content[target] = list(self.content[source])

    def compute(self, chunks: list[Chunk]) -> int:
        """Does the work of a step, and demands that all before it is there. Returns the prompt tokens computed."""
        for chunk in chunks:
            sequence = chunk.sequence
            for at in range(sequence.computed, sequence.computed + chunk.count):
                self.content[sequence.blocks[at // BLOCK]][at % BLOCK] = tuple(sequence.ids[: at + 1])
        for chunk in chunks:
            sequence = chunk.sequence
            for at in range(sequence.computed + chunk.count):
                held = self.content[sequence.blocks[at // BLOCK]][at % BLOCK]
                assert held == tuple(sequence.ids[: at + 1]), f"position {at} holds another text"
        return sum(max(0, min(c.count, c.sequence.prompt_length - c.sequence.computed)) for c in chunks)


@settings(max_examples=400, deadline=None)
@given(
    work=arrivals(),
    blocks=st.integers(11, 18),  # 44 positions hold the longest request
    budget=st.sampled_from([5, 16, 64]),
    size=st.sampled_from([2, 4, 16]),
    caching=st.booleans(),
    tick=st.sampled_from([0.0, 1.0, 6.0]),
    leaves=st.dictionaries(st.integers(0, 9), st.integers(0, 40), max_size=4),
)
def test_steps(
    work: list[tuple[int, Sequence]],
    blocks: int,
    budget: int,
    size: int,
    caching: bool,
    tick: float,
    leaves: dict[int, int],
) -> None:
    clock = Clock()
    memory = Memory(blocks)
    scheduler = Scheduler(
        BlockPool(blocks, caching),
        block_size=BLOCK,
        max_batch_tokens=budget,
        max_batch_size=size,
        copy=memory.copy,
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
        memory.compute(chunks)
        done = [chunk.sequence for chunk in chunks if chunk.completes]
        scheduler.finish((chunk, chunk.count) for chunk in chunks)
        for sequence in done:
            sequence.announced = True
            sequence.ids.append(3 + (sequence.generated + sequence.number) % 3)
            if sequence.generated >= sequence.request.max_new_tokens:
                scheduler.remove(sequence)
        for sequence in [*scheduler.running, *scheduler.waiting]:
            if leaves.get(sequence.number) == step:
                scheduler.remove(sequence)
        scheduler.check_integrity()
        clock.now += tick
    else:
        raise AssertionError("the work does not end")
    assert scheduler.pool.held == 0


@pytest.mark.parametrize(("waited", "first"), [(9.9, "new"), (10.1, "old")])
def test_who_waits_gains_a_level_every_ten_seconds(waited: float, first: str) -> None:
    """Level 3 against 2: they meet after ten seconds, and then the older one goes first. 1 is the highest."""
    clock = Clock()
    scheduler = Scheduler(BlockPool(9, False), block_size=BLOCK, max_batch_tokens=8, max_batch_size=1, clock=clock)

    def add(name: str, priority: int) -> None:
        request = PreparedRequest(
            request_id=name,
            prompt_ids=(1, 2),
            max_new_tokens=1,
            sampling=SamplingParams(),
            stop_token_ids=frozenset(),
            priority=priority,
        )
        scheduler.add(Sequence(request, len(scheduler.waiting), clock.now, 0, list(request.prompt_ids)))

    add("old", 3)
    clock.now = waited
    add("new", 2)
    assert [chunk.sequence.request.request_id for chunk in scheduler.schedule()] == [first]
    (other,) = scheduler.waiting
    assert other.effective_priority(1e9, AGING_SECONDS) == 1


def test_who_is_admitted_stays() -> None:
    """Room that the running ones are about to need is not given away: nobody is admitted only to be preempted."""
    scheduler = Scheduler(BlockPool(12, False), block_size=BLOCK, max_batch_tokens=8, max_batch_size=8)

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


def grouped(scheduler: Scheduler, count: int, prompt: int, new: int, scores: bool = False) -> list[Sequence]:
    """A group as the service makes it, added to the scheduler."""
    out = []
    for number in range(count):
        request = PreparedRequest(
            request_id=str(number),
            prompt_ids=tuple(range(prompt)),
            max_new_tokens=new,
            sampling=SamplingParams(),
            stop_token_ids=frozenset(),
            prompt_logprobs=scores and number == 0,
            group="g",
        )
        out.append(Sequence(request, number, 0.0, number, list(request.prompt_ids)))
        scheduler.add(out[-1])
    return out


def run_out(scheduler: Scheduler, memory: Memory) -> int:
    """Runs until all is done. Returns the prompt tokens that were computed."""
    computed = 0
    for _ in range(1000):
        chunks = scheduler.schedule()
        if not chunks:
            break
        computed += memory.compute(chunks)
        done = [chunk.sequence for chunk in chunks if chunk.completes]
        scheduler.finish((chunk, chunk.count) for chunk in chunks)
        for sequence in done:
            sequence.announced = True
            sequence.ids.append(100 + sequence.number)
            if sequence.generated == sequence.request.max_new_tokens:
                scheduler.remove(sequence)
        scheduler.check_integrity()
    assert not scheduler.running and not scheduler.waiting and scheduler.pool.held == 0
    return computed


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("scores", [False, True])
@pytest.mark.parametrize("new", [1, 2, 9])
@pytest.mark.parametrize("prompt", [1, 3, 4, 5, 8, 21])
@pytest.mark.parametrize("size", [1, 3, 16])
def test_a_group_computes_its_prompt_once(prompt: int, new: int, size: int, scores: bool, caching: bool) -> None:
    """All of it once, and the last token by each: whatever the lengths, even if each leaves before the next begins."""
    memory = Memory(64)
    scheduler = Scheduler(
        BlockPool(64, caching),
        block_size=BLOCK,
        max_batch_tokens=6,
        max_batch_size=size,
        copy=memory.copy,
    )
    members = grouped(scheduler, 4, prompt, new, scores)
    computed = run_out(scheduler, memory)
    assert all(len(member.ids) == prompt + new for member in members)
    assert computed == prompt - 1 + 4


@pytest.mark.parametrize("at", [1, 2, 3, 5])
def test_a_leader_that_leaves_hands_its_work_on(at: int) -> None:
    memory = Memory(64)
    scheduler = Scheduler(
        BlockPool(64, False), block_size=BLOCK, max_batch_tokens=6, max_batch_size=16, copy=memory.copy
    )
    leader, *_ = grouped(scheduler, 3, 21, 4)
    computed = 0
    for _ in range(at):
        chunks = scheduler.schedule()
        computed += memory.compute(chunks)
        scheduler.finish((chunk, chunk.count) for chunk in chunks)
        for chunk in chunks:
            if chunk.sequence.pending == 0:
                chunk.sequence.ids.append(100 + chunk.sequence.number)
    scheduler.remove(leader)
    scheduler.check_integrity()
    computed += run_out(scheduler, memory)
    assert computed <= 20 + 3, "the prompt was computed again"


def test_what_is_no_group_shares_nothing() -> None:
    """A group of different prompts breaks the contract: the answers stay right."""
    memory = Memory(64)
    scheduler = Scheduler(
        BlockPool(64, False), block_size=BLOCK, max_batch_tokens=64, max_batch_size=16, copy=memory.copy
    )
    first, _ = grouped(scheduler, 2, 9, 3)
    request = replace(first.request, prompt_ids=tuple(range(10)))
    scheduler.add(Sequence(request, 2, 0.0, 2, list(request.prompt_ids)))
    assert run_out(scheduler, memory) == 8 + 2 + 10


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
    return Scheduler(pool, block_size=BLOCK, max_batch_tokens=budget, max_batch_size=64)


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


def test_a_long_prompt_never_stands_still_beside_streams_and_shorter_prompts() -> None:
    """Two streams never end and a prompt of 300 tokens arrives every few steps: the oldest prompt gets rows in each."""
    scheduler = _roomy()
    for number in range(2):
        scheduler.add(_sequence(number, 2))
    _step(scheduler)
    scheduler.add(_sequence(2, 8000))
    steps, done, arrived = 0, 0, []
    while done < 8000:
        if steps % 10 == 0:
            arrived.append(_sequence(10 + steps, 300))
            scheduler.add(arrived[-1])
        rows = _step(scheduler)
        assert rows[2] >= min(LEAST_ROWS, 8000 - done) or steps == 0
        done += rows[2]
        steps += 1
        for sequence in [s for s in arrived if s.generated == 1]:
            arrived.remove(sequence)
            scheduler.remove(sequence)
    assert steps <= 8000 / LEAST_ROWS + 1


def test_long_prompts_go_one_after_the_other() -> None:
    """Those behind the one with least to do wait, and a much shorter newcomer passes the oldest."""
    scheduler = _roomy()
    for number in range(8):
        scheduler.add(_sequence(number, 2))
    _step(scheduler)
    scheduler.add(_sequence(8, 3000))
    scheduler.add(_sequence(9, 3000))
    _step(scheduler)
    for _ in range(10):
        rows = _step(scheduler)
        assert rows[8] > LEAST_ROWS and 9 not in rows
    scheduler.add(_sequence(10, 300))
    _step(scheduler)
    for _ in range(5):
        rows = _step(scheduler)
        assert rows[8] == LEAST_ROWS and rows[10] > LEAST_ROWS and 9 not in rows
