"""The tokenizer's own rules, on small vocabularies made here; the golden tests hold it against others."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from interlingua.contract.errors import ModelError
from interlingua.hub import ModelFiles, resolve
from interlingua.text.detokenize import Detokenizer, TokenTable
from interlingua.text.gguf_vocab import GgufVocab
from interlingua.text.tokenizer import Tokenizer

BYTES = pre_tokenizers.ByteLevel.alphabet()


def byte_level(*added: str, template: str | None = None) -> tokenizers.Tokenizer:
    """Every byte a token, "ab" a merge, and special tokens behind them."""
    vocabulary = {char: index for index, char in enumerate(sorted(BYTES))}
    vocabulary["ab"] = 256
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, [("a", "b")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in added])
    if template is not None:
        backend.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=[(token, backend.token_to_id(token)) for token in added]
        )
    return backend


def from_folder(tmp_path: Path, backend: tokenizers.Tokenizer, **values: Any) -> Tokenizer:
    backend.save(str(tmp_path / "tokenizer.json"))
    path = values.pop("tokenizer_json", tmp_path / "tokenizer.json")
    return Tokenizer.load(ModelFiles(kind="safetensors", name="m", paths=(), tokenizer_json=path, **values))


@pytest.mark.parametrize("text, ids", [("x", [257, 87]), ("<s>x", [257, 87]), ("<s><s>x", [257, 257, 87]), ("", [257])])
def test_one_bos(tmp_path: Path, text: str, ids: list[int]) -> None:
    tokenizer = from_folder(
        tmp_path, byte_level("<s>", "</s>", template="<s> $A"), tokenizer_config={"bos_token": "<s>"}
    )
    assert tokenizer.encode(text) == ids
    assert [span.id for span in tokenizer.encode_with_offsets(text)] == ids
    assert tokenizer.encode("x", add_special=False) == [87]


@pytest.mark.parametrize("template", [None, "<s> $A", "<s> $A </s>"])
@pytest.mark.parametrize("add_bos", [True, False])
def test_add_bos_token_wins(tmp_path: Path, template: str | None, add_bos: bool) -> None:
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": add_bos}
    backend = byte_level("<s>", "</s>", template=template)
    tokenizer = from_folder(tmp_path, backend, tokenizer_config=config)
    assert tokenizer.encode("x")[: 1 + add_bos] == ([257, 87] if add_bos else [87])


@pytest.mark.parametrize(
    "generation, config, named, ids",
    [
        ({"eos_token_id": [257, 258]}, {}, None, {257, 258}),
        ({"eos_token_id": 257}, {"eos_token_id": 1}, "</s>", {257, 258}),
        ({}, {"eos_token_id": [1, 2]}, "</s>", {1, 2, 258}),
        ({}, {}, "</s>", {258}),
        ({}, {}, None, set()),
    ],
)
def test_eos_ids(
    tmp_path: Path, generation: dict[str, Any], config: dict[str, Any], named: str | None, ids: set[int]
) -> None:
    tokenizer = from_folder(
        tmp_path,
        byte_level("<s>", "</s>"),
        generation_config=generation,
        config=config,
        tokenizer_config={"eos_token": named},
    )
    assert tokenizer.eos_ids == ids
    if named is not None:
        assert tokenizer.eos_text == "</s>"


@pytest.mark.parametrize("value", ["2", -1, True, 1.5, [1, None]])
def test_broken_eos(tmp_path: Path, value: object) -> None:
    with pytest.raises(ModelError, match="eos_token_id is"):
        from_folder(tmp_path, byte_level(), generation_config={"eos_token_id": value})


def test_special_tokens_are_found_in_text(tmp_path: Path) -> None:
    tokenizer = from_folder(tmp_path, byte_level("<|x|>", "é<y>"))
    assert tokenizer.encode("a<|x|>b") == [tokenizer.backend.token_to_id("a"), 257, tokenizer.backend.token_to_id("b")]
    assert tokenizer.special_ids == {257, 258}
    # An added token is plain text, whatever its characters mean as spelled bytes.
    assert tokenizer.token_bytes[258] == "é<y>".encode()
    assert tokenizer.id_to_text(257) == "<|x|>"


def test_byte_level_table(tmp_path: Path) -> None:
    tokenizer = from_folder(tmp_path, byte_level())
    assert sorted(tokenizer.token_bytes[:256]) == [bytes([value]) for value in range(256)]
    assert tokenizer.token_bytes[256] == b"ab"
    assert tokenizer.vocab_size == 257
    assert tokenizer.id_to_text(257) == "" and tokenizer.id_to_text(-1) == ""
    first = tokenizer.encode("三", add_special=False)[0]
    assert tokenizer.id_to_text(first) == "\ufffd"


def test_byte_level_names_that_spell_no_bytes() -> None:
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "三": 1, "é三": 2, "é": 5}, []))
    backend.decoder = decoders.ByteLevel()
    table = Tokenizer(backend).token_bytes
    assert table == [b"a", "三".encode(), "é三".encode(), b"", b"", b"\xe9"]


def test_saved_truncation_and_padding_are_off(tmp_path: Path) -> None:
    backend = byte_level("<pad>")
    backend.enable_truncation(3)
    backend.enable_padding(length=9, pad_id=257, pad_token="<pad>")
    assert len(from_folder(tmp_path, backend).encode("xyzxyzx")) == 7


def test_spans(tmp_path: Path) -> None:
    tokenizer = from_folder(
        tmp_path, byte_level("<s>", "</s>", template="<s> $A"), tokenizer_config={"bos_token": "<s>"}
    )
    spans = tokenizer.encode_with_offsets("abé</s>")
    assert [(span.start, span.stop, span.text) for span in spans] == [
        (0, 0, ""),
        (0, 2, "ab"),
        (2, 4, "é"),
        (2, 4, "é"),
        (4, 8, "</s>"),
    ]


def sentencepiece(prefix: bool) -> tokenizers.Tokenizer:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "ab", "▁ab"]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    merges = [("▁", "a"), ("a", "b"), ("▁a", "b"), ("▁", "ab")]
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True))
    steps: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    replace = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace]) if prefix else replace
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return backend


def test_sentencepiece_table(tmp_path: Path) -> None:
    tokenizer = from_folder(tmp_path, sentencepiece(prefix=True))
    assert tokenizer.prefix_space
    assert tokenizer.token_bytes[3 : 3 + 256] == [bytes([value]) for value in range(256)]
    assert [tokenizer.token_bytes[tokenizer.backend.token_to_id(piece)] for piece in ("▁ab", "</s>")] == [
        b" ab",
        b"</s>",
    ]
    ids = tokenizer.encode("ab 三", add_special=False)
    assert b"".join(tokenizer.token_bytes[token] for token in ids) == " ab 三".encode()


def test_no_space_is_lost_behind_a_prompt(tmp_path: Path) -> None:
    """The first generated token of a SentencePiece model keeps its space: a prompt stands before it."""
    tokenizer = from_folder(tmp_path, sentencepiece(prefix=True))
    detokenizer = Detokenizer(TokenTable(tokenizer))
    token = tokenizer.backend.token_to_id("▁ab")
    assert [piece.text for piece in detokenizer.push(token)] == [" ab"]


def test_no_prefix_space(tmp_path: Path) -> None:
    tokenizer = from_folder(tmp_path, sentencepiece(prefix=False))
    assert not tokenizer.prefix_space
    ids = tokenizer.encode("ab a", add_special=False)
    assert b"".join(tokenizer.token_bytes[token] for token in ids) == b"ab a"


def test_folders_without_a_usable_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        Tokenizer.load(ModelFiles(kind="safetensors", name="m", paths=()))
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    with pytest.raises(ModelError, match="not a tokenizer"):
        from_folder(tmp_path, byte_level(), tokenizer_json=broken)
    words = tokenizers.Tokenizer(models.WordPiece({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    words.decoder = decoders.WordPiece()
    with pytest.raises(ModelError, match="WordPiece"):
        from_folder(tmp_path, words)
    with pytest.raises(ModelError, match="no token"):
        from_folder(tmp_path, byte_level(), tokenizer_config={"bos_token": 5})


def metadata(**changes: Any) -> dict[str, Any]:
    fields = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": ["a", "b", "ab", "<e>", "<|im_end|>"],
        "token_type": np.array([1, 1, 1, 3, 1], np.int32),
        "merges": ["a b"],
        "eos_token_id": 3,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in fields.items() if value is not None}


class Gguf:
    def __init__(self, **changes: Any) -> None:
        self.metadata = metadata(**changes)


def from_gguf(keep: Path | None = None, **changes: Any) -> Tokenizer:
    files = ModelFiles(kind="gguf", name="m", paths=(), tokenizer_json=keep, gguf=Gguf(**changes))  # type: ignore[arg-type]
    return Tokenizer.load(files)


def test_gguf_end_tokens_by_text() -> None:
    assert from_gguf(eot_token_id=0).eos_ids == {0, 3, 4}
    tokenizer = from_gguf()
    assert tokenizer.eos_ids == tokenizer.special_ids == {3, 4}
    assert tokenizer.encode("ab<|im_end|>") == [2, 4]


def test_gguf_bos_and_eos_are_added_if_it_says_so() -> None:
    assert from_gguf(bos_token_id=3, add_bos_token=True).encode("ab") == [3, 2]
    assert from_gguf(bos_token_id=3, add_bos_token=True, add_eos_token=True).encode("ab") == [3, 2, 3]
    assert from_gguf(bos_token_id=3).encode("ab") == [2]


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"tokens": None}, "no tokenizer"),
        ({"tokens": ["a", "b", "ab", "ab", "<e>"]}, "holds a token twice"),
        ({"token_type": np.array([1], np.int32)}, "1 entries for 5 tokens"),
        ({"merges": None}, "merges is missing"),
        ({"merges": ["a z"]}, "does not fit"),
        ({"eos_token_id": 99}, "99, outside the vocabulary of 5"),
        ({"model": "bert"}, "kind 'bert'"),
        ({"model": None}, "kind None"),
        ({"pre": "klingon"}, "pre-tokenizer 'klingon' is not known"),
        ({"add_bos_token": "yes"}, "no bool"),
        ({"model": "llama"}, "scores is missing"),
    ],
)
def test_broken_gguf_vocabularies(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ModelError) as raised:
        GgufVocab(metadata(**changes)).build()
    assert problem in raised.value.message and "\n" not in raised.value.message


def test_kept_tokenizer_that_is_damaged_is_made_anew(tmp_path: Path) -> None:
    keep = tmp_path / "tokenizer-0.json"
    assert from_gguf(keep).encode("ab") == [2]
    (kept,) = tmp_path.iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-20])
    assert from_gguf(keep).encode("ab") == [2]
    assert kept.read_bytes() == whole and list(tmp_path.iterdir()) == [kept]


def test_demo_model() -> None:
    files = resolve("smollm2-135m-instruct")
    start = time.perf_counter()
    tokenizer = Tokenizer.load(files)
    assert time.perf_counter() - start < 30.0, "0.15 s on a machine that does nothing else"
    assert tokenizer.vocab_size == 49152
    assert (tokenizer.bos_id, tokenizer.bos_text) == (1, "<|im_start|>")
    assert (tokenizer.eos_id, tokenizer.eos_text) == (2, "<|im_end|>")
    assert tokenizer.eos_ids == {0, 2}
    assert len(tokenizer.special_ids) == 17
    assert tokenizer.encode("<|im_start|>user\nHi<|im_end|>\n", add_special=False)[0] == 1
    assert tokenizer.chat_template is not None and "im_start" in tokenizer.chat_template


def test_encoding_releases_the_gil() -> None:
    tokenizer = Tokenizer.load(resolve("smollm2-135m-instruct"))
    worker = threading.Thread(target=tokenizer.encode, args=("The quick brown fox. " * 50_000,))
    steps = 0
    worker.start()
    while worker.is_alive():
        time.sleep(0.001)
        steps += 1
    assert steps > 3, "this thread ran while the other encoded a megabyte"
