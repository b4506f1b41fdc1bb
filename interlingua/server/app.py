"""The ASGI application: every dialect's routes over one service.

`App` owns the way of a request through the server room: an id, the route, the key, the body, the dialect's
`decode`, then the service; and back through the dialect's encoder. Whatever goes wrong on it is answered in
the shape of the dialect whose path it is.
"""

from __future__ import annotations

import dataclasses
import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from interlingua.contract.dialect import Call, Dialect, DialectSettings, Route, WireRequest
from interlingua.contract.errors import (
    MethodNotAllowedError,
    NotFoundError,
    RequestError,
    ValidationError,
)
from interlingua.contract.request import GenerationRequest
from interlingua.contract.words import counted
from interlingua.dialects._json import cut
from interlingua.server.control import Control, Stop
from interlingua.server.exchange import Exchange, Presence
from interlingua.server.keys import Keys
from interlingua.server.kserve import KServe
from interlingua.server.middleware import ClientLeftError, beside, check_key, read_body
from interlingua.server.models import Models
from interlingua.server.pages import Pages
from interlingua.server.responses import Batches, answer_stream, answer_whole
from interlingua.server.routes import Endpoint, Handler, Plane, RenderError, RouteTable, SystemRoute, paths_of
from interlingua.server.settings import ServerSettings
from interlingua.server.system import METRICS, System, plain_error
from interlingua.server.tls import Certificates
from interlingua.server.together import together
from interlingua.server.tokens import Tokens
from interlingua.service.service import ServedModel, Service

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_log = logging.getLogger(__name__)


class Witness(Protocol):
    """Something that wants to know of requests: a log, a tracer."""

    def ended(self, exchange: Exchange) -> None:
        """The answer is complete, or the client has left. Must not raise, nor block the event loop."""
        ...


