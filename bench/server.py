"""A server process of its own under 1, 8 and 32 streams of bench/loadgen.py; one JSON line each.

Starts `interlingua serve` on a free port, says when it was ready and how large it is, lets it take its memory and
answer a few requests to warm up, and runs the load once for each number of streams, always with new prompts.

    python bench/server.py [--streams 1 8 32] [--rounds 3] [-- FLAG OF serve ...]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from loadgen import Load, measure

READY = re.compile(
    r"^Ready in [\d.]+ s: (?P<model>\S+), .*?(?:weights (?P<weights>\d+) MB, (?:\S+ )?KV pool (?P<pool>\d+) MB.*)? at (?P<url>https?://\S+:\d+),"
    r"(?:.* gRPC: (?P<grpc>\S+:\d+))?"
)


@dataclass
class Server:
    """A running `interlingua serve`."""

    process: subprocess.Popen[str]
    model: str
    url: str
    ready_s: float  # from the process's start until its line that says it serves
    resident: int  # bytes right after that
    weights: int  # bytes that its packed weights take, as it says
    pool: int  # bytes of its KV pool, as it says
    grpc: str = ""  # the address of its gRPC, if it has one
    errors: list[str] = field(default_factory=list)  # lines of its standard error so far

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def gauge(self, name: str) -> float:
        """The value of a metric without labels."""
        return self.gauges()[name]

    def gauges(self) -> dict[str, float]:
        """All metrics without labels."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=20) as page:
            lines = page.read().decode().splitlines()
        pairs = (line.split() for line in lines if line[0] != "#" and "{" not in line)
        return {name: float(value) for name, value in pairs}

    def endings(self) -> dict[str, int]:
        """Requests by how they ended: `received`, `success`, and the kinds of failures."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=20) as page:
            text = page.read().decode()
        failures = re.findall(r'^tgi_request_failure\{err="(\w+)"\} (\d+)$', text, re.MULTILINE)
        gauges = {name: re.search(rf"^tgi_request_{name} (\d+)$", text, re.MULTILINE) for name in ("count", "success")}
        assert gauges["count"] is not None and gauges["success"] is not None
        return {
            "received": int(gauges["count"][1]),
            "success": int(gauges["success"][1]),
            **{kind: int(count) for kind, count in failures},
        }

    def resident_now(self) -> int:
        """Resident memory in bytes."""
        return resident_of(self.process.pid)

    def settle(self, seconds: float = 60) -> None:
        """Waits until an idle server has taken the memory of its KV pool, or `seconds` at most."""
        end, before = time.monotonic() + seconds, 0
        while (now := self.resident_now()) > before + 1_000_000 and time.monotonic() < end:
            before = now
            time.sleep(0.5)

    def stop(self, number: signal.Signals = signal.SIGTERM, seconds: float = 30) -> int:
        """Sends a signal and returns the exit code."""
        self.process.send_signal(number)
        return self.process.wait(seconds)


def resident_of(pid: int) -> int:
    """Bytes of a process's resident memory, as the kernel says."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


@contextlib.contextmanager
def running(
    flags: Sequence[str] = (),
    seconds: float = 120,
    program: Sequence[str] = ("-m", "interlingua.cli.main"),
    port: int | None = 0,
) -> Iterator[Server]:
    """A server that runs while the block does, with no variable of ours in its environment but where models are kept.

    Args:
        seconds: how long it may take to start.
        program: what Python runs; it must understand the command line of `interlingua`.
        port: where it listens; 0 = any free port, None = where its options say.

    Raises:
        RuntimeError: it has not said within `seconds` that it serves; the message holds its standard error.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("INTERLINGUA_")}
    if "INTERLINGUA_CACHE" in os.environ:
        environment["INTERLINGUA_CACHE"] = os.environ["INTERLINGUA_CACHE"]
    command = [sys.executable, *program, "serve", *(() if port is None else ("--port", str(port))), *flags]
    begun = time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1, env=environment
    )
    errors: list[str] = []
    assert process.stdout is not None and process.stderr is not None
    reading = threading.Thread(target=errors.extend, args=(process.stderr,), daemon=True)
    reading.start()
    impatience = threading.Timer(seconds, process.kill)
    impatience.start()
    try:
        ready = next(filter(None, map(READY.match, process.stdout)), None)
        impatience.cancel()
        if ready is None:
            process.wait()
            reading.join(5)
            raise RuntimeError(f"the server did not start: {''.join(errors)}")
        ready_s = time.monotonic() - begun
        resident = resident_of(process.pid)
        weights, pool = (int(ready[name] or 0) * 1_000_000 for name in ("weights", "pool"))
        yield Server(
            process, ready["model"], ready["url"], ready_s, resident, weights, pool, ready["grpc"] or "", errors
        )
    finally:
        impatience.cancel()
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reading.join(5)
        process.stdout.close()
        process.stderr.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32], help="numbers of streams to run")
    parser.add_argument("--rounds", type=int, default=3, help="requests of each stream (of 4 at the least in all)")
    parser.add_argument("--words", type=int, default=110, help="words of a prompt")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--seed0", type=int, default=0, help="number of the first prompt")
    parser.add_argument("flags", nargs="*", metavar="-- FLAG", help="flags of `interlingua serve`")
    arguments = parser.parse_args()
    with running(arguments.flags) as server:
        megabytes = round(server.resident / 1e6)
        print(json.dumps({"model": server.model, "ready_s": round(server.ready_s, 2), "resident_mb": megabytes}))
        server.settle()
        number = arguments.seed0
        for streams, requests in [(4, 4), *((n, max(4, n * arguments.rounds)) for n in arguments.streams)]:
            load = Load(
                url=server.url,
                streams=streams,
                requests=requests,
                words=arguments.words,
                tokens=arguments.tokens,
                seed0=number,
            )
            figures = uvloop.run(measure(load))
            if number != arguments.seed0:  # the first was the warm-up
                print(json.dumps(figures), flush=True)
            number += requests


if __name__ == "__main__":
    main()
