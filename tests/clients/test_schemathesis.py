"""schemathesis over our own OpenAPI page: no 5xx, no undocumented answer, nothing that breaks its own schema.

It is not asked whether all that fits the schema is accepted: what is good but does not work yet fits, too.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

from served import Served
from wire_cases import MODEL
from wire_client import metric, note, send

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
)
PARAMETERS = {"model": MODEL, "version": "1", "probe": "timed", "owner": "owner"}  # of paths
EXAMPLES = os.environ.get("SCHEMATHESIS_EXAMPLES", "40")  # of each operation
PHASES = os.environ.get("SCHEMATHESIS_PHASES", "fuzzing")  # "coverage,fuzzing": the schemas' edges, too


def test_the_openapi_page(served: Served, clients_python: Path, tmp_path: Path) -> None:
    page = send(served.url, "/openapi.json", method="GET").json
    for path, operations in page["paths"].items():
        for operation in operations.values():
            for parameter in operation.get("parameters", []):
                if parameter["in"] == "query":
                    continue
                served_value = PARAMETERS[parameter["name"]]
                assert "{" + parameter["name"] + "}" in path
                parameter["schema"] = {"type": "string", "enum": [served_value]}
    description = tmp_path / "openapi.json"
    description.write_text(json.dumps(page))
    command = [str(clients_python.with_name("schemathesis")), "run", str(description), "--url", served.url]
    command += ["--max-examples", EXAMPLES, "--checks", ",".join(CHECKS), "--seed", "1", "--no-color"]
    command += ["--phases", PHASES, "--generation-database", "none"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    generated = re.search(r"(\d+) generated", done.stdout)
    assert generated is not None and int(generated[1]) >= 300, done.stdout[-1000:]
    note("schemathesis", {"requests": int(generated[1])})
    assert send(served.url, "/health", method="GET").status == 200
    assert metric(served.url, "tgi_batch_current_size") == metric(served.url, "tgi_queue_size") == 0
