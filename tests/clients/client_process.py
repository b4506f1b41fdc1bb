"""Other people's clients run in processes of their own, some in an environment of their own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def call(python: Path | str, program: str, url: str, calls: Sequence[dict[str, Any]]) -> list[Any]:
    """Runs calls of a client in a process of its own. A result is a value, a list or `{"raised": class}`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PYTHON"))}
    environment |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "0", "LANGSMITH_TRACING": "false"}
    done = subprocess.run(
        [str(python), str(HERE / "programs" / program)],
        input=json.dumps({"url": url, "calls": calls}),
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]
