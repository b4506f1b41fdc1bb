"""What a model says, told apart: reasoning, the answer's text, and calls of functions.

One reader for each answer, fed with the texts of its tokens in order. Whole answers and streams use the same reader,
so they cannot differ. What might still become a mark is held back; what turns out to be none is text.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Generator
from dataclasses import dataclass
from typing import Literal, TypeVar

from interlingua.contract.dialect import ChatFormat

_SPACE = " \t\r\n"
_TOOL_CALL = ("<tool_call>", "</tool_call>")
_TOOL_CALLS = "[TOOL_CALLS]"
_PYTHON_TAG = "<|python_tag|>"
_ARGUMENTS = ("arguments", "parameters")
# Marks that are special tokens, whose text is no part of an answer but for this.
SPECIAL_MARKS = frozenset((*_TOOL_CALL, _TOOL_CALLS, _PYTHON_TAG, "<think>", "</think>"))

T = TypeVar("T")
_Steps = Generator[None, None, T]  # yields when it needs more text


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of an answer. Of a call the first piece has its `name`; `text` is a part of its arguments' JSON."""

    kind: Literal["content", "reasoning", "call"]
    text: str
    call: int = 0  # which call of the answer, from 0
    name: str | None = None


class Reader:
    """Reads one answer.

    Args:
        form: how the model marks reasoning and calls.
        names: the functions that may be called; a call of another one is text. Empty = calls are not looked for.
        reasoning: the prompt ended inside a block of reasoning.
        guided: what a grammar makes of the whole answer: a JSON list of calls, or the arguments of the one function.
        most: calls to pass on, further ones are dropped; None = all.
    """

    def __init__(
        self,
        form: ChatFormat,
        names: Collection[str] = (),
        *,
        reasoning: bool = False,
        guided: Literal["calls", "arguments"] | None = None,
        most: int | None = None,
    ) -> None:
        self._form = form
        self._names = names
        self._inside = reasoning
        self._guided = guided
        self._most = most
        self._held = ""  # text that nothing was decided about
        self._over = False  # nothing follows
        self._pieces: list[Piece] = []
        self._calls = 0
        self._steps = self._answer()

    @property
    def calls(self) -> int:
        """Calls so far."""
        return self._calls

    def push(self, text: str) -> list[Piece]:
        """The pieces that `text` makes ready."""
        self._held += text
        return self._go_on()

    def finish(self) -> list[Piece]:
        """What was held back, now that nothing follows."""
        self._over = True
        return self._go_on()

    def _go_on(self) -> list[Piece]:
        next(self._steps, None)
        pieces, self._pieces = self._pieces, []
        return pieces

    # --- an answer, from its beginning to its end -----------------------------------------------------------------

    def _answer(self) -> _Steps[None]:
        if self._guided == "arguments":
            yield from self._arguments()
        elif self._guided == "calls":
            yield from self._list()
        else:
            yield from self._reasoning()
            if not self._names:
                yield from self._rest()
            elif self._form.tools == "hermes":
                yield from self._hermes()
            elif self._form.tools == "mistral":
                yield from self._mistral()
            else:
                yield from self._llama3()

    def _reasoning(self) -> _Steps[None]:
        if self._form.reasoning is None:
            return
        begin, end = self._form.reasoning
        if self._inside or (yield from self._take(begin)):
            yield from self._skip_space()
            yield from self._until(end, "reasoning")
            yield from self._skip_space()

    def _hermes(self) -> _Steps[None]:
        begin, end = _TOOL_CALL
        while (yield from self._until(begin, "content")):
            if (yield from self._call(begin)):
                yield from self._take(end)
                yield from self._skip_space()

    def _mistral(self) -> _Steps[None]:
        if (yield from self._until(_TOOL_CALLS, "content")):
            yield from self._list()

    def _llama3(self) -> _Steps[None]:
        yield from self._take(_PYTHON_TAG)
        while (yield from self._sees("{")) and (yield from self._call("")):
            yield from self._take(";")
        yield from self._rest()

    def _list(self) -> _Steps[None]:
        yield from self._take("[")
        while (yield from self._sees("{")) and (yield from self._call("")):
            yield from self._take(",")
        yield from self._take("]")
        yield from self._rest()

    def _arguments(self) -> _Steps[None]:
        (name,) = self._names
        while not self._over:
            if self._held:
                self._pieces.append(Piece("call", self._held, 0, None if self._calls else name))
                self._calls, self._held = 1, ""
            yield

    # --- steps ----------------------------------------------------------------------------------------------------

    def _sees(self, mark: str) -> _Steps[bool]:
        """Whether `mark` comes next, behind white space at most. Takes nothing."""
        while True:
            text = self._held.lstrip(_SPACE)
            if text.startswith(mark):
                return True
            if self._over or not mark.startswith(text):
                return False
            yield

    def _take(self, mark: str) -> _Steps[bool]:
        """Takes `mark` and the white space before it, if it comes next."""
        found = yield from self._sees(mark)
        if found:
            self._held = self._held.lstrip(_SPACE)[len(mark) :]
        return found

    def _skip_space(self) -> _Steps[None]:
        while not (text := self._held.lstrip(_SPACE)) and not self._over:
            self._held = ""
            yield
        self._held = text

    def _until(self, mark: str, kind: Literal["content", "reasoning"]) -> _Steps[bool]:
        """Passes text on up to `mark` and the white space before it. False: the end came first."""
        while True:
            at = self._held.find(mark)
            if at >= 0:
                self._emit(kind, self._held[:at].rstrip(_SPACE))
                self._held = self._held[at + len(mark) :]
                return True
            if self._over:
                break
            safe = self._held[: len(self._held) - _overlap(self._held, mark)].rstrip(_SPACE)
            self._emit(kind, safe)
            self._held = self._held[len(safe) :]
            yield
        self._emit(kind, self._held)
        self._held = ""
        return False

    def _rest(self) -> _Steps[None]:
        while True:
            self._emit("content", self._held)
            self._held = ""
            if self._over:
                return
            yield

    def _call(self, mark: str) -> _Steps[bool]:
        """Passes a call on. False: it was none, and if nothing of it had been passed on, it was passed on as text."""
        call = _CallReader()
        raw, announced = mark, False
        place = self._calls
        while True:
            taken = call.push(self._held)
            raw += "" if announced else self._held[:taken]
            self._held = self._held[taken:]
            good = call.name in self._names
            if good:
                arguments = call.take_arguments()
                if call.done and not call.has_arguments:
                    arguments = "{}"
                if not announced or arguments:
                    self._emit_call(Piece("call", arguments, place, None if announced else call.name))
                if not announced:
                    announced = True
                    self._calls += 1
            if call.done and good:
                return True
            if call.broken or call.done or self._over or (call.name is not None and not good):
                if not announced:
                    self._emit("content", raw)
                return False
            yield

    def _emit(self, kind: Literal["content", "reasoning"], text: str) -> None:
        if text:
            self._pieces.append(Piece(kind, text))

    def _emit_call(self, piece: Piece) -> None:
        if self._most is None or piece.call < self._most:
            self._pieces.append(piece)


