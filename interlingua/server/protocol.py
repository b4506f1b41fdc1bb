"""HTTP/1.1 over uvicorn's httptools protocol, with the limits that it lacks.

Slow and endless clients are cut here, below the application: a head that is too large or too slow, a body
that goes on after its refusal, an answer that nobody takes. The connection's end then frees whatever the
request held.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from interlingua.contract.words import counted
from interlingua.server.exchange import WATCH
from interlingua.server.settings import ServerSettings

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, Scope

_MAX_PIPELINED = 16  # requests of one connection that wait behind the one being answered
_FRAMING = 1 << 20  # bytes around a body's pieces that are allowed anyway; beyond them, so many for a byte of body:
_FRAMING_PER_BYTE = 8


class BadRequestError(Exception):
    """A request that must not be answered as it stands. Raised inside the parser, which stops at it."""


class LimitedProtocol(HttpToolsProtocol):
    """One connection. Subclass with `settings` set; see `protocol_class`."""

    settings: ServerSettings

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._head_bytes = 0
        self._head_lines = 0
        self._in_head = False  # a request has begun, its head is not complete
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._unsent = 0  # bytes that the client had not taken when the write timer started
        self._discarded = 0  # bytes of a body whose answer is complete
        self._raw_bytes = 0  # that came while a body was being read
        self._body_bytes = 0  # of the body among them
        self._in_body = False  # the head is complete, the body is not
        self._body_timer: asyncio.TimerHandle | None = None
        self._last_data = 0.0  # when a byte came last, on the loop's clock
        self._lost = False
        self._answered: RequestResponseCycle | None = None  # whose turn it is; the others wait in the pipeline
        self._refusal = b""  # what the connection will end with, once the requests before have been answered
        self._on_leave: Callable[[], None] | None = None

    # --- the connection ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._stop_head_timer()
        self._stop_write_timer()
        if self._body_timer is not None:
            self._body_timer.cancel()
        super().connection_lost(exc)
        if self._answered is not None:  # uvicorn tells the last one of the pipeline alone
            self._answered.disconnected = True
            self._answered.message_event.set()
        if self._on_leave is not None:
            self._on_leave()

    def watch(self, on_leave: Callable[[], None] | None) -> None:
        """Has `on_leave` called when the connection has ended; None = no longer."""
        self._on_leave = on_leave
        if on_leave is not None:
            self.flow.resume_reading()  # the end of a connection is seen by reading alone
            if self._lost:
                on_leave()

    # --- the head ------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0
        self._head_lines = 0
        self._discarded = 0
        if self._head_timer is None:
            self._start_head_timer()

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url), 0)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value) + 4, 1)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._check_head()
        if self.parser.should_upgrade():
            return  # the parser stops here; `_decline_upgrade` goes on
        self._stop_head_timer()
        self._in_head = False
        self._in_body = True
        self._raw_bytes = self._body_bytes = 0
        self.scope["extensions"] = {WATCH: {"watch": self.watch}}
        self.expect_100_continue &= self.parser.get_http_version() == "1.1"
        super().on_headers_complete()
        if len(self.pipeline) > _MAX_PIPELINED:
            self.transport.abort()

    def _check_head(self) -> None:
        """Refuses what a proxy before us might understand otherwise. The parser refuses most of it by itself."""
        version = self.parser.get_http_version()
        hosts = 0
        for name, value in self.headers:
            if name == b"host":
                hosts += 1
            elif name == b"transfer-encoding" and (value.lower() != b"chunked" or version != "1.1"):
                raise BadRequestError
        if version not in ("1.0", "1.1") or hosts > 1 or (hosts == 0 and version == "1.1"):
            raise BadRequestError
        if self.parser.get_method() == b"CONNECT":
            raise BadRequestError

    def _decline_upgrade(self, rest: bytes) -> None:
        """Reads the request again without its wish for another protocol, as HTTP allows, and then what follows.

        Java's client wishes for HTTP/2 in its first request to a server. The parser would take its body for the
        other protocol's bytes.
        """
        lines = [b"%s %s HTTP/1.1" % (self.parser.get_method(), self.url)]
        for name, value in self.headers:
            if name == b"connection":
                value = b",".join(
                    word for word in value.split(b",") if word.strip().lower() in (b"close", b"keep-alive")
                )
            elif name in (b"upgrade", b"http2-settings"):
                continue
            lines.append(name + b": " + value)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own
        self._feed(b"\r\n".join((*lines, b"", rest)))

    def _count_head(self, size: int, lines: int) -> None:
        self._head_bytes += size
        self._head_lines += lines
        settings = self.settings
        if self._head_bytes > settings.max_header_bytes or self._head_lines > settings.max_headers:
            raise BadRequestError

    def send_400_response(self, msg: str) -> None:
        """The parser has given up. What it had given up at decides between 400 and 431."""
        self._stop_head_timer()
        settings = self.settings
        if self._head_bytes > settings.max_header_bytes or self._head_lines > settings.max_headers:
            self._refuse(
                431,
                f"a request's head must have at most {counted(settings.max_header_bytes, 'byte')} "
                f"and {counted(settings.max_headers, 'header')}",
            )
        else:
            self._refuse(400, "this is no valid HTTP/1.1 request")

    def _refuse(self, status: int, message: str) -> None:
        """Answers below the application, and ends the connection. Requests before this one get their answers first."""
        kind = "timeout" if status == 408 else "validation"
        body = json.dumps({"error": message, "error_type": kind}).encode()
        self._refusal = (
            STATUS_LINE[status]
            + b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
            + body
        )
        if self._in_body and self.pipeline:
            self.pipeline.popleft()  # the refused one itself
            self._in_body = False
        answered = self._answered
        if answered is None or answered.response_complete or self._in_body:
            self._end()

    def _end(self) -> None:
        self.transport.write(self._refusal)
        self.transport.close()

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(self.settings.header_timeout, self._head_late)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        self._head_timer = None
        if self.transport.is_closing():
            return
        if not self._in_head:
            self.transport.close()  # it asked for nothing: an answer now might be taken for a later request's
        else:
            self._refuse(408, f"the request's head took longer than {counted(self.settings.header_timeout, 'second')}")

    # --- the body ------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._refusal:
            return
        if self._in_body:
            self._raw_bytes += len(data)
        self._unset_keepalive_if_required()
        self._feed(data)
        if self._in_body:
            if self._raw_bytes > _FRAMING + _FRAMING_PER_BYTE * self._body_bytes:
                self._in_body = False
                self.transport.close()  # chunk extensions without end, or chunks of nothing
                return
            self._last_data = self.loop.time()
            if self._body_timer is None:
                self._body_timer = self.loop.call_later(self.settings.body_timeout, self._body_late)

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as stop:
            self._decline_upgrade(data[stop.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("")

    def on_message_complete(self) -> None:
        self._in_body = False
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _body_late(self) -> None:
        self._body_timer = None
        if not self._in_body or self.transport.is_closing():
            return
        left = self._last_data + self.settings.body_timeout - self.loop.time()
        if left > 0 or self.flow.read_paused:
            again = max(left, 0.1) if not self.flow.read_paused else self.settings.body_timeout
            self._body_timer = self.loop.call_later(again, self._body_late)
        elif self.cycle.response_started:
            self.transport.close()
        else:
            self._refuse(408, f"no byte of the body came for {counted(self.settings.body_timeout, 'second')}")

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self.cycle.response_complete:
            # Refused before its end. Reading on lets the refusal arrive; a client that never ends is cut off.
            self._discarded += len(body)
            if self._discarded > 2 * self.settings.payload_limit:
                self.transport.close()
            return
        super().on_body(body)

    # --- the answer ----------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app if cycle.scope["http_version"] == "1.1" else _without_chunks(cycle, app))

    def on_response_complete(self) -> None:
        if self._refusal and not self.pipeline and not self.transport.is_closing():
            self._end()
        else:
            super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_write_timer()

    def resume_writing(self) -> None:
        self._stop_write_timer()
        super().resume_writing()

    def _start_write_timer(self) -> None:
        self._unsent = self.transport.get_write_buffer_size()
        self._write_timer = self.loop.call_later(self.settings.write_timeout, self._write_late)

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _write_late(self) -> None:
        self._write_timer = None
        if self.transport.get_write_buffer_size() < self._unsent:
            self._start_write_timer()  # slow, but alive
        else:
            self.transport.abort()


def _without_chunks(cycle: RequestResponseCycle, app: ASGI3Application) -> ASGI3Application:
    """For HTTP/1.0, without chunks: an answer of unknown length goes on to the end of the connection."""

    async def plain(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        measured = True

        async def sent(message: ASGISendEvent) -> None:
            nonlocal measured
            if message["type"] == "http.response.start":
                measured = any(name == b"content-length" for name, _ in message["headers"])
                if not measured:
                    cycle.chunked_encoding = False
            elif message["type"] == "http.response.body" and not measured:
                cycle.expected_content_length = len(message["body"])
            await send(message)

        await app(scope, receive, sent)

    return plain


def protocol_class(settings: ServerSettings) -> type[LimitedProtocol]:
    """The protocol under `settings`, as uvicorn wants it: a class."""
    return type("ServedProtocol", (LimitedProtocol,), {"settings": settings})
