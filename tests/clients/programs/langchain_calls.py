"""Calls of LangChain's `HuggingFaceEndpoint`: JSON in, JSON out."""

import asyncio
import json
import sys

from langchain_huggingface import HuggingFaceEndpoint


async def collect(model, prompt):
    return [chunk async for chunk in model.astream(prompt)]


def run(url, kind, prompt, arguments):
    model = HuggingFaceEndpoint(endpoint_url=url, task="text-generation", **arguments)
    if kind == "invoke":
        return model.invoke(prompt)
    if kind == "stream":
        return list(model.stream(prompt))
    if kind == "ainvoke":
        return asyncio.run(model.ainvoke(prompt))
    return asyncio.run(collect(model, prompt))


job = json.load(sys.stdin)
results = []
for call in job["calls"]:
    try:
        results.append(run(job["url"], call["kind"], call["prompt"], call.get("arguments", {})))
    except Exception as error:
        results.append({"raised": type(error).__name__, "text": str(error)})
print(json.dumps(results))
