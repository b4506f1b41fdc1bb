"""One HTTP request and its answer, over plain ASGI."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from interlingua.contract.dialect import Reply

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


class Exchange:
    """A request being answered: what came, and how far the answer has gone. Owned by the request's own task.

    Header names are lower case; of a header that came twice the last value counts.
    """

    __slots__ = (
        "arrived",
        "body",
        "headers",
        "method",
        "path",
        "path_params",
        "receive",
        "request_id",
        "send",
        "started",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        self.arrived = time.monotonic()
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.path_params: Mapping[str, str] = {}
        self.headers: dict[str, str] = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        self.body = b""
        self.receive = receive
        self.send = send
        self.request_id = request_id
        self.started = False  # the status line has gone out

    async def reply(self, reply: Reply) -> None:
        """Sends a whole answer."""
        headers = self._headers(reply.media_type, reply.headers)
        headers.append((b"content-length", str(len(reply.body)).encode()))
        self.started = True
        await self.send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": reply.body, "more_body": False})

    async def start_stream(self, media_type: str, headers: Iterable[tuple[str, str]]) -> None:
        """Sends the head of a streamed answer. Pieces follow through `send_piece`."""
        self.started = True
        head = self._headers(media_type, headers)
        await self.send({"type": "http.response.start", "status": 200, "headers": head})

    async def send_piece(self, data: bytes, last: bool) -> None:
        """Sends a piece of a streamed answer. Waits while the client is slow to read."""
        await self.send({"type": "http.response.body", "body": data, "more_body": not last})

    def _headers(self, media_type: str, headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
        head = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        head.append((b"content-type", media_type.encode("latin-1")))
        head.append((b"x-request-id", self.request_id.encode("latin-1")))
        return head


class Presence:
    """Cancels the task inside the `with` block when the client goes away. Leaves the block silently then.

    The body must have been read in full: from then on `receive` says nothing but that the connection ended.
    """

    __slots__ = ("_others", "_receive", "_task", "_watcher", "left")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.left = False  # the client is gone

    def __enter__(self) -> Presence:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._others = task.cancelling()
        self._watcher = asyncio.get_running_loop().create_task(self._watch())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self._watcher.cancel()
        if not self.left:
            return False
        # Another cancellation beside ours (the server stops) goes on outwards.
        return self._task.uncancel() <= self._others and kind is asyncio.CancelledError

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.left = True
        self._task.cancel()
