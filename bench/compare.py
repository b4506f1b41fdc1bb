"""This server and its peers side by side: the same prompts' kind, the same loads, one run, one machine.

    ./scripts/bench compare [--streams 1 8 32] [--peers llama.cpp vllm] [--rounds 2] [--repeat 2]

One server runs at a time, on all cores; ours before and after each peer, in each form of KV, so that a machine that
changes its pace is seen. One JSON line per result, and at the end the ratio to the better peer at each load; all of it
goes to `bench/results/DATE.jsonl`, with commit and machine.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import uvloop
from loadgen import Load, measure
from peers import SERVERS, Peer
from results import keep, machine
from server import running

OURS = "interlingua"  # by default
# Flags of each form in which ours is served.
FORMS: dict[str, list[str]] = {OURS: [], f"{OURS}, int8 KV": ["--kv-cache-dtype", "int8"]}


@contextlib.contextmanager
def ours(form: str, streams: int) -> Iterator[Peer]:
    with running(["--max-concurrent-requests", str(max(512, streams)), *FORMS[form]]) as server:
        yield Peer(form, server.url, server.model, round(server.ready_s, 2))


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

    def serve_ours(self) -> None:
        for form in FORMS:
            self.serve(functools.partial(ours, form))

    def compare(self) -> None:
        names = sorted({name for name, _ in self.rates} - set(FORMS))
        for streams in self._arguments.streams:
            best = max(names, key=lambda name: statistics.median(self.rates[name, streams]))
            theirs = self.rates[best, streams]
            for form in FORMS:
                mine = self.rates[form, streams]
                ratio = round(statistics.median(mine) / statistics.median(theirs), 2)
                figures = {"ours": mine, "theirs": theirs}
                self.record("ratio", {"form": form, "streams": streams, "best_peer": best, "ratio": ratio, **figures})


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
        run.serve_ours()
        for name in arguments.peers:
            run.serve(SERVERS[name])
            run.serve_ours()
    if arguments.peers:
        run.compare()


if __name__ == "__main__":
    main()
