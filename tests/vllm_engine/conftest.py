"""vLLM as the engine, in the environment of `scripts/setup-vllm`; elsewhere these tests say that they are skipped."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tests" / "e2e"), str(ROOT / "scripts")]

MISSING = "vLLM is not installed here: scripts/setup-vllm, then scripts/test-vllm"
# Small and quick to start: no compiled graphs, and a share of memory that a machine in use can spare.
FLAGS = ["--engine", "vllm", "--served-model-name", "smollm2-135m-instruct", "--max-seq-len", "2048"]
FLAGS += ["--kv-memory", "512MiB", "--vllm-arg", "gpu-memory-utilization=0.2", "--vllm-arg", "enforce-eager=true"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("vllm") is None:
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=MISSING))


@pytest.fixture(scope="session")
def model() -> Path:
    """The demo model as bf16 safetensors."""
    folder = ROOT / "build" / "demo-safetensors"
    if not (folder / "generation_config.json").exists():
        subprocess.run([sys.executable, ROOT / "scripts" / "demo_safetensors.py", folder], check=True)
    return folder


@pytest.fixture(scope="session")
def even_model() -> Path:
    """The same with a fourth KV head (and three heads) of zeros, which two workers can share: same answers."""
    folder = ROOT / "build" / "demo-safetensors-even"
    if not (folder / "generation_config.json").exists():
        script = ROOT / "scripts" / "demo_safetensors.py"
        subprocess.run([sys.executable, script, folder, "--kv-heads", "4"], check=True)
    return folder


@pytest.fixture(scope="session")
def flags(model: Path) -> list[str]:
    return [str(model), *FLAGS]


@pytest.fixture(scope="session")
def even_flags(even_model: Path) -> list[str]:
    return [str(even_model), *FLAGS, "--vllm-arg", "tensor-parallel-size=2"]
