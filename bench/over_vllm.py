"""What our layer costs over vLLM: tokens a second through this server over those of vLLM's own, in one run.

In the environment where vLLM lives:  python bench/over_vllm.py MODEL [--streams 32] [--option NAME=VALUE ...]

Ours, theirs, ours, theirs: each with the same options of vLLM and new prompts; the ratio is of the medians.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
from collections.abc import Iterator, Sequence

import uvloop
from loadgen import Load, measure
from peers import Peer, free_port, serving
from server import running


@contextlib.contextmanager
def ours(model: str, options: Sequence[str]) -> Iterator[Peer]:
    flags = [flag for option in options for flag in ("--vllm-arg", option)]
    with running([model, "--engine", "vllm", "--served-model-name", "m", *flags], seconds=900) as server:
        yield Peer("interlingua", server.url, "m", server.ready_s)


@contextlib.contextmanager
def theirs(model: str, options: Sequence[str]) -> Iterator[Peer]:
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--port", str(port)]
    command += ["--host", "127.0.0.1", "--served-model-name", "m", "--max-num-seqs", "256"]
    for option in options:
        name, _, value = option.partition("=")
        command += [f"--{name}"] if value == "true" else [f"--{name}", value]
    with serving("vllm", command, port, 900, {}, "m") as peer:
        yield peer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, nargs="+", default=[32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--option", action="append", default=[], dest="options", metavar="NAME=VALUE", help="of vLLM")
    arguments = parser.parse_args()
    rates: dict[tuple[str, int], list[float]] = {}
    seed = 70_000
    for _ in range(arguments.repeat):
        for start in (ours, theirs):
            with start(arguments.model, arguments.options) as peer:
                for streams, count in [(4, 4), *((n, n * arguments.rounds) for n in arguments.streams)]:
                    load = Load(url=peer.url, api="openai", model="m", streams=streams, requests=count, seed0=seed)
                    seed += count
                    result = uvloop.run(measure(load))
                    if count > 4:
                        rates.setdefault((peer.name, streams), []).append(result["tokens_per_s"])
                        print(json.dumps({"server": peer.name, **result}), flush=True)
    for streams in arguments.streams:
        mine, other = (statistics.median(rates[name, streams]) for name in ("interlingua", "vllm"))
        print(json.dumps({"streams": streams, "ratio": round(mine / other, 3)}))


if __name__ == "__main__":
    main()
