"""Text to token ids, and what each id stands for.

`Tokenizer` wraps the tokenizers library, loaded from a model's tokenizer.json or rebuilt from a GGUF file's metadata.
Decoding is not done here: `token_bytes` says which bytes every id contributes, `detokenize` joins them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, overload

import numpy as np
import tokenizers
from tokenizers import AddedToken, processors

from interlingua.contract.errors import ModelError
from interlingua.text.gguf_vocab import BUILDER_VERSION, END_TOKENS, GgufVocab, surround

_log = logging.getLogger(__name__)


class HasMetadata(Protocol):
    @property
    def metadata(self) -> Mapping[str, Any]: ...


class TokenizerSource(Protocol):
    """What is needed of a model's files (`hub.ModelFiles` is one)."""

    @property
    def gguf(self) -> HasMetadata | None: ...

    @property
    def tokenizer_json(self) -> Path | None:
        """Of a folder: the file. Of a GGUF: where a rebuilt tokenizer may be kept, or None to keep none."""
        ...

    @property
    def config(self) -> Mapping[str, Any]: ...

    @property
    def tokenizer_config(self) -> Mapping[str, Any]: ...

    @property
    def generation_config(self) -> Mapping[str, Any]: ...

    @property
    def chat_template(self) -> str | None: ...


class TokenSpan(NamedTuple):
    """A token and the part of the text that it stands for: `start` and `stop` are UTF-8 byte offsets into the text.

    Tokens that share one character (parts of an emoji) all span that character; added ones (BOS) span (0, 0).
    """

    id: int
    text: str
    start: int
    stop: int


class Tokenizer:
    """One per model, immutable after loading, safe to use from any thread.

    Special tokens are recognised where their text stands in a prompt, as Hugging Face's tokenizers do.

    Args:
        backend: owned by this object from now on; truncation and padding that it was saved with are switched off.
        bos_id: the token that begins a text, if the model has one.
        eos_id: the token that `eos_text` names, for chat templates.
        eos_ids: every token that ends an answer.
        chat_template: the model's own Jinja template.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_id: int | None = None,
        eos_id: int | None = None,
        eos_ids: frozenset[int] = frozenset(),
        chat_template: str | None = None,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.backend: Final = backend
        self.bos_id: Final = bos_id
        self.eos_id: Final = eos_id
        self.eos_ids: Final = eos_ids | ({eos_id} if eos_id is not None else frozenset())
        self.chat_template: Final = chat_template
        added: dict[int, AddedToken] = backend.get_added_tokens_decoder()
        self.special_ids: Final = frozenset(index for index, token in added.items() if token.special)
        self._added: Final = added
        steps = list(_decoder_steps(backend))
        self._byte_level: Final = _is_byte_level(steps)
        self.prefix_space: Final = any(_strips_first_space(step) for step in steps)

    @classmethod
    def load(cls, source: TokenizerSource) -> Tokenizer:
        """The tokenizer of a model. Raises ModelError if it has none, or one that cannot be used."""
        if source.gguf is not None:
            return _from_gguf(source.gguf.metadata, source)
        return _from_folder(source)

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Token ids of `text`, which must hold no lone surrogates. Releases the GIL while it works.

        `add_special` adds what the model wants around a text (BOS, mostly). A text that already begins with the BOS
        text gets no second one. Rendered chat templates bring their own: encode them without.
        """
        ids: list[int] = self.backend.encode_batch_fast([text], add_special_tokens=add_special)[0].ids
        return ids[self._doubled_bos(ids, text, add_special) :]

    def encode_with_offsets(self, text: str, add_special: bool = True) -> Sequence[TokenSpan]:
        """As `encode`, with the place of every token. Slower: for answers that show tokens."""
        encoding = self.backend.encode_batch([text], add_special_tokens=add_special)[0]
        ids: list[int] = encoding.ids
        return _Spans(text, encoding, ids, self._doubled_bos(ids, text, add_special))

    def _doubled_bos(self, ids: list[int], text: str, add_special: bool) -> int:
        """1 if the first id is a BOS that was added before the text's own."""
        if not add_special or self.bos_id is None:
            return 0
        return int(ids[:2] == [self.bos_id, self.bos_id] and text.startswith(self.bos_text))

    @cached_property
    def vocab_size(self) -> int:
        """Highest id + 1. The model's logits may be narrower or wider."""
        return max(self._vocabulary.values(), default=-1) + 1

    @cached_property
    def token_bytes(self) -> list[bytes]:
        """The bytes that each id adds to a text; b"" for an id that stands for nothing. Made on first use.

        Byte-level tokens are mapped back to their bytes; of SentencePiece `▁` is a space and `<0xNN>` a byte; special
        tokens are their literal text. Models with `prefix_space` begin every text with one invented space: it belongs
        to the first token's bytes like any other, so nothing is ever lost in what follows a prompt, and only text
        joined from the very first token of a prompt has one space more than the prompt had.
        """
        table = [b""] * self.vocab_size
        names = self._vocabulary
        if self._byte_level:
            _fill_byte_level(table, names)
        else:
            _fill_sentencepiece(table, names)
        for index, token in self._added.items():
            keep = self._byte_level or token.special
            table[index] = (token.content if keep else token.content.replace("▁", " ")).encode()
        return table

    @cached_property
    def _vocabulary(self) -> dict[str, int]:
        vocabulary: dict[str, int] = self.backend.get_vocab(with_added_tokens=True)
        return vocabulary

    def id_to_text(self, token_id: int) -> str:
        """The text of one token on its own: literal for special ones, U+FFFD for parts of characters, "" if unknown."""
        if not 0 <= token_id < self.vocab_size:
            return ""
        return self.token_bytes[token_id].decode("utf-8", "replace")

    @property
    def bos_text(self) -> str:
        """Literal text of the BOS token, "" if the model has none."""
        return self._literal(self.bos_id)

    @property
    def eos_text(self) -> str:
        """Literal text of the EOS token, "" if the model has none."""
        return self._literal(self.eos_id)

    def _literal(self, token_id: int | None) -> str:
        return "" if token_id is None else self.backend.id_to_token(token_id) or ""


