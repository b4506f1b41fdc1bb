"""Runs the program as an operator would."""

from __future__ import annotations

import os
import subprocess
import sys


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs `interlingua` to its end, with no option in its environment but the cache and `environ`."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("INTERLINGUA_")}
    cache = {name: os.environ[name] for name in ("INTERLINGUA_CACHE",) if name in os.environ}
    return subprocess.run(
        [sys.executable, "-m", "interlingua.cli.main", *arguments],
        env={**inherited, **cache, "COLUMNS": "100", **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def refused(result: subprocess.CompletedProcess[str], code: int = 2) -> str:
    """The one line of a refusal."""
    assert result.returncode == code, result.stderr
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("interlingua: ")
    return lines[0].removeprefix("interlingua: ")
