"""Memory of the machine, as far as this process may use it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def available_memory(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Bytes that can be taken without swapping, as the kernel estimates it; the limits of this process's control groups
    count too, be they a container's or a service manager's."""
    meminfo = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
    available = int(meminfo["MemAvailable"].split()[0]) * 1024
    return min([available, *_left_in_groups(proc, cgroups)])


def _left_in_groups(proc: Path, cgroups: Path) -> Iterator[int]:
    """What each group with a limit has left: the process's own and those around it, under either version of cgroups."""
    groups = proc / "self" / "cgroup"
    for line in groups.read_text().splitlines() if groups.exists() else ():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, names = cgroups, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root = cgroups / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # In a container the path may be the host's: what is mounted there is the container's own, at the root.
        own = PurePosixPath(path.lstrip("/"))
        for group in (own, *own.parents):
            limit, used, stat = (root / group / name for name in (*names[:2], "memory.stat"))
            if limit.exists() and used.exists() and (text := limit.read_text().strip()) != "max":
                yield max(0, int(text) - int(used.read_text()) + _cached(stat, names[2]))


def _cached(stat: Path, name: str) -> int:
    """Bytes of files that a group counts as used and the kernel gives up at need: a model that was just fetched."""
    lines = stat.read_text().splitlines() if stat.exists() else ()
    return next((int(value) for key, value in (line.split() for line in lines) if key == name), 0)
