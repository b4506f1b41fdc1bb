"""Models that cannot be served: one line that says why, exit code 2, no traceback."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from command_line import refused, run
from tiny_models import write_tiny_model
from tokenizers import Tokenizer, decoders, models

TERABYTE = 10**12


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with a model of a few kilobytes that can be served."""
    folder = tmp_path / "tiny"
    write_tiny_model("mha_untied", folder)
    tokenizer = Tokenizer(models.BPE({chr(code): code - 33 for code in range(33, 127)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def line_of(model: Path, *flags: str) -> str:
    return refused(run("serve", str(model), "--port", "0", *flags))


def test_the_model_itself_is_good(model: Path) -> None:
    result = run("generate", str(model), "hello", "--max-new-tokens", "3")
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("\n") and result.stderr == ""


def test_unsupported_architecture_names_those_that_are(model: Path) -> None:
    edit(model / "config.json", architectures=["T5ForConditionalGeneration"])
    line = line_of(model)
    assert "unsupported architecture 'T5ForConditionalGeneration'" in line and "LlamaForCausalLM" in line


def test_weights_that_do_not_fit_in_memory(model: Path) -> None:
    os.truncate(model / "model.safetensors", TERABYTE)  # a hole: it takes no space on the disk
    line = line_of(model)
    assert "does not fit in memory" in line and "1000.0 GB" in line


def test_context_that_does_not_fit_in_memory(model: Path) -> None:
    edit(model / "config.json", max_position_embeddings=2**31 - 1)
    assert "lower --max-seq-len" in line_of(model)
    assert "holds no block" in line_of(model, "--max-seq-len", "64", "--kv-memory", "10")


def test_weights_cut_short(model: Path) -> None:
    path = model / "model.safetensors"
    for size in (path.stat().st_size - 1, 200, 8, 0):
        os.truncate(path, size)
        assert str(path) in line_of(model)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_missing_file(model: Path, name: str) -> None:
    (model / name).unlink()
    line = line_of(model)
    assert str(model) in line or name in line


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_broken_file(model: Path, name: str) -> None:
    (model / name).write_text("{")
    assert name in line_of(model)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"PK\x03\x04 something else", b"GGUF\x03\0\0\0" + b"\xff" * 64])
def test_broken_gguf(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    assert str(path) in line_of(path)


def test_nothing_there(tmp_path: Path) -> None:
    for path in (tmp_path / "none.gguf", tmp_path / "none", Path("../none.gguf"), Path("none.gguf"), Path("a/b/c")):
        assert line_of(path) == f"{path}: no such file or folder"
    assert "fetched by name: smollm2-135m-instruct; else" in refused(run("serve", "none", "--port", "0"))
    assert str(tmp_path) in line_of(tmp_path)


def test_tier_of_kernels_that_there_is_not(model: Path) -> None:
    assert "INTERLINGUA_ISA" in refused(run("serve", str(model), "--port", "0", INTERLINGUA_ISA="sse"))
    from interlingua.engine.native._native import kernel_names

    for tier in {"scalar", "avx2", "avxvnni", "avx512", "amx", "amx-emulated"} - set(kernel_names()):
        for line in (line_of(model, "--isa", tier), refused(run("info", "--isa", tier))):
            assert line.startswith("--isa: ") and tier in line
        line = refused(run("serve", str(model), "--port", "0", INTERLINGUA_ISA=tier))
        assert line.startswith("INTERLINGUA_ISA: ") and tier in line


def test_adapters_that_cannot_be_loaded(model: Path, tmp_path: Path) -> None:
    line = line_of(model, "--lora-adapters", f"one={tmp_path}/none")
    assert f"{tmp_path}/none: there is no such folder" in line
    line = line_of(model, "--lora-adapters", f"one={tmp_path}")
    assert f"{tmp_path}: is no PEFT adapter, it has no adapter_config.json" in line
    (tmp_path / "adapter_config.json").write_text(
        '{"peft_type": "LORA", "r": 65, "lora_alpha": 1, "target_modules": "x"}'
    )
    assert "`r` must be at most 64 (--max-lora-rank), got 65" in line_of(model, "--lora-adapters", f"one={tmp_path}")
    assert "cannot have the served model's name 'tiny'" in line_of(model, "--lora-adapters", f"tiny={tmp_path}")
    assert "must be names and folders as in NAME=FOLDER" in line_of(model, "--lora-adapters", "../one=x")
