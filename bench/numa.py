"""On a machine of several NUMA nodes: where pages and threads are, the same bits, and steps with and without nodes.

    .venv/bin/python bench/numa.py [--forced] [--threads N] [MODEL]

Prints one JSON line for each of both. `--forced` takes the halves of this machine's CPUs for two nodes, with the memory
of one.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from unittest import mock

import numpy as np
from engine_steps import fill, run_step

from interlingua.engine.native import load
from interlingua.engine.native._native import KV_BLOCK, NumaNode, allowed_cpus, numa_nodes
from interlingua.engine.native.engine import NativeOptions
from interlingua.hub import resolve


def pages() -> dict[str, dict[str, float]]:
    """MB of this process on each node, by the policy of their memory; what has none is left out."""
    found: dict[str, dict[str, float]] = {}
    for line in Path("/proc/self/numa_maps").read_text().splitlines():
        policy, page = line.split()[1], re.search(r"kernelpagesize_kB=(\d+)", line)
        if policy == "default" or page is None:
            continue
        by_node = found.setdefault(policy, {})
        for node, count in re.findall(r" N(\d+)=(\d+)", line):
            by_node[f"node {node}"] = round(by_node.get(f"node {node}", 0.0) + int(count) * int(page[1]) / 1024, 2)
    return found


def threads() -> dict[str, int]:
    """How many threads of this process may run on which CPUs."""
    found: dict[str, int] = {}
    for task in Path("/proc/self/task").iterdir():
        mask = re.search(r"Cpus_allowed_list:\s*(\S+)", (task / "status").read_text())
        if mask is not None:
            found[mask[1]] = found.get(mask[1], 0) + 1
    return found


def measure(nodes: list[NumaNode], args: argparse.Namespace) -> bytes:
    """Prints one line for a model whose machine has `nodes`; returns the bytes of the KV that it computed."""
    with mock.patch.object(load, "numa_nodes", lambda _: nodes):
        loaded = load.load_model(resolve(args.model), NativeOptions(threads=args.threads))
    tables = np.arange(32 * 8, dtype=np.int32).reshape(32, 8)
    least = {}
    for rows in (1, 32):
        sequences = [(7 * KV_BLOCK, 1)] * rows
        fill(loaded, sequences, tables[:rows])
        least[f"decode {rows}"] = min(run_step(loaded, sequences, tables[:rows]) for _ in range(args.repeat))
    model = loaded.model
    last = loaded.config.layers - 1
    row = {"threads": f"{model.threads} on {model.placement or 'one node'}", "cpus": threads(), "mb": pages()}
    print(
        json.dumps({**row, "ms_least": {name: round(seconds * 1e3, 2) for name, seconds in least.items()}}), flush=True
    )
    return b"".join(model.kv_block(last, block).tobytes() for block in range(7))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m-instruct")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--forced", action="store_true")
    args = parser.parse_args()
    cpus = allowed_cpus()
    half = (len(cpus) + 1) // 2
    nodes = [NumaNode(0, cpus[:half]), NumaNode(0, cpus[half:])] if args.forced else numa_nodes(cpus)
    if len(nodes) < 2:
        raise SystemExit("this machine has one NUMA node; see --forced")
    spread, alone = measure(nodes, args), measure([], args)
    if spread != alone:
        raise SystemExit("the keys and values of the last layer differ")
    print("the keys and values of the last layer are the same")


if __name__ == "__main__":
    main()
