"""Gaps between the tokens of running streams, alone and while prompts of 2,048 tokens arrive.

    ./scripts/bench arrivals [--streams 8] [--every 1.0] [--rounds 2] [-- FLAG OF serve ...]

The streams begin together and make the same number of tokens both times, so that they stand at the same contexts; gaps
count from when the last of them has its first token. Prints the median and the 99th percentile in ms, both ways, the
ratio of the second's p99 to the first's median, and how long the arriving prompts waited for their first token.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import time
from dataclasses import replace

import aiohttp
import uvloop
from loadgen import Load, one_stream, percentile
from server import running

LONG_WORDS = 2000  # about 2,048 tokens


async def run(load: Load, every: float | None) -> tuple[list[float], list[float]]:
    """Seconds between tokens of `load.streams` streams, with a long prompt each `every` seconds, and these prompts'
    seconds to their first token."""
    numbers = iter(range(load.seed0, load.seed0 + 100_000))
    waits: list[float] = []

    async def stream() -> list[float]:
        begun = time.perf_counter()
        return [begun + moment for moment in (await one_stream(session, load, next(numbers))).moments]

    async def long_prompt() -> None:
        waits.append((await one_stream(session, replace(load, words=LONG_WORDS, tokens=2), next(numbers))).moments[0])

    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session, asyncio.TaskGroup() as group:
        streams = [group.create_task(stream()) for _ in range(load.streams)]
        await asyncio.sleep(0.5)  # not while the streams themselves are still prompts
        while every is not None and not any(task.done() for task in streams):
            group.create_task(long_prompt())
            await asyncio.wait(streams, timeout=every, return_when=asyncio.FIRST_COMPLETED)
        moments = await asyncio.gather(*streams)
    begun, ended = max(one[0] for one in moments), min(one[-1] for one in moments)
    gaps = [b - a for one in moments for a, b in itertools.pairwise(one) if begun <= a and b <= ended]
    return gaps, waits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two arrivals")
    parser.add_argument("--tokens", type=int, default=400, help="tokens of each stream")
    parser.add_argument("--rounds", type=int, default=2, help="alone and beside arrivals, in turn")
    parser.add_argument("flags", nargs="*", metavar="-- FLAG", help="flags of `interlingua serve`")
    arguments = parser.parse_args()
    alone: list[float] = []
    beside: list[float] = []
    waits: list[float] = []
    with running(arguments.flags) as server:
        load = Load(url=server.url, model=server.model, streams=arguments.streams, tokens=arguments.tokens)
        server.settle()
        uvloop.run(run(replace(load, streams=1), None))  # warm-up
        for turn in range(1, arguments.rounds + 1):
            alone += uvloop.run(run(replace(load, seed0=turn * 2000), None))[0]
            gaps, waited = uvloop.run(run(replace(load, seed0=turn * 2000 + 1000), arguments.every))
            beside += gaps
            waits += waited
    median = percentile(alone, 0.5)
    result = {
        "streams": arguments.streams,
        "alone_p50_ms": round(median * 1e3, 2),
        "alone_p99_ms": round(percentile(alone, 0.99) * 1e3, 2),
        "beside_p50_ms": round(percentile(beside, 0.5) * 1e3, 2),
        "beside_p99_ms": round(percentile(beside, 0.99) * 1e3, 2),
        "p99_over_median_alone": round(percentile(beside, 0.99) / median, 2),
        "long_prompts": len(waits),
        "long_first_token_s_p50": round(percentile(waits, 0.5), 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
