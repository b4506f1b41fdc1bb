"""What a step came to for each of its sequences: the rows of its results as events."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from interlingua.contract.errors import GenerationError
from interlingua.contract.events import (
    EngineEvent,
    FailedEvent,
    FinishedEvent,
    FinishReason,
    StartedEvent,
    TokenEvent,
)
from interlingua.engine.native._native import FAILED, LATE, UNUSABLE
from interlingua.engine.native.batch import Batch
from interlingua.engine.native.scheduler import Chunk
from interlingua.engine.native.sequence import Sequence

_log = logging.getLogger(__name__)

TopTokens = Callable[[int], Seq[tuple[int, float]]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one chunk: what its reader is told, how many of its tokens stand as computed, how many were chosen."""

    chunk: Chunk
    events: list[EngineEvent]
    stands: int = 0
    chosen: int = 0

    @property
    def ended(self) -> bool:
        return bool(self.events) and isinstance(self.events[-1], FinishedEvent | FailedEvent)


def read_outcomes(batch: Batch, top_tokens: TopTokens, now: float) -> Iterator[Outcome]:
    """Reads the results of a step and writes the chosen tokens down in their sequences.

    Args:
        batch: has run.
        top_tokens: of a slot of the sampler, the alternatives of its last choice with their log-probabilities.
        now: time.monotonic() when the step ended.
    """
    ids, logprobs = batch.ids.tolist(), batch.logprobs.tolist()
    row = 0
    for chunk, scored, choices in zip(batch.chunks, batch.scored, batch.choices, strict=True):
        rows = slice(row, row + scored + choices)
        row = rows.stop
        try:
            yield _outcome(chunk, scored, ids[rows], logprobs[rows], top_tokens, now)
        except Exception:  # the request's own state is broken: it ends alone
            _log.exception("request %s failed in the engine", chunk.sequence.request.request_id)
            yield _failed(chunk, _problem([FAILED]))


def _outcome(
    chunk: Chunk, scored: int, ids: list[int], logprobs: list[float], top_tokens: TopTokens, now: float
) -> Outcome:
    """`scored`: the first rows of `ids` and `logprobs` are prompt tokens; then come its choices, if it makes any."""
    sequence = chunk.sequence
    problem = _problem(ids)
    if problem:
        return _failed(chunk, problem)
    sequence.prompt_logprobs += logprobs[:scored]
    if len(ids) == scored:
        return Outcome(chunk, [], chunk.count)
    guide = sequence.guide
    if guide is not None and ids[scored] == LATE:
        guide.missed = True
        return Outcome(chunk, [], chunk.count - 1)  # for the same logits, to the bit, once the mask is there
    events: list[EngineEvent] = []
    if not sequence.announced:
        sequence.announced = True
        prompt = tuple(sequence.prompt_logprobs) if sequence.request.prompt_logprobs else None
        events.append(StartedEvent(sequence.started_at, sequence.cached_tokens, prompt))
    chosen = 0
    for token, logprob in zip(ids[scored:], logprobs[scored:], strict=True):
        if token < 0:  # DROPPED: the draft before it was not chosen
            break
        top = tuple(top_tokens(sequence.slot)) if sequence.request.top_n_tokens else ()
        sequence.ids.append(token)
        chosen += 1
        reason = _finish_reason(sequence, token)
        events.append(TokenEvent(token, logprob, now, top, reason))
        if reason is not None:
            events.append(FinishedEvent(reason, sequence.generated))
            break
        if guide is not None:
            guide.expect()
    if chunk.drafts and sequence.drafter is not None:
        sequence.drafter.learn(len(chunk.drafts), chosen - 1)
    return Outcome(chunk, events, chunk.count + chosen - 1, chosen)


def _failed(chunk: Chunk, problem: str) -> Outcome:
    return Outcome(chunk, [FailedEvent(GenerationError(problem))])


def _problem(ids: list[int]) -> str:
    """Why a request's rows of a step have no result, or ""."""
    if UNUSABLE in ids:
        return "the model's logits for this request are not finite"
    return "the request's decoding state has failed" if FAILED in ids else ""


def _finish_reason(sequence: Sequence, token: int) -> FinishReason | None:
    """Length comes before EOS: an EOS that is the last allowed token reports `length`."""
    request = sequence.request
    if sequence.generated >= request.max_new_tokens:
        return FinishReason.LENGTH
    if sequence.guide is not None and token in sequence.guide.eos_ids:
        return FinishReason.EOS  # whatever else was asked: the grammar allows nothing after it
    if token in request.stop_token_ids and sequence.generated > request.min_new_tokens:
        return FinishReason.EOS
    return None
