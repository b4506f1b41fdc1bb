"""What runs the server from outside: the probe, the state, adapters, and the way to stop it.

These routes stand on the management address when one is set. Without one they stand beside all others, and those
that change the server's state ask for the admin key; without a key either, they are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import orjson

from interlingua.contract.dialect import DialectSettings, Reply
from interlingua.contract.errors import (
    ForbiddenError,
    InterlinguaError,
    NotFoundError,
    UnavailableError,
    ValidationError,
)
from interlingua.dialects._control_table import COLUMN, LORA_NAME, LORA_PATH, MASTER_MODELS
from interlingua.dialects._fields import Field, read_field
from interlingua.dialects._json import Document, cut, parse_object, show
from interlingua.server.exchange import Exchange
from interlingua.server.keys import Keys
from interlingua.server.middleware import beside, check_key, read_body
from interlingua.server.routes import Plane, SystemRoute
from interlingua.server.settings import ServerSettings
from interlingua.service.service import Service, State

_TIMED = re.compile(r"timed(?:-([0-9]{1,3}))?")
_LONGEST_PROBE = 600  # seconds
_PROBE = 10


@dataclass(slots=True)
class Stop:
    """How the server is asked to end: `begun` by a signal or a route; `hurry` by a second one, or by force."""

    begun: asyncio.Event = field(default_factory=asyncio.Event)
    hurry: asyncio.Event = field(default_factory=asyncio.Event)


class Control:
    """The handlers."""

    def __init__(
        self, service: Service, settings: ServerSettings, admin_keys: Keys, wire: DialectSettings, stop: Stop
    ) -> None:
        self._service = service
        self._settings = settings
        self._admin_keys = admin_keys
        self._wire = wire
        self._stop = stop

    def routes(self) -> Iterator[SystemRoute]:
        for method, path, handler in (
            ("GET", "/health/{probe}", self.timed),
            ("GET", "/stopService", self.stop_service),
            ("GET", "/v1/config", self.config),
            ("GET", "/v1/status", self.status),
            ("GET", "/v2/status", self.status),
            ("GET", "/metrics-json", self.metrics),
            ("POST", "/v1/load_lora_adapter", self.load_adapter),
            ("POST", "/v1/unload_lora_adapter", self.unload_adapter),
        ):
            yield SystemRoute(method, path, handler, Plane.MANAGEMENT)

    # --- health and the end ---------------------------------------------------------------------------------

    async def timed(self, exchange: Exchange) -> None:
        """`timed` or `timed-T`: has the engine make a token within T seconds (1 to 600, 10 if not said)."""
        match = _TIMED.fullmatch(exchange.path_params["probe"])
        seconds = int(match[1] or _PROBE) if match else 0
        if not 1 <= seconds <= _LONGEST_PROBE:
            path = cut(exchange.path)
            raise NotFoundError(f"there is nothing at {path}: /health/timed-T takes T from 1 to {_LONGEST_PROBE}")
        try:
            await self._service.probe(seconds)
        except InterlinguaError as error:
            raise UnavailableError(error.message) from None
        await exchange.reply(_json({"status": "healthy"}))

    async def stop_service(self, exchange: Exchange) -> None:
        """Refuses new requests at once; answers when those inside have ended; then the server ends."""
        self._check_admin(exchange)
        mode = parse_qs(exchange.query, keep_blank_values=True).get("mode", [""])[-1]
        if mode not in ("", "Force"):
            raise ValidationError("mode", f"must be Force or absent, got {show(mode)}")
        if self._service.state is State.STOPPING:
            raise UnavailableError("the server is stopping already")
        self._service.begin_stop()
        try:
            if not mode:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._service.wait_until_empty(), self._settings.stop_grace)
            await exchange.reply(Reply(200, b""))
        finally:
            if mode:
                self._stop.hurry.set()
            self._stop.begun.set()

    # --- state ----------------------------------------------------------------------------------------------

    async def config(self, exchange: Exchange) -> None:
        model, room = self._service.loaded(), self._service.room
        await exchange.reply(
            _json(
                {
                    "modelName": model.name,
                    "maxSeqLen": room.total,
                    "npuMemSize": -1,  # sized at start, out of the memory that is free then
                    "cpuMemSize": 0,  # nothing is swapped out
                    "worldSize": 1,
                    "maxOutputLen": room.output,
                    "cacheBlockSize": model.engine.stats().kv_block_tokens,
                }
            )
        )

    async def status(self, exchange: Exchange) -> None:
        """The pool of KV blocks stands under the names of the device's memory; there is no second one to swap to."""
        model, service = self._service.loaded(), self._service
        stats = model.engine.stats()
        free_blocks = stats.kv_blocks_total - stats.kv_blocks_used
        ready = service.ill_health() is None
        await exchange.reply(
            _json(
                {
                    "service": {"roleStatus": "RoleReady" if ready else "RoleUnknown", "currentRole": "none"},
                    "resource": {
                        "availSlotsNum": max(0, service.limits.max_concurrent_requests - service.inside),
                        "availBlockNum": free_blocks,
                        "waitingRequestNum": stats.waiting,
                        "runningRequestNum": stats.running,
                        "swappedRequestNum": 0,
                        "freeNpuBlockNums": free_blocks,
                        "freeCpuBlockNums": 0,
                        "totalNpuBlockNums": stats.kv_blocks_total,
                        "totalCpuBlockNums": 0,
                    },
                    "linkStatus": {"peers": []},
                }
            )
        )

    async def metrics(self, exchange: Exchange) -> None:
        """TTFT and TBT are means over the last 1,000 answers, in whole milliseconds; 0 before the first one."""
        stats = self._service.loaded().engine.stats()
        recent = self._service.metrics.recent
        values = {
            "TTFT": recent.first_token_ms,
            "TBT": recent.between_tokens_ms,
            "waitingInferRequestNum": stats.waiting,
            "processingInferRequestNum": stats.running,
            "remainBlocks": stats.kv_blocks_total - stats.kv_blocks_used,
        }
        settings = self._settings
        host, port = settings.host, settings.port
        if settings.management_port is not None:
            host, port = settings.management_host, settings.management_port
        result = [
            {"metric": [{"__name__": name, "job": "node", "instance": f"{host}:{port}"}], "value": str(round(value))}
            for name, value in values.items()
        ]
        await exchange.reply(_json({"resultType": "vector", "result": result}))

    # --- adapters -------------------------------------------------------------------------------------------

    async def load_adapter(self, exchange: Exchange) -> None:
        document = await self._body(exchange)
        name, path = self._required(document, LORA_NAME), self._required(document, LORA_PATH)
        self._check_master(document)
        document.close()
        adapter = await self._service.load_adapter(name, path)
        await exchange.reply(_text(f"Success: LoRA adapter '{adapter.name}' added successfully."))

    async def unload_adapter(self, exchange: Exchange) -> None:
        document = await self._body(exchange)
        name = self._required(document, LORA_NAME)
        document.close()
        await self._service.unload_adapter(name)
        await exchange.reply(_text(f"Success: LoRA adapter '{name}' removed successfully."))

    def _check_master(self, document: Document) -> None:
        """The model that the adapter is for, when named, is the served one."""
        served = self._service.loaded().name
        for row in MASTER_MODELS:
            named = read_field(document, row, COLUMN, self._wire)
            if named is not None and named != served:
                problem = f"must be the served model, {show(served)}, got {show(named)}"
                raise ValidationError(row.name, problem)

    # --- common ---------------------------------------------------------------------------------------------

    async def _body(self, exchange: Exchange) -> Document:
        self._check_admin(exchange)
        body = await read_body(exchange, self._settings.payload_limit)
        return await beside(len(body), lambda: parse_object(body, self._wire.max_json_depth))

    def _required(self, document: Document, row: Field) -> Any:
        value = read_field(document, row, COLUMN, self._wire)
        if value is None:
            raise ValidationError(row.name, "is required")
        return value

    def _check_admin(self, exchange: Exchange) -> None:
        """Raises UnauthorizedError without the admin key; ForbiddenError when there is none and clients come here, or a
        page of another origin that the operator has open: it can send GET, and needs no answer."""
        if not self._admin_keys.asked_for and self._settings.management_port is None:
            raise ForbiddenError(
                "this changes the server's state: it needs the admin key, or an address of its own; "
                "the server was started with neither --admin-key nor --management-port"
            )
        page = exchange.headers.get("sec-fetch-site", "none")  # what every browser says, and nobody else
        if not self._admin_keys.asked_for and page not in ("none", "same-origin"):
            raise ForbiddenError("this changes the server's state, and a page of another origin asks for it")
        check_key(exchange, self._admin_keys)


def _json(value: object) -> Reply:
    return Reply(200, orjson.dumps(value))


def _text(sentence: str) -> Reply:
    return Reply(200, sentence.encode(), media_type="text/plain; charset=utf-8")
