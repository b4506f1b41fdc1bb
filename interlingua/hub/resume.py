"""A file over HTTP in as many tries as it takes: bytes that have arrived lie in a `.part` file and are not asked for
again, whether the connection broke, the program was stopped or the machine went down.
"""

from __future__ import annotations

import hashlib
import http.client
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_CHUNK: Final = 1 << 18
_TIMEOUT: Final = 30.0  # seconds without a byte
_PAUSES: Final = (0.2, 1.0, 3.0)  # seconds before the next try, for as long as tries bring nothing


class RefusedError(Exception):
    """The server answers, but not with the file."""


class ConnectionLostError(Exception):
    """Try after try brought nothing."""


class _CutError(Exception):
    """One try ended early."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file's URL and how to get there. `authorization` goes to the URL's own host alone, never where it redirects."""

    url: str
    opener: urllib.request.OpenerDirector
    authorization: str | None = None

    def open(self, first: int) -> http.client.HTTPResponse:
        """An answer with the file from byte `first` on, or, where there are no ranges, with all of it."""
        headers = {"Range": f"bytes={first}-", "Accept-Encoding": "identity", "User-Agent": "interlingua"}
        request = urllib.request.Request(self.url, headers=headers)
        if self.authorization is not None:
            request.add_unredirected_header("Authorization", self.authorization)
        response: http.client.HTTPResponse = self.opener.open(request, timeout=_TIMEOUT)
        return response


def fetch(source: Source, part: Path, target: Path, sha256: str | None, progress: Callable[[int], None]) -> None:
    """Fetches the whole file into `part`, checks it, and renames it to `target`.

    Args:
        part: kept when the connection is lost; a later call goes on from its end. On the file system of `target`.
        sha256: what the file must have; None if its publisher does not say.
        progress: told how many bytes are here.

    Raises:
        RefusedError: another status than 200 and 206, no valid certificate, or twice the wrong SHA-256.
        ConnectionLostError: several tries in a row brought nothing.
        OSError: the disk.
    """
    for _ in range(2):  # twice, for what lay there may have been damaged, or the beginning of another file
        _complete(source, part, progress)
        if sha256 is None or _sha256(part) == sha256:
            part.replace(target)
            return
        part.unlink()
    raise RefusedError(f"its SHA-256 is not {sha256}")


def _complete(source: Source, part: Path, progress: Callable[[int], None]) -> None:
    pauses = iter(_PAUSES)
    while True:
        before = _size(part)
        try:
            _one_try(source, part, progress)
            return
        except _CutError as error:
            if _size(part) > before:
                pauses = iter(_PAUSES)
            pause = next(pauses, None)
            if pause is None:
                raise ConnectionLostError(str(error)) from None
            time.sleep(pause)


def _one_try(source: Source, part: Path, progress: Callable[[int], None]) -> None:
    """Adds to `part` what one answer brings. Raises _CutError if that was not all."""
    have = _size(part)
    try:
        response = source.open(have)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing lies behind what we have; whether that is the file, its hash says
            return
        raise RefusedError(f"HTTP status {error.code}") from None
    except (OSError, http.client.HTTPException) as error:
        cause = getattr(error, "reason", error)
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise RefusedError(str(cause)) from None
        raise _CutError(str(cause)) from None
    with response, part.open("ab") as file:
        if response.status != 206:
            have = 0
            file.truncate(0)
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            raise RefusedError("the answer holds another range than was asked for")
        while chunk := _read(response):
            file.write(chunk)
            file.flush()
            progress(file.tell())
        length = response.headers.get("Content-Length")
        if length is not None and file.tell() != have + int(length):
            raise _CutError("the connection was cut")


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read1(_CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise _CutError(str(error) or "the connection was cut") from None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
