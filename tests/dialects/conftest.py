"""One server process for all tests of this folder that speak HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from served import Served, running


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    with running() as servers:
        yield servers
