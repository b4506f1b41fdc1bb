"""Rebuilds a model's tokenizer from the metadata of its GGUF file.

Two kinds exist: byte-level BPE with merges ("gpt2"), and SentencePiece ("llama"), whose pieces carry scores: there
the neighbours whose joined piece scores best are merged first. With the merges listed in order of that score, BPE
does the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from interlingua.contract.errors import ModelError
from interlingua.text.pretokenizers import find_pretokenizer

# Part of the name of cached files: raise it when what is built here changes.
BUILDER_VERSION: Final = 2

_NORMAL: Final = 1
_UNKNOWN: Final = 2
_CONTROL: Final = 3
_USER_DEFINED: Final = 4
_UNUSED: Final = 5

# Tokens that end an answer. Files name one end token and often mean more (a chat model has an end of turn beside its
# end of text), so these are found by their text, as llama.cpp does.
END_TOKENS: Final = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<EOT>",
        "<｜end▁of▁sentence｜>",
    }
)


class GgufVocab:
    """The vocabulary part of a GGUF file's metadata, checked. Raises ModelError for what is missing or contradictory.

    Making one reads only a few small values; the tokens themselves are decoded when asked for.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        if "tokenizer.ggml.tokens" not in metadata:
            raise ModelError("the file holds no tokenizer (tokenizer.ggml.tokens is missing)")
        self.model: Final = self._get("model", str, None)
        self.bos_id: Final = self._special_id("bos_token_id", 1 if self.model == "llama" else None)
        self.eos_id: Final = self._special_id("eos_token_id", 2 if self.model == "llama" else None)
        self.unk_id: Final = self._special_id("unknown_token_id", 0 if self.model == "llama" else None)
        named = (self._special_id("eot_token_id", None), self._special_id("eom_token_id", None))
        # Tokens that end an answer by the file's own word.
        self.end_ids: Final = frozenset(index for index in (self.eos_id, *named) if index is not None)

    @cached_property
    def tokens(self) -> list[str]:
        """The text of every token, in the vocabulary's own spelling."""
        tokens = self._metadata["tokenizer.ggml.tokens"]
        if not isinstance(tokens, list):
            raise ModelError("tokenizer.ggml.tokens is no list of strings")
        # An empty token could never be written, and two of them would be one entry: llama.cpp names them so.
        return [token or f"[EMPTY_{index}]" for index, token in enumerate(tokens)]

    @cached_property
    def types(self) -> npt.NDArray[np.int32]:
        """The type of every token; all normal in a file that does not say."""
        types = self._metadata.get("tokenizer.ggml.token_type")
        if types is None:
            return np.full(len(self.tokens), _NORMAL, np.int32)
        if len(types) != len(self.tokens):
            raise ModelError(f"tokenizer.ggml.token_type has {len(types)} entries for {len(self.tokens)} tokens")
        return np.asarray(types, np.int32)

    def _get(self, key: str, kind: type, default: Any) -> Any:
        value = self._metadata.get(f"tokenizer.ggml.{key}", default)
        if value is not default and not isinstance(value, kind):
            raise ModelError(f"tokenizer.ggml.{key} is {value!r}, which is no {kind.__name__}")
        return value

    def _special_id(self, key: str, default: int | None) -> int | None:
        value = self._get(key, int, default)
        return None if value is None else int(value)

    def _text(self, index: int | None, key: str) -> str | None:
        if index is None:
            return None
        if not 0 <= index < len(self.tokens):
            raise ModelError(f"tokenizer.ggml.{key} is {index}, outside the vocabulary of {len(self.tokens)}")
        return self.tokens[index]

    def build(self) -> Tokenizer:
        """A tokenizer that splits as the model was trained to, BOS and EOS added where the file says so."""
        if self.model == "gpt2":
            tokenizer, adds_bos = self._build_byte_level()
        elif self.model == "llama":
            tokenizer, adds_bos = self._build_sentencepiece()
        else:
            raise ModelError(f"the tokenizer kind {self.model!r} is not supported; gpt2 and llama are")
        self._add_tokens(tokenizer)
        bos, eos = self._text(self.bos_id, "bos_token_id"), self._text(self.eos_id, "eos_token_id")
        bos = bos if self._get("add_bos_token", bool, adds_bos) else None
        eos = eos if self._get("add_eos_token", bool, False) else None
        if bos is not None or eos is not None:
            tokenizer.post_processor = surround(tokenizer, bos, eos)
        return tokenizer

    def _vocabulary(self) -> dict[str, int]:
        vocabulary = {token: index for index, token in enumerate(self.tokens)}
        if len(vocabulary) != len(self.tokens):
            raise ModelError("tokenizer.ggml.tokens holds a token twice")
        return vocabulary

    def _build_byte_level(self) -> tuple[Tokenizer, bool]:
        merges = self._metadata.get("tokenizer.ggml.merges")
        if not isinstance(merges, list):
            raise ModelError("tokenizer.ggml.merges is missing")
        rule = find_pretokenizer(self._get("pre", str, "default"))
        try:
            model = models.BPE(
                self._vocabulary(), [_split_merge(merge) for merge in merges], ignore_merges=rule.whole_words
            )
        except Exception as error:  # tokenizers raises plain Exception for a merge whose parts are no tokens
            raise ModelError(f"tokenizer.ggml.merges does not fit the tokens ({error})") from None
        tokenizer = Tokenizer(model)
        if rule.nfc:
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rule.patterns),
                pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
            ]
        )
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer, rule.add_bos

    def _build_sentencepiece(self) -> tuple[Tokenizer, bool]:
        scores = self._metadata.get("tokenizer.ggml.scores")
        if scores is None or len(scores) != len(self.tokens):
            raise ModelError("tokenizer.ggml.scores is missing or has not one entry for each token")
        model = models.BPE(
            self._vocabulary(),
            merges_by_score(self.tokens, np.asarray(scores), self.types),
            unk_token=self._text(self.unk_id, "unknown_token_id"),
            fuse_unk=True,
            byte_fallback=True,
        )
        tokenizer = Tokenizer(model)
        escape = normalizers.Replace(" ", "▁")
        parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        if self._get("add_space_prefix", bool, True):
            tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), escape])
            parts.append(decoders.Strip(" ", 1, 0))
        else:
            tokenizer.normalizer = escape
        tokenizer.decoder = decoders.Sequence(parts)
        return tokenizer, True

    def _add_tokens(self, tokenizer: Tokenizer) -> None:
        """Makes whole tokens of texts that must never be split: control tokens, and those that a user defined."""
        types = self.types.copy()
        for index in (*self.end_ids, self.bos_id):
            if self._text(index, "a special id") is not None:
                types[index] = _CONTROL
        for index, token in enumerate(self.tokens):
            if token in END_TOKENS:
                types[index] = _CONTROL
        special = [self.tokens[index] for index in np.flatnonzero(np.isin(types, (_CONTROL, _UNKNOWN)))]
        plain = [self.tokens[index] for index in np.flatnonzero(types == _USER_DEFINED)]
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
        tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in plain])


