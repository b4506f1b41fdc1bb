"""The server over vLLM: what a client gets, and what happens when vLLM dies."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here: scripts/setup-vllm")

from calls import GENERATE, GENERATE_STREAM, ROUTES, Route
from server import Server, running
from sockets import ask
from tiny_adapters import adapter_weights, demo_shapes, write_adapter

PROMPT = "My name is Olivier and I"


@pytest.fixture(scope="module")
def server(flags: list[str]) -> Iterator[Server]:
    with running(flags, seconds=400) as started:
        yield started


def descendants(pid: int) -> list[int]:
    """Processes that `pid` started, and theirs."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
@pytest.mark.parametrize(
    "parameters",
    [
        {"do_sample": True, "typical_p": 0.9, "seed": 3},
        {"do_sample": True, "watermark": True, "seed": 2**64 - 1},
        {"repetition_penalty": 1.3},
        {"do_sample": True, "temperature": 0.7, "top_k": 5, "top_p": 0.9},
    ],
    ids=str,
)
async def test_parameters(server: Server, route: Route, parameters: dict[str, Any]) -> None:
    reply = await route.call(server.port, PROMPT, max_new_tokens=12, **parameters)
    assert reply.generated_tokens == len(reply.ids) and reply.text


async def test_grammars_hold_and_end_alone(server: Server) -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    guided = {"type": "json", "value": schema}
    digits = {"type": "regex", "value": "[0-9]{3}-[a-c]{2}"}
    first, second, free = await asyncio.gather(
        GENERATE.call(server.port, "A person as JSON:", max_new_tokens=40, grammar=guided),
        GENERATE.call(server.port, "Digits:", max_new_tokens=40, grammar=digits),
        GENERATE.call(server.port, PROMPT, max_new_tokens=20),
    )
    assert first.text.startswith('{"age": ') and first.text.endswith("}") and first.finish_reason == "eos_token"
    assert len(second.text) == 6 and second.text[3] == "-"
    assert free.generated_tokens == 20
    refused = await ask(
        server.port, "POST", "/generate", {"inputs": "x", "parameters": {"grammar": {"type": "regex", "value": "(("}}}
    )
    assert refused.status == 422 and "grammar" in refused.json["error"]


async def test_alternatives_and_prompt_logprobs(server: Server) -> None:
    reply = await GENERATE.call(server.port, PROMPT, max_new_tokens=4, top_n_tokens=3, decoder_input_details=True)
    details = reply.raw["details"]
    assert [len(top) for top in details["top_tokens"]] == [3] * 4
    assert all(top[0]["id"] == token["id"] for top, token in zip(details["top_tokens"], details["tokens"], strict=True))
    assert details["prefill"][0]["logprob"] is None and all(t["logprob"] < 0 for t in details["prefill"][1:])


async def test_several_answers(server: Server) -> None:
    reply = await GENERATE.call(server.port, PROMPT, max_new_tokens=8, best_of=2, do_sample=True, details=True)
    assert len(reply.raw["details"]["best_of_sequences"]) == 1


async def test_who_leaves_frees_its_place(server: Server) -> None:
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 1500, "ignore_eos": True}}
    tasks = [asyncio.create_task(ask(server.port, "POST", "/generate_stream", body)) for _ in range(8)]
    await asyncio.sleep(2)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for _ in range(200):
        await asyncio.sleep(0.1)
        gauges = server.gauges()
        if not gauges["tgi_batch_current_size"] and not gauges["tgi_queue_size"]:
            break
    # vLLM speaks of its queue after a step, so that one more request shows that it is empty.
    await GENERATE.call(server.port, PROMPT, max_new_tokens=1)
    assert server.gauges()["tgi_queue_size"] == 0


async def test_a_killed_worker_ends_everything(flags: list[str]) -> None:
    with running(flags, seconds=400) as server:
        body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 1900, "ignore_eos": True}}
        stream = asyncio.create_task(ask(server.port, "POST", "/generate_stream", body))
        whole = asyncio.create_task(ask(server.port, "POST", "/generate", body))
        await asyncio.sleep(3)
        assert not stream.done() and not whole.done()
        for pid in descendants(server.process.pid):
            os.kill(pid, signal.SIGKILL)
        ended, failed = await asyncio.wait_for(asyncio.gather(stream, whole), 60)
        assert ended.events[-1]["error_type"] == "generation"
        assert failed.status == 424
        assert await asyncio.to_thread(server.process.wait, 60) == 1


async def test_two_workers_share_the_model(even_flags: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensor parallelism over two worker processes, on every route, and a grammar that both follow."""
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")  # a core each: left alone, it wants a NUMA node each
    monkeypatch.setenv("VLLM_CPU_NUM_OF_RESERVED_CPU", "0")
    with running(even_flags, seconds=400) as server:
        assert len(descendants(server.process.pid)) >= 3  # the engine's core and two workers
        replies = await asyncio.gather(*(route.call(server.port, PROMPT, max_new_tokens=16) for route in ROUTES))
        stream = await GENERATE_STREAM.call(
            server.port, PROMPT, max_new_tokens=16, grammar={"type": "regex", "value": "a+b"}
        )
        assert stream.text.endswith("b")
    assert all(reply.generated_tokens == 16 for reply in replies)


async def test_adapters_by_name(flags: list[str], tmp_path: Path) -> None:
    """Loaded at start and at run time, in one batch beside the base model; an unknown name is refused."""
    key = "only for tests"
    folders = [write_adapter(tmp_path / name, adapter_weights(demo_shapes(), name, 16, 0.5)) for name in ("one", "two")]
    adapted = ["--lora-adapters", f"one={folders[0]}", "--vllm-arg", "max-loras=2", "--admin-key", key]
    with running([*flags, *adapted], seconds=400) as server:
        async with httpx.AsyncClient(base_url=server.url, headers={"authorization": f"Bearer {key}"}) as client:
            wish = {"lora_name": "two", "lora_path": str(folders[1])}
            loaded = await client.post("/v1/load_lora_adapter", json=wish, timeout=60)
            assert loaded.status_code == 200, loaded.text
        replies = await asyncio.gather(
            *(GENERATE.call(server.port, PROMPT, max_new_tokens=16, adapter_id=name) for name in (None, "one", "two"))
        )
        assert len({tuple(reply.ids) for reply in replies}) == 3
        unknown = {"inputs": PROMPT, "parameters": {"adapter_id": "three"}}
        refused = await ask(server.port, "POST", "/generate", unknown)
        assert refused.status == 422 and "adapter_id" in refused.json["error"]
