"""Fixtures of the server's tests; what they hand out is in `server_site`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import uvloop
from server_site import starting

sys.path.append(str(Path(__file__).parents[1] / "dialects"))  # the front ends

start = pytest.fixture(starting, name="start")


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the server runs on in earnest."""
    return {"uvloop": uvloop.new_event_loop}
