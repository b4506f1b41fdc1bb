"""A package index on 127.0.0.1 whose connections break when a test wants it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class SilentProgress:
    """Of a download that nobody watches."""

    def begin(self, what: str, total: int) -> None: ...

    def update(self, done: int) -> None: ...

    def end(self, failed: bool = False) -> None: ...


class PackageIndex:
    """Serves the wheels of a folder, by the simple repository API, with their metadata beside them.

    Attributes:
        asked: the Range header ("" = none) of every request for a wheel, from somewhere to its end.
        cut_after: bytes of an answer after which its connection ends; None = never.
        ranges: answer ranges with ranges.
        metadata: serve metadata by itself, so that pip need not fetch the wheel to read it.
        password: asked for with every request, None = open to all.
        missing: wheels are listed and yet not there.
        wrong_hash: their hashes are listed wrong.
        pause: seconds in the middle of every wheel.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []
        self.cut_after: int | None = None
        self.ranges = True
        self.metadata = True
        self.password: str | None = None
        self.missing = False
        self.wrong_hash = False
        self.pause = 0.0
        self.port = 0

    def url(self, credentials: str = "") -> str:
        return f"http://{credentials}127.0.0.1:{self.port}/simple"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    index: PackageIndex

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        index = self.index
        if index.password is not None:
            token = base64.b64encode(f"me:{index.password}".encode()).decode()
            if self.headers.get("Authorization") != f"Basic {token}":
                self._send(401, b"who?", {"WWW-Authenticate": 'Basic realm="index"'})
                return
        name = self.path.rsplit("/", 1)[1]
        wheel = index.folder / name.removesuffix(".metadata")
        if self.path.startswith("/simple/"):
            self._send(200, self._page(self.path.split("/")[2]), {"Content-Type": "text/html"})
        elif name.endswith(".metadata"):
            with zipfile.ZipFile(wheel) as archive:
                (entry,) = (entry for entry in archive.namelist() if entry.endswith("/METADATA"))
                self._send(200, archive.read(entry))
        else:
            wanted = self.headers.get("Range", "")
            if self.command == "GET" and (not wanted or wanted.endswith("-")):
                index.asked.append(wanted)
            self._wheel(wheel.read_bytes())

    def _page(self, package: str) -> bytes:
        links = []
        for wheel in sorted(self.index.folder.glob(f"{package.replace('-', '_')}-*.whl")):
            digest = hashlib.sha256(b"" if self.index.wrong_hash else wheel.read_bytes()).hexdigest()
            metadata = 'data-dist-info-metadata="true"' if self.index.metadata else ""
            links.append(f'<a href="/files/{wheel.name}#sha256={digest}" {metadata}>{wheel.name}</a>')
        return f"<!DOCTYPE html><html><body>{' '.join(links)}</body></html>".encode()

    def _wheel(self, data: bytes) -> None:
        if self.index.missing:
            self._send(404, b"gone")
            return
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted is None or not self.index.ranges:
            self._send(200, data, {"Accept-Ranges": "bytes"} if self.index.ranges else {})
            return
        first, last = int(wanted[1]), int(wanted[2] or len(data) - 1)
        if first >= len(data):
            self._send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            return
        self._send(206, data[first : last + 1], {"Content-Range": f"bytes {first}-{last}/{len(data)}"})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = True
        if self.command == "HEAD":
            return
        half = 0
        if self.path.endswith(".whl"):
            body = body[: self.index.cut_after]
            half = len(body) // 2
            self.wfile.write(body[:half])
            time.sleep(self.index.pause)
        with contextlib.suppress(ConnectionError):  # it may have left meanwhile
            self.wfile.write(body[half:])

    def log_message(self, format: str, *args: object) -> None: ...


@contextmanager
def serving(folder: Path) -> Iterator[PackageIndex]:
    index = PackageIndex(folder)
    handler = type("Handler", (_Handler,), {"index": index})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        index.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield index
        finally:
            server.shutdown()
            thread.join()
