"""This server and its peers side by side: the same prompts' kind, the same loads, one run, one machine.

    ./scripts/bench compare [--streams 1 8 32] [--peers llama.cpp vllm] [--rounds 2] [--repeat 2]

One server runs at a time, on all cores; ours before and after each peer, so that a machine that changes its pace is
seen. One JSON line per result, and at the end the ratio to the better peer at each load. Results are appended to
`bench/results/DATE.jsonl` with commit and machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import uvloop
from loadgen import Load, measure
from peers import SERVERS, Peer
from results import keep, machine
from server import running

OURS = "interlingua"


@contextlib.contextmanager
def ours(streams: int) -> Iterator[Peer]:
    with running(["--max-concurrent-requests", str(max(512, streams))]) as server:
        yield Peer(OURS, server.url, server.model, round(server.ready_s, 2))


class Run:
    """Collects the results of one run; every prompt of it is new."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._seed = arguments.seed0
        self._about = machine()
        self.rates: dict[tuple[str, int], list[float]] = {}

    def record(self, kind: str, result: dict[str, Any]) -> None:
        print(json.dumps({"kind": kind, **result}), flush=True)
        keep({"kind": kind, **result}, self._about)

    def load(self, peer: Peer, streams: int, requests: int) -> dict[str, Any]:
        load = Load(
            url=peer.url,
            api="openai",
            model=peer.model,
            streams=streams,
            requests=requests,
            seed0=self._seed,
        )
        self._seed += requests
        return uvloop.run(measure(load))

    def serve(self, start: Callable[[int], contextlib.AbstractContextManager[Peer]]) -> None:
        loads: list[int] = self._arguments.streams
        with start(max(loads)) as peer:
            self.load(peer, min(4, max(loads)), 4)  # warm-up
            self.record("ready", {"server": peer.name, "ready_s": peer.ready_s, "note": peer.note})
            for streams in loads:
                result = self.load(peer, streams, max(4, streams * self._arguments.rounds))
                self.rates.setdefault((peer.name, streams), []).append(result["tokens_per_s"])
                self.record("load", {"server": peer.name, **result})

    def compare(self) -> None:
        names = sorted({name for name, _ in self.rates} - {OURS})
        for streams in self._arguments.streams:
            mine = self.rates[OURS, streams]
            best = max(names, key=lambda name: statistics.median(self.rates[name, streams]))
            theirs = self.rates[best, streams]
            ratio = statistics.median(mine) / statistics.median(theirs)
            figures = {"ours": mine, "theirs": theirs}
            self.record("ratio", {"streams": streams, "best_peer": best, "ratio": round(ratio, 2), **figures})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--peers", nargs="*", default=list(SERVERS), choices=list(SERVERS))
    parser.add_argument("--rounds", type=int, default=2, help="requests of each stream (of 4 at the least in all)")
    parser.add_argument("--repeat", type=int, default=1, help="how often the whole is run")
    parser.add_argument("--seed0", type=int, default=1000)
    arguments = parser.parse_args()
    run = Run(arguments)
    for _ in range(arguments.repeat):
        run.serve(ours)
        for name in arguments.peers:
            run.serve(SERVERS[name])
            run.serve(ours)
    if arguments.peers:
        run.compare()


if __name__ == "__main__":
    main()
