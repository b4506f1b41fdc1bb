"""What LoRA adapters cost: whole steps of the native engine with random adapters, against the same steps without.

    .venv/bin/python bench/lora.py [--isa avx512] [--threads 2] [--repeat 15] [MODEL]

Decode steps at 200 tokens of context and prefills; rows go round over the adapters, so that neighbours differ. Steps
with and without adapters alternate, so that both see the same noise of the machine. Prints one JSON line per case:
median milliseconds of both, and the share of the base's throughput that is kept.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from interlingua.engine.native._native import KV_BLOCK, LoraAdapter
from interlingua.engine.native.engine import NativeOptions
from interlingua.engine.native.load import LoadedModel, load_model
from interlingua.engine.native.lora import read_adapter
from interlingua.hub import resolve

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from tiny_adapters import ALL, ATTENTION, adapter_weights, module_shapes, write_adapter

CONTEXT = 200
TARGETS = {"attention": ATTENTION, "all": ALL}

# (sequences, new tokens of each, adapters, rank, targets)
CASES = [
    (32, 1, 4, 16, "attention"),
    (32, 1, 4, 16, "all"),
    (32, 1, 1, 16, "all"),
    (32, 1, 32, 16, "all"),
    (32, 1, 4, 64, "all"),
    (8, 1, 4, 16, "all"),
    (4, 1, 4, 16, "all"),
    (1, 1, 1, 16, "attention"),
    (1, 1, 1, 16, "all"),
    (1, 512, 1, 16, "all"),
    (4, 128, 4, 16, "all"),
]


def step(loaded: LoadedModel, sequences: int, tokens: int, adapters: list[LoraAdapter]) -> float:
    """Seconds of one step; without adapters if there are none."""
    first = CONTEXT if tokens == 1 else 0
    blocks = -(-(first + tokens) // KV_BLOCK)
    tables = (np.arange(sequences * blocks, dtype=np.int32) % loaded.kv_blocks).reshape(sequences, blocks)
    positions = np.tile(np.arange(first, first + tokens, dtype=np.int32), sequences)
    offsets = np.arange(sequences + 1, dtype=np.int32) * tokens
    chosen = np.arange(sequences, dtype=np.int32) % len(adapters) if adapters else None
    ids = (positions * 37 % 40000 + 3).astype(np.int32)
    none, zero = np.full(sequences, -1, np.int32), np.zeros(sequences, np.int32)
    results = np.empty(sequences, np.int32), np.empty(sequences, np.float32)
    start = time.perf_counter()
    loaded.model.step(
        ids, positions, offsets, tables, offsets[1:] - 1, none, zero, *results, adapters=adapters, adapter_of=chosen
    )
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m-instruct")
    parser.add_argument("--isa")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=15)
    args = parser.parse_args()
    loaded = load_model(resolve(args.model), NativeOptions(isa=args.isa, threads=args.threads, max_batch_tokens=512))
    made: dict[tuple[int, int, str], LoraAdapter] = {}

    def adapter(number: int, rank: int, targets: str) -> LoraAdapter:
        key = number, rank, targets
        if key not in made:
            with tempfile.TemporaryDirectory() as folder:
                weights = adapter_weights(module_shapes(loaded.config, TARGETS[targets]), f"{key}", rank)
                write_adapter(Path(folder), weights)
                made[key] = read_adapter(Path(folder), loaded.model, loaded.adaptable, rank)[0]
        return made[key]

    for sequences, tokens, count, rank, targets in CASES:
        adapters = [adapter(number, rank, targets) for number in range(count)]
        step(loaded, sequences, tokens, adapters)
        pairs = [
            (step(loaded, sequences, tokens, []), step(loaded, sequences, tokens, adapters)) for _ in range(args.repeat)
        ]
        base, adapted = (statistics.median(times) for times in zip(*pairs, strict=True))
        result = {
            "sequences": sequences,
            "new_tokens_each": tokens,
            "adapters": count,
            "rank": rank,
            "targets": targets,
            "kernels": loaded.model.kernels,
            "threads": loaded.model.threads,
            "ms_base": round(base * 1e3, 2),
            "ms_adapted": round(adapted * 1e3, 2),
            "throughput_kept": round(base / adapted, 3),
        }
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
