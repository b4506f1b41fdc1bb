"""gRPC beside HTTP: keys, certificates, the way down, and what is refused at the start."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from byte_model import NAME, House, house, script, served
from server_site import Start

from interlingua.contract.errors import ModelError, ValidationError
from interlingua.dialects import _bounds as most
from interlingua.engine.echo import Script
from interlingua.server.app import build_app
from interlingua.server.routes import discover
from interlingua.server.run import bind, listening, serve
from interlingua.server.settings import ServerSettings
from interlingua.service.prepare import Limits
from interlingua.service.service import ServedModel

grpc = pytest.importorskip("grpc", reason="the extra `grpc` is not installed")
trustme = pytest.importorskip("trustme")

from interlingua.server.rpc import kserve_pb2 as pb  # noqa: E402 - needs the extra


def infer_request(text: str = "x", **more: Any) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=NAME, **more)
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(text.encode())
    return request


async def call(channel: Any, method: str, request: Any, answer: Any, **more: Any) -> Any:
    path = f"/inference.GRPCInferenceService/{method}"
    unary = channel.unary_unary(path, request_serializer=type(request).SerializeToString, response_deserializer=answer)
    return await unary(request, timeout=20, **more)


async def infer(address: str, **more: Any) -> str:
    """The text of an answer, or the name of the status."""
    async with grpc.aio.insecure_channel(address) as channel:
        try:
            response = await call(channel, "ModelInfer", infer_request(), pb.ModelInferResponse.FromString, **more)
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
        return bytes(response.raw_output_contents[0][4:]).decode()


async def someone_inside(home: House) -> None:
    while not home.service.inside:  # noqa: ASYNC110 - the service has no event for it
        await asyncio.sleep(0.01)


def many_inputs(count: int) -> bytes:
    return infer_request().SerializeToString() + b"\x2a\x00" * count


def many_parameters(count: int) -> bytes:
    request = infer_request()
    for number in range(count):
        request.parameters[str(number)].bool_param = True
    return request.SerializeToString()


def many_texts(count: int) -> bytes:
    request = infer_request()
    request.inputs[0].contents.bytes_contents.extend([b""] * count)
    return request.SerializeToString()


def many_sizes(count: int) -> bytes:
    request = infer_request()
    request.inputs[0].shape.extend([1] * count)
    return request.SerializeToString()


@pytest.mark.parametrize("bomb", [many_inputs, many_parameters, many_texts, many_sizes, lambda n: b"\x0b" * n])
async def test_messages_of_too_many_parts(start: Start, bomb: Callable[[int], bytes]):
    """Refused before they are parsed, by calls and by streams, with a short answer; and counted."""
    site = await start(script("ok"), server={"grpc_port": 0})
    data = bomb(1_000_000)
    async with grpc.aio.insecure_channel(site.app.addresses["gRPC"]) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(data, timeout=20)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT and len(caught.value.details()) < 200
        answers = pb.ModelStreamInferResponse.FromString
        path = "/inference.GRPCInferenceService/ModelStreamInfer"
        stream = channel.stream_stream(path, response_deserializer=answers)([data, infer_request().SerializeToString()])
        first, second = [response async for response in stream]
        if not first.error_message:  # they run side by side
            first, second = second, first
        assert first.error_message == caught.value.details() and not second.error_message
    assert site.home.service.metrics.failures == {"validation": 2}
    await site.home.emptied()


def test_messages_are_walked_over_as_they_are_parsed():
    """The number of fields is right to the last one, and what is no message is refused in words."""
    from interlingua.server.rpc import wire

    for bomb in (many_inputs, many_parameters, many_texts):
        # A parameter is an entry of a map with a key and a value, which holds one field itself.
        fields = {many_parameters: 4}.get(bomb, 1)
        own = 6  # model_name, the input, its name, datatype, shape and contents
        room = most.MAX_FIELDS - own - 1  # and its text
        assert wire.parse(pb.ModelInferRequest, bomb(room // fields)) == pb.ModelInferRequest.FromString(
            bomb(room // fields)
        )
        with pytest.raises(ValidationError, match="at most 131072 fields"):
            wire.parse(pb.ModelInferRequest, bomb(room // fields + 1))
    for data in (
        b"\xff" * 70_000,
        b"\x0a\xff\xff\x7f" + b"x" * 70_000,
        b"\x08" * 3,
        infer_request("x" * 70_000).SerializeToString()[:-9],
    ):
        with pytest.raises(ValidationError, match="not valid protobuf"):
            wire.parse(pb.ModelInferRequest, data)


async def test_keys(start: Start):
    site = await start(script("ok"), server={"grpc_port": 0, "api_key": "clients"})
    address = site.app.addresses["gRPC"]
    for metadata in ((), (("authorization", "Bearer wrong"),), (("authorization", "clients"),)):
        assert await infer(address, metadata=metadata) == "UNAUTHENTICATED"
    assert await infer(address, metadata=(("authorization", "Bearer clients"),)) == "ok"
    async with grpc.aio.insecure_channel(address) as channel:
        ready = await call(channel, "ServerReady", pb.ServerReadyRequest(), pb.ServerReadyResponse.FromString)
        assert ready.ready
        path = "/inference.GRPCInferenceService/ModelStreamInfer"
        stream = channel.stream_stream(path, request_serializer=pb.ModelInferRequest.SerializeToString)(
            [infer_request()]
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    await site.home.emptied()


async def test_before_and_after_the_model(start: Start):
    site = await start(script("ok"), loaded=False, server={"grpc_port": 0})
    address = site.app.addresses["gRPC"]

    async def state() -> tuple[bool, bool, bool]:
        async with grpc.aio.insecure_channel(address) as channel:
            live = await call(channel, "ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse.FromString)
            ready = await call(channel, "ServerReady", pb.ServerReadyRequest(), pb.ServerReadyResponse.FromString)
            model = pb.ModelReadyRequest(name=NAME)
            own = await call(channel, "ModelReady", model, pb.ModelReadyResponse.FromString)
            return live.live, ready.ready, own.ready

    assert await state() == (True, False, False) and await infer(address) == "UNAVAILABLE"
    site.home.service.attach(served(site.home.engine))
    assert await state() == (True, True, True) and await infer(address) == "ok"
    site.home.service.begin_stop()
    assert await state() == (True, False, False) and await infer(address) == "UNAVAILABLE"
    await site.home.emptied()


async def test_a_full_house_and_a_message_that_is_too_large(start: Start):
    site = await start(
        Script(start_delay=20), limits=Limits(max_concurrent_requests=1), server={"grpc_port": 0, "payload_limit": 5000}
    )
    address = site.app.addresses["gRPC"]
    first = asyncio.create_task(infer(address))
    await someone_inside(site.home)
    assert await infer(address) == "RESOURCE_EXHAUSTED"
    first.cancel()
    await site.home.emptied()
    async with grpc.aio.insecure_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(channel, "ModelInfer", infer_request("x" * 6000), pb.ModelInferResponse.FromString)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(channel, "ModelStatistics", pb.ServerLiveRequest(), pb.ServerLiveResponse.FromString)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_running_calls_end_before_the_server_does():
    home = house(Script(ids=(97,) * 30, delay=0.01), loaded=False)
    app = build_app(home.service, discover(), ServerSettings(port=0, grpc_port=0, management_port=0))
    ready: asyncio.Queue[str] = asyncio.Queue()

    async def load() -> ServedModel:
        return served(home.engine)

    serving = asyncio.create_task(serve(app, load, ready.put_nowait))
    await ready.get()
    address = app.addresses["gRPC"]
    running = asyncio.create_task(infer(address))
    await someone_inside(home)
    app.stop.begun.set()
    assert await running == "a" * 20
    assert await asyncio.wait_for(serving, 20) == 0
    assert await infer(address) == "UNAVAILABLE"
    await home.emptied()


async def test_tls_and_mutual_tls(start: Start, tmp_path: Path):
    authority, clients = trustme.CA(), trustme.CA()
    issued, mine = authority.issue_cert("localhost", "127.0.0.1"), clients.issue_cert("me")
    files = {name: tmp_path / name for name in ("cert", "key", "ca")}
    files["cert"].write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    files["key"].write_bytes(issued.private_key_pem.bytes())
    files["ca"].write_bytes(clients.cert_pem.bytes())
    site = await start(
        script("ok"),
        server={
            "grpc_port": 0,
            "tls_certificate": str(files["cert"]),
            "tls_key": str(files["key"]),
            "tls_client_ca": (str(files["ca"]),),
        },
    )
    address = site.app.addresses["gRPC"]
    root, chain = authority.cert_pem.bytes(), b"".join(blob.bytes() for blob in mine.cert_chain_pems)

    async def reach(credentials: Any) -> str:
        async with grpc.aio.secure_channel(address, credentials) as channel:
            try:
                answer = await call(channel, "ModelInfer", infer_request(), pb.ModelInferResponse.FromString)
            except grpc.aio.AioRpcError as error:
                return str(error.code().name)
            return bytes(answer.raw_output_contents[0][4:]).decode()

    good = grpc.ssl_channel_credentials(root, mine.private_key_pem.bytes(), chain)
    assert await reach(good) == "ok"
    assert await reach(grpc.ssl_channel_credentials(root)) == "UNAVAILABLE"
    assert await infer(address) == "UNAVAILABLE"  # no plain text on this port
    renewed = trustme.CA()
    again = renewed.issue_cert("localhost", "127.0.0.1")
    files["cert"].write_bytes(b"".join(blob.bytes() for blob in again.cert_chain_pems))
    files["key"].write_bytes(again.private_key_pem.bytes())
    newer = grpc.ssl_channel_credentials(renewed.cert_pem.bytes(), mine.private_key_pem.bytes(), chain)
    assert await reach(newer) == "ok" and await reach(good) == "UNAVAILABLE"


# --- bad starts ---------------------------------------------------------------------------------------------


async def starts(settings: ServerSettings) -> None:
    app = build_app(house().service, discover(), settings)
    async with listening(app, bind(settings)):
        pass


async def test_a_taken_port_is_a_bad_start():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ModelError, match=f"cannot listen on 127.0.0.1:{port} for gRPC"):
            await starts(ServerSettings(port=0, grpc_port=port))
        with pytest.raises(ModelError, match=f"cannot listen on 127.0.0.1:{port}"):
            await starts(ServerSettings(port=0, management_port=port))


async def test_what_its_tls_cannot_do_is_a_bad_start(tmp_path: Path):
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    (tmp_path / "cert").write_bytes(issued.cert_chain_pems[0].bytes())
    (tmp_path / "key").write_bytes(issued.private_key_pem.bytes())
    (tmp_path / "password").write_text("unused")
    tls = {"tls_certificate": str(tmp_path / "cert"), "tls_key": str(tmp_path / "key")}
    more: dict[str, Any] = {**tls, "tls_key_password_file": str(tmp_path / "password")}
    await starts(ServerSettings(port=0, **more))
    with pytest.raises(ModelError, match="`--tls-key-password-file` does not work with `--grpc-port`"):
        await starts(ServerSettings(port=0, grpc_port=0, **more))


async def test_without_the_extra_a_grpc_port_is_a_bad_start(monkeypatch: pytest.MonkeyPatch):
    real: Callable[..., Any] = builtins.__import__

    def missing(name: str, *args: Any, **more: Any) -> Any:
        if name.startswith("interlingua.server.rpc"):
            raise ImportError("No module named 'grpc'", name="grpc")
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ModelError, match=r"interlingua\[grpc\]"):
        await starts(ServerSettings(port=0, grpc_port=0))
    await starts(ServerSettings(port=0))


# --- clients that misbehave ---------------------------------------------------------------------------------


def stream_request(text: str = "x", **more: Any) -> pb.ModelInferRequest:
    request = infer_request(text, **more)
    request.inputs.add(name="stream", datatype="BOOL", shape=[1]).contents.bool_contents.append(True)
    request.parameters["max_new_tokens"].int64_param = 8000
    return request


def open_stream(channel: grpc.aio.Channel) -> Any:
    return channel.stream_stream(
        "/inference.GRPCInferenceService/ModelStreamInfer",
        request_serializer=pb.ModelInferRequest.SerializeToString,
        response_deserializer=pb.ModelStreamInferResponse.FromString,
    )()


async def test_a_client_that_reads_nothing_holds_its_requests_no_longer_than_it_may(start: Start):
    site = await start(Script(ids=(97,) * 8000), server={"grpc_port": 0, "write_timeout": 0.5})
    # Its own library reads ahead of it, by default some megabytes.
    small = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_536)]
    async with grpc.aio.insecure_channel(site.app.addresses["gRPC"], options=small) as channel:
        stream = open_stream(channel)
        for n in range(3):
            await stream.write(stream_request(id=f"n{n}"))
        await someone_inside(site.home)
        await site.home.emptied(20)
        assert site.home.service.metrics.failures == {"dropped": 3}
        count = 0
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            while await stream.read() is not grpc.aio.EOF:
                count += 1
        assert caught.value.code() is grpc.StatusCode.CANCELLED and 0 < count < 20_000
    assert await infer(site.app.addresses["gRPC"]) == "a" * 20


async def test_requests_that_are_refused_wait_in_no_endless_queue(start: Start):
    """A client that reads nothing and asks on: each refusal that it does not take holds its request in memory."""
    site = await start(
        Script(ids=(97,) * 8000),
        limits=Limits(max_concurrent_requests=1),
        server={"grpc_port": 0, "write_timeout": 60.0},
    )
    small = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_536)]
    async with grpc.aio.insecure_channel(site.app.addresses["gRPC"], options=small) as channel:
        stream = open_stream(channel)
        await stream.write(stream_request(id="runs"))
        await someone_inside(site.home)
        await asyncio.sleep(0.5)  # until nobody takes its tokens any more
        before = len(asyncio.all_tasks())
        with contextlib.suppress(TimeoutError):  # once none is read, the client cannot write for ever
            async with asyncio.timeout(5):
                for n in range(200):
                    await stream.write(infer_request("x" * 100_000, id=f"n{n}"))
        assert site.home.service.metrics.failures == {"overloaded": 16}
        assert len(asyncio.all_tasks()) - before <= 20
        stream.cancel()
    await site.home.emptied()


async def test_a_client_that_reads_slowly_gets_everything(start: Start):
    site = await start(Script(ids=(97,) * 300), server={"grpc_port": 0, "write_timeout": 0.3})
    async with grpc.aio.insecure_channel(site.app.addresses["gRPC"]) as channel:
        stream = open_stream(channel)
        request = stream_request(id="slow")
        request.parameters["max_new_tokens"].int64_param = 300
        await stream.write(request)
        await stream.done_writing()
        texts = []
        while (response := await stream.read()) is not grpc.aio.EOF:
            texts.append(bytes(response.infer_response.raw_output_contents[0][4:]))
            await asyncio.sleep(0.005)
    assert b"".join(texts) == b"a" * 300
    await site.home.emptied()
