"""The gRPC server: `inference.GRPCInferenceService`, over the same service as every HTTP route.

A call that its client abandons is cancelled by gRPC, which closes the request's stream and frees what it held.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from interlingua.contract.errors import (
    AddressInUseError,
    GenerationError,
    InterlinguaError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
)
from interlingua.contract.events import FailedEvent, TextEvent, TextStopped, TextToken, fold
from interlingua.dialects.kserve import Inference
from interlingua.dialects.triton import VERSION, check_model
from interlingua.server import kserve
from interlingua.server.middleware import beside, check_authorization
from interlingua.server.rpc import kserve_pb2 as pb
from interlingua.server.rpc import messages, tls, wire

if TYPE_CHECKING:
    from interlingua.server.app import App
    from interlingua.service.service import ServedModel

_log = logging.getLogger(__name__)
_SERVICE = "inference.GRPCInferenceService"
_QUEUED = 16  # responses of one stream that its client has not taken yet; then its requests wait
_CALLS = 256  # of one connection at a time
_CODES: Mapping[str, grpc.StatusCode] = {
    "validation": grpc.StatusCode.INVALID_ARGUMENT,
    "payload_too_large": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "unauthorized": grpc.StatusCode.UNAUTHENTICATED,
    "not_found": grpc.StatusCode.NOT_FOUND,
    "overloaded": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "unavailable": grpc.StatusCode.UNAVAILABLE,
    "timeout": grpc.StatusCode.DEADLINE_EXCEEDED,
}

Context = grpc.aio.ServicerContext[Any, Any]
In = TypeVar("In", bound=Message)
Out = TypeVar("Out")


class InferenceService:
    """The protocol's methods. Holds no state of its own."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._service = app.service

    def handler(self) -> grpc.GenericRpcHandler:
        def unary(method: Callable[[Any], Awaitable[Any]], request: type[Any], *, key: bool = False) -> Any:
            # Without a deserializer methods get the bytes, and parse them where it holds up nobody.
            return grpc.unary_unary_rpc_method_handler(
                self._guarded(method, request, key=key), response_serializer=_serialize
            )

        return grpc.method_handlers_generic_handler(
            _SERVICE,
            {
                "ServerLive": unary(self.server_live, pb.ServerLiveRequest),
                "ServerReady": unary(self.server_ready, pb.ServerReadyRequest),
                "ModelReady": unary(self.model_ready, pb.ModelReadyRequest),
                "ServerMetadata": unary(self.server_metadata, pb.ServerMetadataRequest),
                "ModelMetadata": unary(self.model_metadata, pb.ModelMetadataRequest),
                "ModelConfig": unary(self.model_config, pb.ModelConfigRequest),
                "RepositoryIndex": unary(self.repository_index, pb.RepositoryIndexRequest, key=True),
                "ModelInfer": unary(self.model_infer, pb.ModelInferRequest, key=True),
                "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(
                    self.model_stream_infer, response_serializer=_serialize
                ),
            },
        )

    # --- queries --------------------------------------------------------------------------------------------

    async def server_live(self, request: pb.ServerLiveRequest) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=True)

    async def server_ready(self, request: pb.ServerReadyRequest) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=self._service.ill_health() is None)

    async def model_ready(self, request: pb.ModelReadyRequest) -> pb.ModelReadyResponse:
        try:
            self._served(request.name, request.version)
        except (NotFoundError, UnavailableError):
            return pb.ModelReadyResponse(ready=False)
        return pb.ModelReadyResponse(ready=self._service.ill_health() is None)

    async def server_metadata(self, request: pb.ServerMetadataRequest) -> pb.ServerMetadataResponse:
        return pb.ServerMetadataResponse(**kserve.server_metadata())

    async def model_metadata(self, request: pb.ModelMetadataRequest) -> pb.ModelMetadataResponse:
        return messages.metadata(kserve.model_metadata(self._served(request.name, request.version)))

    async def model_config(self, request: pb.ModelConfigRequest) -> pb.ModelConfigResponse:
        return messages.config(kserve.model_config(self._served(request.name, request.version)))

    async def repository_index(self, request: pb.RepositoryIndexRequest) -> pb.RepositoryIndexResponse:
        models = kserve.repository_index(self._service)
        wanted = [model for model in models if not request.ready or model["state"] == "READY"]
        return pb.RepositoryIndexResponse(models=[pb.RepositoryIndexResponse.ModelIndex(**model) for model in wanted])

    # --- inference ------------------------------------------------------------------------------------------

    async def model_infer(self, request: pb.ModelInferRequest) -> pb.ModelInferResponse:
        """One response, whatever the input `stream` says."""
        inference, arrived = await self._inference(request)
        return await self._whole(inference, arrived)

    async def model_stream_infer(
        self, requests: AsyncIterator[bytes], context: Context
    ) -> AsyncIterator[pb.ModelStreamInferResponse]:
        """Answers the stream's requests as they come, side by side; responses are told apart by their ids.

        A request with the input `stream` gets a response for each token, the others one. The last response of a
        request has the parameter `triton_final_response` true. An error ends its own request alone.
        """
        await self._check_key(context)
        outbox = _Outbox(self._app.settings.write_timeout)
        reader = asyncio.create_task(self._answer_all(requests, outbox))
        try:
            while (response := await outbox.take()) is not None:
                yield response
            if outbox.stalled:
                await context.abort(grpc.StatusCode.CANCELLED, "the client took no response for too long")
        finally:
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader

    async def _answer_all(self, requests: AsyncIterator[bytes], outbox: _Outbox) -> None:
        """Decodes one request after the other, so that a stream holds one message at a time, and runs them together.

        Those that are refused wait for a client that does not read like all others: so many, and no more are read.
        """
        room = asyncio.Semaphore(self._service.limits.max_concurrent_requests + _QUEUED)

        async def answer(request: pb.ModelInferRequest, inference: Inference, arrived: float) -> None:
            try:
                if not inference.stream:
                    response = await self._whole(inference, arrived)
                    return await outbox.put(pb.ModelStreamInferResponse(infer_response=response))
                async for response in self._pieces(inference, arrived):
                    await outbox.put(pb.ModelStreamInferResponse(infer_response=response))
            except _StalledError:
                raise
            except Exception as error:
                await outbox.put(_failed(request, error))

        try:
            async with asyncio.TaskGroup() as group:
                async for data in requests:
                    request = pb.ModelInferRequest()
                    try:
                        request = await self._read(pb.ModelInferRequest, data)
                        inference, arrived = await self._inference(request)
                    except Exception as error:
                        await outbox.put(_failed(request, error))
                    else:
                        await room.acquire()
                        group.create_task(answer(request, inference, arrived)).add_done_callback(
                            lambda _: room.release()
                        )
        except* _StalledError:
            outbox.stalled = True
        await outbox.end()

    async def _inference(self, request: pb.ModelInferRequest) -> tuple[Inference, float]:
        """(the decoded request, when it came). Raises RequestError, counted as refused."""
        arrived = time.monotonic()
        try:
            model = self._served(request.model_name, request.model_version).name
            arguments = (request, secrets.token_hex(16), model, self._app.served_settings())
            return await beside(request.ByteSize(), lambda: messages.to_inference(*arguments)), arrived
        except InterlinguaError as error:
            self._service.metrics.refused(error.kind)
            raise

    async def _whole(self, inference: Inference, arrived: float) -> pb.ModelInferResponse:
        events: list[TextEvent] = []
        async with contextlib.aclosing(self._service.generate(inference.request, arrived)) as batches:
            async for batch in batches:
                events += batch
        return messages.to_response(inference, inference.whole(fold(events)), final=True)

    async def _pieces(self, inference: Inference, arrived: float) -> AsyncIterator[pb.ModelInferResponse]:
        async with contextlib.aclosing(self._service.generate(inference.request, arrived)) as batches:
            async for batch in batches:
                for event in batch:
                    if isinstance(event, FailedEvent):
                        raise event.error
                    tensors = inference.piece(event)
                    if tensors is not None:
                        final = isinstance(event, TextStopped) or (
                            isinstance(event, TextToken) and event.summary is not None
                        )
                        yield messages.to_response(inference, tensors, final)

    # --- what holds for every call --------------------------------------------------------------------------

    def _served(self, name: str, version: str) -> ServedModel:
        model = self._service.loaded()
        check_model(model.name, name, version or VERSION)
        return model

    def _guarded(
        self, method: Callable[[In], Awaitable[Out]], request: type[In], *, key: bool
    ) -> Callable[[bytes, Context], Awaitable[Out]]:
        """`method` over its request's bytes, whose errors become status codes, and which asks for the key if `key`."""

        async def call(data: bytes, context: Context) -> Out:
            if key:
                await self._check_key(context)
            try:
                return await method(await self._read(request, data))
            except Exception as error:
                await _abort(context, _known(error))
                raise

        return call

    async def _read(self, kind: type[In], data: bytes) -> In:
        """Raises ValidationError, counted as refused where it was to be an inference."""
        try:
            return await wire.read(kind, data)
        except InterlinguaError as error:
            if kind is pb.ModelInferRequest:
                self._service.metrics.refused(error.kind)
            raise

    async def _check_key(self, context: Context) -> None:
        given = dict(context.invocation_metadata() or ())
        try:
            check_authorization(str(given.get("authorization", "")), self._app.keys)
        except UnauthorizedError as error:
            self._service.metrics.refused(error.kind)
            await _abort(context, error)


