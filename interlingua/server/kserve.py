"""KServe v2 and Triton beside inference: health, metadata, the index of models, and stopping a request.

The documents are plain dictionaries under the protocol's names, so that gRPC answers with the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

import interlingua
from interlingua.contract.dialect import DialectSettings, Reply
from interlingua.contract.errors import NotFoundError, UnavailableError, ValidationError
from interlingua.dialects._fields import read_field
from interlingua.dialects._json import parse_object
from interlingua.dialects._kserve_table import INPUT_FIELDS, OUTPUT_FIELDS, READY, TensorField
from interlingua.dialects._tensors import BOOL, BYTES, UINT32
from interlingua.dialects._triton_table import COLUMN, ID
from interlingua.dialects.triton import VERSION, check_model
from interlingua.server.exchange import Exchange
from interlingua.server.keys import Keys
from interlingua.server.middleware import beside, check_key, read_body
from interlingua.server.routes import Plane, SystemRoute
from interlingua.server.settings import ServerSettings
from interlingua.service.prepare import Room
from interlingua.service.service import ServedModel, Service

NAME = "interlingua"
EXTENSIONS = ("binary_tensor_data", "generate", "model_configuration", "parameters")
_CONFIG_TYPES = {BYTES: "TYPE_STRING", BOOL: "TYPE_BOOL", UINT32: "TYPE_UINT32"}
_MODEL = "/v2/models/{model}"


def server_metadata() -> dict[str, Any]:
    return {"name": NAME, "version": interlingua.__version__, "extensions": list(EXTENSIONS)}


def model_metadata(model: ServedModel) -> dict[str, Any]:
    def tensor(field: TensorField) -> dict[str, Any]:
        return {"name": field.name, "datatype": field.datatype, "shape": list(field.shape)}

    return {
        "name": model.name,
        "versions": [VERSION],
        "platform": NAME,
        "inputs": [tensor(field) for field in INPUT_FIELDS],
        "outputs": [tensor(field) for field in OUTPUT_FIELDS],
    }


def model_config(model: ServedModel) -> dict[str, Any]:
    """Triton's ModelConfig. `decoupled`: a stream has a response for each token."""

    def tensor(field: TensorField) -> dict[str, Any]:
        return {"name": field.name, "data_type": _CONFIG_TYPES[field.datatype], "dims": list(field.shape)}

    return {
        "name": model.name,
        "platform": NAME,
        "backend": NAME,
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": 0,
        "input": [tensor(field) | {"optional": True} for field in INPUT_FIELDS],
        "output": [tensor(field) for field in OUTPUT_FIELDS],
        "model_transaction_policy": {"decoupled": True},
    }


def vendor_config(model: ServedModel, room: Room) -> dict[str, Any]:
    """The vendor's keys of a model's configuration. One process; memory is sized at start (-1), none is swap."""
    return {
        "model_name": model.name,
        "input_datatype": UINT32,
        "output_datatype": UINT32,
        "max_seq_len": room.total,
        "npu_mem_size": -1,
        "cpu_mem_size": 0,
        "world_size": 1,
        "model_weight_path": model.source.rstrip("/").rpartition("/")[2],
        "model_instance_type": "Standard",
    }


def repository_index(service: Service) -> list[dict[str, Any]]:
    """The models and whether they can be used. Empty while the only one loads: its name comes with it."""
    model = service.model
    if model is None:
        return []
    problem = service.ill_health()
    state = "READY" if problem is None else "UNAVAILABLE"
    return [{"name": model.name, "version": VERSION, "state": state, "reason": problem or ""}]


