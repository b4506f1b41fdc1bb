from __future__ import annotations

import pytest

from interlingua.hub import ModelFiles, resolve


@pytest.fixture(scope="session")
def demo_files() -> ModelFiles:
    """The demo model, fetched into the user's cache on first use."""
    return resolve("smollm2-135m-instruct")
