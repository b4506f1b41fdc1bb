"""Finds the watermark of Kirchenbauer et al. 2023 (arXiv 2301.10226) that the sampler puts into answers.

The same count as transformers' `WatermarkDetector` makes with seeding scheme "lefthash" and repeated pairs ignored.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from interlingua.engine.native._native import green_list

THRESHOLD = 4.0  # of z; the paper's: about three plain texts in 100,000 reach it by chance


@dataclass(frozen=True, slots=True)
class Detection:
    """What was counted: `green` of `scored` different (id before, id) pairs are green; `gamma` of them by chance."""

    scored: int
    green: int
    gamma: float

    @property
    def z(self) -> float:
        """Standard deviations between `green` and what chance gives."""
        return (self.green - self.gamma * self.scored) / math.sqrt(self.scored * self.gamma * (1 - self.gamma))

    @property
    def p_value(self) -> float:
        """How often a text without a watermark has so many green pairs, or more."""
        return 0.5 * math.erfc(self.z / math.sqrt(2))

    @property
    def watermarked(self) -> bool:
        return self.z > THRESHOLD


def detect(ids: Sequence[int], vocab: int, gamma: float) -> Detection:
    """Judges token ids, each below `vocab` (the width of the logits); gamma in (0, 1).

    The first id is only what the second's list is drawn from. Raises ValueError for fewer than two ids.
    """
    if len(ids) < 2:
        raise ValueError(f"a watermark shows in two tokens or more, got {len(ids)}")
    pairs = sorted(set(itertools.pairwise(ids)))
    green, last = 0, -1
    for before, token in pairs:
        if before != last:
            favoured, last = green_list(before, vocab, gamma), before
        green += int(favoured[token // 8]) >> token % 8 & 1  # a numpy sum would stay uint8 and wrap at 256
    return Detection(len(pairs), green, gamma)
