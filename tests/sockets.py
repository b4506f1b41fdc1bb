"""HTTP/1.1 over bare sockets, for tests that must see every byte and leave in every way."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The JSON of every SSE event; fails on anything else between them."""
        frames = self.body.decode().split("\n\n")
        assert frames.pop() == ""
        assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames), frames
        return [json.loads(frame.removeprefix("data: ")) for frame in frames]


class Connection:
    """One connection to the server under test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> Connection:
        return cls(*await asyncio.open_connection(host, port, ssl=tls))

    def send_head(self, method: str, path: str, *headers: str) -> None:
        lines = (f"{method} {path} HTTP/1.1", "host: test", *headers, "", "")
        self.writer.write("\r\n".join(lines).encode())

    def send(self, method: str, path: str, body: object = b"") -> None:
        """A whole request; `body` as JSON unless it is bytes."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_head(method, path, f"content-length: {len(data)}")
        self.writer.write(data)

    async def read_head(self) -> tuple[int, dict[str, str]]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        return int(head[0].split()[1]), headers

    async def pieces(self, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
        """The body as it was sent, piece by piece."""
        if "content-length" in headers:
            yield await self.reader.readexactly(int(headers["content-length"]))
            return
        assert headers["transfer-encoding"] == "chunked"
        while size := int(await self.reader.readline(), 16):
            yield await self.reader.readexactly(size)
            await self.reader.readexactly(2)
        assert await self.reader.readexactly(2) == b"\r\n"

    async def answer(self) -> Answer:
        status, headers = await self.read_head()
        body = b"".join([piece async for piece in self.pieces(headers)])
        return Answer(status, headers, body)

    async def ask(self, method: str, path: str, body: object = b"") -> Answer:
        self.send(method, path, body)
        return await self.answer()

    def close(self) -> None:
        """Leaves politely (FIN)."""
        self.writer.close()

    def reset(self) -> None:
        """Leaves with a reset (RST)."""
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


async def ask(port: int, method: str, path: str, body: object = b"") -> Answer:
    """One request on a connection of its own."""
    connection = await Connection.open(port)
    try:
        return await asyncio.wait_for(connection.ask(method, path, body), 60)
    finally:
        connection.close()
