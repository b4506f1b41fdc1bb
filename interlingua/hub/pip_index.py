"""What pip knows: where a package's file lies, and how its operator has set up the way there.

No index is named here. pip is asked by its documented commands, in a process of its own, so that whatever it is
configured with (an index of the company, a folder, a proxy, certificates, credentials) rules here too.
"""

from __future__ import annotations

import ast
import base64
import json
import netrc
import os
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final
from urllib.parse import SplitResult, unquote, urlsplit

from interlingua.hub.resume import Source

COMMON_FLAGS: Final = ("--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--retries=2")
_POLL_SECONDS: Final = 0.05
_SEARCH_BYTES: Final = 4 << 20  # more than an index page and the metadata: pip fetches the file itself
_RANKS: Final = {"global": 1, "install": 2, ":env:": 3}  # sections of pip's configuration, the last one wins


@dataclass(frozen=True, slots=True)
class Link:
    """A file that pip would install. `sha256` is None if its index does not say."""

    url: str
    sha256: str | None

    @property
    def filename(self) -> str:
        return unquote(urlsplit(self.url).path).rpartition("/")[2]

    @property
    def local(self) -> Path | None:
        """Where the file lies on this machine, None if it lies elsewhere."""
        parts = urlsplit(self.url)
        return Path(urllib.request.url2pathname(parts.path)) if parts.scheme == "file" else None


def locate(requirement: str, scratch: Path) -> Link | None:
    """Where `requirement` (one pinned package) lies, None if this pip does not say without fetching it.

    `scratch` is an empty folder for pip's temporary files.
    """
    report = scratch / "report.json"
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", *COMMON_FLAGS]
    # Where an index does not serve metadata by itself, pip reads it from the end of the wheel, if ranges are served.
    command += ["--use-feature=fast-deps", f"--report={report}", requirement]
    working = scratch / "pip"
    working.mkdir()

    def look(size: int) -> None:
        # With neither metadata nor ranges it fetches the whole file to read it there.
        if size > _SEARCH_BYTES:
            raise _TooMuchError

    try:
        if run(command, working, look, subprocess.DEVNULL) != 0:
            return None
    except _TooMuchError:
        return None
    try:
        (found,) = json.loads(report.read_bytes())["install"]
        info = found["download_info"]
        hashes: Mapping[str, str] = info["archive_info"].get("hashes", {})
        return Link(str(info["url"]), hashes.get("sha256"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


class _TooMuchError(Exception):
    """pip fetches what it was only to find."""


def run(command: Sequence[str], working: Path, look: Callable[[int], None], log: IO[str] | int) -> int:
    """pip's exit code; its messages go to `log`.

    Args:
        working: a folder for its temporary files, to which all that arrives is written first.
        look: told the bytes in `working`, many times a second; what it raises ends pip.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**os.environ, "TMPDIR": str(working)},
    )
    try:
        while process.poll() is None:
            look(size_of(working))
            time.sleep(_POLL_SECONDS)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    return process.returncode


def source(link: Link) -> Source:
    """The file of `link`, with pip's proxy, certificates and credentials."""
    settings = _settings()
    handlers: list[urllib.request.BaseHandler] = []
    if proxy := settings.get("proxy"):
        handlers.append(urllib.request.ProxyHandler({"http": proxy, "https": proxy}))
    if cert := settings.get("cert"):
        handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=cert)))
    indexes = " ".join(settings.get(name, "") for name in ("index-url", "extra-index-url", "find-links")).split()
    known = _credentials(urlsplit(link.url), indexes)
    authorization = None if known is None else "Basic " + base64.b64encode(":".join(known).encode()).decode()
    return Source(link.url, urllib.request.build_opener(*handlers), authorization)


def _settings() -> dict[str, str]:
    """pip's configuration, from its files and variables."""
    command = [sys.executable, "-m", "pip", "config", "list", "--disable-pip-version-check"]
    listed = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    settings: dict[str, tuple[int, str]] = {}
    for line in listed.stdout.splitlines():
        key, _, text = line.partition("=")
        section, _, name = key.rpartition(".")
        rank = _RANKS.get(section, 0)
        if rank > settings.get(name, (0, ""))[0]:
            settings[name] = (rank, str(ast.literal_eval(text)))
    return {name: value for name, (_, value) in settings.items()}


def _credentials(url: SplitResult, indexes: Sequence[str]) -> tuple[str, str] | None:
    """User and password for the host of `url`: those that an index of the same host is configured with, or netrc's.
    (pip leaves them out of what it reports.)"""
    for index in map(urlsplit, indexes):
        if index.username and (index.scheme, index.hostname, index.port) == (url.scheme, url.hostname, url.port):
            return unquote(index.username), unquote(index.password or "")
    try:
        entry = netrc.netrc().authenticators(url.hostname or "")
    except (OSError, netrc.NetrcParseError):
        return None
    return None if entry is None else (entry[0], entry[2])


def size_of(folder: Path) -> int:
    """Bytes on disk of all files below, of which any may vanish while we look."""
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.stat(os.path.join(root, name)).st_blocks * 512  # not the holes of a wheel read in pieces
            except OSError:
                continue
    return total
