"""Gaps between the tokens of running streams, alone and while prompts of 2,048 tokens arrive.

    ./scripts/bench arrivals [--streams 8] [--every 1.0] [-- FLAG OF serve ...]

Prints the median and the 99th percentile of the gaps in ms, both ways, and the ratio of the second's p99 to the first's
median.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import time
from dataclasses import replace

import aiohttp
import uvloop
from loadgen import Load, one_stream, percentile
from server import running

LONG_WORDS = 2000  # about 2,048 tokens
SECONDS = 8.0


async def gaps(load: Load, every: float | None) -> list[float]:
    """Seconds between tokens of `load.streams` streams during SECONDS, with a long prompt each `every` seconds."""
    found: list[float] = []
    end = time.monotonic() + SECONDS
    numbers = iter(range(load.seed0, load.seed0 + 100_000))

    async def stream() -> None:
        while time.monotonic() < end:
            found.extend((await one_stream(session, load, next(numbers))).gaps)

    async def arrive() -> None:
        long = replace(load, words=LONG_WORDS, tokens=2)
        async with asyncio.TaskGroup() as group:
            while every is not None and time.monotonic() < end:
                group.create_task(one_stream(session, long, next(numbers)))
                await asyncio.sleep(every)

    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session, asyncio.TaskGroup() as group:
        for _ in range(load.streams):
            group.create_task(stream())
        await asyncio.sleep(1.0)  # not while the streams themselves are still prompts
        group.create_task(arrive())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two arrivals")
    parser.add_argument("flags", nargs="*", metavar="-- FLAG", help="flags of `interlingua serve`")
    arguments = parser.parse_args()
    with running(arguments.flags) as server:
        load = Load(url=server.url, model=server.model, streams=arguments.streams, tokens=400)
        with contextlib.suppress(IndexError):
            uvloop.run(gaps(replace(load, streams=1), None))  # warm-up
        alone = uvloop.run(gaps(replace(load, seed0=1000), None))
        beside = uvloop.run(gaps(replace(load, seed0=2000), arguments.every))
    median = percentile(alone, 0.5)
    result = {
        "streams": arguments.streams,
        "alone_p50_ms": round(median * 1e3, 2),
        "alone_p99_ms": round(percentile(alone, 0.99) * 1e3, 2),
        "beside_p50_ms": round(percentile(beside, 0.5) * 1e3, 2),
        "beside_p99_ms": round(percentile(beside, 0.99) * 1e3, 2),
        "p99_over_median_alone": round(percentile(beside, 0.99) / median, 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
