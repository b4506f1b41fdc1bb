"""Single kernels against what the machine can do: linear layers, norm and rounding, attention; read bandwidth, sgemm.

    ./scripts/bench kernels [--isa avx512] [--threads 2]

One JSON line per case. `of_read` is the share of the read bandwidth of a buffer of the same size that a linear layer
reaches; `gflops` counts 2 x inputs x outputs x rows (attention: 4 x head size x visible positions).
"""

from __future__ import annotations

import argparse
import json
import os
import time

import numpy as np
from results import keep, machine

from interlingua.engine.native._native import (
    ActivationKind,
    KvKind,
    WeightKind,
    kernel_names,
    read_bandwidth,
    time_attention,
    time_linear,
    time_prepare,
)

_BYTES = {WeightKind.INT4: 320, WeightKind.INT8: 544, WeightKind.BF16: 1024}  # of a block of 16 x 32
_ACTIVATIONS = {WeightKind.INT4: ActivationKind.INT8, WeightKind.INT8: ActivationKind.INT8}


ABOUT = machine()


def show(**result: object) -> None:
    """Prints a result, and keeps it with date, commit and machine."""
    print(json.dumps(result), flush=True)
    keep({"kind": "kernel", **result}, ABOUT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--isa", default=kernel_names()[-1], choices=kernel_names())
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--repeat", type=int, default=20)
    arguments = parser.parse_args()
    isa, threads, repeat = arguments.isa, arguments.threads, arguments.repeat

    for megabytes in (8, 32, 96, 400):
        rate = read_bandwidth(threads, megabytes << 20, repeat)
        show(case="read", mb=megabytes, gb_per_s=round(rate / 1e9, 1))
    a = np.ones((2048, 2048), np.float32)
    a @ a
    begun = time.perf_counter()
    a @ a
    show(case="sgemm of numpy", gflops=round(2 * 2048**3 / (time.perf_counter() - begun) / 1e9))
    # All linear layers of the demo model are as large as one of 3,072 x 576 sixty times over; one of the same bytes as
    # the whole (1 row is bound by memory) and one that stays in the cache (many rows are bound by the units).
    for kind in (WeightKind.INT4, WeightKind.INT8, WeightKind.BF16):
        for n, k in ((184_320, 576), (3072, 576)):
            size = n * k // 512 * _BYTES[kind]
            read = read_bandwidth(threads, max(size // 65536, 1) * 65536, repeat)
            for rows in (1, 4, 8, 16, 32, 128, 512):
                if n > 100_000 and rows > 32:
                    continue
                activations = _ACTIVATIONS.get(kind, ActivationKind.BF16)
                seconds = time_linear(isa, threads, kind, activations, n, k, rows, max(repeat // (1 + rows // 64), 3))
                show(
                    case="linear",
                    isa=isa,
                    kind=kind.name.lower(),
                    mb=round(size / 1e6, 1),
                    rows=rows,
                    us=round(seconds * 1e6, 1),
                    gflops=round(2 * n * k * rows / seconds / 1e9),
                    of_read=round(size / seconds / read, 2),
                )
    for rows in (1, 32, 512):
        seconds = time_prepare(isa, threads, ActivationKind.INT8, 576, rows, repeat)
        show(case="norm and rounding", isa=isa, rows=rows, us=round(seconds * 1e6, 1))
    for sequences, context, rows in ((1, 200, 1), (32, 200, 1), (1, 8000, 1), (1, 512, 512), (1, 2048, 2048)):
        visible = sequences * sum(range(context - rows + 1, context + 1))
        for kv in (KvKind.FP16, KvKind.INT8):
            times = max(repeat // (1 + rows // 256), 3)
            seconds = time_attention(isa, threads, kv, sequences, context, rows, 3, 3, 64, times)
            show(
                case="attention",
                isa=isa,
                kv=kv.name.lower(),
                sequences=sequences,
                context=context,
                rows=rows,
                us=round(seconds * 1e6, 1),
                gflops=round(4 * 64 * 9 * visible / seconds / 1e9),
            )


if __name__ == "__main__":
    main()
