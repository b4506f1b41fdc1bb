"""The routes that run the server: what they tell is true, who may use them, where they stand, and how they end it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from byte_model import NAME, house, script, served
from server_site import Site, Start
from sockets import Answer, Connection, ask

from interlingua.engine.echo import Script
from interlingua.server.app import App, build_app
from interlingua.server.routes import Plane, discover
from interlingua.server.run import serve
from interlingua.server.settings import ServerSettings
from interlingua.service.prepare import Limits
from interlingua.service.service import ServedModel
from interlingua.text.chat_template import ChatTemplate

READING = (
    "/v1/config",
    "/v1/status",
    "/v2/status",
    "/metrics-json",
    f"/v2/models/{NAME}/getSlotCount",
    "/health/timed",
)
SLOW = Script(ids=(97,) * 500, delay=0.01)


def port_of(app: App, name: str) -> int:
    return urlsplit("//" + app.addresses[name].partition("//")[2]).port or 0


async def with_key(port: int, method: str, path: str, key: str | None, body: object = b"", *more: str) -> Answer:
    connection = await Connection.open(port)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = [f"content-length: {len(data)}", *([] if key is None else [f"authorization: Bearer {key}"])]
    connection.send_head(method, path, *headers, *more)
    connection.writer.write(data)
    try:
        return await asyncio.wait_for(connection.answer(), 30)
    finally:
        connection.close()


# --- what they tell -----------------------------------------------------------------------------------------


async def test_the_state_is_that_of_the_engine(start: Start):
    site = await start(SLOW, max_running=1, limits=Limits(max_concurrent_requests=5))
    idle = (await site.ask("GET", "/v1/status")).json
    blocks = site.home.engine.stats().kv_blocks_total
    assert idle == {
        "service": {"roleStatus": "RoleReady", "currentRole": "none"},
        "resource": {
            "availSlotsNum": 5,
            "availBlockNum": blocks,
            "waitingRequestNum": 0,
            "runningRequestNum": 0,
            "swappedRequestNum": 0,
            "freeNpuBlockNums": blocks,
            "freeCpuBlockNums": 0,
            "totalNpuBlockNums": blocks,
            "totalCpuBlockNums": 0,
        },
        "linkStatus": {"peers": []},
    }
    clients = [await site.connect() for _ in range(2)]
    for client in clients:
        client.send("POST", "/generate", {"inputs": "x", "parameters": {"max_new_tokens": 400}})
    await asyncio.sleep(0.2)
    busy = (await site.ask("GET", "/v2/status")).json["resource"]
    used = site.home.engine.stats().kv_blocks_used
    assert (busy["availSlotsNum"], busy["waitingRequestNum"], busy["runningRequestNum"]) == (3, 1, 1)
    assert used > 0 and blocks - used <= busy["availBlockNum"] < blocks
    slots = (await site.ask("GET", f"/v2/models/{NAME}/getSlotCount")).json
    assert (slots["total_slots"], slots["free_slots"]) == (5, 3)
    figures = (await site.ask("GET", "/metrics-json")).json["result"]
    by_name = {entry["metric"][0]["__name__"]: entry["value"] for entry in figures}
    assert list(by_name) == ["TTFT", "TBT", "waitingInferRequestNum", "processingInferRequestNum", "remainBlocks"]
    assert (by_name["waitingInferRequestNum"], by_name["processingInferRequestNum"]) == ("1", "1")
    for client in clients:
        client.close()
    await site.home.emptied()
    assert (await site.ask("GET", "/v1/status")).json == idle


async def test_times_are_means_of_real_ones(start: Start):
    site = await start(Script(ids=(97,) * 500, start_delay=0.2, delay=0.05))

    async def figures() -> dict[str, Any]:
        result = (await site.ask("GET", "/metrics-json")).json["result"]
        return {entry["metric"][0]["__name__"]: entry["value"] for entry in result}

    before = await figures()
    assert (before["TTFT"], before["TBT"]) == ("0", "0")
    await site.post("/generate", {"inputs": "x", "parameters": {"max_new_tokens": 5}})
    after = await figures()
    assert int(after["TTFT"]) >= 250 and 50 <= int(after["TBT"]) < 5000
    assert all(value.isdecimal() for value in after.values())


async def test_config(start: Start):
    site = await start(limits=Limits(max_seq_len=500, max_iter_times=7))
    assert (await site.ask("GET", "/v1/config")).json == {
        "modelName": NAME,
        "maxSeqLen": 500,
        "npuMemSize": -1,
        "cpuMemSize": 0,
        "worldSize": 1,
        "maxOutputLen": 7,
        "cacheBlockSize": site.home.engine.stats().kv_block_tokens,
    }


async def test_before_the_model_is_loaded(start: Start):
    site = await start(loaded=False)
    for path in READING:
        assert (await site.ask("GET", path)).status == 503, path


# --- the probe ----------------------------------------------------------------------------------------------


async def test_the_probe_makes_a_token_and_counts_nothing(start: Start):
    site = await start(script("ok"), limits=Limits(max_concurrent_requests=0))
    for path in ("/health/timed", "/health/timed-1", "/health/timed-600", "/health/timed-010"):
        assert (await site.ask("GET", path)).json == {"status": "healthy"}
    assert site.home.engine.stats().generated_tokens_total == 4
    assert site.home.service.metrics.requests == 0
    site.home.service.begin_stop()
    assert (await site.ask("GET", "/health/timed")).status == 200
    await site.home.emptied()


@pytest.mark.parametrize(
    "name", ["timed-0", "timed-601", "timed-1000", "timed-", "timed--1", "timed-a", "timed-1.5", "timed-%D9%A3", "x"]
)
async def test_probes_of_other_lengths_are_not_found(start: Start, name: str):
    site = await start()
    answer = await site.ask("GET", f"/health/{name}")
    assert answer.status == 404 and set(answer.json) == {"error", "error_type"}


async def test_the_probe_tells_a_stuck_engine_from_a_busy_one(start: Start):
    stuck = await start(Script(start_delay=30))
    assert (await stuck.ask("GET", "/health/timed-1")).status == 503
    await stuck.home.emptied()
    busy = await start(SLOW, max_running=1)
    client = await busy.connect()
    client.send("POST", "/generate", {"inputs": "x", "parameters": {"max_new_tokens": 450}})
    await asyncio.sleep(0.1)
    assert (await busy.ask("GET", "/health/timed-1")).json == {"status": "healthy"}
    client.close()
    await busy.home.emptied()
    busy.home.engine.kill(RuntimeError("gone"))
    answer = await busy.ask("GET", "/health/timed")
    assert answer.status == 503 and "gone" not in answer.json["error"]


# --- who may change the state -------------------------------------------------------------------------------

CHANGING = (
    ("GET", "/stopService"),
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/v1/unload_lora_adapter"),
)


@pytest.mark.parametrize(("method", "path"), CHANGING)
async def test_without_a_key_nobody_changes_the_state_on_the_data_port(start: Start, method: str, path: str):
    site = await start(server={"api_key": "clients"})
    for key in (None, "clients", ""):
        answer = await with_key(site.port, method, path, key, b"{")
        assert (answer.status, answer.json["error_type"]) == (403, "forbidden")
        assert "--admin-key" in answer.json["error"]
    assert site.home.service.ill_health() is None


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize(("method", "path"), CHANGING[1:])
async def test_the_admin_key_opens_them(start: Start, separate: bool, method: str, path: str):
    more = {"management_port": 0} if separate else {}
    site = await start(server={"api_key": "clients", "admin_key": "mine", **more})
    port = port_of(site.app, "management") if separate else site.port
    for key in (None, "clients", "min", "mine2"):
        answer = await with_key(port, method, path, key, b"{")
        assert (answer.status, answer.json["error_type"]) == (401, "unauthorized")
        assert answer.headers["www-authenticate"] == "bearer"
    assert (await with_key(port, method, path, "mine", b"{")).status == 422  # the body, which is looked at only now


# --- addresses ----------------------------------------------------------------------------------------------


async def test_a_management_address_hides_them_from_clients(start: Start):
    site = await start(script("ok"), server={"management_port": 0})
    management = port_of(site.app, "management")
    for path in (*READING, "/metrics"):
        answer = await site.ask("GET", path)
        assert answer.status == 404 and set(answer.json) == {"error", "error_type"}, path
        assert (str(management) in answer.json["error"]) == (path == "/metrics")
        assert (await ask(management, "GET", path)).status == 200, path
    for method, path in CHANGING[1:]:
        assert (await site.ask(method, path, {})).status == 404
        assert (await ask(management, method, path, {})).status == 422
    for path in ("/health", "/ping", "/info", "/v2", "/v2/health/live", "/v2/health/ready", f"/v2/models/{NAME}/ready"):
        assert (await site.ask("GET", path)).status == (await ask(management, "GET", path)).status == 200, path
    for path in ("/generate", "/tokenize", "/v1/tokenizer", f"/v2/models/{NAME}/stopInfer"):
        assert (await site.ask("POST", path, {"inputs": "x"})).status != 404 or "stopInfer" in path
        assert (await ask(management, "POST", path, {"inputs": "x"})).status == 404, path
    instance = (await ask(management, "GET", "/metrics-json")).json["result"][0]["metric"][0]["instance"]
    assert instance == "127.0.0.1:0"  # as it was set


@pytest.mark.parametrize(("method", "path"), CHANGING)
@pytest.mark.parametrize("site_of_page", ["cross-site", "same-site"])
async def test_a_page_that_the_operator_has_open_changes_nothing(
    start: Start, method: str, path: str, site_of_page: str
):
    site = await start(script("ok"), server={"management_port": 0})
    management = port_of(site.app, "management")
    answer = await with_key(management, method, path, None, {}, f"sec-fetch-site: {site_of_page}")
    assert (answer.status, answer.json["error_type"]) == (403, "forbidden")
    assert site.home.service.ill_health() is None
    if method == "POST":  # past the door, and found wanting
        assert (await with_key(management, method, path, None, {}, "sec-fetch-site: same-origin")).status == 422


async def test_metrics_on_a_port_of_their_own(start: Start):
    site = await start(server={"management_port": 0, "metrics_port": 0})
    ports = {name: port_of(site.app, name) for name in ("management", "metrics")}
    assert (await ask(ports["metrics"], "GET", "/metrics")).status == 200
    for path in ("/health", "/v1/status", "/generate"):
        assert (await ask(ports["metrics"], "GET", path)).status == 404
    for port in (site.port, ports["management"]):
        answer = await ask(port, "GET", "/metrics")
        assert (answer.status, answer.json["error"]) == (
            404,
            f"there is nothing at /metrics; it stands at port {ports['metrics']} (--metrics-port)",
        )
    assert (await ask(site.port, "GET", "/v1/status")).json["error"] == "there is nothing at /v1/status"


def test_one_address_named_twice_is_one():
    def own(**more: Any) -> set[Plane]:
        return set(ServerSettings(port=1025, **more).own_addresses)

    assert own() == own(management_port=1025) == own(metrics_port=1025) == set()
    assert own(management_port=1026) == own(management_port=1026, metrics_port=1026) == {Plane.MANAGEMENT}
    assert own(management_port=1026, metrics_port=1027) == {Plane.MANAGEMENT, Plane.METRICS}
    assert own(management_port=1025, management_host="127.0.0.2") == {Plane.MANAGEMENT}


# --- the end ------------------------------------------------------------------------------------------------


async def served_until_stopped(plan: Script, **settings: Any) -> tuple[asyncio.Task[int], Site]:
    """A server as the command line runs it."""
    home = house(plan, loaded=False)
    app = build_app(home.service, discover(), ServerSettings(port=0, **settings))
    ready: asyncio.Queue[str] = asyncio.Queue()

    async def load() -> ServedModel:
        return served(home.engine)

    serving = asyncio.create_task(serve(app, load, ready.put_nowait))
    port = int((await ready.get()).rsplit(":", 1)[1])
    return serving, Site(home, app, port)


@pytest.mark.parametrize("separate", [False, True])
async def test_stop_service_lets_running_work_end(separate: bool):
    more: dict[str, Any] = {"management_port": 0} if separate else {"admin_key": "mine"}
    serving, site = await served_until_stopped(Script(ids=(97,) * 60, delay=0.01), **more)
    control = port_of(site.app, "management") if separate else site.port
    running = asyncio.create_task(site.post("/generate", {"inputs": "x", "parameters": {"max_new_tokens": 60}}))
    await asyncio.sleep(0.1)
    stopping = asyncio.create_task(with_key(control, "GET", "/stopService", "mine"))
    await asyncio.sleep(0.1)
    assert (await site.post("/generate", {"inputs": "x"})).status == 503
    assert (await site.ask("GET", "/v2/health/ready")).status == 503
    assert (await with_key(control, "GET", "/stopService", "mine")).status == 503
    assert not stopping.done() and not running.done()
    assert len((await running).json["generated_text"]) == 60
    answer = await stopping
    assert (answer.status, answer.body) == (200, b"")
    assert await asyncio.wait_for(serving, 20) == 0
    for port in {site.port, control}:
        with pytest.raises(OSError):
            await Connection.open(port)
    await site.home.emptied()


async def test_stop_service_by_force_waits_for_nobody():
    serving, site = await served_until_stopped(Script(start_delay=60), management_port=0)
    control = port_of(site.app, "management")
    running = asyncio.create_task(site.post("/generate", {"inputs": "x"}))
    await asyncio.sleep(0.1)
    wrong = await ask(control, "GET", "/stopService?mode=force")
    assert wrong.status == 422 and "`mode`" in wrong.json["error"]
    assert (await ask(control, "GET", "/stopService?mode=Force")).status == 200
    assert (await running).status == 503
    assert await asyncio.wait_for(serving, 20) == 0
    await site.home.emptied()


async def test_stop_service_gives_running_work_the_grace_and_no_more():
    serving, site = await served_until_stopped(Script(start_delay=60), management_port=0, stop_grace=0.3)
    running = asyncio.create_task(site.post("/generate", {"inputs": "x"}))
    await asyncio.sleep(0.1)
    assert (await ask(port_of(site.app, "management"), "GET", "/stopService")).status == 200
    assert (await running).status == 503
    assert await asyncio.wait_for(serving, 20) == 0
    await site.home.emptied()


# --- adapters -----------------------------------------------------------------------------------------------


async def test_adapters_are_loaded_and_unloaded(start: Start, tmp_path: Path):
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    (tmp_path / "adapter_model.safetensors").touch()
    site = await start(script("ok"), server={"management_port": 0})
    port = port_of(site.app, "management")

    async def call(verb: str, body: object) -> Answer:
        return await ask(port, "POST", f"/v1/{verb}_lora_adapter", body)

    async def used() -> int:
        return (await site.post("/generate", {"inputs": "x", "parameters": {"adapter_id": "tone"}})).status

    assert await used() == 422
    good = {"lora_name": "tone", "lora_path": str(tmp_path), "master_model": NAME, "lora_int_id": 1}
    for _ in range(2):
        answer = await call("load", good)
        assert (answer.status, answer.headers["content-type"]) == (200, "text/plain; charset=utf-8")
        assert b"tone" in answer.body and await used() == 200
    assert (await call("unload", {"lora_name": "tone"})).status == 200
    assert await used() == 422
    for verb, body, status, field in (
        ("unload", {"lora_name": "tone"}, 422, "lora_name"),
        ("load", {"lora_path": "/a"}, 422, "lora_name"),
        ("load", {"lora_name": "a"}, 422, "lora_path"),
        ("load", {**good, "lora_name": "../x"}, 422, "lora_name"),
        ("load", {**good, "lora_name": "a b"}, 422, "lora_name"),
        ("load", {**good, "lora_name": "n" * 257}, 422, "lora_name"),
        ("load", {**good, "lora_name": 1}, 422, "lora_name"),
        ("load", {**good, "lora_path": "a\0b"}, 422, "lora_path"),
        ("load", {**good, "lora_path": "p" * 5000}, 422, "lora_path"),
        ("load", {**good, "lora_path": "/nothing/there"}, 422, "lora_path"),
        ("load", {**good, "lora_path": f"{tmp_path}/../{tmp_path.name}"}, 422, "lora_path"),
        ("load", {**good, "lora_path": ["/a"]}, 422, "lora_path"),
        ("load", {**good, "master_model": "other"}, 422, "master_model"),
        ("load", {**good, "master_mode": "other"}, 422, "master_mode"),
        ("load", b"{", 422, None),
        ("unload", {}, 422, "lora_name"),
    ):
        answer = await call(verb, body)
        assert answer.status == status and set(answer.json) == {"error", "error_type"}, (verb, body, answer.body)
        assert field is None or f"`{field}`" in answer.json["error"]


# --- tokens -------------------------------------------------------------------------------------------------


async def test_the_vendors_tokenizer(start: Start):
    site = await start(limits=Limits(max_concurrent_requests=0))  # takes no permit
    for more, tokens in (({}, ["<s>", "a", "b"]), ({"do_decode": True}, ["<s>", "a", "b"]), ({"do_decode": False}, [])):
        answer = await site.post("/v1/tokenizer", {"inputs": "ab", **more})
        assert answer.json == {"token_number": 3, "tokens": tokens}
    for bad in ({}, {"inputs": ""}, {"inputs": 1}, {"inputs": "a", "do_decode": 1}, b"[]", b'{"inputs":"\\ud800"}'):
        answer = await site.post("/v1/tokenizer", bad)
        assert (answer.status, answer.json["error_type"]) == (422, "validation"), bad


async def test_conversations_are_templated_and_tokenised(start: Start):
    home_made = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    site = await start(loaded=False, limits=Limits(max_concurrent_requests=1))
    site.home.service.attach(replace(served(site.home.engine), chat=ChatTemplate(home_made)))
    body = {"messages": [{"role": "user", "content": "é"}, {"role": "assistant", "content": "t"}]}
    text = "<user>é<assistant>t>"
    answer = (await site.post("/chat_tokenize", body)).json
    assert answer["templated_text"] == text and len(answer["tokenize_response"]) == len(text.encode())
    assert answer["tokenize_response"][0] == {"id": 60, "text": "<", "start": 0, "stop": 1}  # no BOS of the tokenizer's
    counted = (await site.post("/tokenize", body | {"return_token_strs": True})).json
    assert counted["tokens"] == list(text.encode()) and counted["count"] == len(counted["token_strs"]) == len(
        text.encode()
    )
    assert (await site.post("/tokenize", body | {"prompt": "a"})).json["tokens"] == [256, 97]
    for path in ("/chat_tokenize", "/tokenize"):
        for bad in ({"messages": []}, {"messages": "x"}, {"messages": [{"role": "user"}]}, {"messages": [{}]}):
            got = await site.post(path, bad)
            assert (got.status, got.json["error_type"]) == (422, "validation"), (path, bad)
    assert (await site.post("/chat_tokenize", {})).status == 422
    plain = await start()
    got = await plain.post("/chat_tokenize", body)  # a model without a template
    assert (got.status, set(got.json)) == (422, {"error", "error_type"})


async def test_vllms_detokenize(start: Start):
    site = await start()
    for tokens, text in (
        ([256, 97, 98], "<s>ab"),
        ([], ""),
        ([0xC3, 0xA9, 0xC3], "é\ufffd"),
        ([97] * 5000, "a" * 5000),
    ):
        assert (await site.post("/detokenize", {"tokens": tokens, "model": NAME})).json == {"prompt": text}
    whole = (await site.post("/tokenize", {"prompt": "café", "add_special_tokens": False})).json["tokens"]
    assert (await site.post("/detokenize", {"tokens": whole})).json == {"prompt": "café"}
    for bad, words in (
        ({}, "`tokens` is required"),
        ({"tokens": "ab"}, "`tokens` must be a list"),
        ({"tokens": [97, -1]}, "`tokens[1]` must be"),
        ({"tokens": [97, 1.0]}, "`tokens[1]` must be"),
        ({"tokens": [97, 999]}, "`tokens[1]` must be a token id in 0..257, got 999"),
    ):
        refused = await site.post("/detokenize", bad)
        assert refused.status == 422 and refused.json["error"].startswith(words), refused.body


async def test_vllms_form_of_tokenize(start: Start):
    site = await start()
    whole = {"count": 3, "max_model_len": 8192, "tokens": [256, 97, 98], "token_strs": None}
    assert (await site.post("/tokenize", {"prompt": "ab", "model": NAME})).json == whole
    assert (await site.post("/tokenize", {"prompt": "ab", "inputs": "ignored"})).json == whole
    bare = {"prompt": "ab", "add_special_tokens": False, "return_token_strs": True}
    assert (await site.post("/tokenize", bare)).json == whole | {
        "count": 2,
        "tokens": [97, 98],
        "token_strs": ["a", "b"],
    }
    for bad in ({"prompt": ""}, {"prompt": ["a"]}, {"prompt": "a", "add_special_tokens": "no"}):
        assert (await site.post("/tokenize", bad)).status == 422, bad
