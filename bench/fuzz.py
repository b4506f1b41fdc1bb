"""The fuzz tests at length: 20,000 random requests to a real process.

Runs tests/dialects/test_fuzz.py (raw, damaged and mixed bodies of every dialect, which the decoder and the process must
treat alike) and tests/clients/test_schemathesis.py (the OpenAPI page, with the schemas' edges) with many examples. Both
fail on a 5xx, on an answer that does not come, on an answer that the page does not promise, on a dead server and on a
gauge that is not zero in the end. The last line is JSON.

    python bench/fuzz.py [--requests 20000]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from interlingua.contract.dialect import DialectSettings
from interlingua.server import openapi
from interlingua.server.routes import discover

ROOT = Path(__file__).parents[1]
TESTS = ("tests/dialects/test_fuzz.py", "tests/clients/test_schemathesis.py")
BODIES = 0.75  # the share of raw and damaged bodies; the rest are schemathesis's


def operations() -> int:
    """Operations of the page that take a body. schemathesis asks the others once each."""
    page = openapi.document(discover(), DialectSettings(model_name="m", vocab_size=1), key=False)
    return sum("requestBody" in operation for path in page["paths"].values() for operation in path.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=20_000, help="in all, about")
    arguments = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "FUZZ_REPORT": folder,
            "FUZZ_EXAMPLES": str(int(arguments.requests * BODIES)),
            "SCHEMATHESIS_EXAMPLES": str(int(arguments.requests * (1 - BODIES) / operations()) + 1),
            "SCHEMATHESIS_PHASES": "coverage,fuzzing",
        }
        command = [sys.executable, "-m", "pytest", *TESTS]
        code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        figures: dict[str, Any] = {path.stem: json.loads(path.read_text()) for path in Path(folder).iterdir()}
    figures["requests"] = sum(one["requests"] for one in figures.values())
    print(json.dumps({"passed": code == 0, "seconds": round(time.monotonic() - begun), **figures}))
    return code


if __name__ == "__main__":
    sys.exit(main())
