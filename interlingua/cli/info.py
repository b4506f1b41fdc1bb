"""`interlingua info`: what this installation runs on and with."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

from interlingua import __version__
from interlingua.cli.options import DEFAULT_MODEL, Options
from interlingua.contract.errors import ModelError


def run(options: Options) -> int:
    rows = [*_program(), *_machine(options), *_numa(), *_kernels(options), *_models(options)]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")
    return 0


def _program() -> Iterator[tuple[str, str]]:
    yield "interlingua", __version__
    yield "python", f"{platform.python_version()} ({sys.executable})"


def _machine(options: Options) -> Iterator[tuple[str, str]]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield "processor", f"{_processor()}, {cores} cores for this process"
    yield "threads", str(options.threads or cores)
    memory = _memory()
    if memory is not None:
        yield "memory", f"{memory[1] / 2**30:.1f} GiB, {memory[0] / 2**30:.1f} GiB of it available"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory() -> tuple[int, int] | None:
    """(available, all) bytes of this machine."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    sizes = {line.partition(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB")}
    return sizes.get("MemAvailable", 0), sizes.get("MemTotal", 0)


def _numa() -> Iterator[tuple[str, str]]:
    try:
        from interlingua.engine.native._native import allowed_cpus, numa_nodes
    except ImportError:
        return  # the row of kernels says so
    nodes = numa_nodes(allowed_cpus())
    if len(nodes) > 1:
        sizes = ", ".join(f"{len(node.cpus)} cores on node {node.id}" for node in nodes)
        yield "memory nodes", f"{len(nodes)} NUMA nodes: {sizes}"


def _kernels(options: Options) -> Iterator[tuple[str, str]]:
    try:
        from interlingua.engine.native._native import kernel_names
        from interlingua.engine.native.engine import NativeOptions
        from interlingua.engine.native.tiers import EMULATED, describe
    except ImportError:
        yield "kernels", "none: the native extension is not built (run scripts/setup)"
        return
    names = kernel_names()  # slowest first
    if options.isa is not None and options.isa not in names:
        where = NativeOptions(isa=options.isa).tier_named_by
        raise ModelError(f"{where}: {options.isa} does not run here; these do: {', '.join(names)}")
    available = ", ".join(name for name in names if name != EMULATED)
    tests = f"; for tests alone: {EMULATED}" if EMULATED in names else ""
    yield "kernels", f"{describe(options.isa or names[-1])} (available: {available}{tests})"


def _models(options: Options) -> Iterator[tuple[str, str]]:
    from interlingua.hub.packages import KNOWN_MODELS
    from interlingua.hub.resolve import cache_folder

    cache = cache_folder(options.cache)
    yield "cache", str(cache)
    for model in KNOWN_MODELS.values():
        file = cache / "models" / model.name / model.file
        facts = [f"{model.size / 1e6:.0f} MB", "here" if file.is_file() else "not fetched"]
        if model.name == DEFAULT_MODEL:
            facts.append("the default")
        if model.unserved:
            facts.append(f"cannot be served: {model.unserved}")
        elif file.is_file():
            facts.append(_pool(file, options))
        yield "model", f"{model.name} ({', '.join(facts)})"


def _pool(file: Path, options: Options) -> str:
    """The KV memory that serving the model would take now, or why it cannot be served."""
    from interlingua.engine.native.engine import NativeOptions
    from interlingua.engine.native.load import planned_pool
    from interlingua.hub.files import from_gguf

    try:
        return str(planned_pool(from_gguf(file, file.stem, None), NativeOptions(kv_memory=options.kv_memory)))
    except ModelError as problem:
        return problem.message
