"""Keeps results: one JSON line each in bench/results/DATE.jsonl, with date, commit and machine."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "results"


def machine() -> dict[str, Any]:
    """What a figure cannot be read without."""
    from interlingua.engine.native._native import kernel_names

    processor = platform.processor()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"at": now, "commit": commit, "processor": processor, "cores": os.cpu_count(), "kernels": kernel_names()[-1]}


def keep(result: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / f"{about['at'][:10]}.jsonl").open("a") as file:
        file.write(json.dumps({**result, **about}) + "\n")
