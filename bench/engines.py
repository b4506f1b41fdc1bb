"""The native engine alone, in process, and OpenVINO GenAI beside it: the same prompts, greedy, prefill included.

./scripts/bench engines [--streams 1 8 32] [--no-peer] [-- OPTION=VALUE ...]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from loadgen import prompt
from peers import FOLDER, MODEL, gguf, openvino_environment

from interlingua.contract.events import TokenEvent
from interlingua.contract.request import PreparedRequest, SamplingParams
from interlingua.engine.native.engine import NativeEngine, NativeOptions
from interlingua.hub import resolve
from interlingua.text.tokenizer import Tokenizer


async def native(prompts: list[str], tokens: int, loads: list[int], options: dict[str, Any]) -> list[dict[str, Any]]:
    files = resolve(MODEL)
    tokenizer = Tokenizer.load(files)
    engine = NativeEngine(files, NativeOptions(**options))
    await engine.start()
    numbers = iter(range(len(prompts)))

    async def one() -> int:
        number = next(numbers)
        request = PreparedRequest(
            request_id=str(number),
            prompt_ids=tuple(tokenizer.encode(prompts[number])),
            max_new_tokens=tokens,
            sampling=SamplingParams(),
            stop_token_ids=frozenset(),
        )
        return len([event async for event in engine.generate(request) if isinstance(event, TokenEvent)])

    results = []
    for streams in [1, *loads]:  # the first is the warm-up
        begun = time.perf_counter()
        made = sum(await asyncio.gather(*(one() for _ in range(streams))))
        seconds = time.perf_counter() - begun
        results.append({"engine": "interlingua", "streams": streams, "tokens_per_s": round(made / seconds, 1)})
    await engine.stop()
    return results[1:]


def openvino(prompts: list[str], tokens: int, loads: list[int]) -> list[dict[str, Any]]:
    python = openvino_environment() / "bin" / "python"
    folder = FOLDER / "openvino-model"
    folder.mkdir(parents=True, exist_ok=True)
    model = folder / "model.gguf"
    if not model.exists():
        shutil.copyfile(gguf(), model)
    job = json.dumps({"prompts": prompts, "tokens": tokens, "streams": loads})
    script = Path(__file__).with_name("openvino_engine.py")
    run = subprocess.run([python, script, model, folder], input=job, capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(f"OpenVINO failed:\n{run.stderr[-2000:]}")
    lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    return [{"engine": "openvino", **line} for line in lines[1:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seed0", type=int, default=50_000)
    parser.add_argument("--no-peer", action="store_true", help="only the native engine")
    parser.add_argument("options", nargs="*", metavar="-- OPTION=VALUE", help="fields of NativeOptions")
    arguments = parser.parse_args()
    options: dict[str, Any] = {"threads": os.cpu_count()}
    for option in arguments.options:
        name, _, value = option.partition("=")
        options[name] = int(value) if value.lstrip("-").isdigit() else value
    loads = arguments.streams * arguments.repeat
    prompts = [prompt(arguments.seed0 + i, 110) for i in range(1 + sum(loads))]
    best: dict[tuple[str, int], float] = {}
    results = asyncio.run(native(prompts, arguments.tokens, loads, options))
    if not arguments.no_peer:
        results += openvino(prompts, arguments.tokens, loads)
    for result in results:
        key = (result["engine"], result["streams"])
        best[key] = max(best.get(key, 0.0), result["tokens_per_s"])
    for (engine, streams), rate in best.items():
        print(json.dumps({"engine": engine, "streams": streams, "best_tokens_per_s": rate}))
    if not arguments.no_peer:
        for streams in arguments.streams:
            ratio = best["interlingua", streams] / best["openvino", streams]
            print(json.dumps({"streams": streams, "ratio": round(ratio, 2)}))


if __name__ == "__main__":
    sys.exit(main())
