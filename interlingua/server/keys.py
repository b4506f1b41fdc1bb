"""The keys that clients must show."""

from __future__ import annotations

import hmac
from hashlib import sha256
from pathlib import Path

from interlingua.contract.errors import ModelError
from interlingua.server.watched import Watched


class Keys(Watched):
    """Keys from the command line and from a file with one key on each line; none of either = no key is asked for.

    In the file, empty lines and lines that begin with `#` mean nothing.
    """

    def __init__(self, key: str | None = None, file: str | None = None) -> None:
        self._given = () if key is None else (key,)
        self._file = Path(file) if file else None
        self._digests: tuple[bytes, ...] = ()
        super().__init__((self._file,) if self._file else ())

    @property
    def asked_for(self) -> bool:
        """Must a client show a key?"""
        return bool(self._digests)

    def read(self) -> None:
        keys = (*self._given, *self._from_file())
        self._digests = tuple(_digest(key) for key in keys)

    def accepts(self, key: str) -> bool:
        """Is `key` one of ours? Takes the same time whichever it is, and however much of it is right."""
        shown = _digest(key)
        good = False
        for digest in self._digests:
            good |= hmac.compare_digest(shown, digest)
        return good

    def _from_file(self) -> list[str]:
        if self._file is None:
            return []
        try:
            lines = self._file.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as problem:
            reason = problem.strerror if isinstance(problem, OSError) else "it is not UTF-8 text"
            raise ModelError(f"cannot read the keys in {self._file}: {reason}") from None
        keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not keys:
            raise ModelError(f"there is no key in {self._file}")
        return keys


def _digest(key: str) -> bytes:
    """Of one length for all keys, so that comparing them does not tell their length."""
    return sha256(key.encode("utf-8", "surrogatepass")).digest()
