"""How much memory a process may still take, under every kind of limit that containers and service managers set."""

from __future__ import annotations

from pathlib import Path

import pytest

from interlingua.engine.native.memory import available_memory

MIB = 1 << 20
NEW = "memory.max", "memory.current"
OLD = "memory.limit_in_bytes", "memory.usage_in_bytes"


def write(folder: Path, names: tuple[str, str], limit: object, used: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in zip(names, (limit, used), strict=True):
        (folder / name).write_text(f"{value}\n")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc of a machine with 8000 MiB free, without control groups."""
    folder = tmp_path / "proc"
    (folder / "self").mkdir(parents=True)
    (folder / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {8000 * 1024} kB\nHugePages_Total: 0\n")
    return folder


@pytest.fixture
def cgroups(tmp_path: Path) -> Path:
    return tmp_path / "cgroup"


def test_without_groups_the_kernels_estimate_counts(proc: Path, cgroups: Path) -> None:
    assert available_memory(proc, cgroups) == 8000 * MIB


@pytest.mark.parametrize("path", ["/", "/system.slice/server.service"])
def test_a_containers_limit_lies_at_the_root(proc: Path, cgroups: Path, path: str) -> None:
    (proc / "self" / "cgroup").write_text(f"0::{path}\n")
    write(cgroups, NEW, 900 * MIB, 200 * MIB)
    assert available_memory(proc, cgroups) == 700 * MIB


@pytest.mark.parametrize("limited", ["system.slice", "system.slice/server.service"])
def test_a_services_limit_lies_at_its_group_or_around_it(proc: Path, cgroups: Path, limited: str) -> None:
    (proc / "self" / "cgroup").write_text("0::/system.slice/server.service\n")
    write(cgroups / "system.slice/server.service", NEW, "max", 100 * MIB)
    write(cgroups / limited, NEW, 500 * MIB, 400 * MIB)
    write(cgroups / "other.slice", NEW, MIB, 0)
    assert available_memory(proc, cgroups) == 100 * MIB


@pytest.mark.parametrize("place", ["", "docker/4f2a"])
def test_the_first_version_of_control_groups(proc: Path, cgroups: Path, place: str) -> None:
    (proc / "self" / "cgroup").write_text(
        "5:cpu,cpuacct:/docker/4f2a\n4:memory:/docker/4f2a\n1:name=systemd:/a:b\n0::/\n"
    )
    write(cgroups / "memory", OLD, 9223372036854771712, 3000 * MIB)
    write(cgroups / "memory" / place, OLD, 900 * MIB, 250 * MIB)
    assert available_memory(proc, cgroups) == 650 * MIB


def test_a_group_over_its_limit_has_nothing_left(proc: Path, cgroups: Path) -> None:
    (proc / "self" / "cgroup").write_text("0::/\n")
    write(cgroups, NEW, 100 * MIB, 101 * MIB)
    assert available_memory(proc, cgroups) == 0


@pytest.mark.parametrize(("line", "names", "place"), [("0::/", NEW, ""), ("4:memory:/a", OLD, "memory/a")])
def test_files_that_the_kernel_gives_up_at_need_are_free(
    proc: Path, cgroups: Path, line: str, names: tuple[str, str], place: str
) -> None:
    """As after a model was fetched within the group."""
    (proc / "self" / "cgroup").write_text(f"{line}\n")
    write(cgroups / place, names, 500 * MIB, 432 * MIB)
    prefix = "total_" if names is OLD else ""
    (cgroups / place / "memory.stat").write_text(f"cache 1\n{prefix}active_file 7\n{prefix}inactive_file {400 * MIB}\n")
    assert available_memory(proc, cgroups) == 468 * MIB
