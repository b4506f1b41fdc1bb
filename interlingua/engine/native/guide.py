"""Answers held to a grammar: which tokens may come next, computed by llguidance beside the engine's steps.

A `Guide` belongs to one request. Its mask says which tokens may be chosen next; after each token a thread of `Guides`
advances the matcher and writes the next mask, mostly while the forward pass of the next step runs. The native model
looks at the mask when it has the logits. If the mask is late by then, the row chooses nothing, and sits out until it is
there; neither case changes what the request answers, nor holds up its neighbours.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import numpy.typing as npt

from interlingua.contract.errors import GenerationError, RequestError, UnavailableError, ValidationError
from interlingua.contract.request import Grammar
from interlingua.text.grammar import FIELD, guidance_source, refusal

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

_log = logging.getLogger(__name__)

U32 = npt.NDArray[np.uint32]

CACHED = 128  # compiled grammars that are kept
COMPILE_SECONDS: Final = 10.0
_COMPILE_THREADS = 2


class Vocabulary(Protocol):
    """What a grammar must know of the tokenizer (`text.tokenizer.Tokenizer` is one)."""

    @property
    def token_bytes(self) -> Sequence[bytes]: ...

    @property
    def special_ids(self) -> Collection[int]: ...

    @property
    def eos_ids(self) -> Collection[int]: ...

    @property
    def prefix_space(self) -> bool: ...

    def encode(self, text: str, add_special: bool = True) -> Sequence[int]: ...


class Guide:
    """One request's place in its grammar.

    The engine thread calls `expect`; after that `advance` runs once, in another thread, before `expect` may come again.
    `allowed` is what the native model reads: uint32 [ceil(vocab / 32) + 1], a bit per token, and at last 1 once the
    bits are those of this position.
    """

    __slots__ = ("_ends", "_matcher", "allowed", "cost", "eos_ids", "failed", "missed")

    def __init__(self, matcher: LLMatcher, allowed: U32, ends: U32, eos_ids: frozenset[int]) -> None:
        self._matcher = matcher
        self._ends = ends  # mask of the EOS ids
        self.allowed = allowed
        self.eos_ids = eos_ids
        self.failed: RequestError | None = None  # why the answer cannot go on
        self.missed = False  # the mask was late for a step
        self.cost = 0.0  # seconds that the last mask took

    @property
    def ready(self) -> bool:
        """The mask is there, or will never be."""
        return bool(self.allowed[-1]) or self.failed is not None

    def copy(self) -> Guide:
        """For another request, from this one's place on. This one must be ready."""
        return Guide(self._matcher.deep_copy(), self.allowed.copy(), self._ends, self.eos_ids)

    def expect(self) -> None:
        """A token was chosen: the mask is void until `advance`."""
        self.allowed[-1] = 0
        self.missed = False

    def advance(self, token: int) -> None:
        """Takes the chosen token and computes the next mask, or sets `failed`."""
        start = time.perf_counter()
        if self._matcher.consume_token(token):
            self.compute()
        else:
            self.failed = self._reason()
        self.cost = time.perf_counter() - start

    def takes(self, token: int) -> bool:
        """Takes a token without computing what may follow. False = the grammar has no such token here."""
        return bool(self._matcher.consume_token(token))

    def compute(self) -> None:
        """Computes the mask of this place, or sets `failed`."""
        bits = self.allowed[:-1]
        self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        if self._matcher.is_error():
            self.failed = self._reason()
        elif not (bits & ~self._ends).any() and not self._matcher.is_accepting():
            self.failed = ValidationError(FIELD, "leads to where no token fits")
        else:
            self.allowed[-1] = 1  # after the bits: the native model reads it first

    def _reason(self) -> ValidationError:
        """Whoever sent the grammar has caused it, however late it comes out."""
        reason = self._matcher.get_error().partition("\n")[0][:200]
        return ValidationError(FIELD, f"cannot be followed to the end of the answer: {reason}")


