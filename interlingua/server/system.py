"""Routes that belong to the server itself: health, information and metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

import interlingua
from interlingua.contract.dialect import DialectSettings, Reply
from interlingua.contract.errors import RequestError
from interlingua.dialects import _errors
from interlingua.dialects._bounds import MAX_PROMPTS
from interlingua.dialects._errors import TGI_STATUSES
from interlingua.server.exchange import Exchange
from interlingua.server.kserve import reply_health
from interlingua.server.routes import Plane, SystemRoute
from interlingua.service.metrics import CONTENT_TYPE
from interlingua.service.service import ServedModel, Service

METRICS = "/metrics"
_SHAPE = {**TGI_STATUSES, "forbidden": (403, "forbidden")}  # TGI knows no keys that open some routes alone


def plain_error(error: RequestError) -> Reply:
    """The shape of an error on the server's own routes, and on a path that no dialect claims."""
    return _errors.reply(error, _SHAPE)


class System:
    """The handlers. Holds no state of its own."""

    def __init__(self, service: Service, wire: DialectSettings) -> None:
        self._service = service
        self._wire = wire

    def routes(self) -> Iterator[SystemRoute]:
        """GET `/ping` is TGI's other name for its health, as is `/` (`pages`)."""
        for path in ("/health", "/ping"):
            yield SystemRoute("GET", path, self.health, Plane.SHARED)
        yield SystemRoute("GET", "/info", self.info, Plane.SHARED)
        yield SystemRoute("GET", METRICS, self.metrics, Plane.METRICS)

    async def health(self, exchange: Exchange) -> None:
        """200 and nothing, or 503 with the reason."""
        await reply_health(exchange, self._service)

    async def info(self, exchange: Exchange) -> None:
        """The keys of TGI 3 and 0.9 and of the vendor's server together."""
        await exchange.reply(Reply(200, orjson.dumps(self._info(self._service.loaded()))))

    async def metrics(self, exchange: Exchange) -> None:
        await exchange.reply(Reply(200, self._service.metrics.render(), media_type=CONTENT_TYPE))

    def _info(self, model: ServedModel) -> dict[str, Any]:
        engine = model.engine.info
        room = self._service.room
        return {
            "model_id": model.name,
            "model_sha": None,
            "model_dtype": engine.dtype,
            "model_device_type": engine.device,
            "model_pipeline_tag": "text-generation",
            "max_concurrent_requests": self._service.limits.max_concurrent_requests,
            "max_best_of": self._wire.max_best_of,
            "max_stop_sequences": self._wire.max_stop_sequences,
            "max_input_length": room.prompt,
            "max_input_tokens": room.prompt,
            "max_total_tokens": room.total,
            "max_batch_total_tokens": None,
            "max_waiting_tokens": None,
            "max_client_batch_size": min(MAX_PROMPTS, self._service.limits.max_concurrent_requests),
            "waiting_served_ratio": None,
            "validation_workers": None,
            "router": "interlingua",
            "version": interlingua.__version__,
            "sha": None,
            "docker_label": None,
            "models": [
                {
                    "model_device_type": engine.device,
                    "model_dtype": engine.dtype,
                    "model_id": model.name,
                    "model_pipeline_tag": "text-generation",
                    "model_sha": None,
                    "max_total_tokens": room.total,
                }
            ],
        }
