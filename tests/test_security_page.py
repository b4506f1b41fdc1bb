"""The table of threats tells the truth: each of its lines names a test that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")


def names_in(path: Path) -> set[str]:
    nodes = ast.parse(path.read_text(encoding="utf-8")).body
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_each_threat_names_a_test_that_exists() -> None:
    table = PAGE.partition("## Threats")[2].partition("## What is left")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 25
    for row in rows:
        found = re.fullmatch(r"\| .+ \| .+ \| `(tests/[\w/]+\.py)::(test_\w+)` \|", row)
        assert found is not None, row
        assert found[2] in names_in(ROOT / found[1]), row


def test_it_counts_the_smuggling_forms_as_the_test_does() -> None:
    source = ast.parse((ROOT / "tests/server/test_hostile.py").read_text(encoding="utf-8"))
    table = next(
        node.value
        for node in source.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "SMUGGLING"
    )
    assert isinstance(table, ast.Dict)
    assert f"| {len(table.keys)} forms" in PAGE
