"""The program itself, serving the demo model in a process of its own."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS.parent / "bench"), str(TESTS / "cli"), str(TESTS / "dialects")]

from server import Server, running  # noqa: E402 - found on the path above


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """With the flags that nobody gave, or those of INTERLINGUA_TEST_FLAGS: another engine passes the same tests."""
    with running(shlex.split(os.environ.get("INTERLINGUA_TEST_FLAGS", "")), seconds=400) as started:
        yield started
