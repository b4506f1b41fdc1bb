"""Every benchmark that `scripts/bench` lists says how it is used."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BENCHES = sorted(path for path in (ROOT / "bench").glob("*.py") if "__main__" in path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("bench", BENCHES, ids=lambda path: path.stem)
def test_help(bench: Path) -> None:
    if bench.stem == "plot" and importlib.util.find_spec("matplotlib") is None:
        pytest.skip("needs matplotlib, and says so")
    done = subprocess.run(
        [sys.executable, bench, "--help"], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {bench.name}")


def test_an_engine_that_is_no_peer() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / "peers.py", "llama"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr.endswith("no such engine: 'llama' (choose from llama.cpp, vllm, openvino)\n")
