"""Two servers behind the nginx file that we ship: each is restarted in turn under load, and no request fails."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from server import Server, running
from sockets import Connection, ask

CONF = Path(__file__).parents[2] / "deploy" / "nginx.conf"
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
BODY = {"inputs": "My name is Olivier and I", "parameters": {"max_new_tokens": 12, "ignore_eos": True}}

pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in taken]


@contextlib.contextmanager
def proxy(folder: Path, front: int, back: list[int]) -> Iterator[None]:
    """nginx with the shipped file, but for ports and the places that root alone may write to."""
    text = CONF.read_text()
    for old, new in (
        ("listen 8080;", f"listen 127.0.0.1:{front};"),
        ("127.0.0.1:8081", f"127.0.0.1:{back[0]}"),
        ("127.0.0.1:8082", f"127.0.0.1:{back[1]}"),
        (
            "http {",
            f"http {{ access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; "
            f"fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;",
        ),
    ):
        assert text.count(old) >= 1
        text = text.replace(old, new)
    path = folder / "nginx.conf"
    path.write_text(text)
    path.parent.chmod(0o755)
    own = f"daemon off; pid {folder}/pid; error_log {folder}/error.log;"
    assert NGINX is not None
    process = subprocess.Popen([NGINX, "-p", str(folder), "-c", str(path), "-g", own], stderr=subprocess.DEVNULL)
    try:
        yield
        assert process.poll() is None, (folder / "error.log").read_text()
    finally:
        process.terminate()
        process.wait(20)


class Load:
    """Clients that go on until they are told to stop; each whole request must be answered in full."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.answered = 0
        self.stopped = asyncio.Event()
        self.text = ""

    async def client(self, number: int) -> None:
        connection = await Connection.open(self._port)
        while not self.stopped.is_set():
            if number % 2:
                answer = await asyncio.wait_for(connection.ask("POST", "/generate", BODY), 60)
                assert answer.status == 200, (answer.status, answer.body)
                text = answer.json["generated_text"]
            else:
                answer = await asyncio.wait_for(connection.ask("POST", "/generate_stream", BODY), 60)
                assert answer.status == 200, (answer.status, answer.body)
                text = answer.events[-1]["generated_text"]
            self.text = self.text or text
            assert text == self.text, "both servers say the same"
            self.answered += 1
        connection.close()

    async def until_answered(self, more: int) -> None:
        wanted = self.answered + more
        for _ in range(6000):
            if self.answered >= wanted:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("no answers for a minute")


async def test_no_request_fails_while_each_server_restarts(tmp_path: Path) -> None:
    front, *back = free_ports(3)

    def start(port: int) -> contextlib.AbstractContextManager[Server]:
        return running(["--kv-memory", "32MiB", "--threads", "1", "--port", str(port)])

    with contextlib.ExitStack() as stack, proxy(tmp_path, front, back):
        servers = [await asyncio.to_thread(stack.enter_context, start(port)) for port in back]
        assert (await ask(front, "GET", "/health")).status == 200
        load = Load(front)
        clients = [asyncio.create_task(load.client(number)) for number in range(6)]
        try:
            for _ in range(2):
                for index, port in enumerate(back):
                    await load.until_answered(8)
                    assert await asyncio.to_thread(servers[index].stop) == 0
                    await load.until_answered(8)
                    servers[index] = await asyncio.to_thread(stack.enter_context, start(port))
            await load.until_answered(8)
            load.stopped.set()
            await asyncio.wait_for(asyncio.gather(*clients), 60)
        finally:
            for client in clients:
                client.cancel()
        for server in servers:
            assert server.gauges()["tgi_request_count"] > 0, "both are in use"
        assert load.answered >= 8 * 9
