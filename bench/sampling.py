"""What decoding parameters cost: tokens per second of 32 rows that have one, or all, beside 32 plain or greedy rows.

    .venv/bin/python bench/sampling.py [--rows 32] [--tokens 200] [--rounds 3] [MODEL]

Each row has its own prompt, and in each round its own seed; prefill included. Log-probabilities are always made. The
kind "all" has temperature, top-k, top-p, every penalty and the five best alternatives of each token. Parameters take
turns, so that a busy machine slows all of them; prints one JSON line for each with the best of its rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from dataclasses import replace

from interlingua.contract.events import FailedEvent
from interlingua.contract.request import PreparedRequest, SamplingParams, Watermark
from interlingua.engine.native.engine import NativeEngine, NativeOptions
from interlingua.hub import resolve

PLAIN = SamplingParams(do_sample=True)
KINDS: dict[str, SamplingParams] = {
    "plain": PLAIN,
    "greedy": SamplingParams(),
    "top_k 50": replace(PLAIN, top_k=50),
    "top_p 0.9": replace(PLAIN, top_p=0.9),
    "typical_p 0.9": replace(PLAIN, typical_p=0.9),
    "min_p 0.05": replace(PLAIN, min_p=0.05),
    "repetition_penalty 1.2": replace(PLAIN, repetition_penalty=1.2),
    "watermark": replace(PLAIN, watermark=Watermark()),
    "top_n_tokens 5": PLAIN,
    "all": SamplingParams(
        do_sample=True,
        temperature=0.8,
        top_k=50,
        top_p=0.9,
        repetition_penalty=1.2,
        frequency_penalty=0.1,
        presence_penalty=0.1,
    ),
}
TOP_N = {"top_n_tokens 5": 5, "all": 5}


async def run(engine: NativeEngine, name: str, rows: int, tokens: int, turn: int) -> float:
    """Tokens per second."""

    async def one(row: int) -> None:
        request = PreparedRequest(
            request_id=str(row),
            prompt_ids=tuple(3 + (row * 977 + i * 31) % 20_000 for i in range(64)),
            max_new_tokens=tokens,
            sampling=replace(KINDS[name], seed=turn * rows + row),
            stop_token_ids=frozenset(),
            top_n_tokens=TOP_N.get(name, 0),
        )
        async for event in engine.generate(request):
            if isinstance(event, FailedEvent):
                raise event.error

    start = time.perf_counter()
    await asyncio.gather(*(one(row) for row in range(rows)))
    return rows * tokens / (time.perf_counter() - start)


async def measure(args: argparse.Namespace) -> None:
    engine = NativeEngine(resolve(args.model), NativeOptions())
    await engine.start()
    chosen = [name for name in KINDS if not args.only or name in ("plain", "greedy", *args.only)]
    best = dict.fromkeys(chosen, 0.0)
    for turn in range(args.rounds):
        for name in chosen:
            best[name] = max(best[name], await run(engine, name, args.rows, args.tokens, turn))
    for name, rate in best.items():
        shares = {f"of_{base}_%": round(100 * rate / best[base], 1) for base in ("plain", "greedy")}
        print(json.dumps({"parameter": name, "tokens_per_s": round(rate), **shares}), flush=True)
    await engine.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m-instruct")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", help="a parameter's name; may be given several times")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