class _CallReader:
    """Reads the JSON object of one call, `{"name": …, "arguments": {…}}`, in any order and any pieces.

    Llama's own word for the arguments is `parameters`. Arguments that are the text of an object are good too.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.has_arguments = False
        self.done = False
        self.broken = False
        self._arguments: list[str] = []  # what was not taken yet
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._key: str | None = None  # whose value is being read
        self._chars: list[str] = []  # of the key or value that is being read

    def take_arguments(self) -> str:
        """JSON text that is new."""
        new = "".join(self._arguments)
        self._arguments.clear()
        return new

    def push(self, text: str) -> int:
        """Takes from `text` up to the object's end; how many characters."""
        for at, char in enumerate(text):
            if self.done or self.broken:
                return at
            self._char(char)
        return len(text)

    def _char(self, char: str) -> None:
        if self._depth == 0:
            if char == "{":
                self._depth = 1
            elif char not in _SPACE:
                self.broken = True
        elif self._in_string:
            self._append(char)
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self._in_string = False
        elif char in "}]" and self._depth == 1:
            self._end_value()
            self.done = not self.broken
            self.broken |= char == "]"
        elif char == "," and self._depth == 1:
            self._end_value()
        elif char == ":" and self._depth == 1 and self._key is None:
            self._key = _string("".join(self._chars))
            self.broken = self._key is None
            self._chars.clear()
        else:
            self._in_string = char == '"'
            self._depth += (char in "{[") - (char in "}]")
            self._append(char)

    def _append(self, char: str) -> None:
        if not self._chars and char in _SPACE:
            return
        self._chars.append(char)
        if self._key in _ARGUMENTS and self._chars[0] != '"':
            self._arguments.append(char)
            self.has_arguments = True

    def _end_value(self) -> None:
        text = "".join(self._chars)
        if self._key == "name":
            self.name = _string(text)
            self.broken = self.name is None
        elif self._key in _ARGUMENTS and text.startswith('"'):
            self._arguments.append(_string(text) or "{}")
            self.has_arguments = True
        elif self._key is None and text:
            self.broken = True
        self._key = None
        self._chars.clear()


def _string(text: str) -> str | None:
    """The string that JSON text stands for, None if it is none."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, str) else None


def _overlap(text: str, mark: str) -> int:
    """Characters at the end of `text` with which `mark` may begin."""
    for size in range(min(len(text), len(mark) - 1), 0, -1):
        if text.endswith(mark[:size]):
            return size
    return 0
