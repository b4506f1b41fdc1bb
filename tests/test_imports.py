"""The direction of imports between the rooms of the package, read from the source with `ast`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "interlingua"

# Room -> the rooms that it may import; every room may import itself and the package's own `__version__`.
MAY_IMPORT: dict[str, set[str]] = {
    "contract": set(),
    "text": {"contract"},
    "media": {"contract"},
    "hub": {"contract"},
    "engine": {"contract", "text", "media", "hub"},
    "service": {"contract", "text", "media", "hub", "engine"},
    "dialects": {"contract"},
    "server": {"contract", "service", "dialects"},
    "cli": {"contract", "text", "media", "hub", "engine", "service", "dialects", "server"},
}


def rooms() -> list[str]:
    return sorted(path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.rglob("*.py")))


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import of the project, at any depth, type-checking blocks included."""
    module = ("interlingua", *path.relative_to(PACKAGE).with_suffix("").parts)
    package = module[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            source = ".".join(part for part in (base, node.module or "") if part)
            if source == "interlingua":  # `from interlingua import service` names a room too
                for alias in node.names:
                    yield node.lineno, f"interlingua.{alias.name}"
            else:
                yield node.lineno, source


def wrong_imports(path: Path, room: str) -> list[str]:
    wrong = []
    for line, name in imported_modules(path):
        parts = name.split(".")
        if parts[0] != "interlingua" or len(parts) < 2 or parts[1] not in MAY_IMPORT:
            continue
        if parts[1] != room and parts[1] not in MAY_IMPORT[room]:
            wrong.append(f"{path.relative_to(PACKAGE.parent)}:{line} imports {name}")
    return wrong


def test_every_folder_is_a_known_room() -> None:
    assert set(rooms()) <= set(MAY_IMPORT)


@pytest.mark.parametrize("room", rooms())
def test_room_imports_only_what_lies_below_it(room: str) -> None:
    wrong = [line for path in sorted((PACKAGE / room).rglob("*.py")) for line in wrong_imports(path, room)]
    assert not wrong, "\n".join(wrong)


def test_wrong_direction_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "def f():\n    from interlingua.service import service\n    from ..hub import resolve\n"
    monkeypatch.setattr(Path, "read_text", lambda self, encoding: source)
    assert len(wrong_imports(PACKAGE / "contract" / "engine.py", "contract")) == 2
