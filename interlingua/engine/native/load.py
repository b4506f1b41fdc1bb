"""Brings a checkpoint into memory: finds its family, packs its weights, sizes the KV pool."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from interlingua.contract.engine import EngineInfo
from interlingua.contract.errors import ModelError
from interlingua.contract.words import counted
from interlingua.engine.native import models
from interlingua.engine.native._native import (
    KV_BLOCK,
    ActivationKind,
    KvKind,
    Model,
    WeightKind,
    allowed_cpus,
    kv_head_bytes,
    numa_nodes,
)
from interlingua.engine.native.config import ModelConfig
from interlingua.engine.native.memory import available_memory
from interlingua.engine.native.ops import AdaptableLinear, Built
from interlingua.engine.native.tiers import describe
from interlingua.engine.native.weights import Checkpoint, WeightLoader, open_checkpoint
from interlingua.hub.files import ModelFiles

if TYPE_CHECKING:
    from interlingua.engine.native.engine import NativeOptions

KV_SHARE = 0.25  # of the memory that is free once the weights are packed
# More is for the operator to ask for: the prefix cache fills whatever there is, and that looks like a leak.
KV_CONTEXTS = 8
KV_TOKENS = 65_536  # eight short contexts would be too few for many streams
_NUMERICS = {"int8": ActivationKind.INT8, "int16": ActivationKind.INT16}
_KV_KINDS = {"fp16": KvKind.FP16, "int8": KvKind.INT8}
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
    ) -> Built: ...


@dataclass(frozen=True, slots=True)
class LoadedModel:
    model: Model
    config: ModelConfig
    info: EngineInfo
    kv_blocks: int
    adaptable: tuple[AdaptableLinear, ...]


@dataclass(frozen=True, slots=True)
class KvPool:
    """Size of the KV memory."""

    blocks: int
    block_bytes: int

    @property
    def tokens(self) -> int:
        return self.blocks * KV_BLOCK

    @property
    def bytes(self) -> int:
        return self.blocks * self.block_bytes

    def __str__(self) -> str:
        return f"KV pool {self.bytes / 1e6:.0f} MB ({self.tokens:,} tokens)"


def families() -> list[Family]:
    """All model families, by scanning the folder."""
    names = [module.name for module in pkgutil.iter_modules(models.__path__)]
    return [cast(Family, importlib.import_module(f"{models.__name__}.{name}")) for name in names]


def find_family(files: ModelFiles) -> Family:
    """Raises ModelError naming the supported architectures."""
    gguf = files.kind == "gguf"
    listed = [files.config.get("general.architecture")] if gguf else files.config.get("architectures")
    named = listed[0] if isinstance(listed, list) and listed else listed
    known = {
        name: family for family in families() for name in (family.GGUF_ARCHITECTURES if gguf else family.ARCHITECTURES)
    }
    if not isinstance(named, str) or named not in known:
        raise ModelError(
            f"unsupported architecture {named!r} of model {files.name}; supported: {', '.join(sorted(known))}"
        )
    return known[named]


def read_config(files: ModelFiles) -> ModelConfig:
    """The model's configuration; reads no weights. Raises ModelError."""
    return _config(find_family(files), files, open_checkpoint(files))


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
    config = _config(family, files, checkpoint)
    size = _check_memory(files, options)
    cpus = allowed_cpus()
    threads = options.threads or len(cpus)
    nodes = numa_nodes(cpus)
    try:
        model = Model(options.tier, threads, _NUMERICS[options.activations], options.max_batch_tokens, nodes)
    except ValueError as error:
        raise ModelError(f"{options.tier_named_by}: {error}") from None
    done = 0

    def packed(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(min(done, size), size)

    try:
        # The pool is mapped before the program refers to it; its pages come later (NativeEngine).
        context = _context(config, options)
        pool = _kv_pool(config, options, size)
        model.set_kv(_KV_KINDS[options.kv_cache_dtype], config.layers, pool.blocks, config.kv_heads, config.padded_head)
        built = family.build(model, config, checkpoint, WeightLoader(model, options.quantize, packed), context, gguf)
    except MemoryError:
        raise ModelError(f"not enough memory for model {files.name}") from None
    checkpoint.drop_pages()
    kind = built.kind
    context = min(context, pool.tokens)
    numerics = "bfloat16" if kind == WeightKind.BF16 else f"{_KIND_NAMES[kind]} weights, {options.activations}"
    where = f" on {model.placement}" if model.placement else ""
    info = EngineInfo(
        name="native",
        vocab_size=config.vocab,
        max_context=context,
        dtype=_KIND_NAMES[kind],
        device="cpu",
        description=(
            f"{config.architecture}, {numerics} activations, {describe(model.kernels)} kernels, "
            f"{counted(threads, 'thread')}{where}, weights {model.weight_bytes / 1e6:.0f} MB, "
            f"{options.kv_cache_dtype} {pool}"
        ),
    )
    return LoadedModel(model, config, info, pool.blocks, built.adaptable)


def planned_pool(files: ModelFiles, options: NativeOptions) -> KvPool:
    """The KV memory that `load_model` would set aside now. Raises ModelError as it would."""
    family = find_family(files)
    return _kv_pool(_config(family, files, open_checkpoint(files)), options, _check_memory(files, options))


def _config(family: Family, files: ModelFiles, checkpoint: Checkpoint) -> ModelConfig:
    if files.kind == "gguf":
        return family.config_from_gguf(files.config, checkpoint)
    return family.config_from_json(files.config)


def _context(config: ModelConfig, options: NativeOptions) -> int:
    return min(options.max_seq_len or config.context, config.context)


def _check_memory(files: ModelFiles, options: NativeOptions) -> int:
    """Bytes of the weight files. Raises ModelError if what becomes of them does not fit."""
    size = sum(path.stat().st_size for path in files.paths)
    factor = {"auto": 1.0, "none": 2.0, "int8": 1.1, "int4": 1.0}[options.quantize]
    needed, free = int(size * factor), available_memory()
    if needed > free:
        raise ModelError(
            f"model {files.name} does not fit in memory: about {needed / 1e9:.1f} GB of weights, "
            f"{free / 1e9:.1f} GB free"
        )
    return size


def _kv_pool(config: ModelConfig, options: NativeOptions, weights: int) -> KvPool:
    """What was asked for, else a share of free memory up to `KV_CONTEXTS`; by default at least one full context."""
    head_bytes = kv_head_bytes(_KV_KINDS[options.kv_cache_dtype], config.padded_head)
    block_bytes = config.layers * config.kv_heads * head_bytes
    free = max(0, available_memory() - weights)
    if options.kv_memory is not None:
        if options.kv_memory < block_bytes:
            raise ModelError(f"--kv-memory of {options.kv_memory} bytes holds no block of {block_bytes} bytes")
        if options.kv_memory > free:
            raise ModelError(
                f"--kv-memory of {options.kv_memory / 1e9:.1f} GB does not fit in memory: "
                f"{free / 1e9:.1f} GB are free beside the weights"
            )
        return KvPool(options.kv_memory // block_bytes, block_bytes)
    context = _context(config, options)
    full = -(-context // KV_BLOCK)
    most = max(full * KV_CONTEXTS, KV_TOKENS // KV_BLOCK)
    pool = KvPool(max(full, min(int(free * KV_SHARE) // block_bytes, most)), block_bytes)
    if pool.bytes > free:
        raise ModelError(
            f"one context of {context} tokens needs {full * block_bytes / 1e9:.1f} GB of KV memory, "
            f"{free / 1e9:.1f} GB free; lower --max-seq-len"
        )
    return pool
