"""From token ids to the text that clients see: one object per request, for streams and whole answers alike.

ids -> bytes (a table made once per model) -> characters (incremental UTF-8) -> stop strings -> pieces

A piece is the text of one token's event. The rules, all of them here:

- A character split over tokens belongs to the token that completes it; the others show "". A last character
  that stays incomplete is dropped. Bytes that are no valid UTF-8 become U+FFFD.
- Special tokens, EOS among them, show their literal text and are no part of the generated text: a character
  or a stop string may even continue across one.
- Stops are literal, searched in the generated text alone, across tokens and inside them. The match that is
  complete first wins; of several that end at the same character the longest, so that a cut leaves nothing of
  any of them. That makes the result a property of the text, whatever tokens it came in.
- Only a real prefix of a stop is held back, as whole pieces, later released unchanged and in order.
- A stop ends the text right before itself (CUT: the piece in which it begins is shortened, later ones carry
  "") or right after itself (KEEP: the piece in which it ends is shortened).
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, Protocol

from interlingua.contract.request import StopMode

_new_decoder = codecs.getincrementaldecoder("utf-8")


class Vocabulary(Protocol):
    """What is needed of a tokenizer."""

    @property
    def token_bytes(self) -> Sequence[bytes]: ...

    @property
    def special_ids(self) -> Collection[int]: ...

    @property
    def eos_ids(self) -> Collection[int]: ...

    def id_to_text(self, token_id: int) -> str: ...


class Piece(NamedTuple):
    """The text of one token's event. `special`: literal text of a special token, no generated text."""

    text: str
    special: bool


