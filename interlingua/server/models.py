"""OpenAI's list of models: the served one, and each loaded adapter."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import orjson

from interlingua.contract.dialect import Reply
from interlingua.contract.errors import UnknownModelError
from interlingua.dialects._json import cut
from interlingua.dialects._openai_openapi import ERROR
from interlingua.server.exchange import Exchange
from interlingua.server.keys import Keys
from interlingua.server.middleware import check_key
from interlingua.server.routes import SystemRoute
from interlingua.service import adapters
from interlingua.service.service import Service

_OWNER = "interlingua"
_TEXT = {"type": "string"}
_MODEL = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by", "root", "parent", "max_model_len"],
    "properties": {
        "id": _TEXT,
        "object": _TEXT,
        "created": {"type": "integer"},
        "owned_by": _TEXT,
        "root": _TEXT,
        "parent": {"type": ["string", "null"]},
        "max_model_len": {"type": "integer"},
    },
}
_LIST = {
    "type": "object",
    "required": ["object", "data"],
    "properties": {"object": _TEXT, "data": {"type": "array", "items": _MODEL}},
}


def _described(summary: str, schema: dict[str, Any], *names: str) -> dict[str, Any]:
    def response(description: str, schema: dict[str, Any]) -> dict[str, Any]:
        return {"description": description, "content": {"application/json": {"schema": schema}}}

    responses = {"200": response("", schema), "401": response("a key is asked for", ERROR)}
    responses |= {"404": response("no such model", ERROR)} if names else {}
    responses["503"] = response("the model is loading", ERROR)
    parameters = [{"name": name, "in": "path", "required": True, "schema": _TEXT} for name in names]
    return {"get": {"tags": ["system"], "summary": summary, "responses": responses, "parameters": parameters}}


# What the OpenAPI page says of the routes.
PATHS = {
    "/v1/models": _described("the served model and its adapters", _LIST),
    "/v1/models/{model}": _described("one of them", _MODEL, "model"),
    "/v1/models/{owner}/{model}": _described("one of them whose name has a slash", _MODEL, "owner", "model"),
}


class Models:
    """The handlers of `/v1/models` and `/v1/models/{model}`, also below OpenAI's prefix."""

    def __init__(self, service: Service, keys: Keys) -> None:
        self._service = service
        self._keys = keys
        self._started = int(time.time())  # `created` of every model: its file's own age is nobody's business

    def routes(self) -> Iterator[SystemRoute]:
        for prefix in ("", "/openai"):
            yield SystemRoute("GET", f"{prefix}/v1/models", self.index)
            yield SystemRoute("GET", f"{prefix}/v1/models/{{model}}", self.one)
            yield SystemRoute("GET", f"{prefix}/v1/models/{{owner}}/{{model}}", self.one)

    async def index(self, exchange: Exchange) -> None:
        check_key(exchange, self._keys)
        await exchange.reply(Reply(200, orjson.dumps({"object": "list", "data": self._models()})))

    async def one(self, exchange: Exchange) -> None:
        check_key(exchange, self._keys)
        name = "/".join(exchange.path_params.values())  # names may hold a slash
        found = next((model for model in self._models() if model["id"] == name), None)
        if found is None:
            loaded = {adapter.name: adapter for adapter in self._service.adapters}
            raise UnknownModelError(cut(name), self._service.loaded().name, adapters.listing(loaded, ""))
        await exchange.reply(Reply(200, orjson.dumps(found)))

    def _models(self) -> list[dict[str, Any]]:
        model = self._service.loaded()

        def entry(name: str, root: str, parent: str | None) -> dict[str, Any]:
            return {
                "id": name,
                "object": "model",
                "created": self._started,
                "owned_by": _OWNER,
                "root": root,
                "parent": parent,
                "max_model_len": self._service.room.total,
            }

        loaded = [entry(adapter.name, adapter.name, model.name) for adapter in self._service.adapters]
        return [entry(model.name, model.name, None), *loaded]