class Guides:
    """Compiles grammars and computes masks, in threads of its own.

    `make` and `close` belong to the event loop, `submit` to the engine thread.

    Args:
        vocab_size: width of the logits.
        notify: called, in any thread, when a mask that was late is there.
    """

    def __init__(self, vocabulary: Vocabulary, vocab_size: int, notify: Callable[[], None]) -> None:
        self._vocabulary = vocabulary
        self._vocab_size = vocab_size
        self._notify = notify
        self._eos_ids = frozenset(i for i in vocabulary.eos_ids if i < vocab_size)
        self._compiled: OrderedDict[Grammar, Future[Guide]] = OrderedDict()
        self._compiling = ThreadPoolExecutor(_COMPILE_THREADS, thread_name_prefix="grammar")
        self._building = threading.Lock()
        self._work: deque[tuple[Guide, int]] = deque()
        self._wake = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name="mask", daemon=True) for _ in range(2 if _cores() < 8 else 4)
        ]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def fits(vocabulary: Vocabulary, vocab_size: int) -> bool:
        """Whether answers of this vocabulary can be guided: one that has no end cannot end with its grammar."""
        return any(i < vocab_size for i in vocabulary.eos_ids)

    async def make(self, grammar: Grammar) -> Guide:
        """A guide at the grammar's beginning, its mask ready.

        Raises:
            ValidationError: it cannot be followed.
            GenerationError: the compiler failed on it, which says nothing of the grammar.
            UnavailableError: `close` was called.
        """
        if self._closed:
            raise UnavailableError("the engine does not take requests any more")
        future = self._compiled.get(grammar)
        if future is None:
            future = self._compiled[grammar] = self._compiling.submit(self.compile, grammar)
            if len(self._compiled) > CACHED:
                self._compiled.popitem(last=False)
        else:
            self._compiled.move_to_end(grammar)
        here = asyncio.wrap_future(future)
        here.add_done_callback(_heard)
        try:
            # Shielded: another request may wait for the same grammar.
            async with asyncio.timeout(COMPILE_SECONDS):
                compiled = await asyncio.shield(here)
        except TimeoutError:
            raise ValidationError(FIELD, f"could not be compiled within {COMPILE_SECONDS:g} seconds") from None
        except asyncio.CancelledError:
            if future.cancelled():  # by `close`, and not this request by its client
                raise UnavailableError("the server is stopping") from None
            raise
        except Exception as fault:
            if self._compiled.get(grammar) is future:  # whatever it was, the next request tries anew
                del self._compiled[grammar]
            if isinstance(fault, ValidationError):
                raise
            _log.exception("a grammar could not be compiled")
            raise GenerationError("its grammar could not be compiled") from None
        return compiled.copy()

    def submit(self, work: Sequence[tuple[Guide, int]]) -> None:
        """Advances each guide by its token, the cheapest first: a costly grammar delays no other."""
        with self._wake:
            self._work.extend(sorted(work, key=lambda item: item[0].cost))
            self._wake.notify(len(work))

    def close(self) -> None:
        """Ends the threads; what they have not done is never done."""
        self._compiling.shutdown(wait=False, cancel_futures=True)
        with self._wake:
            self._closed = True
            self._wake.notify_all()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._work and not self._closed:
                    self._wake.wait()
                if self._closed:
                    return
                guide, token = self._work.popleft()
            try:
                guide.advance(token)
            except Exception:  # ends this request alone
                _log.exception("a mask could not be computed")
                guide.failed = GenerationError("the answer cannot go on: its grammar could not be followed")
            if guide.missed:
                self._notify()

    def compile(self, grammar: Grammar) -> Guide:
        """What `make` copies, uncached and in the caller's thread. Raises ValidationError."""
        source = guidance_source(grammar)
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokenizer, source, log_level=0, limits=_limits())
        if matcher.is_error():
            raise refusal(matcher.get_error())
        words = -(-self._vocab_size // 32)
        ends = np.zeros(words, np.uint32)
        for token in self._eos_ids:
            ends[token // 32] |= np.uint32(1 << token % 32)
        guide = Guide(matcher, np.zeros(words + 1, np.uint32), ends, self._eos_ids)
        guide.compute()  # also warms what the copies share
        if "NoExtension" in matcher.get_error() or (guide.failed and not matcher.is_error()):
            raise ValidationError(FIELD, "allows no answer")
        if matcher.is_error():
            raise refusal(matcher.get_error())
        return guide

    @property
    def _tokenizer(self) -> LLTokenizer:
        with self._building:
            return self._built

    @cached_property
    def _built(self) -> LLTokenizer:
        """Made for the first grammar: it takes some 0.3 s."""
        from llguidance import LLTokenizer

        words = _Words(self._vocabulary, self._vocab_size, self._eos_ids)
        tokenizer = LLTokenizer(words, n_vocab=self._vocab_size, eos_token=sorted(self._eos_ids))  # type: ignore[arg-type]
        words.greedy = tokenizer.greedy_tokenize
        return tokenizer


class _Words:
    """The vocabulary in the form that LLTokenizer asks for (llguidance's own wrapper wants a `transformers` one)."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, vocab_size: int, eos_ids: frozenset[int]) -> None:
        known = list(vocabulary.token_bytes[:vocab_size])
        self.tokens = known + [b""] * (vocab_size - len(known))
        self.eos_token_id = min(eos_ids)
        self.special_token_ids = sorted(i for i in eos_ids.union(vocabulary.special_ids) if i < vocab_size)
        self.greedy: Callable[[str], list[int]] = lambda text: []
        self._encode = vocabulary.encode
        # A tokenizer that invents a space before a text invents it before this, where it is cut off again.
        self._prefix = "\x02" if vocabulary.prefix_space else ""
        self._prefix_ids = list(vocabulary.encode(self._prefix, add_special=False)) if self._prefix else []

        self._spelled = lru_cache(4096)(self._spell)  # grammars force the same texts again and again

    def __call__(self, text: str) -> list[int]:
        return self._spelled(text)

    def _spell(self, text: str) -> list[int]:
        """Ids of `text`, which the grammar forces; as the model would write it, if they spell exactly that."""
        ids = list(self._encode(self._prefix + text, add_special=False))
        start = len(self._prefix_ids)
        if ids[:start] == self._prefix_ids:
            ids = ids[start:]
            if all(i < len(self.tokens) for i in ids) and b"".join(self.tokens[i] for i in ids) == text.encode():
                return ids
        return self.greedy(text)


def _heard(compiled: asyncio.Future[Guide]) -> None:
    """A fault that comes when its request has left is none for asyncio to log as one that nobody heard of."""
    if not compiled.cancelled():
        compiled.exception()


def _limits() -> LLParserLimits:
    """llguidance has no clock; these bound one mask to some milliseconds and one answer's memory to some 40 MB."""
    from llguidance import LLParserLimits

    return LLParserLimits(step_lexer_fuel=50_000, max_lexer_states=20_000, verbose_errors=False)


def _cores() -> int:
    return len(os.sched_getaffinity(0))
