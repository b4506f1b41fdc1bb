"""From the command to the first answer, and the starts that cannot be."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from calls import GENERATE, MODEL
from command_line import refused, run
from server import Server, running
from tokenizers import Tokenizer

from interlingua.hub import resolve

READY_WITHIN = 20.0  # seconds; the aim is 3 on a machine that does nothing else
ROOM = 250_000_000  # bytes beside weights and KV pool


def test_ready_soon_and_small(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\nready in {server.ready_s:.2f} s, {server.resident / 1e6:.0f} MB resident then ", end="")
    assert server.model == MODEL
    assert server.ready_s < READY_WITHIN
    assert server.resident < server.weights + server.pool + ROOM


@pytest.fixture(scope="session")
def demo_file() -> Path:
    return resolve(MODEL).paths[0]


def line_of(model: Path | str, *flags: str, **environ: str) -> str:
    return refused(run("serve", str(model), "--port", "0", *flags, **environ))


def test_missing_file(tmp_path: Path) -> None:
    assert "nothing.gguf" in line_of(tmp_path / "nothing.gguf")
    assert "nothing/at/all" in line_of("./nothing/at/all")


@pytest.mark.parametrize("kept", [20, 1_000_000, 30_000_000, -1])
def test_truncated_file(demo_file: Path, tmp_path: Path, kept: int) -> None:
    path = tmp_path / "cut.gguf"
    shutil.copyfile(demo_file, path)
    os.truncate(path, kept % path.stat().st_size)
    line = line_of(path)
    assert str(path) in line


def test_a_page_instead_of_a_model(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_text("<html>Not found</html>")
    line = line_of(path)
    assert str(path) in line and "GGUF" in line


def tiny_gguf(path: Path, architecture: str, width: int = 64) -> None:
    """A model of one layer; its embedding, of `width` columns, is a hole in the file."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(128)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(64)
    writer.add_block_count(1)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    tokens = [*map(chr, range(33, 127)), "ab"]
    writer.add_token_list([*tokens, "</s>"])
    writer.add_token_merges(["a b"])
    writer.add_token_types([1] * len(tokens) + [3])
    writer.add_eos_token_id(len(tokens))
    rows = len(tokens) + 1
    writer.add_tensor_info("token_embd.weight", [rows, width], np.dtype(np.float16), rows * width * 2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    os.truncate(path, path.stat().st_size + 64 + rows * width * 2)


def test_pull_leaves_nothing_to_do_for_the_first_start(tmp_path: Path) -> None:
    """The tokenizer that a GGUF file only describes is built and kept."""
    path = tmp_path / "model.gguf"
    tiny_gguf(path, "llama")
    done = run("pull", str(path), "--cache", str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    (kept,) = (tmp_path / "cache" / "tokenizers").glob("*.json")
    assert Tokenizer.from_file(str(kept)).encode("ab").tokens == ["ab"]


def test_unsupported_architecture(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    tiny_gguf(path, "mamba")
    resolve("gemma3-270m")  # the download would speak up
    for model, architecture in ((path, "mamba"), ("gemma3-270m", "gemma3")):
        line = line_of(model)
        assert f"unsupported architecture '{architecture}'" in line and "llama" in line.partition("supported:")[2]


@pytest.mark.parametrize("tokenizer", ["", "rwkv"])
def test_unsupported_architecture_with_a_tokenizer_of_its_own(tmp_path: Path, tokenizer: str) -> None:
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "mamba")
    if tokenizer:
        writer.add_tokenizer_model(tokenizer)
        writer.add_token_list(["a", "b"])
    writer.add_tensor("token_embd.weight", np.zeros((8, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert "unsupported architecture 'mamba'" in line_of(path)


def test_weights_that_do_not_fit_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "vast.gguf"
    tiny_gguf(path, "llama", width=2**30)
    assert "does not fit in memory" in line_of(path)


def test_process_that_may_not_grow() -> None:
    """A limit on the address space, as batch systems set one."""
    limit = 1_500_000_000
    done: subprocess.CompletedProcess[Any] = subprocess.run(
        [sys.executable, "-m", "interlingua.cli.main", "serve", "--port", "0"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "not enough memory" in refused(done)


def test_kv_memory_for_no_block() -> None:
    assert "--kv-memory" in line_of(MODEL, "--kv-memory", "1KiB")


def test_kv_memory_that_there_is_not() -> None:
    line = line_of(MODEL, "--kv-memory", "1000000GB")
    assert "--kv-memory of 1000000.0 GB does not fit in memory" in line and "free beside the weights" in line


async def test_memory_stays_within_weights_and_pool_when_the_cache_is_full(capsys: pytest.CaptureFixture[str]) -> None:
    """Finished prompts fill the KV pool with their blocks, and nothing else may grow."""
    with running(["--kv-memory", "48MiB"]) as server:
        assert 49_000_000 < server.pool < 51_000_000
        tokens = server.gauge("interlingua_kv_blocks_total") * server.gauge("interlingua_kv_block_tokens")
        prompts = [f"{number} ships move slowly over calm water. " * 60 for number in range(8)]
        calls = (GENERATE.call(server.port, prompt, max_new_tokens=4, ignore_eos=True) for prompt in prompts)
        await asyncio.gather(*calls)
        assert server.gauge("interlingua_prompt_tokens_total") > tokens
        resident = server.resident_now()
        with capsys.disabled():
            print(f"\n{resident / 1e6:.0f} MB resident with a full pool ", end="")
        assert resident < server.weights + server.pool + ROOM


def test_port_in_use(server: Server) -> None:
    line = refused(run("serve", "--port", str(server.port)), code=1)
    assert line == f"cannot listen on 127.0.0.1:{server.port}: Address already in use; --port chooses another"
    with socket.create_connection(("127.0.0.1", server.port)):
        pass  # the first one is none the worse for it


def test_unknown_flag() -> None:
    assert refused(run("serve", "--kv-memroy", "1GiB")) == "unknown option --kv-memroy; did you mean --kv-memory?"
    assert "INTERLINGUA_KV_MEMROY" in refused(run("serve", INTERLINGUA_KV_MEMROY="1GiB"))


@pytest.mark.parametrize("name", ["neon", "AVX2", "avx"])
def test_unknown_tier(name: str) -> None:
    line = line_of(MODEL, INTERLINGUA_ISA=name)
    assert "INTERLINGUA_ISA" in line and f"'{name}'" in line and "avx2" in line
