"""A small HTTP client for the tests: whole answers and SSE events, nothing hidden."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Got:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        assert self.status == 200, self.body
        assert self.headers["content-type"] == "text/event-stream; charset=utf-8"
        frames = self.body.split(b"\n\n")
        assert frames.pop() == b"" and all(frame.startswith(b"data: ") for frame in frames)
        return [json.loads(frame.removeprefix(b"data: ")) for frame in frames]


def connect(url: str) -> http.client.HTTPConnection:
    address = urlsplit(url)
    return http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)


def send(url: str, path: str, body: Any = None, method: str = "POST", **headers: str) -> Got:
    """One request on a connection of its own. A body that is no bytes is sent as JSON."""
    connection = connect(url)
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    connection.request(method, path, data, headers)
    response = connection.getresponse()
    got = Got(response.status, {name.lower(): value for name, value in response.headers.items()}, response.read())
    connection.close()
    return got


def tgi(url: str, path: str, inputs: Any, **parameters: Any) -> Got:
    return send(url, path, {"inputs": inputs, "parameters": parameters})


def triton(url: str, path: str, text_input: Any, **parameters: Any) -> Got:
    return send(url, path, {"text_input": text_input, "parameters": parameters})


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Runs calls at once, each in a thread, started in order, and returns their results in order.

    Raises:
        Exception: what the first call that failed has raised, after all have ended.
    """
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(call) for call in calls]
    return [future.result() for future in futures]


def metric(url: str, name: str) -> float:
    """The value of a metric without labels."""
    for line in send(url, "/metrics", method="GET").body.decode().splitlines():
        if line.startswith(name + " "):
            return float(line.split()[1])
    raise LookupError(name)


def note(name: str, figures: Any) -> None:
    """Leaves figures of a fuzz test in the folder that bench/fuzz.py names."""
    folder = os.environ.get("FUZZ_REPORT")
    if folder:
        Path(folder, f"{name}.json").write_text(json.dumps(figures))


def wait_until(true: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not become true"
        time.sleep(0.01)


def joined(events: list[Any]) -> str:
    """What a TGI client shows: the texts of the tokens that are not special."""
    return "".join(event["token"]["text"] for event in events if not event["token"]["special"])