class KServe:
    """The handlers. Holds no state of its own."""

    def __init__(self, service: Service, settings: ServerSettings, keys: Keys, wire: DialectSettings) -> None:
        self._service = service
        self._settings = settings
        self._keys = keys
        self._wire = wire

    def routes(self) -> Iterator[SystemRoute]:
        """Each at its own path and below Triton's prefix, as the generation routes stand."""
        for prefix in ("", "/triton"):
            yield SystemRoute("GET", f"{prefix}/v2", self.server, Plane.SHARED)
            yield SystemRoute("GET", f"{prefix}/v2/health/live", self.live, Plane.SHARED)
            yield SystemRoute("GET", f"{prefix}/v2/health/ready", self.ready, Plane.SHARED)
            yield SystemRoute("POST", f"{prefix}/v2/repository/index", self.index)
            yield SystemRoute("POST", f"{prefix}{_MODEL}/stopInfer", self.stop_infer)
            yield SystemRoute("GET", f"{prefix}{_MODEL}/getSlotCount", self.slots, Plane.MANAGEMENT)
            for model in (_MODEL, _MODEL + "/versions/{version}"):
                yield SystemRoute("GET", f"{prefix}{model}", self.model)
                yield SystemRoute("GET", f"{prefix}{model}/config", self.config)
                yield SystemRoute("GET", f"{prefix}{model}/ready", self.model_ready, Plane.SHARED)

    async def live(self, exchange: Exchange) -> None:
        """200 as soon as the port is open."""
        await exchange.reply(Reply(200, b""))

    async def ready(self, exchange: Exchange) -> None:
        """200 and nothing, or 503 with the reason."""
        await reply_health(exchange, self._service)

    async def model_ready(self, exchange: Exchange) -> None:
        """As `ready`, and 404 for a model that is not served."""
        if self._service.model is not None:
            self._served(exchange)
        await self.ready(exchange)

    async def server(self, exchange: Exchange) -> None:
        await exchange.reply(_json(server_metadata()))

    async def model(self, exchange: Exchange) -> None:
        await exchange.reply(_json(model_metadata(self._served(exchange))))

    async def config(self, exchange: Exchange) -> None:
        model = self._served(exchange)
        await exchange.reply(_json(model_config(model) | vendor_config(model, self._service.room)))

    async def index(self, exchange: Exchange) -> None:
        check_key(exchange, self._keys)
        body = await read_body(exchange, self._settings.payload_limit)
        only_ready = False
        if body.strip():  # clients send nothing at all as well
            document = await beside(len(body), lambda: parse_object(body, self._wire.max_json_depth))
            only_ready = read_field(document, READY, COLUMN, self._wire) or False
            document.close()
        models = repository_index(self._service)
        await exchange.reply(_json([model for model in models if not only_ready or model["state"] == "READY"]))

    async def stop_infer(self, exchange: Exchange) -> None:
        """Ends a running request by the client's id or by that of `x-request-id`; answers with the body as sent."""
        check_key(exchange, self._keys)
        self._served(exchange)
        body = await read_body(exchange, self._settings.payload_limit)
        document = await beside(len(body), lambda: parse_object(body, self._wire.max_json_depth))
        name = read_field(document, ID, COLUMN, self._wire)
        document.close()
        if name is None:
            raise ValidationError(ID.name, "is required")
        if not self._service.stop_request(name):
            raise NotFoundError(f'no request "{name}" is running')
        await exchange.reply(Reply(200, document.raw))

    async def slots(self, exchange: Exchange) -> None:
        """A slot is a place inside the server, running or waiting."""
        model = self._served(exchange)
        total = self._service.limits.max_concurrent_requests
        stats = model.engine.stats()
        free_blocks = stats.kv_blocks_total - stats.kv_blocks_used
        await exchange.reply(
            _json(
                {
                    "total_slots": total,
                    "free_slots": max(0, total - self._service.inside),
                    "available_tokens_length": free_blocks * stats.kv_block_tokens,
                }
            )
        )

    def _served(self, exchange: Exchange) -> ServedModel:
        """The model that the path names. Raises NotFoundError, UnavailableError."""
        model = self._service.loaded()
        check_model(model.name, **exchange.path_params)
        return model


async def reply_health(exchange: Exchange, service: Service) -> None:
    """200 and nothing, or 503 with the reason; not counted among the requests that failed."""
    problem = service.ill_health()
    if problem is None:
        await exchange.reply(Reply(200, b""))
    else:
        exchange.failure = UnavailableError.kind
        await exchange.reply(Reply(503, orjson.dumps({"error": problem, "error_type": "healthcheck"})))


def _json(value: object) -> Reply:
    return Reply(200, orjson.dumps(value))
