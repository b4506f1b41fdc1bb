from __future__ import annotations

import pytest

from interlingua.hub import resolve
from interlingua.hub.files import ModelFiles


@pytest.fixture(scope="session")
def demo_files() -> ModelFiles:
    """The demo model, fetched into the user's cache on first use."""
    return resolve("smollm2-135m-instruct")
