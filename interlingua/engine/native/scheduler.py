"""Decides what each step computes: decodes first, then chunks of prompts, under a budget of tokens.

One step, in order: (1) every running sequence that decodes gets its one token, or sits out if its grammar's mask is
late; (2) running prompts go on, oldest first; (3) waiting requests are admitted by priority and arrival while budget,
batch and memory have room. Beside decodes, long prompts get so little of a step that it stays within three times one
without them (`pace.py`). Without decodes a prompt leaves half of what is left to those behind it, so that a short one
never waits for the whole of a long one. When memory runs out, the sequence last in line is preempted: its blocks are
freed and its tokens are computed again later. The first in line is never preempted for another, so something always
moves on.

Sequences of one group have the same prompt, and its KV is computed once: whichever is admitted first computes it while
the others wait, and then each takes up its whole blocks by reference and a copy of the last one. When one leaves early,
the next in line takes over what it knew of the prompt.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from interlingua.engine.native.blocks import BlockPool, block_keys
from interlingua.engine.native.pace import LEAST_ROWS, Room, StepCost, Work
from interlingua.engine.native.sequence import Sequence

_log = logging.getLogger(__name__)

AGING_SECONDS = 10.0

# Up to so many rows a step takes little longer than with one: reading the weights is what takes the time.
_FREE_ROWS = 8


@dataclass(frozen=True, slots=True)
class Chunk:
    """`count` tokens of a sequence, from its `computed` on, in this step, and guesses of what follows them."""

    sequence: Sequence
    count: int
    drafts: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        return self.count + len(self.drafts)

    @property
    def completes(self) -> bool:
        """All known tokens are computed after this chunk, so that the next one can be chosen."""
        return self.count == self.sequence.pending


class Scheduler:
    """Queue, running set and KV blocks. Only the engine thread calls it.

    Args:
        pool: blocks of `block_size` positions; whether prompts are looked up in a prefix cache is its affair.
        max_batch_tokens: tokens in one step.
        max_batch_size: sequences in one step.
        copy: copies the content of one block, the first, to another.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        block_size: int,
        max_batch_tokens: int,
        max_batch_size: int,
        copy: Callable[[int, int], None] = lambda source, target: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pool = pool
        self.running: list[Sequence] = []  # in order of standing: the last is preempted first
        self.waiting: list[Sequence] = []
        self.preemptions = 0
        self.prefix_hit_tokens = 0
        self._block_size = block_size
        self._max_batch_tokens = max_batch_tokens
        self._max_batch_size = max_batch_size
        self._copy = copy
        self._groups: dict[str, list[Sequence]] = {}
        self._cost = StepCost()
        self._clock = clock

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)
        request = sequence.request
        if request.group is not None:
            mates = self._groups.setdefault(request.group, [])
            first = mates[0].request if mates else request
            # Taken on trust, a difference would make one answer follow from another's prompt.
            if (first.prompt_ids, first.adapter) == (request.prompt_ids, request.adapter):
                mates.append(sequence)
                sequence.mates = mates

    def remove(self, sequence: Sequence) -> None:
        """Takes a finished or aborted sequence out, wherever it is, and frees its blocks."""
        if sequence.mates:
            sequence.mates.remove(sequence)
            if not sequence.mates:
                del self._groups[sequence.request.group or ""]
        if sequence in self.running:
            self.running.remove(sequence)
            self._bequeath(sequence)
        else:
            self.waiting.remove(sequence)
        self._free(sequence)

    def schedule(self) -> list[Chunk]:
        """Chunks of the next step; empty when nothing waits. Blocks for all of them are held afterwards."""
        budget = self._max_batch_tokens
        chunks: list[Chunk] = []
        preempted = self.preemptions
        for sequence in [s for s in self.running if s.pending == 1 and not s.sits_out]:
            if budget and sequence in self.running and self._make_room(sequence, 1):
                chunks.append(Chunk(sequence, 1))
                budget -= 1
        if any(s.pending > 1 for s in self.running) or self.waiting:
            self._add_prompts(chunks, budget, preempted)
        # A later sequence may have been preempted to make room for an earlier one.
        chunks = [chunk for chunk in chunks if chunk.sequence in self.running]
        return self._guess(chunks) if sum(chunk.count for chunk in chunks) < _FREE_ROWS else chunks

    def _add_prompts(self, chunks: list[Chunk], budget: int, preempted: int) -> None:
        """Adds chunks of prompts to those that decode; nobody is admitted if more than `preempted` were preempted."""
        now = self._clock()
        room = Room(budget, [chunk.sequence.computed for chunk in chunks], self._cost)
        prompts = [s for s in self.running if s.pending > 1]
        held = [s for s in prompts if room.holds(s)]
        free = [s for s in prompts if not room.holds(s)]
        others = len(free) + len(self._in_line())

        def go_on(sequence: Sequence, least: int) -> None:
            count = room.share(sequence, others > 0, least)
            if count and sequence in self.running and self._make_room(sequence, count):
                chunks.append(Chunk(sequence, count))
                room.take(sequence, count)

        for sequence in free:
            others -= 1
            go_on(sequence, 1)
        # Those that are held go one after the other: each reading of what is known of a prompt then serves many rows.
        # The one with least to do comes first, but the first in line never stands still.
        ranked = sorted(held, key=lambda s: (s.request.priority, s.pending))
        if held and ranked[0] is not held[0]:
            room.set_aside(held[0], LEAST_ROWS)
        for sequence in ranked:
            go_on(sequence, LEAST_ROWS if sequence is held[0] else 0)
        # A step that preempted admits nobody: a victim taken back at once would stand in the batch twice.
        while self.preemptions == preempted and room.left and self.waiting and len(self.running) < self._max_batch_size:
            first = self._next_waiting(now)
            count = self._admit(first, room, now) if first is not None else 0
            if first is None or not count:
                break
            chunks.append(Chunk(first, count))
            room.take(first, count)

    def learn(self, chunks: Iterable[Chunk], seconds: float) -> None:
        """What a step took, for the pace; before `finish`."""
        self._cost.learn(Work.of((chunk.sequence.computed, chunk.rows) for chunk in chunks), seconds)

    def finish(self, chunks: Iterable[tuple[Chunk, int]]) -> None:
        """Marks of each chunk so many tokens as stand now as computed, and publishes blocks that became whole.

        What was chosen must be known already (`Sequence.ids`): the keys of blocks are made of it.
        """
        for chunk, computed in chunks:
            sequence = chunk.sequence
            sequence.computed += computed
            whole = sequence.computed // self._block_size
            if self.pool.caching and whole > sequence.published:
                self._know_keys(sequence, whole)
                for index in range(sequence.published, whole):
                    self.pool.publish(sequence.blocks[index], sequence.keys[index])
                sequence.published = whole

    def _guess(self, chunks: list[Chunk]) -> list[Chunk]:
        """Adds drafts to sequences that decode, evenly, as far as rows and memory are free."""
        left = _FREE_ROWS - sum(chunk.count for chunk in chunks)
        out: list[Chunk] = []
        for number, chunk in enumerate(chunks):
            sequence = chunk.sequence
            room = min(-(-left // (len(chunks) - number)), sequence.left - 1)
            if sequence.drafter is not None and chunk.count == 1 and chunk.completes and room > 0:
                drafts = _proposed(sequence, room)
                if drafts and self._grow(sequence, len(sequence.ids) + len(drafts)):
                    chunk = Chunk(sequence, 1, drafts)
                    left -= len(drafts)
            out.append(chunk)
        return out

    def check_integrity(self) -> None:
        inside = self.running + self.waiting
        written = [block for s in inside for block in s.blocks[s.computed // self._block_size :]]
        self.pool.check_integrity([s.blocks for s in inside], written)
        assert all(not s.blocks for s in self.waiting), "a waiting sequence holds blocks"
        grouped = [mate for mates in self._groups.values() for mate in mates]
        assert {id(s) for s in grouped} == {id(s) for s in inside if s.mates}, "a group has a member that is not inside"

    def _in_line(self) -> list[Sequence]:
        """Who could start now: those whose prompt a mate is computing stand aside."""
        return [s for s in self.waiting if not s.mates or not self._stands_aside(s)]

    def _next_waiting(self, now: float) -> Sequence | None:
        return min(self._in_line(), key=lambda s: (s.effective_priority(now, AGING_SECONDS), s.number), default=None)

    def _stands_aside(self, sequence: Sequence) -> bool:
        donor = self._donor(sequence)
        return donor is not None and donor.computed < sequence.prompt_length - 1

    @staticmethod
    def _donor(sequence: Sequence) -> Sequence | None:
        """The running mate that knows most of the prompt, if the sequence may use it."""
        if not sequence.mates or sequence.scores_prompt:
            return None
        return max((mate for mate in sequence.mates if mate.blocks), key=lambda mate: mate.computed, default=None)

    def _admit(self, sequence: Sequence, room: Room, now: float, donor: Sequence | None = None) -> int:
        """Moves a waiting sequence into the running set if all its known tokens fit now; returns its first chunk.

        What `donor` knows of the same prompt need not be computed; without one a running mate is taken.
        """
        # Prompt log-probabilities need the logits of every position, so nothing may be skipped. The last token is
        # always computed: its logits choose the next one.
        size = self._block_size
        reusable = (len(sequence.ids) - 1) // size
        blocks: list[int] = []
        if self.pool.caching and not sequence.scores_prompt:
            self._know_keys(sequence, reusable)
            blocks = self.pool.match(sequence.keys[:reusable])
        computed = cached = len(blocks) * size
        donor = donor or self._donor(sequence)
        shared = min(donor.computed, sequence.prompt_length - 1) if donor is not None else 0
        if donor is not None and shared >= computed:
            self.pool.release(blocks)
            blocks = donor.blocks[: shared // size]
            self.pool.share(blocks)
            computed, cached = shared, donor.cached_tokens
        needed = -(-len(sequence.ids) // size) - len(blocks)
        if needed + self._promised() > self.pool.free:
            self.pool.release(blocks)
            return 0
        sequence.blocks = blocks
        sequence.published = len(blocks)
        sequence.computed = computed
        if not sequence.started_at:
            sequence.started_at = now
            sequence.cached_tokens = cached
        self.prefix_hit_tokens += cached
        self.waiting.remove(sequence)
        self.running.append(sequence)
        self.running.sort(key=self._standing)
        count = room.share(sequence, len(self._in_line()) > 0)
        if not self._grow(sequence, computed + count):
            raise AssertionError("admitted without room")
        if donor is not None and computed % size:
            self._copy(donor.blocks[computed // size], sequence.blocks[computed // size])
        return count

    def _bequeath(self, sequence: Sequence) -> None:
        """If the next in line has the same prompt as one that leaves, it takes over its place and what it knew."""
        if not sequence.mates or not min(sequence.computed, sequence.prompt_length - 1):
            return
        now = self._clock()
        heir = self._next_waiting(now)
        if heir in sequence.mates and not heir.scores_prompt and not self._donor(heir):
            self._admit(heir, Room(0, (), self._cost), now, sequence)

    def _promised(self) -> int:
        """Blocks that the running sequences will take before they are done with what they know, and one more each.
        Who is admitted into these would be the first to be preempted, with all its work, a few steps later."""
        size = self._block_size
        return sum(max(0, -(-len(s.ids) // size) + 1 - len(s.blocks)) for s in self.running)

    def _make_room(self, sequence: Sequence, count: int) -> bool:
        """Holds blocks for `count` more tokens, preempting from the end of the line; False if it went itself."""
        while not self._grow(sequence, sequence.computed + count):
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        while len(sequence.blocks) * self._block_size < tokens:
            block = self.pool.allocate()
            if block is None:
                return False
            sequence.blocks.append(block)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.preemptions += 1
        self.running.remove(sequence)
        self._free(sequence)
        self.waiting.append(sequence)

    def _free(self, sequence: Sequence) -> None:
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.computed = 0
        sequence.published = 0

    def _know_keys(self, sequence: Sequence, whole: int) -> None:
        known = len(sequence.keys)
        if known < whole:
            salt = sequence.lora.salt if sequence.lora is not None else b""
            parent = sequence.keys[-1] if known else salt
            sequence.keys += block_keys(sequence.ids[: whole * self._block_size], self._block_size, parent, known)

    @staticmethod
    def _standing(sequence: Sequence) -> tuple[int, int]:
        return (sequence.request.priority, sequence.number)


def _proposed(sequence: Sequence, room: int) -> tuple[int, ...]:
    assert sequence.drafter is not None
    try:
        return tuple(sequence.drafter.propose(sequence.ids, room))
    except Exception:  # guesses change nothing but the time: the request goes on without
        _log.exception("request %s: drafting failed and is off for it", sequence.request.request_id)
        sequence.drafter = None
        return ()
