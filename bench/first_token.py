"""Time to the first token of a prompt of about 512 tokens, this server's and its peers', one request at a time.

    ./scripts/bench first_token [--words 500] [--requests 9] [--peers llama.cpp vllm]

One server runs at a time, ours before and after each peer; every prompt is new. One JSON line per server with the
median and the least in ms, and the ratio of its median to ours.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

import aiohttp
import uvloop
from compare import OURS, ours
from loadgen import Load, one_stream
from peers import SERVERS, Peer
from results import keep, machine


async def first_tokens(load: Load) -> list[float]:
    """Seconds to the first token of `load.requests` requests, one after the other."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        numbers = range(load.seed0, load.seed0 + load.requests)
        return [(await one_stream(session, load, number)).moments[0] for number in numbers]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--words", type=int, default=500, help="of a prompt: 500 are about 512 tokens")
    parser.add_argument("--requests", type=int, default=9)
    parser.add_argument("--peers", nargs="*", default=list(SERVERS), choices=list(SERVERS))
    arguments = parser.parse_args()
    about = machine()
    found: dict[str, list[float]] = {}

    def serve(start: Callable[[int], AbstractContextManager[Peer]], seed: int) -> None:
        with start(1) as peer:
            load = Load(url=peer.url, api="openai", model=peer.model, words=arguments.words, tokens=2, seed0=seed)
            uvloop.run(first_tokens(replace(load, requests=2, seed0=seed + 500)))  # warm-up
            found.setdefault(peer.name, []).extend(uvloop.run(first_tokens(replace(load, requests=arguments.requests))))

    serve(functools.partial(ours, OURS), 1000)
    for number, name in enumerate(arguments.peers, 1):
        serve(SERVERS[name], 1000 + 2000 * number)
        serve(functools.partial(ours, OURS), 2000 + 2000 * number)
    medians = {name: statistics.median(moments) for name, moments in found.items()}
    for name, moments in found.items():
        row = {
            "kind": "first_token",
            "server": name,
            "words": arguments.words,
            "ttft_ms_p50": round(medians[name] * 1e3, 1),
            "ttft_ms_least": round(min(moments) * 1e3, 1),
            "over_ours": round(medians[name] / medians[OURS], 2),
        }
        print(json.dumps(row), flush=True)
        keep(row, about)


if __name__ == "__main__":
    main()