class _StalledError(Exception):
    """The client has taken no response for the time that it is given."""


class _Outbox:
    """Responses of one stream on their way to a client that may read slowly, or not at all."""

    def __init__(self, patience: float) -> None:
        self.stalled = False
        self._patience = patience  # seconds without the client taking a response
        self._queue: asyncio.Queue[pb.ModelStreamInferResponse | None] = asyncio.Queue(_QUEUED)
        self._taken = 0

    async def put(self, response: pb.ModelStreamInferResponse) -> None:
        """Waits while the client is slow. Raises _StalledError when it takes nothing at all."""
        while True:
            taken = self._taken
            try:
                async with asyncio.timeout(self._patience):
                    return await self._queue.put(response)
            except TimeoutError:
                if self._taken == taken:
                    raise _StalledError from None

    async def end(self) -> None:
        await self._queue.put(None)

    async def take(self) -> pb.ModelStreamInferResponse | None:
        """The next response; asked for when the client has taken the one before. None = the end."""
        self._taken += 1
        return await self._queue.get()


def _failed(request: pb.ModelInferRequest, error: Exception) -> pb.ModelStreamInferResponse:
    """The last response of a request of a stream that `error` ended."""
    last = messages.empty_response(request.id, request.model_name, final=True)
    return pb.ModelStreamInferResponse(error_message=_known(error).message, infer_response=last)