class _Spans(Sequence[TokenSpan]):
    """Spans that are made when they are looked at. Of a long text there are a million: made in one call, or kept all at
    once under the eyes of the garbage collector, they would hold up every other thread for half a second."""

    def __init__(self, text: str, encoding: tokenizers.Encoding, ids: list[int], first: int) -> None:
        self._text = text
        self._chars = encoding.token_to_chars
        self._ids = np.array(ids, np.int32)  # an array goes away at once, a list object by object
        self._first = first
        self._at = _byte_offsets(text)

    def __len__(self) -> int:
        return len(self._ids) - self._first

    @overload
    def __getitem__(self, index: int) -> TokenSpan: ...
    @overload
    def __getitem__(self, index: slice) -> list[TokenSpan]: ...
    def __getitem__(self, index: int | slice) -> TokenSpan | list[TokenSpan]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(self._first, len(self._ids))[index]
        start, stop = self._chars(place) or (0, 0)
        return TokenSpan(int(self._ids[place]), self._text[start:stop], int(self._at[start]), int(self._at[stop]))


def _from_gguf(metadata: Mapping[str, Any], source: TokenizerSource) -> Tokenizer:
    vocab = GgufVocab(metadata)
    backend = _rebuild(vocab, source.tokenizer_json)
    named = (backend.token_to_id(token) for token in END_TOKENS)
    ends = vocab.end_ids | {index for index in named if index is not None}
    return Tokenizer(
        backend,
        bos_id=vocab.bos_id,
        eos_id=vocab.eos_id,
        eos_ids=ends | _ids(source.generation_config, "eos_token_id"),
        chat_template=source.chat_template,
    )