class TokenTable:
    """What each id contributes to a text. One per model, shared by all its requests.

    Ids past the tokenizer's own (a padded logits width) contribute nothing.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._bytes = vocabulary.token_bytes
        special = set(vocabulary.special_ids) | set(vocabulary.eos_ids)
        self.special: dict[int, Piece] = {i: Piece(vocabulary.id_to_text(i), True) for i in special}
        # Pieces of ids that hold whole characters, filled as they come by: most tokens need no decoder.
        self.whole: dict[int, Piece] = {}

    def bytes_of(self, token_id: int) -> bytes:
        return self._bytes[token_id] if token_id < len(self._bytes) else b""

    def piece_alone(self, token_id: int) -> Piece:
        """The id without its neighbours, for alternatives not chosen; parts of characters are U+FFFD."""
        special = self.special.get(token_id)
        return special or Piece(self.bytes_of(token_id).decode("utf-8", "replace"), False)

    def pieces(self, ids: Iterable[int]) -> list[Piece]:
        """The pieces of a whole sequence, as for `prefill`."""
        detokenizer = Detokenizer(self)
        return [piece for token_id in ids for piece in detokenizer.push(token_id)]


class StopMatcher:
    """An Aho-Corasick automaton over the stop strings. Immutable.

    A state is the longest end of the text that begins a stop; its depth is the number of characters to hold
    back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops`: at least one, none empty. Cost is linear in their characters, about a microsecond each."""
        assert stops and all(stops), "dialects refuse empty stops"
        self.goto: list[dict[str, int]] = [{}]
        self.depth: list[int] = [0]
        self.match: list[int] = [0]  # length of the longest stop that ends in this state; 0 = none
        self.fail: list[int] = [0]
        for stop in stops:
            state = 0
            for char in stop:
                following = self.goto[state].get(char)
                if following is None:
                    following = len(self.goto)
                    self.goto[state][char] = following
                    self.goto.append({})
                    self.depth.append(self.depth[state] + 1)
                    self.match.append(0)
                    self.fail.append(0)
                state = following
            self.match[state] = len(stop)
        self._link()
        self.first = re.compile("[" + "".join(re.escape(char) for char in self.goto[0]) + "]")

    def _link(self) -> None:
        queue = deque(self.goto[0].values())
        while queue:
            state = queue.popleft()
            for char, following in self.goto[state].items():
                self.fail[following] = self.step(self.fail[state], char)
                self.match[following] = self.match[following] or self.match[self.fail[following]]
                queue.append(following)

    def step(self, state: int, char: str) -> int:
        while True:
            following = self.goto[state].get(char)
            if following is not None:
                return following
            if state == 0:
                return 0
            state = self.fail[state]

    def run(self, state: int, text: str) -> tuple[int, int, int]:
        """Reads `text` from `state`.

        Returns:
            (state, end, length): the first match ends before `text[end]` and has `length` characters; length
            0 = no match.
        """
        if state == 0:
            begin = self.first.search(text)
            if begin is None:
                return 0, 0, 0
            at = begin.start()
        else:
            at = 0
        for index in range(at, len(text)):
            state = self.step(state, text[index])
            length = self.match[state]
            if length:
                return state, index + 1, length
        return state, 0, 0


class Detokenizer:
    """The text of one request. Owned by the request; not shared.

    One piece comes back per token, in the order of the tokens: `push` returns those that may be shown now,
    `finish` the rest. Once `stopped`, no token may be pushed.
    """

    def __init__(self, table: TokenTable, stops: StopMatcher | None = None, stop_mode: StopMode = StopMode.CUT) -> None:
        self._table = table
        self._special = table.special
        self._whole = table.whole
        self._decoder = _new_decoder("replace")
        self._partial = False  # the decoder holds the first bytes of a character
        self._parts: list[str] = []
        self._stopped = False
        self._stops = stops
        self._keep_stop = stop_mode is StopMode.KEEP
        self._state = 0
        self._length = 0  # characters of text so far
        self._held: deque[tuple[Piece, int]] = deque()  # (piece, position in the text after it)

    def push(self, token_id: int) -> list[Piece]:
        piece = self._piece(token_id)
        stops = self._stops
        if stops is None:
            if not piece.special:
                self._parts.append(piece.text)
            return [piece]
        if not piece.special:
            before = self._length
            self._parts.append(piece.text)
            self._length += len(piece.text)
            self._state, end, length = stops.run(self._state, piece.text)
            if length:
                return self._stop(piece, before + end - (0 if self._keep_stop else length))
        held = self._held
        held.append((piece, self._length))
        safe = self._length - stops.depth[self._state]
        released = []
        while held and held[0][1] <= safe:
            released.append(held.popleft()[0])
        return released

    @property
    def stopped(self) -> bool:
        """A stop string was found, and the text ends there."""
        return self._stopped

    @property
    def text(self) -> str:
        """All generated text so far, held-back text included, cut as the stop asks."""
        return "".join(self._parts)

    def finish(self) -> list[Piece]:
        """The pieces still held back. Call once, after the last token."""
        pieces = [piece for piece, _ in self._held]
        self._held.clear()
        return pieces

    def _piece(self, token_id: int) -> Piece:
        special = self._special.get(token_id)
        if special is not None:
            return special
        if not self._partial:
            whole = self._whole.get(token_id)
            if whole is not None:
                return whole
        data = self._table.bytes_of(token_id)
        if not self._partial:
            try:
                whole = self._whole[token_id] = Piece(data.decode(), False)
            except UnicodeDecodeError:
                pass
            else:
                return whole
        text = self._decoder.decode(data)
        self._partial = bool(self._decoder.getstate()[0])
        return Piece(text, False)

    def _stop(self, last: Piece, end: int) -> list[Piece]:
        """Ends the text at position `end`; returns all pieces that are left."""
        self._stopped = True
        self._parts = [self.text[:end]]
        pieces = []
        self._held.append((last, self._length))
        for piece, after in self._held:
            if piece.special:
                pieces.append(piece)
            else:
                start = after - len(piece.text)
                pieces.append(piece if after <= end else Piece(piece.text[: max(0, end - start)], False))
        self._held.clear()
        return pieces
