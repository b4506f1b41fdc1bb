"""A running server: the socket, the loading of the model behind it, signals, and the way down."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Sequence
from typing import TYPE_CHECKING, Any

from uvicorn import Config, Server

from interlingua.contract.errors import AddressInUseError, ModelError
from interlingua.contract.words import counted
from interlingua.server.app import App
from interlingua.server.protocol import protocol_class
from interlingua.server.routes import Plane
from interlingua.server.settings import ServerSettings
from interlingua.service.service import ServedModel, Service

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_log = logging.getLogger(__name__)

Load = Callable[[], Awaitable[ServedModel]]
_LAST_BYTES = 5  # seconds for connections to close after every request has ended
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PULSE = 0.25  # seconds between two looks at whether the engine lives
_PORT_FLAGS = {Plane.DATA: "--port", Plane.MANAGEMENT: "--management-port", Plane.METRICS: "--metrics-port"}
DIED = 1  # exit code when the engine has died: a supervisor should start the server again


class _Server(Server):
    """uvicorn's server inside our own loop: signals are ours, and starting can be waited for.

    Args:
        refresh: called once a second, in a thread: reads keys and certificates again that have changed.
        handshake: seconds that a client has for a handshake of TLS.
    """

    def __init__(self, config: Config, refresh: Callable[[], None], handshake: float) -> None:
        super().__init__(config)
        self._refresh = refresh
        self._handshake = handshake
        self.listening = asyncio.Event()
        self._ended = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])  # of its own it starts none: it would give handshakes a minute

        def protocol() -> asyncio.Protocol:
            made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
                config=self.config, server_state=self.server_state, app_state={}
            )
            return made

        tls = self.config.ssl
        for listener in sockets or ():
            server = await asyncio.get_running_loop().create_server(
                protocol,
                sock=listener,
                ssl=tls,
                ssl_handshake_timeout=self._handshake if tls else None,
                backlog=self.config.backlog,
            )
            self.servers.append(server)
        self.listening.set()

    async def main_loop(self) -> None:
        """Renews the date header, keys and certificates once a second, until `end`."""
        while not await self.on_tick(0):
            await asyncio.to_thread(self._refresh)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), 1.0)

    def end(self) -> None:
        self.should_exit = True
        self._ended.set()


def bind(settings: ServerSettings, plane: Plane = Plane.DATA) -> socket.socket:
    """A bound socket, not listening yet. Raises AddressInUseError, or ModelError for another reason."""
    host, port = settings.own_addresses.get(plane, (settings.host, settings.port))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol must be named: asyncio sets TCP_NODELAY on accepted sockets only if it is, and without that
    # an answer's second packet waits 40 ms for the client's delayed acknowledgement of its first.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as problem:
        listener.close()
        reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
        where = f"cannot listen on {host}:{port}: {reason}"
        if isinstance(problem, OSError) and problem.errno == errno.EADDRINUSE:
            raise AddressInUseError(f"{where}; {_PORT_FLAGS[plane]} chooses another") from None
        raise ModelError(where) from None
    return listener


@contextlib.asynccontextmanager
async def listening(app: App, listener: socket.socket, hurry: asyncio.Event | None = None) -> AsyncIterator[str]:
    """Serves `app` on `listener`, and its other planes at their addresses, while the block runs; yields its URL.

    On leaving, ends what runs: no new requests; running ones get `stop_grace` seconds, or until `hurry` is set; the
    engine then ends the rest with an error event; the connections are closed.

    Raises:
        AddressInUseError: the address of another plane is taken.
        ModelError: gRPC is asked for and not installed.
    """
    settings = app.settings
    async with contextlib.AsyncExitStack() as stack:
        clients = _with_cors(app, settings.cors_allow_origin)
        url = await stack.enter_async_context(_answering(app, clients, listener, app.refresh))
        for plane in settings.own_addresses:
            other = _answering(app, app.at(plane), bind(settings, plane), lambda: None)
            app.addresses[plane.value] = await stack.enter_async_context(other)
        if settings.grpc_port is not None:
            app.addresses["gRPC"] = await stack.enter_async_context(_rpc(app))
        try:
            yield url
        finally:
            await _wind_down(app, hurry or asyncio.Event())


@contextlib.asynccontextmanager
async def _answering(
    app: App, asgi: ASGIApp, listener: socket.socket, refresh: Callable[[], None]
) -> AsyncIterator[str]:
    """Serves `asgi` on `listener` while the block runs, and yields its URL."""
    settings = app.settings
    config = Config(
        asgi,
        http=protocol_class(settings),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",  # its warnings come once for every broken request, and there may be thousands
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=math.ceil(settings.keep_alive_timeout),
        timeout_graceful_shutdown=_LAST_BYTES,
    )
    config.load()
    config.ssl = app.certificates.context if app.certificates else None
    server = _Server(config, refresh, settings.header_timeout)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await _first(serving, server.listening.wait())
        if serving.done():
            await serving  # raises why
        host, port = listener.getsockname()[:2]
        scheme = "https" if app.certificates else "http"
        yield f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
    finally:
        server.end()
        await serving


def _rpc(app: App) -> contextlib.AbstractAsyncContextManager[str]:
    """The gRPC server. Its library is imported here alone: it is an extra, and takes a tenth of a second."""
    try:
        from interlingua.server.rpc.service import listening as rpc_listening
    except ImportError as problem:
        raise ModelError(f"`--grpc-port` needs the extra `grpc`: pip install 'interlingua[grpc]' ({problem})") from None
    return rpc_listening(app, _LAST_BYTES)


def _with_cors(app: App, origins: Sequence[str]) -> ASGIApp:
    """`app` for pages of these origins; without any, no page of another origin can read an answer."""
    if not origins:
        return app
    from starlette.middleware.cors import CORSMiddleware

    return CORSMiddleware(
        app, allow_origins=origins, allow_methods=["*"], allow_headers=["*"], expose_headers=["*"], max_age=600
    )


async def _wind_down(app: App, hurry: asyncio.Event) -> None:
    service = app.service
    service.begin_stop()
    if app.stop.begun.is_set():
        inside = service.inside
        running = f"{counted(inside, 'request')} {'is' if inside == 1 else 'are'}" if inside else "no request is"
        waiting = f", waiting at most {app.settings.stop_grace:g} s" if inside else ""
        _log.info("stopping: %s running%s", running, waiting)
    await _first(service.wait_until_empty(), hurry.wait(), seconds=app.settings.stop_grace)
    if service.inside:
        _log.warning("requests that did not end in time and are cut off: %d", service.inside)
    if service.model is not None:
        await service.model.engine.stop()
    service.close()


async def _first(*waits: Coroutine[Any, Any, object] | asyncio.Future[Any], seconds: float | None = None) -> None:
    """Returns when one of `waits` is over, or after `seconds`. Cancels the coroutines, not the futures."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task, wait in zip(tasks, waits, strict=True):
            if task is not wait:
                task.cancel()