def _known(error: Exception) -> InterlinguaError:
    """`error`, or what may be said of a fault of our own, which is logged."""
    if isinstance(error, InterlinguaError):
        return error
    _log.error("a call failed", exc_info=error)
    return GenerationError("the request failed inside the server")


async def _abort(context: Context, error: InterlinguaError) -> None:
    await context.abort(_CODES.get(error.kind, grpc.StatusCode.INTERNAL), error.message)


def _serialize(message: Any) -> bytes:
    return bytes(message.SerializeToString())


@contextlib.asynccontextmanager
async def listening(app: App, last_bytes: float) -> AsyncIterator[str]:
    """Serves gRPC while the block runs, and yields its address. On leaving, calls get `last_bytes` seconds to end.

    With the settings' certificates it speaks TLS. Raises AddressInUseError, and ModelError when the settings ask
    of TLS what gRPC's cannot do.
    """
    settings = app.settings
    server = grpc.aio.server(
        handlers=[InferenceService(app).handler()],
        options=[
            ("grpc.max_receive_message_length", settings.payload_limit),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", settings.max_header_bytes),
            ("grpc.so_reuseport", 0),  # a second server at the same port is a mistake
            ("grpc.max_concurrent_streams", _CALLS),
            # A peer that vanished without a word is noticed, and what it held freed.
            ("grpc.keepalive_time_ms", 60_000),
            ("grpc.keepalive_timeout_ms", 20_000),
        ],
    )
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"{host}:{settings.grpc_port}"
    credentials = tls.credentials(settings)
    try:
        port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    except RuntimeError:
        reason = "the address is taken, or not this machine's"  # gRPC does not say which
        raise AddressInUseError(f"cannot listen on {address} for gRPC: {reason}") from None
    await server.start()
    try:
        yield f"{host}:{port}"
    finally:
        await server.stop(last_bytes)
