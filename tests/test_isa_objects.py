"""The compiled objects of csrc/isa/* define no weak symbols.

A template or inline function that two ISA folders instantiate is a weak symbol; the linker keeps one copy for
all, and may hand AVX-512 code to the scalar tier. So each object must define its one entry and nothing that can
be merged.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WEAK = "VvWwu"  # nm's letters for weak and unique symbols that are defined (capitals) or may be (small)


def newest_objects() -> dict[str, Path]:
    """Tier -> its object, from the build folder that was written last."""
    builds: dict[Path, dict[str, Path]] = {}
    for path in sorted((ROOT / "build").glob("*/CMakeFiles/isa_*.dir/**/kernels.cpp.o")):
        folder = ROOT / "build" / path.relative_to(ROOT / "build").parts[0]
        target = next(part for part in path.parts if part.startswith("isa_") and part.endswith(".dir"))
        builds.setdefault(folder, {})[target.removeprefix("isa_").removesuffix(".dir")] = path
    if not builds:
        return {}
    return max(builds.values(), key=lambda objects: max(path.stat().st_mtime for path in objects.values()))


def symbols(path: Path) -> list[tuple[str, str]]:
    """(letter, name) of every symbol of an object."""
    output = subprocess.run(["nm", "-P", str(path)], capture_output=True, text=True, check=True).stdout
    return [(line.split()[1], line.split()[0]) for line in output.splitlines()]


@pytest.fixture(scope="module")
def objects() -> dict[str, Path]:
    if shutil.which("nm") is None:
        pytest.skip("nm (binutils) is not installed, so the symbols of the ISA objects cannot be read")
    found = newest_objects()
    if not found:
        pytest.skip("no build folder with ISA objects: the package was not built in this checkout")
    return found


def test_every_tier_was_built(objects: dict[str, Path]) -> None:
    assert "scalar" in objects
    sources = {path.parent.name for path in (ROOT / "csrc" / "isa").glob("*/kernels.cpp")}
    assert set(objects) - {"amx_emulated"} <= sources  # that one is the AMX tier's source, compiled a second time


def test_no_weak_symbols(objects: dict[str, Path]) -> None:
    weak = [
        f"{tier}: {name} ({letter})"
        for tier, path in objects.items()
        for letter, name in symbols(path)
        if letter in WEAK
    ]
    assert not weak, "\n".join(weak)


def test_each_tier_exports_its_table_and_nothing_else(objects: dict[str, Path]) -> None:
    for tier, path in objects.items():
        exported = [name for letter, name in symbols(path) if letter in "TDBRC"]
        assert len(exported) == 1 and tier in exported[0], (tier, exported)
