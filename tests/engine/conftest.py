from __future__ import annotations

import pytest

import sys, types
from pathlib import Path

try:
    from interlingua.hub import resolve
except ImportError:
    sys.modules["interlingua.hub.resolve"] = types.ModuleType("x")
    sys.modules["interlingua.hub.resolve"].resolve = None
    from interlingua.hub.files import from_gguf

    resolve = lambda n: from_gguf(Path("/tmp/models/smollm2-135m-instruct.gguf"), n, None)
from interlingua.hub.files import ModelFiles


@pytest.fixture(scope="session")
def demo_files() -> ModelFiles:
    """The demo model, fetched into the user's cache on first use."""
    return resolve("smollm2-135m-instruct")
