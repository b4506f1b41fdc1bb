"""What comes back: token events from an engine, text events from the service, and the fold of a stream into an answer.

Order of a stream, from an engine and from the service alike:
`Started? Token* (Finished | Failed)`; exactly one ending, always. The last token carries `finish_reason`, so that a
dialect can encode it together with the summary; `Finished` follows it in the same hand-over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum

from interlingua.contract.errors import InterlinguaError


class FinishReason(Enum):
    EOS = "eos_token"
    STOP = "stop_sequence"  # a stop string, or cancelled where a reply is still due
    LENGTH = "length"


# --- engine: ids ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartedEvent:
    """The prompt is in the KV cache and the first token is about to come.

    `prompt_logprobs` has one entry per prompt token (None for the first) when asked for, else is None.
    """

    started_at: float  # `time.monotonic()` when a batch first took the request
    cached_tokens: int = 0  # prompt tokens whose KV came from the prefix cache
    prompt_logprobs: tuple[float | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One generated token. `logprob` is the raw model's ln softmax, before every processor; always finite."""

    token_id: int
    logprob: float
    at: float  # `time.monotonic()` at the end of the step that made it
    top: tuple[tuple[int, float], ...] = ()  # (id, logprob) descending, ties at the last rank included
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class FinishedEvent:
    reason: FinishReason
    generated_tokens: int


@dataclass(frozen=True, slots=True)
class FailedEvent:
    error: InterlinguaError


EngineEvent = StartedEvent | TokenEvent | FinishedEvent | FailedEvent


# --- service: text -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TokenText:
    """A token with its text, for details: `prefill`, `tokens` and `top_tokens`."""

    id: int
    text: str
    logprob: float | None
    special: bool
    data: bytes = field(default=b"", compare=False)  # what the id alone adds to a text; may be part of a character


@dataclass(frozen=True, slots=True)
class TextStarted:
    """An answer begins; comes once for each choice."""

    prompt_tokens: int  # after truncation
    seed: int
    prefill: tuple[TokenText, ...] | None  # only when prompt logprobs were asked for
    timing: Timing
    cached_tokens: int = 0
    choice: int = 0
    reasoning: bool = False  # the prompt ends inside a block of reasoning, with which the answer goes on


@dataclass(frozen=True, slots=True)
class TextToken:
    """One generated token as clients see it. `index` counts from 1.

    `text` is "" while a character is incomplete or after a stop; joined texts of the non-special tokens are the
    answer. `elapsed_ms` is the time since the token before it (since arrival for the first).
    """

    index: int
    id: int
    text: str
    logprob: float
    special: bool
    elapsed_ms: float
    top: tuple[TokenText, ...] = ()
    summary: Summary | None = None  # on the last token of a choice alone
    choice: int = 0  # which of the request's `n` answers, from 0; their events may be mixed
    data: bytes = field(default=b"", compare=False)  # what the id alone adds to a text; may be part of a character


@dataclass(frozen=True, slots=True)
class Summary:
    """The end of a stream. `text` is the whole generated text, without the prompt."""

    text: str
    finish_reason: FinishReason
    generated_tokens: int
    prompt_tokens: int
    seed: int
    timing: Timing


@dataclass(slots=True)
class Timing:
    """Moments of a request on the clock of `time.monotonic`, in seconds; 0.0 = not reached. Owned by the service.

    All choices of a request share one: `started` and `first_token` are the first child's, `finished` the last one's.
    """

    arrived: float = 0.0
    queued: float = 0.0  # prepared and handed to the engine
    started: float = 0.0  # first taken into a batch
    first_token: float = 0.0
    finished: float = 0.0


@dataclass(frozen=True, slots=True)
class TextStopped:
    """The request was stopped by its id before its first token: an ending, and a whole answer of no text.

    Comes once for each choice.
    """

    summary: Summary
    choice: int = 0


TextEvent = TextStarted | TextToken | TextStopped | FailedEvent


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer: the fold of its stream.

    `alternatives` are the request's other answers: choices 1 to n-1 in order, then those that `best_of` left out.
    """

    summary: Summary
    prefill: tuple[TokenText, ...]
    tokens: tuple[TextToken, ...]
    alternatives: tuple[Answer, ...] = ()
    reasoning: bool = False  # the prompt ended inside a block of reasoning, with which the answer begins


def fold(events: Iterable[TextEvent]) -> Answer:
    """Folds a finished stream into its answer. The events of its choices may be mixed.

    Raises:
        InterlinguaError: the error of a `FailedEvent`.
        ValueError: a choice has no last token with a summary (our own mistake).
    """
    prefills: dict[int, tuple[TokenText, ...]] = {}
    tokens: dict[int, list[TextToken]] = {}
    summaries: dict[int, Summary] = {}
    reasoning = False
    for event in events:
        if isinstance(event, FailedEvent):
            raise event.error
        if isinstance(event, TextStarted):
            prefills[event.choice] = event.prefill or ()
            reasoning = event.reasoning
            continue
        if isinstance(event, TextToken):
            tokens.setdefault(event.choice, []).append(event)
        if event.summary is not None:
            summaries[event.choice] = event.summary
    if not summaries or summaries.keys() < prefills.keys() | tokens.keys():
        raise ValueError("the stream ended without a last token")
    first, *others = (
        Answer(summaries[choice], prefills.get(choice, ()), tuple(tokens.get(choice, ())), reasoning=reasoning)
        for choice in sorted(summaries)
    )
    return replace(first, alternatives=tuple(others)) if others else first
