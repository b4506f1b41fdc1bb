"""Times whole steps of the native engine: decode of 1..128 rows at 200 tokens of context, and prefill of one prompt.

    .venv/bin/python bench/engine_steps.py [--activations int16] [--kv int8] [--isa avx512] [--threads 2] [MODEL]

Prints one JSON line per case: rows, median and least milliseconds, rows per second.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np

from interlingua.engine.native._native import KV_BLOCK
from interlingua.engine.native.engine import NativeOptions
from interlingua.engine.native.load import LoadedModel, load_model
from interlingua.hub import resolve


def run_step(loaded: LoadedModel, sequences: list[tuple[int, int]], tables: np.ndarray) -> float:
    """One step over (first position, rows) per sequence with one logit row each; returns seconds."""
    positions = np.concatenate([np.arange(first, first + rows) for first, rows in sequences]).astype(np.int32)
    offsets = np.cumsum([0] + [rows for _, rows in sequences]).astype(np.int32)
    wanted = len(sequences)
    tokens = (positions * 37 % 40000 + 3).astype(np.int32)
    results = (np.empty(wanted, np.int32), np.empty(wanted, np.float32))
    score = np.full(wanted, -1, np.int32)
    start = time.perf_counter()
    loaded.model.step(tokens, positions, offsets, tables, offsets[1:] - 1, score, np.zeros(wanted, np.int32), *results)
    return time.perf_counter() - start


def fill(loaded: LoadedModel, sequences: list[tuple[int, int]], tables: np.ndarray) -> None:
    """Computes what lies before the rows that are timed: KV memory that was never written is one page of zeros."""
    for (first, _), table in zip(sequences, tables, strict=True):
        for start in range(0, first, 512):
            run_step(loaded, [(start, min(512, first - start))], table[None])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m-instruct")
    parser.add_argument("--activations", default="int8", choices=["int8", "int16"])
    parser.add_argument("--kv", default="fp16", choices=["fp16", "int8"])
    parser.add_argument("--quantize", default="auto")
    parser.add_argument("--isa")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=15)
    args = parser.parse_args()
    options = NativeOptions(
        activations=args.activations,
        kv_cache_dtype=args.kv,
        quantize=args.quantize,
        isa=args.isa,
        threads=args.threads,
        max_batch_tokens=2048,
    )
    loaded = load_model(resolve(args.model), options)
    cases = [(f"decode {n} rows at 200", [(200, 1)] * n) for n in (1, 2, 4, 8, 16, 32, 64, 128)]
    cases += [(f"prefill {n}", [(0, n)]) for n in (16, 128, 512, 2048)]
    for name, sequences in cases:
        blocks = -(-sum(sequences[0]) // KV_BLOCK)  # no more: sequences that share blocks would be read once
        assert len(sequences) * blocks <= loaded.kv_blocks
        tables = np.arange(len(sequences) * blocks, dtype=np.int32).reshape(-1, blocks)
        fill(loaded, sequences, tables)
        loaded.model.set_profiling(True)
        times = sorted(run_step(loaded, sequences, tables) for _ in range(args.repeat))
        rows = sum(count for _, count in sequences)
        median = statistics.median(times)
        result = {
            "case": name,
            "kernels": loaded.model.kernels,
            "activations": args.activations,
            "kv": args.kv,
            "ms_median": round(median * 1e3, 2),
            "ms_least": round(times[0] * 1e3, 2),
            "rows_per_s": round(rows / median),
            "ms_by_op": {
                kind: round(seconds * 1e3 / args.repeat, 2)
                for kind, seconds in zip(loaded.model.op_kinds(), loaded.model.op_seconds, strict=True)
            },
        }
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
