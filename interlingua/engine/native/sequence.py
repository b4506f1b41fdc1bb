"""One request inside the engine: its tokens, its place in KV memory and what has been reported of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from interlingua.contract.request import PreparedRequest
from interlingua.engine.native.drafts import Drafter
from interlingua.engine.native.guide import Guide
from interlingua.engine.native.lora import Lora


@dataclass(slots=True, eq=False)
class Sequence:
    """Owned by the scheduler. `ids` is prompt and output; the first `computed` of them have their KV in `blocks`."""

    request: PreparedRequest
    number: int  # order of arrival
    arrived: float  # time.monotonic()
    slot: int  # sampler state in the native model; kept through preemptions
    ids: list[int] = field(default_factory=list)
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)  # of the leading whole blocks, as far as known
    published: int = 0  # leading blocks that the pool knows
    prompt_logprobs: list[float | None] = field(default_factory=list)
    cached_tokens: int = 0
    started_at: float = 0.0  # first time in a batch
    announced: bool = False  # StartedEvent sent
    drafter: Drafter | None = None  # None = plain decoding
    lora: Lora | None = None  # None = the base model
    mates: list[Sequence] = field(default_factory=list)  # of its group, all that are inside, itself too; shared by them
    guide: Guide | None = None  # keeps its place in the grammar through preemptions

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def generated(self) -> int:
        return len(self.ids) - self.prompt_length

    @property
    def left(self) -> int:
        """Tokens that may still be generated."""
        return self.request.max_new_tokens - self.generated

    @property
    def pending(self) -> int:
        """Tokens whose KV is still to be computed: 1 while decoding, more while (re)filling."""
        return len(self.ids) - self.computed

    @property
    def scores_prompt(self) -> bool:
        """The logits of every prompt token are still wanted, so that none may be skipped."""
        return self.request.prompt_logprobs and not self.announced

    @property
    def sits_out(self) -> bool:
        """Its mask was late for a step and still is not there."""
        return self.guide is not None and self.guide.missed and not self.guide.ready

    def effective_priority(self, now: float, aging: float) -> int:
        """Queue level, 1 first; a waiting request gains one level every `aging` seconds."""
        return max(1, self.request.priority - int((now - self.arrived) / aging))
