"""Brings a checkpoint into memory: finds its family, packs its weights, sizes the KV pool."""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from interlingua.contract.engine import EngineInfo
from interlingua.contract.errors import ModelError
from interlingua.engine.native import models
from interlingua.engine.native._native import KV_BLOCK, ActivationKind, Model, WeightKind
from interlingua.engine.native.config import ModelConfig
from interlingua.engine.native.weights import Checkpoint, WeightLoader, open_checkpoint
from interlingua.hub.files import ModelFiles

if TYPE_CHECKING:
    from interlingua.engine.native.engine import NativeOptions

KV_SHARE = 0.25  # of the memory that is free once the weights are packed
_KV_CAP_CONTEXTS = 64  # a pool larger than this many full contexts serves nobody
_NUMERICS = {"int8": ActivationKind.INT8, "int16": ActivationKind.INT16}
_KIND_NAMES = {WeightKind.INT4: "int4", WeightKind.INT8: "int8", WeightKind.BF16: "bfloat16"}


class Family(Protocol):
    """What a file in `models/` offers."""

    ARCHITECTURES: tuple[str, ...]
    GGUF_ARCHITECTURES: tuple[str, ...]

    def config_from_json(self, config: Mapping[str, Any]) -> ModelConfig: ...

    def config_from_gguf(self, metadata: Mapping[str, Any], checkpoint: Checkpoint) -> ModelConfig: ...

    def build(
        self,
        model: Model,
        config: ModelConfig,
        checkpoint: Checkpoint,
        loader: WeightLoader,
        positions: int,
        gguf: bool,
    ) -> WeightKind: ...


@dataclass(frozen=True, slots=True)
class LoadedModel:
    model: Model
    config: ModelConfig
    info: EngineInfo
    kv_blocks: int


def families() -> list[Family]:
    """All model families, by scanning the folder."""
    names = [module.name for module in pkgutil.iter_modules(models.__path__)]
    return [cast(Family, importlib.import_module(f"{models.__name__}.{name}")) for name in names]


def find_family(files: ModelFiles) -> Family:
    """Raises ModelError naming the supported architectures."""
    gguf = files.kind == "gguf"
    named = files.config.get("general.architecture") if gguf else (files.config.get("architectures") or [None])[0]
    known = {
        name: family for family in families() for name in (family.GGUF_ARCHITECTURES if gguf else family.ARCHITECTURES)
    }
    if named not in known:
        raise ModelError(
            f"unsupported architecture {named!r} of model {files.name}; supported: {', '.join(sorted(known))}"
        )
    return known[str(named)]


def load_model(
    files: ModelFiles, options: NativeOptions, progress: Callable[[int, int], None] | None = None
) -> LoadedModel:
    """Loads a model. `progress(done, total)` in bytes of the checkpoint.

    Raises:
        ModelError: unsupported architecture, bad or truncated files, a kernel tier that cannot run, no memory.
    """
    family = find_family(files)
    checkpoint = open_checkpoint(files)
    gguf = files.kind == "gguf"
    config = family.config_from_gguf(files.config, checkpoint) if gguf else family.config_from_json(files.config)
    context = min(options.max_seq_len or config.context, config.context)
    size = sum(path.stat().st_size for path in files.paths)
    _check_memory(files, size, options)
    threads = options.threads or len(os.sched_getaffinity(0))
    try:
        model = Model(options.tier, threads, _NUMERICS[options.activations], options.max_batch_tokens)
    except ValueError as error:
        raise ModelError(f"INTERLINGUA_ISA: {error}") from None
    done = 0

    def packed(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(min(done, size), size)

    token_bytes = config.layers * config.kv_heads * config.padded_head * 2 * 2
    try:
        # The pool is mapped before the program refers to it; its pages are touched as tokens arrive.
        blocks = _kv_blocks(options, size, token_bytes, context)
        model.set_kv(config.layers, blocks, config.kv_heads, config.padded_head)
        kind = family.build(model, config, checkpoint, WeightLoader(model, options.quantize, packed), context, gguf)
    except MemoryError:
        raise ModelError(f"not enough memory for model {files.name}") from None
    checkpoint.drop_pages()
    context = min(context, blocks * KV_BLOCK)
    numerics = "bfloat16" if kind == WeightKind.BF16 else f"{_KIND_NAMES[kind]} weights, {options.activations}"
    info = EngineInfo(
        name="native",
        vocab_size=config.vocab,
        max_context=context,
        dtype=_KIND_NAMES[kind],
        device="cpu",
        description=(
            f"{config.architecture}, {numerics} activations, {model.kernels} kernels, {threads} threads, "
            f"weights {model.weight_bytes / 1e6:.0f} MB, KV pool {blocks * KV_BLOCK:,} tokens"
        ),
    )
    return LoadedModel(model, config, info, blocks)


def available_memory() -> int:
    """Bytes that can be taken without swapping, as the kernel estimates it; the container's limit counts too."""
    meminfo = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(meminfo["MemAvailable"].split()[0]) * 1024
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and (text := limit.read_text().strip()) != "max":
        available = min(available, max(0, int(text) - int(used.read_text())))
    return available


def _check_memory(files: ModelFiles, size: int, options: NativeOptions) -> None:
    factor = {"auto": 1.0, "none": 2.0, "int8": 1.1, "int4": 1.0}[options.quantize]
    needed, free = int(size * factor), available_memory()
    if needed > free:
        raise ModelError(
            f"model {files.name} does not fit in memory: about {needed / 1e9:.1f} GB of weights, "
            f"{free / 1e9:.1f} GB free"
        )


def _kv_blocks(options: NativeOptions, weights: int, token_bytes: int, context: int) -> int:
    """Blocks of the pool: what was asked for, else a share of free memory; never less than one full context."""
    block_bytes = token_bytes * KV_BLOCK
    full = -(-context // KV_BLOCK)
    if options.kv_memory is not None:
        blocks = options.kv_memory // block_bytes
        if blocks < 1:
            raise ModelError(f"kv_memory of {options.kv_memory} bytes holds no block of {block_bytes} bytes")
        return min(blocks, full * _KV_CAP_CONTEXTS)
    free = max(0, available_memory() - weights)
    blocks = max(full, min(int(free * KV_SHARE) // block_bytes, full * _KV_CAP_CONTEXTS))
    if blocks * block_bytes > free:
        raise ModelError(
            f"one context of {context} tokens needs {full * block_bytes / 1e9:.1f} GB of KV memory, "
            f"{free / 1e9:.1f} GB free; lower --max-seq-len"
        )
    return blocks
