"""KNOWN_BUGS.md tells the truth: each of its lines names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from test_security_page import names_in

HERE = Path(__file__).parent
PAGE = (HERE / "KNOWN_BUGS.md").read_text(encoding="utf-8")
SHORT = dict(re.findall(r"`([A-Z])` is\s`(tests/[\w/]+\.py)`", PAGE))


def rows(heading: str) -> list[list[str]]:
    table = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")][1:]
    return [line.strip("| ").split(" | ") for line in lines]


def test_each_line_names_tests_that_exist() -> None:
    faults, lessons = rows("Faults"), rows("What they have in common")
    assert (len(faults), len(lessons)) == (40, 10)
    for row in (*faults, *lessons):
        tests = row[-1].split(", ")
        assert len(tests) >= 2, row
        for test in tests:
            found = re.fullmatch(r"`([\w/]+(?:\.py)?)::(test_\w+)`", test)
            assert found is not None, test
            assert found[2] in names_in(HERE.parent / SHORT.get(found[1], found[1])), test
