"""How a byte-level vocabulary of a GGUF file cuts text into words before merging.

A GGUF file names its rule in `tokenizer.ggml.pre` and carries no more of it; the rules themselves are those of
llama.cpp (src/llama-vocab.cpp), which took them from the models' own tokenizer.json. Each rule is a list of
expressions: the first cuts the text, the next cuts every piece, and so on; what none matches stands as a piece too.

In two places the models' own files are followed and not llama.cpp, which simplifies them: Qwen's text is brought
to NFC first, and gpt-4o's and tekken's letters are told apart by their category, so that marks stay with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from interlingua.contract.errors import ModelError


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One named rule.

    `whole_words`: a word that is a token as it stands is not built from merges. `nfc`: the text is normalised first.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    nfc: bool = False
    add_bos: bool = False  # where the file does not say


_CONTRACTIONS: Final = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPACES: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_ASCII_SIGN_WORD: Final = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""

_DIGIT: Final = r"\p{N}"
_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3: Final = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_QWEN2: Final = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_QWEN35: Final = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _SPACES
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
)
_GPT4O: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
)
_DEEPSEEK3: Final = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    _ASCII_SIGN_WORD + r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES,
)

_GPT2_RULE: Final = PreTokenizer((_GPT2,))
_DIGITS_RULE: Final = PreTokenizer((_DIGIT, _GPT2))
_LLAMA3_RULE: Final = PreTokenizer((_LLAMA3,), whole_words=True, add_bos=True)
_QWEN2_RULE: Final = PreTokenizer((_QWEN2,), nfc=True)

PRETOKENIZERS: Final[dict[str, PreTokenizer]] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "exaone4", "granite-docling"), _GPT2_RULE),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _DIGITS_RULE),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"), _LLAMA3_RULE),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), PreTokenizer((_LLAMA3,))),
    "glm4": PreTokenizer((_LLAMA3,), whole_words=True),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), _QWEN2_RULE),
    **dict.fromkeys(("stablelm2", "hunyuan", "grok-2"), PreTokenizer((_QWEN2,))),
    "qwen35": PreTokenizer((_QWEN35,), nfc=True),
    "deepseek-v3": PreTokenizer(_DEEPSEEK3),
    "hunyuan-dense": PreTokenizer(_DEEPSEEK3),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    "tekken": PreTokenizer((_TEKKEN,), whole_words=True, add_bos=True),
    "gpt-4o": PreTokenizer((_GPT4O,)),
    "llama4": PreTokenizer((_GPT4O,)),
}


def find_pretokenizer(name: str) -> PreTokenizer:
    """The rule that a file calls `name`. Raises ModelError, with the names known, if there is none: guessing would
    cut words at other places than the model was trained on, and only make its answers worse."""
    rule = PRETOKENIZERS.get(name)
    if rule is None:
        known = ", ".join(sorted(PRETOKENIZERS))
        raise ModelError(f"the model's pre-tokenizer {name!r} is not known; known are: {known}")
    return rule