class App:
    """The ASGI application. Build it with `build_app`."""

    def __init__(
        self,
        service: Service,
        dialects: Sequence[Dialect],
        settings: ServerSettings,
        wire: DialectSettings,
    ) -> None:
        self.service = service
        self.settings = settings
        self.witnesses: list[Witness] = []  # told of each request that has ended; empty = it costs nothing
        self.keys = Keys(settings.api_key, settings.api_key_file)
        self.certificates = Certificates.of(settings)
        self._dialects = tuple(dialects)
        self._wire = wire
        self.stop = Stop()
        self.addresses: dict[str, str] = {}  # of other planes and of gRPC, by name; filled while it serves
        self.admin_keys = Keys(settings.admin_key, settings.admin_key_file)
        self._tables = {plane: RouteTable() for plane in (Plane.DATA, *settings.own_addresses)}
        self._told: ServedModel | None = None  # the model that `_wire` knows of
        for dialect in self._dialects:
            for route in dialect.routes:
                endpoint = Endpoint(self._generation(dialect, route), dialect.render_error, route.path)
                for path in paths_of(dialect, route.path):
                    self._tables[Plane.DATA].add(route.method, path, endpoint)
        self.system_routes = (
            *System(service, wire).routes(),
            *Tokens(service, settings, self.keys, wire, self.served_settings).routes(),
            *KServe(service, settings, self.keys, wire).routes(),
            *Control(service, settings, self.admin_keys, wire, self.stop).routes(),
            *Models(service, self.keys).routes(),
            *(route for plane in self._tables if plane is not Plane.METRICS for route in self._pages(plane).routes()),
        )
        for own in self.system_routes:
            for plane in self._homes(own.plane):
                self._tables[plane].add(own.method, own.path, Endpoint(own.handler, self._shape_of(own), own.path))

    def _pages(self, plane: Plane) -> Pages:
        return Pages(
            self.service, self._dialects, self._wire, self.keys, self.admin_keys, plane, self._tables[plane].templates
        )

    def refresh(self, force: bool = False) -> None:
        """Reads keys and certificates again whose files have changed, or all. For any thread; blocks on the disk."""
        self.keys.refresh(force)
        self.admin_keys.refresh(force)
        if self.certificates is not None:
            self.certificates.refresh(force)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application as clients see it."""
        await self._answer(scope, receive, send, self._tables[Plane.DATA])

    def at(self, plane: Plane) -> ASGIApp:
        """The application as it is seen at the address of `plane`."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await self._answer(scope, receive, send, self._tables[plane])

        return app

    def _homes(self, plane: Plane) -> Sequence[Plane]:
        """The addresses at which a route of `plane` stands: its own, or the next best."""
        if plane is Plane.SHARED:
            return [home for home in self._tables if home is not Plane.METRICS]
        homes = {
            Plane.DATA: (Plane.DATA,),
            Plane.MANAGEMENT: (Plane.MANAGEMENT, Plane.DATA),
            Plane.METRICS: (Plane.METRICS, Plane.MANAGEMENT, Plane.DATA),
        }[plane]
        return [next(home for home in homes if home in self._tables)]

    async def _answer(self, scope: Scope, receive: Receive, send: Send, table: RouteTable) -> None:
        if scope["type"] == "http":
            await self._http(Exchange(scope, receive, send, secrets.token_hex(16)), table)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        else:
            while (await receive())["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})

    async def _http(self, exchange: Exchange, table: RouteTable) -> None:
        try:
            await self._route(exchange, table)
        finally:
            for witness in self.witnesses:
                witness.ended(exchange)

    async def _route(self, exchange: Exchange, table: RouteTable) -> None:
        endpoints, exchange.path_params = table.find(exchange.path)
        method = "GET" if exchange.method == "HEAD" else exchange.method
        endpoint = endpoints.get(method)
        if endpoint is None:
            await self._no_route(exchange, endpoints)
            return
        exchange.route = endpoint.path
        try:
            await endpoint.handler(exchange)
        except RequestError as error:
            await self._refuse(exchange, error, endpoint.render_error)
        except ClientLeftError as error:
            exchange.failure = error.kind
            self.service.metrics.refused(error.kind)
        except Exception:
            exchange.failure = RequestError.kind
            _log.exception(
                "%s %s failed, request %s",
                *(exchange.method, exchange.shown_path, exchange.shown_id),
                extra={"request_id": exchange.request_id},
            )
            if exchange.started:
                raise  # the connection is cut: the client must not take half an answer for a whole one
            await exchange.reply(endpoint.render_error(RequestError("the request failed inside the server")))

    async def _no_route(self, exchange: Exchange, endpoints: Mapping[str, Endpoint]) -> None:
        error: RequestError
        path = cut(exchange.path)
        if endpoints:
            allowed = tuple(sorted(endpoints))
            error = MethodNotAllowedError(f"{path} takes {' and '.join(allowed)}, not {exchange.method}", allowed)
            render_error = next(iter(endpoints.values())).render_error
        else:
            error = NotFoundError(f"there is nothing at {path}{self._elsewhere(exchange.path)}")
            render_error = self._shape_at(exchange.path)
        await self._refuse(exchange, error, render_error)

    async def _refuse(self, exchange: Exchange, error: RequestError, render_error: RenderError) -> None:
        exchange.failure = error.kind
        self.service.metrics.refused(error.kind)
        await exchange.reply(render_error(error))

    def _elsewhere(self, path: str) -> str:
        """Where the metrics are, for those who look for them at a wrong address. Of no other route are clients told."""
        if path != METRICS:
            return ""
        home = self._homes(Plane.METRICS)[0]
        _, port = self.settings.own_addresses.get(home, (self.settings.host, self.settings.port))
        port = port or urlsplit(self.addresses.get(home.value, "")).port or 0  # 0: it was any free one
        return f"; it stands at port {port} (--{home.value}-port)"

    def _shape_of(self, route: SystemRoute) -> RenderError:
        return plain_error if route.plane is Plane.MANAGEMENT else self._shape_at(route.path)

    def _shape_at(self, path: str) -> RenderError:
        """The error shape of the dialect whose prefix or own rule claims `path`."""
        for dialect in self._dialects:
            if dialect.prefix and (path + "/").startswith(dialect.prefix + "/"):
                return dialect.render_error
        for dialect in self._dialects:
            if dialect.owns(path):
                return dialect.render_error
        return plain_error

    def _generation(self, dialect: Dialect, route: Route) -> Handler:
        async def handle(exchange: Exchange) -> None:
            check_key(exchange, self.keys)
            self.service.loaded()  # before the body is read
            body = await read_body(exchange, self.settings.payload_limit)
            call = await self._decode(exchange, route, body)
            answer = answer_stream if call.stream else answer_whole
            with Presence(exchange):
                batches = self._events(call, exchange)
                try:
                    await answer(exchange, call, batches, dialect.render_error)
                finally:
                    await batches.aclose()

        return handle

    def _events(self, call: Call, exchange: Exchange) -> Batches:
        def generate(request: GenerationRequest) -> Batches:
            return self.service.generate(request, exchange.arrived, exchange.ended, exchange.caller_id)

        if not call.more:
            return generate(call.request)
        most = self.service.limits.max_concurrent_requests
        if call.choices > most:  # as for `n`: to wait and ask again would never help
            field = call.request.prompt.field.partition("[")[0]
            problem = (
                f"must ask for at most {counted(most, 'answer')}, which the server runs at once, got {call.choices}"
            )
            raise ValidationError(field, problem)
        return together(call, generate)

    async def _decode(self, exchange: Exchange, route: Route, body: bytes) -> Call:
        request = WireRequest(
            method=exchange.method,
            path=exchange.path,
            path_params=exchange.path_params,
            headers=exchange.headers,
            body=body,
            request_id=exchange.request_id,
            received=int(time.time()),
        )
        settings = self.served_settings()
        return await beside(len(body), lambda: route.decode(request, settings))

    def served_settings(self) -> DialectSettings:
        """The dialects' settings with what only the loaded model knows."""
        model = self.service.model
        if model is not None and model is not self._told:
            self._told = model
            self._wire = dataclasses.replace(
                self._wire,
                model_name=model.name,
                vocab_size=model.engine.info.vocab_size,
                chat=model.chat.format,
            )
        return self._wire


def build_app(
    service: Service,
    dialects: Sequence[Dialect],
    settings: ServerSettings | None = None,
    wire: DialectSettings | None = None,
) -> App:
    """The application over `service`.

    Args:
        wire: what the dialects are told; its `model_name` and `vocab_size` are replaced by the loaded
        model's.

    Raises:
        ValueError: two routes stand at the same method and path.
        ModelError: a file of the settings cannot be read.
    """
    return App(
        service,
        dialects,
        settings or ServerSettings(),
        wire or DialectSettings(model_name="", vocab_size=0),
    )
