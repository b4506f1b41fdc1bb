"""The server's own routes, errors off the routes, keys, loading and stopping."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from byte_model import BOS, NAME, house, script, served
from server_site import Start
from sockets import Connection, ask

import interlingua
from interlingua.contract.dialect import Call, Dialect, DialectSettings, Reply, Route, WireRequest
from interlingua.contract.errors import ModelError, RequestError
from interlingua.contract.events import Answer, FailedEvent, TextEvent, TextToken
from interlingua.contract.request import GenerationRequest, TextPart, TextPrompt
from interlingua.engine.echo import Script
from interlingua.server.app import build_app
from interlingua.server.routes import RouteTable, discover
from interlingua.server.run import DIED, bind, listening, serve
from interlingua.server.settings import ServerSettings
from interlingua.service.prepare import Limits
from interlingua.service.service import ServedModel


async def test_health(start: Start):
    site = await start()
    for path in ("/health", "/ping", "/"):
        answer = await site.ask("GET", path)
        assert (answer.status, answer.body) == (200, b"")
    site.home.engine.kill(RuntimeError("gone"))
    answer = await site.ask("GET", "/health")
    assert (answer.status, answer.json) == (
        503,
        {"error": "the engine has died", "error_type": "healthcheck"},
    )


async def test_kserve_tells_life_from_readiness(start: Start):
    site = await start(loaded=False)
    model = f"/v2/models/{NAME}/ready"

    async def statuses() -> list[int]:
        paths = ("/v2/health/live", "/v2/health/ready", model, "/v2/models/other/ready")
        return [(await site.ask("GET", path)).status for path in paths]

    assert await statuses() == [200, 503, 503, 503]
    site.home.service.attach(served(site.home.engine))
    assert await statuses() == [200, 200, 200, 404]
    site.home.service.begin_stop()
    assert await statuses() == [200, 503, 503, 404]


async def test_while_the_model_loads_the_port_is_open(start: Start):
    site = await start(script("ok"), loaded=False)
    assert (await site.ask("GET", "/health")).status == 503
    assert (await site.ask("GET", "/info")).status == 503
    assert (await site.ask("GET", "/metrics")).status == 200
    for path in ("/generate", "/generate_stream", "/tokenize"):
        answer = await site.post(path, {"inputs": "x"})
        assert (answer.status, answer.json["error_type"]) == (503, "healthcheck"), path
    site.home.service.attach(served(site.home.engine))
    assert (await site.ask("GET", "/health")).status == 200
    assert (await site.post("/generate", {"inputs": "x"})).json == {"generated_text": "ok"}


async def test_info_has_the_keys_of_tgi_and_of_the_vendor(start: Start):
    site = await start(limits=Limits(max_seq_len=500, max_concurrent_requests=7), max_context=1000)
    info = (await site.ask("GET", "/info")).json
    assert {
        *("model_id", "model_sha", "model_pipeline_tag", "max_concurrent_requests", "max_best_of"),
        *("max_stop_sequences", "max_input_tokens", "max_total_tokens", "validation_workers"),
        *("max_client_batch_size", "router", "version", "sha", "docker_label"),
        *("max_batch_total_tokens", "max_waiting_tokens", "waiting_served_ratio", "models"),
        *("max_input_length", "model_dtype", "model_device_type"),
    } <= set(info)
    assert info["model_id"] == NAME and info["version"] == interlingua.__version__
    assert (info["max_total_tokens"], info["max_input_tokens"], info["max_input_length"]) == (500, 499, 499)
    assert info["max_concurrent_requests"] == info["max_client_batch_size"] == 7
    for prompts, status in ((7, 200), (8, 400)):
        body = {"model": NAME, "prompt": ["x"] * prompts, "max_tokens": 1}
        answer = await site.post("/v1/completions", body)
        assert answer.status == status
    assert answer.json["error"]["param"] == "prompt" and "at most 7 answers" in answer.json["error"]["message"]
    assert info["models"][0]["model_id"] == NAME and info["models"][0]["max_total_tokens"] == 500


async def test_metrics(start: Start):
    site = await start(script("ok"))
    await site.post("/generate", {"inputs": "x"})
    await site.post("/generate", b"no json")
    answer = await site.ask("GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    text = answer.body.decode()
    assert "\ntgi_request_count 2\n" in text and "\ntgi_request_success 1\n" in text
    assert 'tgi_request_failure{err="validation"} 1' in text and "\ntgi_queue_size 0.0\n" in text


async def test_tokenize(start: Start):
    site = await start(limits=Limits(max_concurrent_requests=0))  # takes no permit
    answer = await site.post("/tokenize", {"inputs": "a!", "parameters": {"truncate": 1}})
    assert answer.json == [
        {"id": BOS, "text": "", "start": 0, "stop": 0},
        {"id": 97, "text": "a", "start": 0, "stop": 1},
        {"id": 33, "text": "!", "start": 1, "stop": 2},
    ]
    for bad in ({}, {"inputs": ""}, {"inputs": 1}, b"{", b'{"inputs":"\\ud800"}'):
        answer = await site.post("/tokenize", bad)
        assert (answer.status, answer.json["error_type"]) == (422, "validation"), bad
    await site.home.emptied()


async def test_the_api_page_shows_the_running_settings(start: Start):
    async def described(wire: DialectSettings | None = None, **server: object) -> dict[str, Any]:
        site = await start(wire=wire, server=server)
        answer: dict[str, Any] = (await site.ask("GET", "/openapi.json")).json
        return answer["paths"]

    def parameter(paths: dict[str, Any], path: str, name: str) -> dict[str, Any]:
        body = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        body = body["anyOf"][0] if "anyOf" in body else body  # /generate takes another dialect's body too
        return body["properties"]["parameters"]["properties"][name]

    wire = DialectSettings(model_name="", vocab_size=0, max_best_of=7, max_top_n_tokens=3, tgi_profile="hf")
    plain, changed = await described(), await described(wire, api_key="key")
    for path in ("/", "/generate"):
        assert (parameter(plain, path, "best_of")["maximum"], parameter(changed, path, "best_of")["maximum"]) == (2, 7)
        assert parameter(changed, path, "top_n_tokens")["maximum"] == 3
    assert parameter(plain, "/generate", "top_p")["exclusiveMaximum"] == 1
    chat = plain["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert chat["required"] == ["messages"] and "Absent" not in chat["properties"]["messages"]["description"]
    assert parameter(changed, "/generate", "top_p")["maximum"] == 1  # of profile hf
    assert "Absent: 20." in parameter(plain, "/generate", "max_new_tokens")["description"]
    assert "Absent: 1024" in parameter(changed, "/generate", "max_new_tokens")["description"]
    lenient = await described(DialectSettings(model_name="", vocab_size=0, lenient_ranges=True))
    assert parameter(plain, "/generate", "seed")["minimum"] == 1
    assert parameter(lenient, "/generate", "seed")["minimum"] == 0
    for path in ("/", "/generate", "/tokenize", "/v2/models/{model}/generate"):
        assert "security" not in plain[path]["post"] and changed[path]["post"]["security"] == [{"key": []}]
    assert "security" not in changed["/"]["get"] and "security" not in changed["/health"]["get"]


# --- off the routes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status", "allowed"),
    [
        ("GET", "/nothing", 404, None),
        ("POST", "/generate/", 404, None),
        ("POST", "/tgi/nothing", 404, None),
        ("POST", "/v2/models/bytes/nothing", 404, None),
        ("POST", "/v2/models//generate", 404, None),
        ("GET", "/generate", 405, "post"),
        ("PUT", "/", 405, "get, post"),
        ("POST", "/health", 405, "get"),
        ("DELETE", "/v2/models/bytes/generate", 405, "post"),
    ],
)
async def test_wrong_paths_and_methods_answer_json(
    start: Start, method: str, path: str, status: int, allowed: str | None
):
    site = await start()
    answer = await site.ask(method, path)
    assert answer.status == status and answer.headers["content-type"] == "application/json"
    assert set(answer.json) == {"error", "error_type"}
    assert answer.headers.get("allow") == allowed


async def test_every_route_also_stands_below_its_prefix(start: Start):
    site = await start(script("ok"))
    for path in ("/tgi/generate", "/tgi/", "/tgi"):
        assert (await site.post(path, {"inputs": "x"})).status == 200, path
    answer = await site.post("/triton/v2/models/bytes/generate", {"text_input": "x"})
    assert answer.json["text_output"] == "ok"


def test_two_routes_that_clash_are_refused_at_start():
    dialect = discover()[0]
    with pytest.raises(ValueError, match="two routes claim"):
        build_app(house().service, (dialect, dialect))


def test_literal_segments_win_over_parameters():
    table = RouteTable()
    for path in ("/a/{x}/c", "/a/b/{y}", "/a/b/c"):
        table.add("GET", path, path)  # type: ignore[arg-type]
    assert table.find("/a/b/c") == ({"GET": "/a/b/c"}, {})
    assert table.find("/a/b/d") == ({"GET": "/a/b/{y}"}, {"y": "d"})
    assert table.find("/a/z/c") == ({"GET": "/a/{x}/c"}, {"x": "z"})
    assert table.find("/a/z/d") == ({}, {}) and table.find("/a//c") == ({}, {})


async def test_request_ids_differ_and_head_is_get_without_a_body(start: Start):
    site = await start()
    ids = {(await site.ask("GET", "/health")).headers["x-request-id"] for _ in range(5)}
    assert len(ids) == 5 and all(len(one) == 32 for one in ids)
    connection = await site.connect()
    connection.send("HEAD", "/info")
    status, headers = await connection.read_head()
    assert status == 200 and int(headers["content-length"]) > 0
    connection.close()


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401),
        ("authorization: Bearer wrong", 401),
        ("authorization: Basic key", 401),
        ("authorization: Bearer KEY", 401),
        ("authorization: Bearer kéy", 401),
        ("authorization: Bearer key", 200),
        ("authorization: bearer key", 200),
    ],
)
async def test_keys(start: Start, header: str | None, status: int):
    site = await start(script("ok"), server={"api_key": "key"})
    body = orjson.dumps({"inputs": "x"})
    for path in ("/generate", "/generate_stream", "/tokenize", "/v2/models/bytes/generate"):
        connection = await site.connect()
        connection.send_head("POST", path, f"content-length: {len(body)}", *([header] if header else []))
        connection.writer.write(body)
        answer = await connection.answer()
        if status == 401:
            assert answer.status == 401 and answer.json["error_type"] == "unauthorized", path
        else:
            assert answer.status != 401, path
        connection.close()
    assert (await site.ask("GET", "/health")).status == 200


# --- faults of our own -----------------------------------------------------------------------------------


class BrokenEncoder:
    """Fails at event number `at`, or at the whole answer."""

    media_type = "text/event-stream"

    def __init__(self, at: int) -> None:
        self._at = at

    def event(self, event: TextEvent) -> bytes:
        if isinstance(event, FailedEvent):
            return b"data: failed\n\n"
        if isinstance(event, TextToken):
            if event.index == self._at:
                raise RuntimeError("secret")
            return b"data: token\n\n"
        return b""

    def end(self) -> bytes:
        return b"data: [DONE]\n\n"

    def stream_headers(self) -> tuple[tuple[str, str], ...]:
        return ()

    def answer(self, answer: Answer) -> Reply:
        raise RuntimeError("secret")


def broken(decode_fault: bool = False) -> Dialect:
    def decode(stream: bool, at: int) -> Callable[[WireRequest, DialectSettings], Call]:
        def call(wire: WireRequest, settings: DialectSettings) -> Call:
            if decode_fault:
                raise RuntimeError("secret")
            prompt = TextPrompt((TextPart("x"),))
            return Call(GenerationRequest(request_id="r", prompt=prompt), stream, BrokenEncoder(at))

        return call

    def render_error(error: RequestError) -> Reply:
        return Reply(500, orjson.dumps({"mine": error.message}))

    return Dialect(
        name="broken",
        prefix="",
        routes=(
            Route(method="POST", path="/whole", decode=decode(False, 0)),
            Route(method="POST", path="/first", decode=decode(True, 1)),
            Route(method="POST", path="/third", decode=decode(True, 3)),
        ),
        render_error=render_error,
        owns=lambda path: True,
    )


async def test_faults_of_our_own_are_answered_in_the_dialects_shape_without_their_text(start: Start):
    site = await start(script("hello"), dialects=(broken(),))
    for path in ("/whole", "/first"):
        answer = await site.post(path, b"")
        assert answer.status == 500 and "mine" in answer.json and b"secret" not in answer.body
    answer = await site.post("/third", b"")
    assert answer.body == b"data: token\n\n" * 2 + b"data: failed\n\ndata: [DONE]\n\n"
    await site.home.emptied()
    site = await start(dialects=(broken(decode_fault=True),))
    answer = await site.post("/whole", b"")
    assert answer.status == 500 and b"secret" not in answer.body
    await site.home.emptied()


# --- start and stop --------------------------------------------------------------------------------------


async def load_nothing() -> ServedModel:
    raise ModelError("no such file")


async def test_bad_starts_are_one_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ModelError) as caught:
            bind(ServerSettings(port=port))
    assert f"127.0.0.1:{port}" in caught.value.message and "\n" not in caught.value.message
    for host in ("256.1.1.1", "no such host"):
        with pytest.raises(ModelError):
            bind(ServerSettings(host=host, port=0))
    app = build_app(house(loaded=False).service, discover(), ServerSettings(port=0))
    with pytest.raises(ModelError, match="no such file"):
        await asyncio.wait_for(serve(app, load_nothing), 20)


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
async def test_a_signal_lets_running_work_end_and_refuses_new(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    home = house(Script(ids=(97,) * 30, delay=0.02), loaded=False)
    app = build_app(home.service, discover(), ServerSettings(port=0, stop_grace=5.0))
    ready: asyncio.Queue[str] = asyncio.Queue()

    async def load() -> ServedModel:
        return served(home.engine)

    serving = asyncio.create_task(serve(app, load, ready.put_nowait))
    port = int((await ready.get()).rsplit(":", 1)[1])
    idle = await Connection.open(port)
    assert (await idle.ask("GET", "/health")).status == 200
    body = {"inputs": "x", "parameters": {"max_new_tokens": 30}}
    running = asyncio.create_task(ask(port, "POST", "/generate_stream", body))
    await asyncio.sleep(0.1)
    signal.raise_signal(signal.SIGTERM)
    await asyncio.sleep(0.05)
    assert (await idle.ask("GET", "/health")).status == 503
    assert (await idle.ask("POST", "/generate", body)).status == 503
    assert len((await running).events) == 30
    await asyncio.wait_for(serving, 10)
    assert caplog.messages.count("stopping: 1 request is running, waiting at most 5 s") == 1
    with pytest.raises(OSError):
        await Connection.open(port)
    idle.close()
    await home.emptied()


@pytest.mark.parametrize(
    ("settings", "open_to_all"),
    [
        ({}, False),
        ({"host": "localhost"}, False),
        ({"host": "127.0.0.2"}, False),
        ({"host": "::1"}, False),
        ({"host": "0.0.0.0"}, True),
        ({"host": "::"}, True),
        ({"host": "server.example.org"}, True),
        ({"host": "0.0.0.0", "api_key": "key"}, False),
        ({"host": "0.0.0.0", "api_key_file": "keys"}, False),
        ({"host": "0.0.0.0", "tls_certificate": "cert"}, False),
    ],
)
def test_who_can_use_a_server_without_keys(settings: dict[str, str], open_to_all: bool):
    assert ServerSettings(**settings).open_to_all is open_to_all  # type: ignore[arg-type]


@pytest.mark.parametrize("warned", [True, False])
async def test_a_server_that_is_open_to_all_says_so_once(
    warned: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(ServerSettings, "open_to_all", warned)
    app = build_app(house(loaded=False).service, discover(), ServerSettings(port=0))
    with pytest.raises(ModelError, match="no such file"):
        await asyncio.wait_for(serve(app, load_nothing), 20)
    lines = [line for line in caplog.messages if "neither keys nor TLS" in line]
    assert len(lines) == warned
    assert "stopping" not in caplog.text


async def test_a_second_signal_waits_for_nobody():
    home = house(Script(start_delay=30), loaded=False)
    app = build_app(home.service, discover(), ServerSettings(port=0, stop_grace=60.0))
    ready: asyncio.Queue[str] = asyncio.Queue()

    async def load() -> ServedModel:
        return served(home.engine)

    serving = asyncio.create_task(serve(app, load, ready.put_nowait))
    port = int((await ready.get()).rsplit(":", 1)[1])
    running = asyncio.create_task(ask(port, "POST", "/generate", {"inputs": "x"}))
    await asyncio.sleep(0.1)
    signal.raise_signal(signal.SIGINT)
    await asyncio.sleep(0.1)
    assert not running.done()
    signal.raise_signal(signal.SIGINT)
    assert (await asyncio.wait_for(running, 5)).status == 503
    await asyncio.wait_for(serving, 5)
    await home.emptied()


async def test_a_signal_ends_a_server_that_still_loads():
    app = build_app(house(loaded=False).service, discover(), ServerSettings(port=0))

    async def load() -> ServedModel:
        await asyncio.sleep(60)
        raise AssertionError

    serving = asyncio.create_task(serve(app, load))
    await asyncio.sleep(0.2)
    signal.raise_signal(signal.SIGTERM)
    await asyncio.wait_for(serving, 5)


async def test_what_outlasts_the_grace_ends_with_an_error_event():
    home = house(Script(ids=(97,) * 1000, delay=0.01))
    app = build_app(home.service, discover(), ServerSettings(port=0, stop_grace=0.1))
    listener = bind(app.settings)
    port = listener.getsockname()[1]
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(listening(app, listener))
        body = {"inputs": "x", "parameters": {"max_new_tokens": 1000}}
        running = asyncio.create_task(ask(port, "POST", "/generate_stream", body))
        await asyncio.sleep(0.1)
    answer = await running
    assert answer.status == 200 and answer.events[-1]["error_type"] == "healthcheck"
    await home.emptied()


async def test_the_engines_death_ends_the_server_with_an_exit_code():
    home = house(lambda request: Script(ids=(97,) * 9, die_at=3), loaded=False)
    app = build_app(home.service, discover(), ServerSettings(port=0))
    ready: asyncio.Queue[str] = asyncio.Queue()

    async def load() -> ServedModel:
        return served(home.engine)

    serving = asyncio.create_task(serve(app, load, ready.put_nowait))
    port = int((await ready.get()).rsplit(":", 1)[1])
    answer = await ask(port, "POST", "/generate_stream", {"inputs": "x"})
    assert ["token" in event for event in answer.events] == [True, True, True, False]
    assert await asyncio.wait_for(serving, 20) == DIED
    await home.emptied()


async def test_every_route_of_the_server_is_described(start: Start):
    site = await start()
    paths = (await site.ask("GET", "/openapi.json")).json["paths"]
    app = build_app(site.home.service, discover())
    served = {(route.method.lower(), route.path) for route in app.system_routes}
    undescribed = {("get", "/openapi.json"), ("get", "/docs")}  # the description itself
    own = {entry for entry in served if not entry[1].startswith(("/triton", "/openai"))}
    assert own - undescribed == {
        (method, path) for path, methods in paths.items() for method in methods if methods[method]["tags"] == ["system"]
    }
