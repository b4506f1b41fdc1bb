"""What grammars cost: tokens a second of 32 rows that are free, that follow one schema, and that follow 32 of them.

    .venv/bin/python bench/guided.py [--rows 32] [--tokens 120] [--repeat 3] [MODEL]

Every case runs `repeat` times, in turn with the others, on one engine without speculation; all rows sample at
temperature 1 and make the same number of tokens. Prints one JSON line a case: the best rate, its share of the free
rows' rate, how many masks were late, and the mean and worst milliseconds of a mask.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from typing import Any

from interlingua.contract.events import FailedEvent, TokenEvent
from interlingua.contract.request import Grammar, PreparedRequest, SamplingParams
from interlingua.engine.native.engine import NativeEngine, NativeOptions
from interlingua.engine.native.guide import Guide
from interlingua.hub import resolve
from interlingua.text.tokenizer import Tokenizer

WORDS = [
    "name",
    "title",
    "city",
    "colour",
    "kind",
    "state",
    "owner",
    "street",
    "note",
    "label",
    "group",
    "brand",
    "model",
]


def listing(draw: random.Random, bounded: bool) -> Grammar:
    """A long list of objects of six properties. `bounded`: texts of at most so many characters, and patterns."""
    text: dict[str, Any] = {"type": "string", "maxLength": draw.randrange(12, 40)} if bounded else {"type": "string"}
    code = {"type": "string", "pattern": "^[A-Z]{2,4}-[0-9]{3,6}$"} if bounded else {"type": "string"}
    first, second, third, *values = draw.sample(WORDS, 8)
    properties: dict[str, Any] = {
        "id": {"type": "integer", "minimum": 1, "maximum": draw.randrange(100, 10_000)},
        first: text,
        second: {"enum": values},
        "price": {"type": "number"},
        third: code,
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 4},
    }
    item = {"type": "object", "properties": properties, "required": list(properties)}
    return Grammar("json_schema", json.dumps({"type": "array", "items": item, "minItems": 500}))


def cases(rows: int) -> dict[str, list[Grammar | None]]:
    one = [listing(random.Random(0), bounded) for bounded in (False, True)]
    return {
        "free": [None] * rows,
        "one schema": [one[0]] * rows,
        "one schema, bounded texts": [one[1]] * rows,
        "different schemas": [listing(random.Random(i), False) for i in range(rows)],
        "different schemas, bounded texts": [listing(random.Random(i), True) for i in range(rows)],
    }


class Masks:
    """Times every mask, and counts the late ones."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.late = 0
        advance, expect = Guide.advance, Guide.expect

        def timed(guide: Guide, token: int) -> None:
            advance(guide, token)
            self.seconds.append(guide.cost)

        def counted(guide: Guide) -> None:
            self.late += guide.missed
            expect(guide)

        Guide.advance, Guide.expect = timed, counted  # type: ignore[method-assign]


async def measure(engine: NativeEngine, tokenizer: Tokenizer, grammars: list[Grammar | None], tokens: int) -> float:
    prompts = [
        "A list of objects as JSON:\n",
        "Things in stock, as JSON:\n",
        "The following JSON array has all entries:\n",
    ]
    requests = [
        PreparedRequest(
            request_id=str(i),
            prompt_ids=tuple(tokenizer.encode(prompts[i % len(prompts)])),
            max_new_tokens=tokens,
            sampling=SamplingParams(do_sample=True, seed=i + 1),
            stop_token_ids=frozenset() if grammar is None else frozenset(tokenizer.eos_ids),
            grammar=grammar,
        )
        for i, grammar in enumerate(grammars)
    ]
    made = 0

    async def run(request: PreparedRequest) -> None:
        nonlocal made
        async for event in engine.generate(request):
            if isinstance(event, FailedEvent):
                raise event.error
            made += isinstance(event, TokenEvent)

    start = time.perf_counter()
    await asyncio.gather(*map(run, requests))
    return made / (time.perf_counter() - start)


async def run(args: argparse.Namespace) -> None:
    files = resolve(args.model)
    tokenizer = Tokenizer.load(files)
    engine = NativeEngine(files, NativeOptions(speculate=0, threads=args.threads), None, tokenizer)
    await engine.start()
    masks = Masks()
    wanted = cases(args.rows)
    for grammars in wanted.values():
        await measure(engine, tokenizer, grammars, 2)  # compiles; the first tokens of all are in the cache
    rates: dict[str, list[float]] = {name: [] for name in wanted}
    seconds: dict[str, list[float]] = {name: [] for name in wanted}
    late = dict.fromkeys(wanted, 0)
    for _ in range(args.repeat):
        for name, grammars in wanted.items():
            masks.seconds, masks.late = [], 0
            rates[name].append(await measure(engine, tokenizer, grammars, args.tokens))
            seconds[name] += masks.seconds
            late[name] += masks.late
    await engine.stop()
    for name in wanted:
        times = seconds[name] or [0.0]
        result = {
            "case": name,
            "rows": args.rows,
            "tokens_per_s": round(max(rates[name])),
            "share": round(max(rates[name]) / max(rates["free"]), 3),
            "masks": len(seconds[name]),
            "late": late[name],
            "mask_ms_mean": round(sum(times) / len(times) * 1e3, 3),
            "mask_ms_worst": round(max(times) * 1e3, 2),
        }
        print(json.dumps(result), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m-instruct")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
