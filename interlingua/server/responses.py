"""Answers of generation calls: a whole one, or a stream whose refusals still have their true status."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence

from interlingua.contract.dialect import Call, Reply
from interlingua.contract.errors import GenerationError, InterlinguaError, RequestError
from interlingua.contract.events import FailedEvent, TextEvent, TextStarted, TextStopped, TextToken, fold
from interlingua.server.exchange import Exchange
from interlingua.server.middleware import beside
from interlingua.server.routes import RenderError

_log = logging.getLogger(__name__)

_TOKEN_BYTES = 64  # of a token, or an alternative to one, in an answer that tells of them

Batches = AsyncGenerator[Sequence[TextEvent], None]


def request_error(error: InterlinguaError) -> RequestError:
    """`error` as one that a dialect can render."""
    return error if isinstance(error, RequestError) else GenerationError(error.message)


async def answer_whole(exchange: Exchange, call: Call, batches: Batches, render_error: RenderError) -> None:
    """Folds the stream into one answer and sends it."""
    events: list[TextEvent] = []
    async for batch in batches:
        events += batch

    def encoded() -> Reply:
        try:
            return call.encoder.answer(fold(events))
        except InterlinguaError as error:
            return render_error(request_error(error))

    prompts = sum(len(event.prefill or ()) for event in events if isinstance(event, TextStarted))
    tokens = prompts + len(events) * (1 + call.request.top_n_tokens)
    await exchange.reply(await beside(tokens * _TOKEN_BYTES, encoded))


async def answer_stream(exchange: Exchange, call: Call, batches: Batches, render_error: RenderError) -> None:
    """Sends events as they come, all that are there at once in one piece.

    The status line waits for the first bytes to send, so that whatever ends the request before them is
    answered with its own status. What ends it after them is one event in the dialect's shape.
    """
    encoder = call.encoder
    encode = encoder.event
    left = call.choices  # answers that have not ended
    async for batch in batches:
        last = batch[-1]
        failed = isinstance(last, FailedEvent)
        if failed and not exchange.started:
            assert isinstance(last, FailedEvent)
            await exchange.reply(render_error(request_error(last.error)))
            return
        left -= sum(map(_ends, batch))
        over = failed or left == 0
        try:
            data = encode(last) if len(batch) == 1 else b"".join(map(encode, batch))
            if over:
                data += encoder.end()
        except Exception:
            if not exchange.started:
                raise
            _log.exception(
                "request %s: an event could not be encoded",
                exchange.shown_id,
                extra={"request_id": exchange.request_id},
            )
            data = encode(FailedEvent(GenerationError("the answer could not be encoded"))) + encoder.end()
            over = True
        if data or over:
            if not exchange.started:
                await exchange.start_stream(encoder.media_type, encoder.stream_headers())
            await exchange.send_piece(data, over)
        if over:
            return


def _ends(event: TextEvent) -> bool:
    """The event ends one of the request's answers."""
    return isinstance(event, TextStopped) or (isinstance(event, TextToken) and event.summary is not None)
