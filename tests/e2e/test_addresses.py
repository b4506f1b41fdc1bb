"""The program with all its addresses: clients over HTTP and gRPC, those who run it on a port of their own."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import pytest
from server import running
from sockets import ask

PROMPT = "My name is Olivier and I"


def free_ports(count: int) -> list[int]:
    """Ports that nobody listened on a moment ago."""
    found = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in found]
    for one in found:
        one.close()
    return ports


async def test_every_address_and_a_stop_by_route() -> None:
    client = pytest.importorskip("tritonclient.grpc.aio", reason="tritonclient[grpc] is not installed")
    numpy = pytest.importorskip("numpy")
    management, metrics, grpc = free_ports(3)
    flags = ["--management-port", str(management), "--metrics-port", str(metrics), "--grpc-port", str(grpc)]
    with running(flags) as server:
        generate = f"/v2/models/{server.model}/generate"
        wanted = {"text_input": PROMPT, "parameters": {"max_new_tokens": 16, "details": True}}
        text = (await ask(server.port, "POST", generate, wanted)).json["text_output"]

        def tensor(name: str, value: Any, datatype: str) -> Any:
            made = client.InferInput(name, [1], datatype)
            made.set_data_from_numpy(numpy.array([value], dtype=object if datatype == "BYTES" else bool))
            return made

        async def requests() -> Any:
            yield {
                "model_name": server.model,
                "inputs": [tensor("text_input", PROMPT, "BYTES"), tensor("stream", True, "BOOL")],
                "parameters": {"max_new_tokens": 16},
            }

        async with client.InferenceServerClient(f"127.0.0.1:{grpc}") as triton:
            pieces = []
            async for result, error in triton.stream_infer(requests()):
                assert error is None
                pieces.append(result.as_numpy("text_output").item().decode())
                if result.get_response().parameters["triton_final_response"].bool_param:
                    break
        assert len(pieces) == 16 and "".join(pieces) == text

        async with asyncio.timeout(20):  # the engine lets go of a request right after its last token has gone out
            while (status := (await ask(management, "GET", "/v1/status")).json["resource"])["runningRequestNum"]:
                pass
        assert status["totalNpuBlockNums"] == status["freeNpuBlockNums"] > 0
        assert (await ask(management, "GET", "/health/timed-30")).json == {"status": "healthy"}
        figures = (await ask(management, "GET", "/metrics-json")).json["result"]
        assert all(int(entry["value"]) > 0 for entry in figures if entry["metric"][0]["__name__"] in ("TTFT", "TBT"))
        assert b"\ntgi_request_success 2\n" in (await ask(metrics, "GET", "/metrics")).body
        for path in ("/v1/status", "/metrics", "/stopService"):
            assert (await ask(server.port, "GET", path)).status == 404
        begun = time.monotonic()
        assert (await ask(management, "GET", "/stopService")).status == 200
        assert server.process.wait(30) == 0 and time.monotonic() - begun < 30
        assert [line.partition(": ")[2] for line in server.errors] == [
            "stopping: no request is running\n",
            "ended with exit code 0\n",
        ]
