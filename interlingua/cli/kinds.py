"""Kinds of option values: how a text (flag, environment) is read, and how a typed value (file) is checked.

Both ways raise ValueError with the problem alone ("must be an integer from 0 to 65535, got '80a'"); the
caller puts the name of the flag, variable or key in front.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic, TypeVar, cast

from interlingua.media.sources import HOST_RULE, canonical_host
from interlingua.service.adapters import NAME_RULE, is_name

Pairs = tuple[tuple[str, str], ...]
T_co = TypeVar("T_co", covariant=True)

_TRUE = ("true", "1", "yes", "on")
_FALSE = ("false", "0", "no", "off")
_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_UNITS |= {f"{unit}i": 1024**power for power, unit in enumerate("kmgt", start=1)}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", re.IGNORECASE)


class Kind(ABC, Generic[T_co]):
    """A type of option value. Immutable; one instance may serve several options."""

    metavar: str = "VALUE"
    choices: tuple[str, ...] = ()

    @property
    @abstractmethod
    def accepts(self) -> str:
        """What is accepted, in words that follow "must be" ("a number above 0")."""

    @abstractmethod
    def read(self, text: str) -> T_co:
        """The value that `text` means. Raises ValueError."""

    @abstractmethod
    def check(self, value: object) -> T_co:
        """The value of a key in a file, whose type the file has already decided. Raises ValueError."""

    def show(self, value: object) -> str:
        """A value as a person would write it."""
        return str(value)

    def refusal(self, given: object) -> ValueError:
        return ValueError(f"must be {self.accepts}, got {given!r}")


class Text(Kind[str]):
    """Any text but the empty one."""

    def __init__(self, metavar: str = "TEXT", accepts: str = "a text that is not empty") -> None:
        self.metavar = metavar
        self._accepts = accepts

    @property
    def accepts(self) -> str:
        return self._accepts

    def read(self, text: str) -> str:
        if not text:
            raise self.refusal(text)
        return text

    def check(self, value: object) -> str:
        if not isinstance(value, str):
            raise self.refusal(value)
        return self.read(value)


class Key(Text):
    """A secret that clients send in a header: what a header would lose at its ends cannot be part of it."""

    def __init__(self) -> None:
        super().__init__("KEY", "a text without blanks around it, that is not empty")

    def read(self, text: str) -> str:
        if not text or text != text.strip():
            raise self.refusal(text)
        return text


class Texts(Kind[tuple[str, ...]]):
    """Several texts: the flag is repeated, the variable is one text per line, the key is a list."""

    def __init__(self, metavar: str = "TEXT") -> None:
        self.metavar = metavar

    @property
    def accepts(self) -> str:
        return "texts that are not empty"

    def read(self, text: str) -> tuple[str, ...]:
        return self.check(text.split("\n"))

    def check(self, value: object) -> tuple[str, ...]:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) and item for item in items):
            raise self.refusal(value)
        return tuple(items)

    def show(self, value: object) -> str:
        return ", ".join(cast(tuple[str, ...], value)) or "none"


class Hosts(Texts):
    """Hosts, compared exactly: `NAME,ADDRESS`, the flag repeated or not; a list or such a text in a file."""

    def __init__(self) -> None:
        super().__init__("HOST,…")

    @property
    def accepts(self) -> str:
        return f"hosts with commas between them, each {HOST_RULE}"

    def check(self, value: object) -> tuple[str, ...]:
        items = super().check([value] if isinstance(value, str) else value)
        hosts = [host.strip() for item in items for host in item.replace("\n", ",").split(",")]
        try:
            return tuple(dict.fromkeys(canonical_host(host) for host in hosts))
        except ValueError:
            raise self.refusal(value) from None

    def read(self, text: str) -> tuple[str, ...]:
        return self.check(text)


class Arguments(Texts):
    """Options of another program: `NAME=VALUE`, the flag repeated; a mapping in a file. Kept as such texts."""

    def __init__(self) -> None:
        super().__init__("NAME=VALUE")

    @property
    def accepts(self) -> str:
        return "NAME=VALUE, or a mapping of names to plain values in a file"

    def check(self, value: object) -> tuple[str, ...]:
        if isinstance(value, dict):
            plain = all(isinstance(k, str) and isinstance(v, (str, int, float)) for k, v in value.items())
            items = [f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in value.items()] if plain else None
            if items is None:
                raise self.refusal(value)
            value = items
        texts = super().check(value)
        for text in texts:
            if not re.match(r"[a-z][a-z0-9_.-]*=", text):
                raise self.refusal(text)
        return texts


class NamedFolders(Kind[Pairs]):
    """Folders with a name each: `NAME=FOLDER,NAME=FOLDER`, or a mapping in a file."""

    metavar = "NAME=FOLDER,…"

    @property
    def accepts(self) -> str:
        return f"names and folders as in NAME=FOLDER,NAME=FOLDER, each name once, of {NAME_RULE}"

    def read(self, text: str) -> Pairs:
        pairs = [item.partition("=") for item in text.split(",")]
        if not all(sign for _, sign, _ in pairs):
            raise self.refusal(text)
        return self._checked([(name, folder) for name, _, folder in pairs], text)

    def check(self, value: object) -> Pairs:
        if isinstance(value, str):
            return self.read(value)
        if not isinstance(value, dict):
            raise self.refusal(value)
        return self._checked(list(value.items()), value)

    def show(self, value: object) -> str:
        return ",".join(f"{name}={folder}" for name, folder in cast(Pairs, value)) or "none"

    def _checked(self, pairs: Iterable[tuple[object, object]], given: object) -> Pairs:
        pairs = list(pairs)
        good = [(n, f) for n, f in pairs if isinstance(n, str) and isinstance(f, str) and f and is_name(n)]
        if len(good) != len(pairs) or len(dict(good)) != len(good):
            raise self.refusal(given)
        return tuple(good)


class Choice(Kind[str]):
    """One of a few words."""

    metavar = "NAME"

    def __init__(self, *choices: str) -> None:
        self.choices = choices

    @property
    def accepts(self) -> str:
        return f"one of {', '.join(self.choices)}"

    def read(self, text: str) -> str:
        if text not in self.choices:
            raise self.refusal(text)
        return text

    def check(self, value: object) -> str:
        if not isinstance(value, str):
            raise self.refusal(value)
        return self.read(value)


class Switch(Kind[bool]):
    """True or false: a pair of flags `--name` and `--no-name`."""

    @property
    def accepts(self) -> str:
        return "true or false"

    def read(self, text: str) -> bool:
        if text.lower() in _TRUE:
            return True
        if text.lower() in _FALSE:
            return False
        raise self.refusal(text)

    def check(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise self.refusal(value)
        return value

    def show(self, value: object) -> str:
        return "on" if value else "off"


class Integer(Kind[int]):
    """A whole number in a range; `high` None = no upper end."""

    metavar = "N"

    def __init__(self, low: int, high: int | None = None) -> None:
        self._low, self._high = low, high

    @property
    def accepts(self) -> str:
        if self._high is None:
            return f"an integer of {self._low} or more"
        return f"an integer from {self._low} to {self._high}"

    def read(self, text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,20}", text):
            raise self.refusal(text)
        return self._in_range(int(text), text)

    def check(self, value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.refusal(value)
        return self._in_range(value, value)

    def _in_range(self, number: int, given: object) -> int:
        if number < self._low or (self._high is not None and number > self._high):
            raise self.refusal(given)
        return number


class Number(Kind[float]):
    """A finite number above `above`, or from it on if `closed`, and up to `most` or below `below`, if any."""

    metavar = "X"

    def __init__(
        self, above: float, most: float | None = None, below: float | None = None, *, closed: bool = False
    ) -> None:
        self._above, self._most, self._below, self._closed = above, most, below, closed

    @property
    def accepts(self) -> str:
        most = "" if self._most is None else f" and up to {self._most:g}"
        most += "" if self._below is None else f" and below {self._below:g}"
        return f"a number {'of at least' if self._closed else 'above'} {self._above:g}{most}"

    def read(self, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            raise self.refusal(text) from None
        return self._in_range(number, text)

    def check(self, value: object) -> float:
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise self.refusal(value)
        return self._in_range(float(value), value)

    def show(self, value: object) -> str:
        return f"{value:g}"

    def _in_range(self, number: float, given: object) -> float:
        too_high = (self._most is not None and number > self._most) or (
            self._below is not None and number >= self._below
        )
        too_low = number < self._above or (number == self._above and not self._closed)
        if not math.isfinite(number) or too_low or too_high:
            raise self.refusal(given)
        return number


class Size(Kind[int]):
    """A count of bytes: `67108864`, `64MiB`, `1.5 GB`."""

    metavar = "SIZE"

    @property
    def accepts(self) -> str:
        return "a size above 0 such as 67108864, 64MiB or 1.5GB"

    def read(self, text: str) -> int:
        match = _SIZE.fullmatch(text.strip())
        number = int(float(match[1]) * _UNITS[match[2].lower()]) if match and match[2].lower() != "i" else 0
        if number <= 0:
            raise self.refusal(text)
        return number

    def check(self, value: object) -> int:
        if isinstance(value, str):
            return self.read(value)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise self.refusal(value)
        return value

    def show(self, value: object) -> str:
        number = int(str(value))
        for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
            if number % 1024**power == 0:
                return f"{number // 1024**power}{unit}"
        return f"{number}B"
