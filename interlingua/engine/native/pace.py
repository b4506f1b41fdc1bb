"""How much of long prompts a step may have beside running streams, by what steps have been found to cost.

What is learnt here decides when rows are computed, never what comes out: any chunking of a prompt gives the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from interlingua.engine.native.sequence import Sequence

# Beside decodes, long prompts may stretch a step to so many times what it would take without them. Promised are three:
# the rest is for contexts that grow and for a machine that is not always quick.
SLOWDOWN = 1.6
# Prompts up to so many tokens are computed at once even beside decodes: taken apart, they would hold up all the more.
SHORT_PROMPT = 256
# The prompt that has waited longest goes on by so many tokens a step, whatever they cost.
LEAST_ROWS = 4

# What a step costs for itself, for each row, for each position of a sequence that is read and for each position that a
# row attends to, in rows at the beginning of a context. Measured with SmolLM2-135M on two cores with AVX-512; learning
# begins here.
_ASSUMED = np.array([10.0, 1.0, 0.003, 0.001])
_ASSUMED_WEIGHT = 0.3  # in steps
_MEMORY = 0.995  # what a step's weight is after the next one
_MOST_NOTED = 64  # steps


@dataclass(frozen=True, slots=True)
class Work:
    """What there is to do in a step, as far as its time depends on it."""

    rows: int
    read: int  # positions, once for each sequence
    attended: float  # positions, once for each row

    @classmethod
    def of(cls, chunks: Iterable[tuple[int, int]]) -> Work:
        """Of so many rows each, behind so many positions: pairs (positions, rows)."""
        rows = read = 0
        attended = 0.0
        for computed, count in chunks:
            rows += count
            read += computed + count
            attended += count * (computed + count / 2)
        return cls(rows, read, attended)


class StepCost:
    """Seconds that a step takes, fitted to those that were: least squares of the relative error, the last steps first.

    A step that took far too long, because the machine was busy, counts little: its relative error is bounded. Where
    steps do not tell the prices apart, the assumed proportions between them hold.

    Steps are noted, and taken in when somebody asks for prices or many have come together: between two steps all
    threads wait, and few steps are followed by a question.
    """

    def __init__(self) -> None:
        self._products = np.zeros((4, 4))
        self._sums = np.zeros(4)
        self._prices: npt.NDArray[np.float64] | None = _ASSUMED
        self._noted: list[tuple[float, float, float, float]] = []  # features of steps that are not taken in, by seconds

    def learn(self, work: Work, seconds: float) -> None:
        self._noted.append((1.0 / seconds, work.rows / seconds, work.read / seconds, work.attended / seconds))
        self._prices = None
        if len(self._noted) >= _MOST_NOTED:
            self._take_in()

    def _take_in(self) -> None:
        shares = np.array(self._noted) * _ASSUMED
        weights = _MEMORY ** np.arange(len(shares))[::-1]
        memory = _MEMORY ** len(shares)
        self._products = memory * self._products + (shares * weights[:, None]).T @ shares
        self._sums = memory * self._sums + weights @ shares
        self._noted.clear()

    def estimate(self, work: Work) -> float:
        return float(_features(work) @ self.prices)

    @property
    def prices(self) -> npt.NDArray[np.float64]:
        """Seconds of the step itself, a row, a position read and a position attended to (before any step: rows)."""
        if self._prices is None:
            if self._noted:
                self._take_in()
            scale = self._sums.sum() / self._products.sum()  # of a row, were the proportions the assumed ones
            weight = _ASSUMED_WEIGHT * np.eye(4)
            ratios = np.linalg.solve(scale**2 * self._products + weight, scale * self._sums + _ASSUMED_WEIGHT)
            self._prices = scale * np.maximum(ratios, 0.05) * _ASSUMED
        return self._prices


def _features(work: Work) -> npt.NDArray[np.float64]:
    return np.array([1.0, work.rows, work.read, work.attended])


class Room:
    """What is left of a step for prompts beside the sequences that decode.

    Args:
        left: rows.
        decodes: the positions before the row of each sequence that decodes.
    """

    def __init__(self, left: int, decodes: Seq[int], cost: StepCost) -> None:
        self.left = left
        self._paced = bool(decodes)
        _, self._row, self._read, self._attended = cost.prices.tolist()
        self._time = (SLOWDOWN - 1) * cost.estimate(Work.of((computed, 1) for computed in decodes))

    def holds(self, sequence: Sequence) -> bool:
        """Whether a prompt gets no more than the pace allows."""
        return self._paced and len(sequence.ids) > SHORT_PROMPT

    def share(self, sequence: Sequence, others: bool, least: int = 1) -> int:
        """Tokens of a prompt in this step, as far as there are rows: one that is held gets what the pace allows or
        `least`, another one all that is left, or half of it if `others` wait."""
        room = self.left
        if self.holds(sequence):
            fits = self._fitting(sequence.computed)  # a few rows alone are not worth reading what lies before them
            room = max(fits if fits >= min(LEAST_ROWS, sequence.pending) else 0, least)
        elif others:
            room = -(-room // 2)
        return min(sequence.pending, room, self.left)

    def take(self, sequence: Sequence, count: int) -> None:
        self.left -= count
        self.set_aside(sequence, count)

    def set_aside(self, sequence: Sequence, count: int) -> None:
        """Keeps the time of so many tokens of a prompt from those that ask before it."""
        work = Work.of([(sequence.computed, count)])
        self._time -= self._row * work.rows + self._read * work.read + self._attended * work.attended

    def _fitting(self, computed: int) -> int:
        """Rows behind `computed` positions that can be done in the time that is left."""
        time = self._time - self._read * computed
        each = self._row + self._read + self._attended * computed
        return max(0, int(time / (each + self._attended * max(0.0, time / each) / 2)))  # they attend to each other too
