"""A server in the test's own event loop, on a free port, over the scripted engine."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from byte_model import House, house
from sockets import Answer, Connection, ask

from interlingua.server.app import App, build_app
from interlingua.server.routes import discover
from interlingua.server.run import bind, listening
from interlingua.server.settings import ServerSettings


@dataclass(slots=True)
class Site:
    """A running server and what stands behind it."""

    home: House
    app: App
    port: int

    async def ask(self, method: str, path: str, body: object = b"") -> Answer:
        return await ask(self.port, method, path, body)

    async def post(self, path: str, body: object) -> Answer:
        return await ask(self.port, "POST", path, body)

    async def connect(self) -> Connection:
        return await Connection.open(self.port)


Start = Callable[..., Awaitable[Site]]


async def starting() -> AsyncIterator[Start]:
    """Starts servers, and stops them when the test ends.

    Arguments are those of `byte_model.house`; `server` holds fields of ServerSettings, `dialects` replaces
    the discovered ones, `wire` holds the dialects' settings.
    """
    async with contextlib.AsyncExitStack() as stack:

        async def begin(
            *args: Any, server: dict[str, Any] | None = None, dialects: Any = None, wire: Any = None, **more: Any
        ) -> Site:
            home = house(*args, **more)
            settings = ServerSettings(**{"port": 0, "stop_grace": 0.2, **(server or {})})
            app = build_app(home.service, discover() if dialects is None else dialects, settings, wire)
            listener = bind(settings)
            port = listener.getsockname()[1]
            await stack.enter_async_context(listening(app, listener))
            return Site(home, app, port)

        yield begin