def surround(tokenizer: Tokenizer, bos: str | None, eos: str | None) -> processors.PostProcessor:
    """A post-processor that puts `bos` before and `eos` behind a text; None = nothing there."""
    names = [name for name in (bos, eos) if name is not None]
    # The list form: in a template's text form a name that holds a space or a colon would be cut.
    single = [*([bos] if bos is not None else []), "$A", *([eos] if eos is not None else [])]
    return processors.TemplateProcessing(
        single=single, special_tokens=[(name, tokenizer.token_to_id(name)) for name in names]
    )


def merges_by_score(
    tokens: Sequence[str], scores: npt.NDArray[Any], types: npt.NDArray[np.int32]
) -> list[tuple[str, str]]:
    """Every way to join two pieces into a third, best score of the third first; equal scores in order of id."""
    mergeable = np.flatnonzero(np.isin(types, (_NORMAL, _UNUSED)))
    order: list[int] = mergeable[np.argsort(-scores[mergeable], kind="stable")].tolist()
    ordered = [tokens[index] for index in order]
    pieces = set(ordered)
    merges: list[tuple[str, str]] = []
    for piece in ordered:
        for cut in range(1, len(piece)):
            left = piece[:cut]
            if left in pieces:
                right = piece[cut:]
                if right in pieces:
                    merges.append((left, right))
    return merges


def _split_merge(merge: str) -> tuple[str, str]:
    """`left right`; a space within the first character belongs to it (llama.cpp searches from the second on)."""
    cut = merge.find(" ", 1)
    return merge[:cut], merge[cut + 1 :]
