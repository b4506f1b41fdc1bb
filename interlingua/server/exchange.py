"""One HTTP request and its answer, over plain ASGI."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import quote

from interlingua.contract.dialect import Reply
from interlingua.service.metrics import SUCCESS

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from interlingua.service.metrics import Outcome

_REQUEST_ID = "x-request-id"
_CALLER_ID = re.compile(r"[!-~]{1,256}")  # what a log line and a header hold as it is
WATCH = "interlingua.watch"  # key of the ASGI scope's extensions
Watch = Callable[[Callable[[], None] | None], None]


class Exchange:
    """A request being answered: what came, and how far the answer has gone. Owned by the request's own task.

    Header names are lower case; of a header that came twice the last value counts.
    """

    __slots__ = (
        "arrived",
        "caller_id",
        "failure",
        "headers",
        "method",
        "outcome",
        "path",
        "path_params",
        "query",
        "receive",
        "request_id",
        "route",
        "send",
        "started",
        "status",
        "watch",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        self.arrived = time.monotonic()
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: str = scope.get("query_string", b"").decode("latin-1")
        self.path_params: Mapping[str, str] = {}
        self.headers: dict[str, str] = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        named = self.headers.get(_REQUEST_ID, "")
        self.caller_id = named if _CALLER_ID.fullmatch(named) else ""  # the caller's name for it; need not be unique
        self.receive = receive
        self.send = send
        self.request_id = request_id
        self.started = False  # the status line has gone out
        self.status = 0  # of it
        self.route = ""  # the template of the path; "" = there is none
        self.outcome: Outcome | None = None  # of a generation, once it has ended
        self.failure = ""  # the kind of error that the answer tells of, where no generation has an outcome
        # Our protocol's word for when the client leaves: `watch(callback)`, `watch(None)`. See `protocol`.
        self.watch: Watch | None = scope.get("extensions", {}).get(WATCH, {}).get("watch")

    @property
    def shown_path(self) -> str:
        """The path for a log: no longer than 200 characters, and no line of its own."""
        return quote(self.path[:200], safe="/:@!$&'()*+,;=~")

    @property
    def shown_id(self) -> str:
        """Our id for a log, and the caller's where it has one: the client got that as `x-request-id`."""
        return f"{self.request_id}, the caller's {self.caller_id}" if self.caller_id else self.request_id

    def ended(self, outcome: Outcome) -> None:
        """A generation that was asked for has ended. Of several the first that failed counts: it ended the others."""
        if self.outcome is None or self.outcome.kind == SUCCESS:
            self.outcome = outcome

    async def reply(self, reply: Reply) -> None:
        """Sends a whole answer."""
        headers = self._headers(reply.media_type, reply.headers)
        headers.append((b"content-length", str(len(reply.body)).encode()))
        self.started, self.status = True, reply.status
        await self.send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": reply.body, "more_body": False})

    async def start_stream(self, media_type: str, headers: Iterable[tuple[str, str]]) -> None:
        """Sends the head of a streamed answer. Pieces follow through `send_piece`."""
        self.started, self.status = True, 200
        head = self._headers(media_type, headers)
        await self.send({"type": "http.response.start", "status": 200, "headers": head})

    async def send_piece(self, data: bytes, last: bool) -> None:
        """Sends a piece of a streamed answer. Waits while the client is slow to read."""
        await self.send({"type": "http.response.body", "body": data, "more_body": not last})

    def _headers(self, media_type: str, headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
        head = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        head.append((b"content-type", media_type.encode("latin-1")))
        head.append((_REQUEST_ID.encode(), (self.caller_id or self.request_id).encode("latin-1")))
        return head


class Presence:
    """Cancels the task inside the `with` block when the client goes away, and leaves the block silently then.

    The body must have been read in full. Our own protocol says when the connection ends, which costs nothing;
    under another server a task listens for it.
    """

    __slots__ = ("_exchange", "_others", "_task", "_watch", "_watcher", "left")

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._watch = exchange.watch
        self._watcher: asyncio.Task[None] | None = None
        self.left = False  # the client is gone

    def __enter__(self) -> Presence:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._others = task.cancelling()
        if self._watch is not None:
            self._watch(self._leave)
        else:
            self._watcher = asyncio.get_running_loop().create_task(self._listen())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if self._watch is not None:
            self._watch(None)
        if self._watcher is not None:
            self._watcher.cancel()
        if not self.left:
            return False
        # Another cancellation beside ours (the server stops) goes on outwards.
        return self._task.uncancel() <= self._others and kind is asyncio.CancelledError

    def _leave(self) -> None:
        self.left = True
        self._task.cancel()

    async def _listen(self) -> None:
        while (await self._exchange.receive())["type"] != "http.disconnect":
            pass
        self._leave()
