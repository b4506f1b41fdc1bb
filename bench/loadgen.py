"""A closed loop of streaming clients: tokens/s, time to the first token, gaps between tokens.

C workers, each of which sends its next prompt when its last answer has ended. Prompts are about as long as a
paragraph and never sent twice; answers are greedy and go on past the end of the text, so that every server does
the same work. `--seed0` picks the prompts: use another for each run against one server, else its prefix cache answers.
`--api tgi` speaks POST /generate_stream, `--api openai` POST /v1/completions. Prints one JSON line.

    python bench/loadgen.py [--url URL] [--api tgi|openai] [-c STREAMS] [-n REQUESTS] [--seed0 N]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import uvloop

_VOCABULARY = (
    "apple river morning street window music paper summer garden letter winter island bridge market school forest "
    "captain village doctor station engine painter sister brother kitchen mountain weather ocean teacher library "
    "harbour theatre factory holiday journey picture question answer number reason history science country city"
)
WORDS = _VOCABULARY.split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is asked of a server, and how much at a time."""

    url: str = "http://127.0.0.1:8080"
    api: str = "tgi"
    model: str = "smollm2-135m-instruct"
    streams: int = 8
    requests: int = 32
    words: int = 110
    tokens: int = 128
    seed0: int = 0


@dataclass(slots=True)
class Stream:
    """The moments of one answer, in seconds after its request was sent."""

    moments: list[float] = field(default_factory=list)  # of each event with text or a token
    tokens: int = 0

    @property
    def gaps(self) -> Iterator[float]:
        return (later - earlier for earlier, later in zip(self.moments, self.moments[1:], strict=False))


def prompt(number: int, words: int) -> str:
    """The same for the same number, and from its first words on unlike that of any other."""
    chosen = random.Random(number).choices(WORDS, k=words)
    return f"Story {number}: " + " ".join(chosen)


def _request(load: Load, number: int) -> tuple[str, dict[str, Any]]:
    text = prompt(number, load.words)
    if load.api == "tgi":
        parameters = {"max_new_tokens": load.tokens, "do_sample": False, "ignore_eos": True}
        return "/generate_stream", {"inputs": text, "parameters": parameters}
    return "/v1/completions", {
        "model": load.model,
        "prompt": text,
        "max_tokens": load.tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def one_stream(session: aiohttp.ClientSession, load: Load, number: int) -> Stream:
    path, body = _request(load, number)
    stream = Stream()
    begun = time.perf_counter()
    async with session.post(load.url + path, json=body) as response:
        if response.status != 200:
            raise SystemExit(f"{path}: {response.status} {await response.text()}")
        async for line in response.content:
            data = line.removeprefix(b"data:").strip()
            if not line.startswith(b"data:") or data == b"[DONE]":
                continue
            event = json.loads(data)
            if "error" in event:
                raise SystemExit(f"{path}: {event}")
            if load.api == "tgi" or event.get("choices"):
                stream.moments.append(time.perf_counter() - begun)
                stream.tokens += 1
            if event.get("usage"):  # an event may hold several tokens: the server's count is the right one
                stream.tokens = event["usage"]["completion_tokens"]
    if not stream.moments:
        raise SystemExit(f"{path}: an answer without a token")
    return stream


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of `values` do not exceed; 0 for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


async def measure(load: Load) -> dict[str, Any]:
    """Runs the load and sums it up."""
    numbers = iter(range(load.seed0, load.seed0 + load.requests))
    done: list[Stream] = []

    async def worker() -> None:
        for number in numbers:
            stream = await one_stream(session, load, number)
            done.append(stream)

    # A connection a request: a server that closes one after an answer would break the next request on it.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=600)) as session:
        begun = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(min(load.streams, load.requests)):
                group.create_task(worker())
        seconds = time.perf_counter() - begun
    first = [stream.moments[0] for stream in done]
    gaps = [gap for stream in done for gap in stream.gaps]
    tokens = sum(stream.tokens for stream in done)
    return {
        "streams": load.streams,
        "requests": len(done),
        "tokens": tokens,
        "seconds": round(seconds, 2),
        "tokens_per_s": round(tokens / seconds, 1),
        "ttft_ms_p50": round(percentile(first, 0.5) * 1e3, 1),
        "ttft_ms_p99": round(percentile(first, 0.99) * 1e3, 1),
        "gap_ms_p50": round(percentile(gaps, 0.5) * 1e3, 2),
        "gap_ms_p99": round(percentile(gaps, 0.99) * 1e3, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    usual = Load()
    parser.add_argument("--url", default=usual.url)
    parser.add_argument("--api", default=usual.api, choices=("tgi", "openai"))
    parser.add_argument("--model", default=usual.model, help="the model's name in the body, for --api openai")
    parser.add_argument("-c", "--streams", type=int, default=usual.streams, help="streams at the same time")
    parser.add_argument("-n", "--requests", type=int, default=usual.requests, help="requests in all")
    parser.add_argument("--words", type=int, default=usual.words, help="words of a prompt")
    parser.add_argument("--tokens", type=int, default=usual.tokens, help="tokens of an answer")
    parser.add_argument("--seed0", type=int, default=usual.seed0, help="number of the first prompt")
    load = replace(usual, **vars(parser.parse_args()))
    print(json.dumps(uvloop.run(measure(load))))


if __name__ == "__main__":
    main()
