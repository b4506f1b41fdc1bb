"""Greedy choices of vLLM and of the native engine in bf16, teacher-forced over the native engine's own answers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here: scripts/setup-vllm")

from interlingua.contract.events import TokenEvent
from interlingua.contract.request import PreparedRequest, SamplingParams
from interlingua.engine.native.engine import NativeEngine, NativeOptions
from interlingua.engine.vllm import VllmEngine, VllmOptions
from interlingua.hub import resolve
from interlingua.text.tokenizer import Tokenizer

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n",
    "Once upon a time, in a small village,",
    "Water boils at",
    "Dear Sir or Madam,",
    "1, 2, 3, 4,",
    "The three primary colours are",
    "To make bread you need",
)
TOKENS = 64


def request(name: str, ids: tuple[int, ...], new: int, top: int = 0) -> PreparedRequest:
    return PreparedRequest(
        request_id=name,
        prompt_ids=ids,
        max_new_tokens=new,
        sampling=SamplingParams(),
        stop_token_ids=frozenset(),
        top_n_tokens=top,
    )


async def test_greedy_choices_agree(model: Path) -> None:
    files = resolve(str(model))
    tokenizer = Tokenizer.load(files)
    prompts = [tuple(tokenizer.encode(text)) for text in PROMPTS]
    native = NativeEngine(files, NativeOptions(quantize="none", kv_memory=256 << 20))
    await native.start()
    answers: list[tuple[int, ...]] = []
    for number, ids in enumerate(prompts):
        events = [e async for e in native.generate(request(str(number), ids, TOKENS)) if isinstance(e, TokenEvent)]
        answers.append(tuple(event.token_id for event in events))
    await native.stop()

    arguments = (("gpu-memory-utilization", "0.2"), ("enforce-eager", "true"))
    engine = VllmEngine(str(model), VllmOptions(arguments=arguments, max_seq_len=512, kv_memory=256 << 20), tokenizer)
    await engine.start()

    async def choice(name: str, ids: tuple[int, ...]) -> int:
        (event,) = [e async for e in engine.generate(request(name, ids, 1)) if isinstance(e, TokenEvent)]
        return event.token_id

    try:
        same = 0
        for number, (ids, answer) in enumerate(zip(prompts, answers, strict=True)):
            names = [f"{number}-{at}" for at in range(TOKENS)]
            forced = await asyncio.gather(*(choice(name, ids + answer[:at]) for at, name in enumerate(names)))
            same += sum(ours == theirs for ours, theirs in zip(answer, forced, strict=True))
    finally:
        await engine.stop()
    share = same / (len(PROMPTS) * TOKENS)
    print(f"\n{share:.1%} of {len(PROMPTS) * TOKENS} greedy choices agree")
    assert share >= 0.95
