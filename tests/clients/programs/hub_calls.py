"""Calls of `huggingface_hub.InferenceClient`, `text_generation` if no method is named: JSON in, JSON out."""

import asyncio
import dataclasses
import json
import sys

import huggingface_hub
from huggingface_hub import AsyncInferenceClient, InferenceClient


def plain(value):
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value


async def collect(url, method, prompt, arguments):
    client = AsyncInferenceClient(model=url, timeout=30)
    answer = await getattr(client, method)(prompt, **arguments)
    return [plain(item) async for item in answer] if arguments.get("stream") else plain(answer)


def run(url, kind, method, prompt, arguments):
    if kind == "async":
        return asyncio.run(collect(url, method, prompt, arguments))
    client = InferenceClient(model=url, timeout=30)  # its streams end when it is collected
    answer = getattr(client, method)(prompt, **arguments)
    return [plain(item) for item in answer] if arguments.get("stream") else plain(answer)


job = json.load(sys.stdin)
results = [huggingface_hub.__version__]
for call in job["calls"]:
    try:
        method = call.get("method", "text_generation")
        results.append(run(job["url"], call["kind"], method, call["prompt"], call.get("arguments", {})))
    except Exception as error:
        results.append({"raised": type(error).__name__, "text": str(error)})
print(json.dumps(results))
