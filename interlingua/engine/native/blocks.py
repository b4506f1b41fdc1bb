"""KV memory: fixed blocks of positions, shared by prompts with the same beginning.

A block is *held* (reference count above zero), *cached* (count zero, but its content has a key and can be taken up
again) or *blank*. Cached blocks are given away least-recently-used first, when no blank one is left.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np


def block_keys(ids: Sequence[int], block_size: int, parent: bytes = b"", first: int = 0) -> list[bytes]:
    """Keys of the whole blocks of `ids` from block `first` on: a SHA-256 chain over parent key and token ids.

    `parent` is the key of block `first - 1`; for the first block it is the salt of whatever else the KV depends on
    (an adapter's identity and version).
    """
    keys: list[bytes] = []
    for start in range(first * block_size, len(ids) // block_size * block_size, block_size):
        digest = hashlib.sha256(parent)
        digest.update(np.asarray(ids[start : start + block_size], np.int32).tobytes())
        parent = digest.digest()
        keys.append(parent)
    return keys


class BlockPool:
    """Owns all blocks of a KV pool. Not thread-safe: only the engine thread calls it.

    Args:
        count: blocks in the pool.
        caching: False switches prefix reuse off; then no block is ever cached.
    """

    def __init__(self, count: int, caching: bool = True) -> None:
        self.count = count
        self.caching = caching
        self._references = [0] * count
        self._keys: list[bytes | None] = [None] * count
        self._by_key: dict[bytes, int] = {}
        self._blank = list(range(count - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first

    @property
    def free(self) -> int:
        """Blocks that `allocate` could give out: blank and cached ones."""
        return len(self._blank) + len(self._cached)

    @property
    def held(self) -> int:
        return self.count - self.free

    def match(self, keys: Iterable[bytes]) -> list[int]:
        """Takes up the longest run of known blocks from the beginning; the caller holds a reference to each."""
        blocks: list[int] = []
        for key in keys:
            block = self._by_key.get(key)
            if block is None:
                break
            self._cached.pop(block, None)
            self._references[block] += 1
            blocks.append(block)
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Takes one more reference to each of some held blocks."""
        for block in blocks:
            assert self._references[block] > 0, "only a held block can be shared"
            self._references[block] += 1

    def allocate(self) -> int | None:
        """A block of unspecified content, held once by the caller; None when all are held."""
        if self._blank:
            block = self._blank.pop()
        elif self._cached:
            block, _ = self._cached.popitem(last=False)
            self._forget(block)
        else:
            return None
        self._references[block] = 1
        return block

    def publish(self, block: int, key: bytes) -> None:
        """Says that a held block is complete and what it holds. A second block of the same content stays private."""
        assert self._references[block] > 0, "only a held block can be published"
        if self.caching and self._keys[block] is None and key not in self._by_key:
            self._keys[block] = key
            self._by_key[key] = block

    def release(self, blocks: Sequence[int]) -> None:
        """Gives up one reference to each. Later blocks of a sequence become the first to be reused."""
        for block in reversed(blocks):
            assert self._references[block] > 0, "block released twice"
            self._references[block] -= 1
            if self._references[block]:
                continue
            if self._keys[block] is None:
                self._blank.append(block)
            else:
                self._cached[block] = None

    def _forget(self, block: int) -> None:
        key = self._keys[block]
        if key is not None:
            del self._by_key[key]
            self._keys[block] = None

    def check_integrity(self, holders: Iterable[Sequence[int]], written: Iterable[int] = ()) -> None:
        """Asserts that counts equal the references of `holders`, that every block is in exactly one state, and that
        the blocks that are still `written` have one holder and no key."""
        expected = [0] * self.count
        for blocks in holders:
            for block in blocks:
                expected[block] += 1
        assert expected == self._references, "reference counts and holders disagree"
        for block in written:
            assert self._references[block] == 1 and self._keys[block] is None, f"block {block} is shared and written"
        blank, cached = set(self._blank), set(self._cached)
        assert len(blank) == len(self._blank) and not blank & cached, "a block is free twice"
        for block in range(self.count):
            held = self._references[block] > 0
            assert held + (block in blank) + (block in cached) == 1, f"block {block} is lost or in two states"
            assert block not in blank or self._keys[block] is None, "a blank block has a key"
            assert block not in cached or self._keys[block] is not None, "a cached block has no key"
        assert {b: k for k, b in self._by_key.items()} == {b: k for b, k in enumerate(self._keys) if k is not None}, (
            "keys and index disagree"
        )
