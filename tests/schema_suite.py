"""The official JSON-Schema suite (scripts/golden/make_schemas.py), and byte by byte readings of grammars."""

from __future__ import annotations

import asyncio
import itertools
import json
import lzma
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interlingua.contract.request import Grammar
from interlingua.engine.native.guide import Guide, Guides

_FILE = Path(__file__).parent / "data" / "schemas" / "draft2020-12.json.xz"


@dataclass(frozen=True)
class Case:
    """One instance of a group of the suite."""

    file: str
    group: str
    name: str
    data: Any
    valid: bool


@dataclass(frozen=True)
class Group:
    schema: Any
    cases: tuple[Case, ...]


def groups() -> list[Group]:
    suite = json.loads(lzma.decompress(_FILE.read_bytes()))
    return [
        Group(
            group["schema"],
            tuple(Case(file, group["description"], t["description"], t["data"], t["valid"]) for t in group["tests"]),
        )
        for file, found in suite.items()
        for group in found
    ]


class Bytes:
    """A vocabulary of bytes and an EOS."""

    token_bytes: Sequence[bytes] = (*(bytes([value]) for value in range(256)), b"</s>")
    special_ids: Collection[int] = frozenset({256})
    eos_ids: Collection[int] = frozenset({256})
    prefix_space = False

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        return list(text.encode())


class Reader:
    """Compiles grammars for bytes and says what belongs to them. Close it when done."""

    def __init__(self) -> None:
        self._guides = Guides(Bytes(), 257, lambda: None)

    def compile(self, kind: Any, value: object) -> Guide:
        """Raises ValidationError."""
        return asyncio.run(self._guides.make(Grammar(kind, value if isinstance(value, str) else json.dumps(value))))

    def close(self) -> None:
        self._guides.close()


def accepts(guide: Guide, text: str) -> bool:
    """Whether the whole of `text` belongs to the grammar."""
    matcher = guide._matcher.deep_copy()
    ids = list(text.encode())
    return matcher.validate_tokens(ids) == len(ids) and matcher.consume_tokens(ids) and matcher.is_accepting()


def accepts_value(guide: Guide, value: Any) -> bool:
    """Whether some JSON text of `value` belongs to the grammar: names in any order, 1.0 as 1 too."""
    return any(accepts(guide, json.dumps(spelled, ensure_ascii=False)) for spelled in _spellings(value))


def _spellings(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for names in itertools.permutations(value) if len(value) <= 6 else [tuple(value)]:
            for values in itertools.product(*(list(_spellings(value[name])) for name in names)):
                yield dict(zip(names, values, strict=True))
    elif isinstance(value, list):
        yield from map(list, itertools.product(*(list(_spellings(item)) for item in value)))
    else:
        yield value
        if isinstance(value, float) and value.is_integer():
            yield int(value)
