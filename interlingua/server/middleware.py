"""What holds for every request, whichever route it takes: an id, a bounded body, and no naked faults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from interlingua.contract.errors import InterlinguaError, PayloadTooLargeError, UnauthorizedError, ValidationError
from interlingua.contract.words import counted
from interlingua.dialects._json import show

if TYPE_CHECKING:
    from interlingua.server.exchange import Exchange
    from interlingua.server.keys import Keys


# Up to here a body is decoded, and an answer encoded, on the event loop; a longer one beside it, so that streams keep
# their pace. Each thread that works so takes the interpreter's lock from the loop for 5 ms at a time, and for tens of
# milliseconds where a body is over a megabyte: hence few threads, and one for the large ones.
_INLINE_BYTES = 65_536
_LARGE_BYTES = 1 << 20
_long = ThreadPoolExecutor(max_workers=2, thread_name_prefix="long-body")
_large = ThreadPoolExecutor(max_workers=1, thread_name_prefix="large-body")
T = TypeVar("T")


class ClientLeftError(InterlinguaError):
    """The connection ended before the request was complete; nobody is there to answer."""

    kind = "cancelled"


def check_key(exchange: Exchange, keys: Keys) -> None:
    """Asks for one of the operator's keys, if there are any. Raises UnauthorizedError."""
    check_authorization(exchange.headers.get("authorization", ""), keys)


def check_authorization(written: str, keys: Keys) -> None:
    """As `check_key`, of the header's text."""
    if not keys.asked_for:
        return
    scheme, _, key = written.partition(" ")
    if scheme.lower() != "bearer" or not keys.accepts(key.strip()):
        raise UnauthorizedError("a valid key is needed: `Authorization: Bearer KEY`")


async def read_body(exchange: Exchange, limit: int) -> bytes:
    """The whole body. Never holds more than `limit` bytes of it, and one piece of the socket's.

    What a refused client still sends is thrown away by the protocol, which keeps the connection open
    meanwhile, so that the refusal arrives instead of a reset.

    Raises:
        ValidationError: it is packed (`Content-Encoding`). What would be unpacked of it has no bound that can be seen.
        PayloadTooLargeError: at once if the header says so, else when the limit is passed.
        ClientLeftError: the connection ended.
    """
    encoding = exchange.headers.get("content-encoding", "").strip()
    if encoding.lower() not in ("", "identity"):
        raise ValidationError("Content-Encoding", f"must be identity: bodies are not unpacked, got {show(encoding)}")
    length = exchange.headers.get("content-length", "").lstrip("0")
    if length.isdecimal() and int(length) > limit:
        raise PayloadTooLargeError(f"the body must have at most {counted(limit, 'byte')}, got {length}")
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await exchange.receive()
        if message["type"] == "http.disconnect":
            raise ClientLeftError("the client left before its request was complete")
        piece: bytes = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise PayloadTooLargeError(f"the body must have at most {counted(limit, 'byte')}, got more")
        if not message.get("more_body", False):
            return b"".join((*pieces, piece)) if pieces else piece
        pieces.append(piece)


async def beside(size: int, work: Callable[[], T]) -> T:
    """Does what a body or an answer of `size` bytes asks for, in a thread if that may take long."""
    if size <= _INLINE_BYTES:
        return work()
    threads = _long if size <= _LARGE_BYTES else _large
    return await asyncio.get_running_loop().run_in_executor(threads, work)
