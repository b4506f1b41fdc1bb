from __future__ import annotations

from pathlib import Path

import pytest

from interlingua.hub import ModelFiles, resolve


@pytest.fixture(scope="session")
def demo_files() -> ModelFiles:
    """The demo model, fetched into the user's cache on first use."""
    return resolve("smollm2-135m-instruct")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of its own, which `resolve` takes by default."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("INTERLINGUA_CACHE", str(folder))
    return folder
