"""Draws docs/img/*.png from bench/results: throughput, latency and gaps over load, and where kernels stand (roofline).

./scripts/bench plot [RESULTS.jsonl]        the newest file by default; needs matplotlib (interlingua[bench])
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

try:
    import matplotlib
except ModuleNotFoundError:
    raise SystemExit("plots need matplotlib: .venv/bin/pip install -e '.[bench]'") from None

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).resolve().parent
IMAGES = HERE.parent / "docs" / "img"
COLOURS = {
    "interlingua": "#d1495b",
    "interlingua, int8 KV": "#8d3b72",
    "llama.cpp": "#00798c",
    "vllm": "#edae49",
    "openvino": "#66a182",
}
PANELS = (
    ("tokens_per_s", "tokens a second", "throughput.png"),
    ("ttft_ms_p50", "ms to the first token (median)", "first_token.png"),
    ("gap_ms_p50", "ms between tokens (median)", "gaps.png"),
)


def load_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def of_last_commit(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A day's results may be of several commits."""
    return [line for line in lines if line["commit"] == lines[-1]["commit"]]


def draw_loads(lines: list[dict[str, Any]]) -> None:
    about = lines[-1]
    for field, label, name in PANELS:
        values: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for line in lines:
            values[line["server"]][line["streams"]].append(line[field])
        figure, axis = plt.subplots(figsize=(6, 3.8), dpi=150)
        for server, points in sorted(values.items()):
            streams = sorted(points)
            medians = [statistics.median(points[n]) for n in streams]
            axis.plot(streams, medians, "o-", label=server, color=COLOURS.get(server))
            lows, highs = ([pick(points[n]) for n in streams] for pick in (min, max))
            axis.fill_between(streams, lows, highs, color=COLOURS.get(server), alpha=0.15, linewidth=0)
        axis.set_xscale("log", base=2)
        axis.set_xticks(sorted({n for points in values.values() for n in points}))
        axis.get_xaxis().set_major_formatter(matplotlib.ticker.ScalarFormatter())
        if field != "tokens_per_s":
            axis.set_yscale("log")
        axis.set_xlabel("concurrent streams")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
        axis.set_title(
            f"{about['processor']}, {about['cores']} cores, {about['kernels']}, {about['commit']}", fontsize=7
        )
        figure.tight_layout()
        figure.savefig(IMAGES / name)
        plt.close(figure)


def draw_roofline(lines: list[dict[str, Any]]) -> None:
    """Linear layers: operations a second over operations a byte of weights, under what memory and units allow."""
    kernels = [line for line in lines if line.get("case") == "linear"]
    if not kernels:
        return
    read = max(line["gb_per_s"] for line in lines if line.get("case") == "read" and line["mb"] >= 96)
    figure, axis = plt.subplots(figsize=(6, 3.8), dpi=150)
    peak = max(line["gflops"] for line in kernels)
    for kind, colour in (("int4", "#d1495b"), ("int8", "#00798c"), ("bf16", "#edae49")):
        chosen = [line for line in kernels if line["kind"] == kind and line["mb"] > 30]
        rows = sorted(chosen, key=lambda line: int(line["rows"]))
        intensity = [line["gflops"] * line["us"] / line["mb"] / 1000 for line in rows]
        axis.plot(intensity, [line["gflops"] for line in rows], "o-", label=kind, color=colour)
        for x, line in zip(intensity, rows, strict=True):
            axis.annotate(str(line["rows"]), (x, line["gflops"]), fontsize=6, xytext=(2, 3), textcoords="offset points")
    edge = [1, 1000]
    axis.plot(edge, [x * read for x in edge], "--", color="grey", label=f"memory, {read:g} GB/s")
    axis.axhline(peak, linestyle=":", color="grey", label=f"best seen, {peak} GFLOP/s")
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_ylim(top=peak * 3)
    axis.set_xlabel("operations a byte of weights (labels: rows)")
    axis.set_ylabel("GFLOP/s")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=7)
    figure.tight_layout()
    figure.savefig(IMAGES / "roofline.png")
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    newest = max((HERE / "results").glob("*.jsonl"), default=None)
    parser.add_argument("results", nargs="?" if newest else None, type=Path, default=newest)
    arguments = parser.parse_args()
    IMAGES.mkdir(exist_ok=True)
    lines = load_lines(arguments.results)
    draw_loads(of_last_commit([line for line in lines if line["kind"] == "load"]))
    draw_roofline(of_last_commit([line for line in lines if "case" in line]))


if __name__ == "__main__":
    main()