def _rebuild(vocab: GgufVocab, keep: Path | None) -> tokenizers.Tokenizer:
    """From the file kept by an earlier start if there is one, else from the metadata, and then kept.

    The name of the kept file holds a digest of the GGUF's metadata and the builder's version, so one that no longer
    fits is never found. A file that cannot be written costs later starts some time and nothing else.
    """
    if keep is None:
        return vocab.build()
    path = keep.with_name(f"{keep.stem}-v{BUILDER_VERSION}.json")
    if path.exists():
        try:
            return tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises plain Exception
            _log.warning("%s cannot be used and is made anew: %s", path, error)
    backend = vocab.build()
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(backend.to_str(), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        _log.info("%s is not kept: %s", path, error)
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    return backend


def _from_folder(source: TokenizerSource) -> Tokenizer:
    path = source.tokenizer_json
    if path is None:
        raise ModelError("the model has no tokenizer.json")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises plain Exception
        raise ModelError(f"{path}: not a tokenizer ({error})") from None
    config = source.tokenizer_config
    bos_id = _named_id(backend, config, "bos_token")
    eos_id = _named_id(backend, config, "eos_token")
    declared = _ids(source.generation_config, "eos_token_id") or _ids(source.config, "eos_token_id")
    if eos_id is None and declared:
        eos_id = min(declared)
    if bos_id is None and "bos_token" not in config:
        bos_id = min(_ids(source.config, "bos_token_id"), default=None)
    _honour_add_bos(backend, config, bos_id)
    return Tokenizer(
        backend, bos_id=bos_id, eos_id=eos_id, eos_ids=frozenset(declared), chat_template=source.chat_template
    )


def _honour_add_bos(backend: tokenizers.Tokenizer, config: Mapping[str, Any], bos_id: int | None) -> None:
    """`add_bos_token` of tokenizer_config.json wins over what tokenizer.json does, as in transformers."""
    wanted = config.get("add_bos_token")
    if not isinstance(wanted, bool) or bos_id is None:
        return
    adds = backend.encode("", add_special_tokens=True).ids[:1] == [bos_id]
    if wanted and not adds:
        steps = [] if backend.post_processor is None else [backend.post_processor]
        backend.post_processor = processors.Sequence([*steps, surround(backend, backend.id_to_token(bos_id), None)])
    elif adds and not wanted:
        eos_id = _named_id(backend, config, "eos_token") if config.get("add_eos_token") is True else None
        eos = None if eos_id is None else backend.id_to_token(eos_id)
        backend.post_processor = surround(backend, None, eos)


def _named_id(backend: tokenizers.Tokenizer, config: Mapping[str, Any], key: str) -> int | None:
    """The id of a token that tokenizer_config.json names, as a string or as an object with `content`."""
    value = config.get(key)
    if isinstance(value, Mapping):
        value = value.get("content")
    if value is None:
        return None
    if not isinstance(value, str):
        raise ModelError(f"tokenizer_config.json: {key} is {value!r}, which is no token")
    token_id: int | None = backend.token_to_id(value)
    return token_id


def _ids(config: Mapping[str, Any], key: str) -> frozenset[int]:
    """An id, or a list of ids."""
    value = config.get(key)
    values = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in values):
        raise ModelError(f"{key} is {value!r}; a token id or a list of them is expected")
    return frozenset(values)


def _decoder_steps(backend: tokenizers.Tokenizer) -> Iterator[Mapping[str, Any]]:
    """The parts of a decoder, innermost sequences unrolled. Its pickled state is its JSON."""
    if backend.decoder is None:
        return
    stack = [json.loads(backend.decoder.__getstate__())]
    while stack:
        step = stack.pop()
        if step["type"] == "Sequence":
            stack.extend(reversed(step["decoders"]))
        else:
            yield step


def _is_byte_level(steps: list[Mapping[str, Any]]) -> bool:
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return True
    if kinds & {"Metaspace", "ByteFallback"}:
        return False
    raise ModelError(
        f"a tokenizer whose decoder is {sorted(kinds) or 'absent'} is not supported; byte-level and SentencePiece are"
    )


def _strips_first_space(step: Mapping[str, Any]) -> bool:
    """Whether a decoder drops the first space, which is so if encoding adds one."""
    if step["type"] == "Strip":
        return bool(step["content"] == " " and step["start"] > 0)
    return bool(step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never")


def _byte_alphabet() -> dict[int, int]:
    """GPT-2's spelling of bytes: code point of the character -> byte. Printable Latin-1 stands for itself, the other
    68 bytes are U+0100 and up, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in printable)
    return {**{byte: byte for byte in printable}, **{0x100 + n: byte for n, byte in enumerate(others)}}


def _fill_byte_level(table: list[bytes], names: Mapping[str, int]) -> None:
    alphabet = _byte_alphabet()
    # One pass over all names is ten times faster than one per name; U+FFFF is in no name that is spelled in bytes.
    spelled = "\uffff".join(names).translate(alphabet).split("\uffff")
    for (name, index), text in zip(names.items(), spelled, strict=True):
        try:
            table[index] = text.encode("latin-1")
        except UnicodeEncodeError:  # a name with other characters is no spelling of bytes but plain text
            table[index] = name.encode()


def _fill_sentencepiece(table: list[bytes], names: Mapping[str, int]) -> None:
    byte_tokens = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}
    for name, index in names.items():
        table[index] = byte_tokens.get(name) or name.replace("▁", " ").encode()


def _byte_offsets(text: str) -> range | np.ndarray[Any, np.dtype[np.int64]]:
    """For each character of `text`, and its end, the UTF-8 bytes before it."""
    if text.isascii():
        return range(len(text) + 1)
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    widths = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
    return np.concatenate(([0], np.cumsum(widths)))
