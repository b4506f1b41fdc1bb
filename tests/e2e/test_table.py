"""The table of cases against the program with a real model: grammars are followed, adapters and processors run."""

from __future__ import annotations

import http.client
from dataclasses import replace
from pathlib import Path

from server import running
from test_http_cases import fault
from tiny_adapters import adapter_weights, demo_shapes, write_adapter
from wire import SETTINGS
from wire_cases import ADAPTERS, MODEL, all_cases


def test_every_case(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapter", adapter_weights(demo_shapes(), "one", 4, 0.5))
    adapters = ",".join(f"{name}={folder}" for name in ADAPTERS)
    flags = ["--served-model-name", MODEL, "--lora-adapters", adapters, "--max-iter-times", "2"]
    with running([*flags, "--kv-memory", "200MiB"]) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        settings = replace(SETTINGS, vocab_size=49_152)
        cases = [case for case in all_cases() if case.setup == "plain"]
        wrong = [f"{case.id}: {problem}" for case in cases if (problem := fault(connection, case, settings))]
        connection.close()
        assert not wrong, "\n".join(wrong[:20])
        assert len(cases) > 2000
        assert server.gauge("tgi_queue_size") == server.gauge("tgi_batch_current_size") == 0
        assert server.endings()["success"] > 500
        assert not server.errors
