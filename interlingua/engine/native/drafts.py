"""Prompt lookup (Saxena 2023): what followed the last tokens when they stood in the text before is a good guess of what
follows now. Guesses are checked in one step, and only the choices that plain decoding would have made are kept, so they
change nothing but the time.
"""

from __future__ import annotations

from collections.abc import Sequence

_GRAMS = (3, 2)  # lengths of what is looked up, longest first
_MOST_WAIT = 64  # tokens without a guess after many wrong ones


class Drafter:
    """Guesses for one sequence. Owned by it; the engine thread alone calls it.

    Args:
        most: tokens of a guess at most, at least 1.
    """

    __slots__ = ("_after", "_indexed", "_length", "_most", "_wait", "_wrong")

    def __init__(self, most: int) -> None:
        self._most = most
        self._length = min(most, 3)
        self._after: dict[tuple[int, ...], int] = {}  # n-gram -> index of what followed it last
        self._indexed = 0  # n-grams that end before this index are known
        self._wait = 0
        self._wrong = 0  # guesses in a row of which nothing was right

    def propose(self, ids: Sequence[int], room: int) -> Sequence[int]:
        """Up to `room` tokens that may follow `ids`; none where nothing like its end stands before."""
        if self._wait:
            self._wait -= 1
            return ()
        after = self._after
        for end in range(max(self._indexed, min(_GRAMS)), len(ids)):
            for n in _GRAMS:
                if end >= n:
                    after[tuple(ids[end - n : end])] = end
        self._indexed = len(ids)
        for n in _GRAMS:
            start = after.get(tuple(ids[-n:])) if len(ids) >= n else None
            if start is not None:
                return ids[start : start + min(self._length, room)]
        return ()

    def learn(self, proposed: int, accepted: int) -> None:
        """What became of the last guess: longer ones while all is right, rarer ones while all is wrong."""
        if accepted == proposed:
            self._length = min(self._length * 2, self._most)
        elif accepted == 0:
            self._length = max(self._length // 2, 1)
        if accepted:
            self._wrong = 0
        else:
            self._wrong += 1
            self._wait = min(2**self._wrong, _MOST_WAIT)