async def _death(service: Service) -> None:
    """Returns when the engine has died. It has ended its requests by then; nothing can be served any more."""
    # A dead thread sets no event.
    while service.model is None or service.model.engine.failure is None:  # noqa: ASYNC110
        await asyncio.sleep(_PULSE)
    _log.error("the engine has died (%r): the server ends with exit code %d", service.model.engine.failure, DIED)


async def serve(app: App, load: Load, on_ready: Callable[[str], None] | None = None) -> int:
    """Serves until SIGINT, SIGTERM or a route ends it: opens the port, loads the model behind it, waits, ends.

    A second signal ends without waiting for running requests. If the engine dies, the server ends by itself.
    SIGHUP reads keys and certificates again.

    Args:
        load: makes the served model, its engine started. May take long; blocks the event loop nowhere.
        on_ready: called with the server's URL when requests are served.

    Returns:
        The exit code: 0 after a signal, `DIED` after the engine's death.

    Raises:
        AddressInUseError: the port is taken.
        ModelError: `load` raised it.
    """
    listener = bind(app.settings)
    if app.settings.open_to_all:
        _log.warning(
            "%s is reachable from other machines with neither keys nor TLS: everyone there may use it "
            "(--api-key-file, --tls-certificate)",
            app.settings.host,
        )
    stop, hurry = app.stop.begun, app.stop.hurry
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    def on_hangup() -> None:
        loop.run_in_executor(None, app.refresh, True)

    for number, handler in zip(_SIGNALS, (on_signal, on_signal, on_hangup), strict=True):
        loop.add_signal_handler(number, handler)
    try:
        async with listening(app, listener, hurry) as url:
            loading = asyncio.ensure_future(load())
            try:
                await _first(loading, stop.wait())
                if not loading.done():
                    return 0
                app.service.attach(loading.result())
                if on_ready is not None:
                    on_ready(url)
                await _first(stop.wait(), _death(app.service))
            finally:
                loading.cancel()
        return DIED if loading.result().engine.failure is not None else 0
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def run(app: App, load: Load, on_ready: Callable[[str], None] | None = None) -> int:
    """`serve` in a new uvloop, from a program's main thread. Returns its exit code."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            code = runner.run(serve(app, load, on_ready))
        finally:
            for number in _SIGNALS:  # all is over: one that comes now must not change the exit code
                signal.signal(number, signal.SIG_IGN)
    _log.info("ended with exit code %d", code)
    return code
