"""The server, and an environment with other people's clients."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "dialects"), str(HERE.parents[1] / "bench")]

from served import Served, running  # noqa: E402 - found on the path above
from server import running as serving  # noqa: E402 - found on the path above


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    with running() as servers:
        yield servers


@pytest.fixture(scope="session")
def clients_python(request: pytest.FixtureRequest) -> Path:
    """The interpreter of an environment with `requirements.txt`, made once and kept in pytest's cache.

    Without a package index the tests that need it are skipped, with pip's reason.
    """
    wanted = (HERE / "requirements.txt").read_bytes()
    key = hashlib.sha256(wanted + sys.version.encode()).hexdigest()[:12]
    home = Path(request.config.cache.mkdir("clients")) / key  # type: ignore[union-attr]
    python = home / "bin" / "python"
    complete = home / "complete"
    if not complete.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
        install = [str(python), "-m", "pip", "install", "-q", "-r", str(HERE / "requirements.txt")]
        done = subprocess.run(install, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"the clients could not be installed: {done.stderr.strip().splitlines()[-1]}")
        complete.touch()
    return python


@pytest.fixture(scope="session")
def real_server() -> Iterator[str]:
    """The URL of the program itself, serving the demo model, or as INTERLINGUA_TEST_FLAGS says."""
    with serving(shlex.split(os.environ.get("INTERLINGUA_TEST_FLAGS", "")), seconds=400) as server:
        yield server.url
