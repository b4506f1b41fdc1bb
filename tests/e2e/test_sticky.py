"""deploy/nginx-sticky.conf: prompts that begin alike go to one server, and a server that is gone is passed over."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from sockets import ask

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
CONFIG = Path(__file__).parents[2] / "deploy" / "nginx-sticky.conf"
pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")


async def _server(name: str, seen: Counter[tuple[str, int]]) -> asyncio.Server:
    """Answers every POST with its name, and notes which prompt came."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.partition("content-length: ")[2].split("\r\n")[0])
                body = await reader.readexactly(length)
                seen[name, int(body.partition(b"Story ")[2].split(b":")[0])] += 1
                writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(name)}\r\n\r\n{name}".encode())
                await writer.drain()
        writer.close()

    return await asyncio.start_server(handle, "127.0.0.1", 0)


async def test_prompts_stick_and_the_dead_are_passed_over(tmp_path: Path) -> None:
    seen: Counter[tuple[str, int]] = Counter()
    servers = [await _server(name, seen) for name in ("a", "b")]
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    free = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = free.sockets[0].getsockname()[1]
    free.close()
    await free.wait_closed()
    text = CONFIG.read_text(encoding="utf-8")
    for old, new in ((8081, ports[0]), (8082, ports[1]), (8080, port)):
        text = text.replace(f"127.0.0.1:{old}", f"127.0.0.1:{new}")
    (tmp_path / "logs").mkdir()
    config = tmp_path / "nginx.conf"
    config.write_text(
        f"daemon off; pid {tmp_path}/pid; error_log stderr;\n" + text.replace("http {", "http { access_log off;")
    )
    command = (str(NGINX), "-p", str(tmp_path), "-c", str(config))
    nginx = await asyncio.create_subprocess_exec(*command, stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            await asyncio.sleep(0.05)
        stories = [f"Story {n}: " + f"once there was the number {n} " * 12 for n in range(20)]
        for end in ("and then", "and yet", "but"):
            for story in stories:
                assert (await ask(port, "POST", "/generate", {"inputs": story + end})).status == 200
        assert len(seen) == 20 and set(seen.values()) == {3}, "each story went to one server, three times"
        assert {name for name, _ in seen} == {"a", "b"}
        servers[0].close()
        for story in stories:
            assert (await ask(port, "POST", "/generate", {"inputs": story})).body == b"b"
    finally:
        nginx.terminate()
        await asyncio.wait_for(nginx.wait(), 10)
        for server in servers:
            server.close()
