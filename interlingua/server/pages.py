"""Pages for people, at each address of its own: what stands at `/` for a browser, and the API page.

Each is whole in itself. Nothing that a document or a name says can make it load more, or send anything elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from html import escape
from pathlib import Path
from string import Template

import orjson

import interlingua
from interlingua.contract.dialect import Dialect, DialectSettings, Reply
from interlingua.contract.errors import UnavailableError
from interlingua.server import openapi
from interlingua.server.exchange import Exchange
from interlingua.server.keys import Keys
from interlingua.server.kserve import reply_health
from interlingua.server.routes import Plane, SystemRoute
from interlingua.service.service import Service

API_PAGE = Path(__file__).with_name("page.html")
HOME_PAGE = Path(__file__).with_name("home.html")
API_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:"
)
HOME_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_HTML = "text/html; charset=utf-8"
_LINKS = (
    ("/docs", "every route of this address, to read and to try"),
    ("/openapi.json", "the same for programs"),
    ("/info", "the model and its limits"),
    ("/metrics", "counters and gauges for Prometheus"),
    ("/v1/status", "what runs, what waits, and what KV memory is free"),
)
# What a page asks for names HTML; probes and programs say `*/*`, or nothing.
_WANTS_HTML = re.compile(r"(?:^|,)\s*text/html\s*(?:$|[,;])", re.IGNORECASE)


class Pages:
    """The handlers of one address.

    Args:
        served: methods and paths of all that stands at this address, as they are when a page is asked for.
    """

    def __init__(
        self,
        service: Service,
        dialects: Sequence[Dialect],
        wire: DialectSettings,
        keys: Keys,
        admin_keys: Keys,
        plane: Plane,
        served: Set[tuple[str, str]],
    ) -> None:
        self._service = service
        self._dialects = dialects
        self._wire = wire
        self._keys = keys
        self._admin_keys = admin_keys
        self._plane = plane
        self._served = served

    def routes(self) -> Iterator[SystemRoute]:
        for path, handler in (("/", self.home), ("/openapi.json", self.openapi), ("/docs", self.docs)):
            yield SystemRoute("GET", path, handler, self._plane)

    async def home(self, exchange: Exchange) -> None:
        """TGI's other name for its health; the same status with a page for a browser, whose user would see nothing."""
        if not _WANTS_HTML.search(exchange.headers.get("accept", "")):
            await reply_health(exchange, self._service)
            return
        problem = self._service.ill_health()
        if problem is not None:
            exchange.failure = UnavailableError.kind
        page = Template(HOME_PAGE.read_text(encoding="utf-8")).substitute(
            version=interlingua.__version__,
            state=self._state(problem),
            links="\n".join(
                f'  <li><a href="{path[1:]}">{path}</a> {about}'
                for path, about in _LINKS
                if ("GET", path) in self._served
            ),
        )
        headers = (("content-security-policy", HOME_POLICY), ("cache-control", "no-store"), ("vary", "accept"))
        await exchange.reply(Reply(200 if problem is None else 503, page.encode(), headers, _HTML))

    async def openapi(self, exchange: Exchange) -> None:
        document = openapi.document(
            self._dialects,
            self._wire,
            key=self._keys.asked_for,
            admin_key=self._admin_keys.asked_for,
            served=self._served,
        )
        await exchange.reply(Reply(200, orjson.dumps(document)))

    async def docs(self, exchange: Exchange) -> None:
        headers = (("content-security-policy", API_POLICY),)
        await exchange.reply(Reply(200, API_PAGE.read_bytes(), headers, _HTML))

    def _state(self, problem: str | None) -> str:
        """In HTML. Names of adapters are not in it: where keys are asked for, they are not for everyone."""
        model = self._service.model
        if problem is not None or model is None:
            return f"No requests can be served now: {escape(problem or 'the model is loading')}."
        room, address = f"{self._service.room.total:,}", ""
        if self._plane is Plane.MANAGEMENT:
            address = " at another address; this one is for those who run the server"
        return f"Serves <strong>{escape(model.name)}</strong>, {room} tokens of context{address}."
