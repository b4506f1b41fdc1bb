"""Memory of the machine, as far as this process may use it."""

from __future__ import annotations

from pathlib import Path


def available_memory() -> int:
    """Bytes that can be taken without swapping, as the kernel estimates it; the container's limit counts too."""
    meminfo = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(meminfo["MemAvailable"].split()[0]) * 1024
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and (text := limit.read_text().strip()) != "max":
        available = min(available, max(0, int(text) - int(used.read_text())))
    return available
