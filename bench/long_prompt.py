"""How long one 4 MB prompt holds up everybody else.

Starts `interlingua serve` and, while a prompt of 4,000,000 characters is read and tokenised (by `/generate`, then by
`/tokenize`, which answers with every token), asks for `/health` again and again and reads a stream of tokens. Prints
the longest wait for a health answer, and the longest gap between two tokens of the stream, beside what they are without
the prompt. The last line is JSON.

    python bench/long_prompt.py [--model MODEL] [--engine native|echo] [--check]
"""

from __future__ import annotations

import argparse
import http.client
import json
import platform
import random
import sys
import threading
import time

from server import running

CHARACTERS = 4_000_000
TARGET = 200.0  # milliseconds
WORDS = ["the", "sea", "is", "calm", "and", "ships", "move", "slowly", "over", "water", "while", "people", "watch"]


def post(port: int, path: str, body: object) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", path, json.dumps(body))
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"{path}: {response.status} {response.read()[:200]!r}")
    return response


class Watch:
    """Two clients that measure until `end`: one asks for health, the other reads a stream."""

    def __init__(self, port: int) -> None:
        self.health = 0.0  # seconds, the longest wait
        self.gap = 0.0
        self._port = port
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._ask, self._read)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def figures(self) -> tuple[float, float]:
        """Milliseconds: the longest wait for health, and between two tokens."""
        return round(self.health * 1e3, 1), round(self.gap * 1e3, 1)

    def _ask(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        while not self._ended.is_set():
            begun = time.monotonic()
            connection.request("GET", "/health")
            connection.getresponse().read()
            self.health = max(self.health, time.monotonic() - begun)
            time.sleep(0.005)

    def _read(self) -> None:
        while not self._ended.is_set():
            body = {"inputs": "Once", "parameters": {"max_new_tokens": 1000, "ignore_eos": True}}
            response = post(self._port, "/generate_stream", body)
            response.readline()
            last = time.monotonic()
            while response.readline() and not self._ended.is_set():
                now = time.monotonic()
                self.gap = max(self.gap, now - last)
                last = now
            response.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="", help="as for `interlingua serve`; default: the demo model")
    parser.add_argument("--engine", default="native", choices=("native", "echo"))
    parser.add_argument("--check", action="store_true", help="exit with 1 when the target is missed")
    arguments = parser.parse_args()
    text = " ".join(random.Random(1).choices(WORDS, k=CHARACTERS))[:CHARACTERS]
    flags = [*([arguments.model] if arguments.model else []), "--engine", arguments.engine]
    with running(flags) as server:
        port = server.port
        calm = Watch(port)
        time.sleep(2.0)
        calm.end()
        figures = {"calm": calm.figures()}
        for path, more in (("/generate", {"parameters": {"truncate": 20, "max_new_tokens": 1}}), ("/tokenize", {})):
            busy = Watch(port)
            begun = time.monotonic()
            post(port, path, {"inputs": text, **more}).read()
            print(f"{path} with a prompt of {CHARACTERS:,} characters took {time.monotonic() - begun:.1f} s")
            busy.end()
            figures[path] = busy.figures()
    print(f"the longest waits meanwhile: {'health':>12} {'next token':>14}")
    for name, (health, gap) in figures.items():
        print(f"{name:28} {health:9.1f} ms {gap:11.1f} ms")
    print(json.dumps({"python": platform.python_version(), "ms": figures}))
    missed = max(max(waits) for waits in figures.values()) > TARGET
    return 1 if missed and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
