"""The program itself, serving the demo model in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS.parent / "bench"), str(TESTS / "cli")]

from server import Server, running  # noqa: E402 - found on the path above


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """With the flags that nobody gave."""
    with running() as started:
        yield started
