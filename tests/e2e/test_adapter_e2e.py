"""Adapters through the program: loaded at start and at run time, beside the base model, unloaded while they run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from calls import GENERATE, GENERATE_STREAM, QUESTION, TRITON
from server import Server, running
from sockets import Answer, Connection
from tiny_adapters import adapter_weights, demo_shapes, write_adapter

KEY = "only for tests"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two adapters of rank 16 on all linear layers of the demo model."""
    made = tmp_path_factory.mktemp("adapters")
    return [write_adapter(made / key, adapter_weights(demo_shapes(), key, 16, 0.5)) for key in ("one", "two")]


@pytest.fixture(scope="module")
def adapted(folders: list[Path]) -> Iterator[Server]:
    with running(["--lora-adapters", f"one={folders[0]},team/copy={folders[0]}", "--admin-key", KEY]) as started:
        yield started


async def post(server: Server, path: str, **body: Any) -> Answer:
    connection = await Connection.open(server.port)
    try:
        data = json.dumps(body).encode()
        connection.send_head("POST", path, f"content-length: {len(data)}", f"authorization: Bearer {KEY}")
        connection.writer.write(data)
        return await connection.answer()
    finally:
        connection.close()


async def test_each_answers_as_itself_in_any_company(server: Server, adapted: Server, folders: list[Path]) -> None:
    """Base, two names of one adapter, and one loaded at run time: alone and 12 at once, on every mode."""
    loaded = await post(adapted, "/v1/load_lora_adapter", lora_name="two", lora_path=str(folders[1]))
    assert loaded.status == 200, loaded.body
    plain = await GENERATE.call(server.port, QUESTION, max_new_tokens=24)
    names = (None, "one", "team/copy", "two")
    alone = {name: await GENERATE.call(adapted.port, QUESTION, max_new_tokens=24, adapter_id=name) for name in names}
    assert alone[None].ids == plain.ids, "an adapter beside it leaves the base model as it is"
    assert alone["one"].ids == alone["team/copy"].ids
    assert len({tuple(reply.ids) for reply in alone.values()}) == 3
    calls = [(route, name) for route in (GENERATE, GENERATE_STREAM, GENERATE) for name in names]
    together = await asyncio.gather(
        *(route.call(adapted.port, QUESTION, max_new_tokens=24, adapter_id=name) for route, name in calls)
    )
    for (_, name), reply in zip(calls, together, strict=True):
        assert reply.ids == alone[name].ids, name
    triton = await TRITON.call(adapted.port, QUESTION, max_new_tokens=24)
    assert triton.ids == alone[None].ids
    assert (await post(adapted, "/v1/unload_lora_adapter", lora_name="two")).status == 200
    refused = await GENERATE.post(adapted.port, QUESTION, adapter_id="two")
    assert refused.status == 422
    assert refused.json == {
        "error": "`parameters.adapter_id` must name a loaded adapter (one, team/copy), got 'two'",
        "error_type": "validation",
    }


async def test_several_answers_and_drafts_keep_the_adapter(adapted: Server) -> None:
    """best_of copies the prompt's KV; a text that repeats itself is drafted from: both on the adapter's own model."""
    copied = await GENERATE.call(
        adapted.port, QUESTION, max_new_tokens=8, adapter_id="one", best_of=2, do_sample=True, temperature=0.8
    )
    best = copied.raw["details"]
    for answer in (best, *best["best_of_sequences"]):
        again = await GENERATE.call(
            adapted.port,
            QUESTION,
            max_new_tokens=8,
            adapter_id="one",
            do_sample=True,
            temperature=0.8,
            seed=answer["seed"],
        )
        assert again.ids == [token["id"] for token in answer["tokens"]]
    repeated = "one two three four " * 20
    drafted = await GENERATE.call(adapted.port, repeated, max_new_tokens=30, adapter_id="one")
    plain = await GENERATE.call(adapted.port, repeated, max_new_tokens=30, adapter_id="one", top_n_tokens=1)
    assert drafted.ids == plain.ids  # alternatives switch drafts off


async def test_a_running_answer_outlives_its_adapter(adapted: Server, folders: list[Path]) -> None:
    wanted = {"max_new_tokens": 200, "adapter_id": "short", "ignore_eos": True}
    assert (await post(adapted, "/v1/load_lora_adapter", lora_name="short", lora_path=str(folders[1]))).status == 200
    expected = await GENERATE.call(adapted.port, QUESTION, **wanted)
    running_one = asyncio.ensure_future(GENERATE_STREAM.call(adapted.port, QUESTION, **wanted))
    for _ in range(500):  # until the engine has it
        if adapted.gauge("tgi_batch_current_size") >= 1:
            break
        await asyncio.sleep(0.005)
    assert (await post(adapted, "/v1/unload_lora_adapter", lora_name="short")).status == 200
    assert not running_one.done(), "it must have been unloaded while it ran"
    assert (await GENERATE.post(adapted.port, QUESTION, adapter_id="short")).status == 422
    assert (await running_one).ids == expected.ids
