"""One answer as text: from the engine's events of ids to the events that clients see."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from interlingua.contract.errors import IncompleteGenerationError, ValidationError
from interlingua.contract.events import (
    EngineEvent,
    FailedEvent,
    FinishReason,
    StartedEvent,
    Summary,
    TextEvent,
    TextStarted,
    TextStopped,
    TextToken,
    Timing,
    TokenEvent,
    TokenText,
)
from interlingua.contract.request import GenerationRequest, PreparedRequest, TextPrompt
from interlingua.service.metrics import Histogram
from interlingua.text.detokenize import Detokenizer, Piece, StopMatcher, TokenTable


class Story:
    """Tells the engine's events of one answer as text events."""

    __slots__ = (
        "_choice",
        "_detokenizer",
        "_gaps",
        "_heard_at",
        "_index",
        "_last_at",
        "_pending",
        "_prepared",
        "_reasoning",
        "_request",
        "_table",
        "_timing",
        "count",
        "stopping",
        "summary",
    )

    def __init__(
        self,
        request: GenerationRequest,
        prepared: PreparedRequest,
        table: TokenTable,
        stops: StopMatcher | None,
        timing: Timing,
        gaps: Histogram,
        choice: int = 0,
    ) -> None:
        self._choice = choice
        self.summary: Summary | None = None  # set with the last token
        self._request = request
        self._prepared = prepared
        self._reasoning = isinstance(request.prompt, TextPrompt) and request.prompt.reasoning
        self._table = table
        self._timing = timing
        self._detokenizer = Detokenizer(table, stops, request.stop_mode)
        self._pending: deque[TokenEvent] = deque()  # tokens whose pieces are held back
        self._gaps = gaps  # told the seconds between two tokens
        self._heard_at = 0.0  # when the last token heard was made
        self.count = 0  # tokens heard
        self.stopping = False  # the next token is the last one
        self._index = 0  # tokens told
        self._last_at = timing.arrived  # when the last token told was made

    def tell(self, event: EngineEvent) -> Sequence[TextEvent]:
        """The text events that `event` makes ready. Raises the error of a FailedEvent."""
        if isinstance(event, TokenEvent):
            return self._token(event)
        if isinstance(event, StartedEvent):
            self._timing.started = self._timing.started or event.started_at
            return (
                TextStarted(
                    len(self._prepared.prompt_ids),
                    self._prepared.sampling.seed,
                    self._prefill(event.prompt_logprobs),
                    self._timing,
                    event.cached_tokens,
                    self._choice,
                    self._reasoning,
                ),
            )
        if isinstance(event, FailedEvent):
            if isinstance(event.error, ValidationError):  # an engine knows the contract's names alone
                raise type(event.error)(self._request.wire_name(event.error.field), event.error.problem)
            raise event.error
        # Its reason came with the last token, after which nobody listens any more.
        raise IncompleteGenerationError("the engine ended the answer without a last token")

    def _token(self, event: TokenEvent) -> Sequence[TextEvent]:
        self._timing.first_token = self._timing.first_token or event.at
        if self.count:
            self._gaps.observe(event.at - self._heard_at)
        self._heard_at = event.at
        self.count += 1
        detokenizer = self._detokenizer
        pieces = detokenizer.push(event.token_id)
        pending = self._pending
        pending.append(event)
        # Length and EOS come before a stop string that ends in the same token, as in TGI; its text is cut
        # anyway.
        reason = event.finish_reason
        if reason is None and (detokenizer.stopped or self.stopping):
            reason = FinishReason.STOP
        if reason is None:
            return [self._text_token(pending.popleft(), piece, None) for piece in pieces]
        pieces += detokenizer.finish()
        last = pieces.pop()
        tokens = [self._text_token(pending.popleft(), piece, None) for piece in pieces]
        self.summary = self._summary(reason)
        tokens.append(self._text_token(pending.popleft(), last, self.summary))
        return tokens

    def stop(self) -> TextStopped:
        """The end of a story without a token."""
        return TextStopped(self._summary(FinishReason.STOP), self._choice)

    def _summary(self, reason: FinishReason) -> Summary:
        self._timing.finished = time.monotonic()
        return Summary(
            self._detokenizer.text,
            reason,
            self.count,
            len(self._prepared.prompt_ids),
            self._prepared.sampling.seed,
            self._timing,
        )

    def _text_token(self, event: TokenEvent, piece: Piece, summary: Summary | None) -> TextToken:
        self._index += 1
        elapsed = (event.at - self._last_at) * 1000.0
        self._last_at = event.at
        top = self._top(event) if event.top else ()
        return TextToken(
            self._index,
            event.token_id,
            piece.text,
            event.logprob,
            piece.special,
            elapsed,
            top,
            summary,
            self._choice,
            self._table.bytes_of(event.token_id),
        )

    def _top(self, event: TokenEvent) -> tuple[TokenText, ...]:
        table = self._table
        texts = []
        for token_id, logprob in event.top:
            piece = table.piece_alone(token_id)
            texts.append(TokenText(token_id, piece.text, logprob, piece.special, table.bytes_of(token_id)))
        return tuple(texts)

    def _prefill(self, logprobs: tuple[float | None, ...] | None) -> tuple[TokenText, ...] | None:
        if logprobs is None:
            return None
        ids = self._prepared.prompt_ids
        table = self._table
        pieces = table.pieces(ids)
        return tuple(
            TokenText(token_id, piece.text, logprob, piece.special, table.bytes_of(token_id))
            for token_id, piece, logprob in zip(ids, pieces, logprobs, strict=True)
        )
