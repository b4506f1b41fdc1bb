"""Calls of the PyPI package `text-generation`: JSON in, JSON out."""

import asyncio
import json
import sys

from text_generation import AsyncClient, Client


async def collect(client, prompt, arguments):
    return [event.model_dump() async for event in client.generate_stream(prompt, **arguments)]


def run(url, kind, prompt, arguments):
    if kind == "generate":
        return Client(url, timeout=30).generate(prompt, **arguments).model_dump()
    if kind == "generate_stream":
        return [event.model_dump() for event in Client(url, timeout=30).generate_stream(prompt, **arguments)]
    client = AsyncClient(url, timeout=30)
    if kind == "async generate":
        return asyncio.run(client.generate(prompt, **arguments)).model_dump()
    return asyncio.run(collect(client, prompt, arguments))


job = json.load(sys.stdin)
results = []
for call in job["calls"]:
    try:
        results.append(run(job["url"], call["kind"], call["prompt"], call.get("arguments", {})))
    except Exception as error:
        results.append({"raised": type(error).__name__, "text": str(error)})
print(json.dumps(results))
