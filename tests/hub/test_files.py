"""Folders and GGUF files as `ModelFiles`, and what is wrong with those that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest

from interlingua.contract.errors import ModelError
from interlingua.hub import ModelFiles, resolve
from interlingua.hub.files import from_gguf
from interlingua.hub.resolve import cache_folder
from interlingua.text.tokenizer import Tokenizer


def put(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def make_gguf(path: Path, pairs: dict[str, Any] | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.context_length", 64)
    for key, value in (pairs or {}).items():
        kind = gguf.GGUFValueType.UINT32 if isinstance(value, int) else gguf.GGUFValueType.get_type(value)
        writer.add_key_value(key, value, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "tiny"
    put(made / "config.json", {"model_type": "llama", "eos_token_id": 2})
    (made / "model.safetensors").write_bytes(b"")
    put(made / "tokenizer.json", {})
    return made


def fails(path: Path, *words: str) -> None:
    with pytest.raises(ModelError) as caught:
        resolve(str(path))
    for word in words:
        assert word in caught.value.message
    assert "\n" not in caught.value.message


def test_folder(folder: Path, cache: Path) -> None:
    put(folder / "generation_config.json", {"temperature": 0.5})
    put(folder / "tokenizer_config.json", {"chat_template": "{{ messages }}", "bos_token": "<a>"})
    put(folder / "special_tokens_map.json", {"bos_token": "<old>", "eos_token": "<b>"})
    files = resolve(str(folder))
    assert (files.kind, files.name, files.gguf) == ("safetensors", "tiny", None)
    assert files.paths == (folder / "model.safetensors",)
    assert files.config["model_type"] == "llama"
    assert files.generation_config == {"temperature": 0.5}
    assert files.tokenizer_config["bos_token"] == "<a>"
    assert files.tokenizer_config["eos_token"] == "<b>"
    assert files.chat_template == "{{ messages }}"
    assert not cache.exists()


def test_folder_with_the_least(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    files = resolve(str(folder))
    assert files.tokenizer_json is None
    assert files.chat_template is None
    assert (files.generation_config, files.tokenizer_config) == ({}, {})
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        Tokenizer.load(files)


def test_chat_templates(folder: Path) -> None:
    """A file of its own wins; of several under names, the default one counts."""
    put(
        folder / "tokenizer_config.json",
        {"chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]},
    )
    assert resolve(str(folder)).chat_template == "D"
    put(folder / "chat_template.json", {"chat_template": "J"})
    assert resolve(str(folder)).chat_template == "J"
    (folder / "chat_template.jinja").write_text("é", encoding="utf-8")
    assert resolve(str(folder)).chat_template == "é"


def test_shards(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    put(index, {"weight_map": {"a": "x-2.safetensors", "b": "x-1.safetensors", "c": "x-2.safetensors"}})
    fails(folder, "x-1.safetensors is missing")
    for part in (1, 2):
        (folder / f"x-{part}.safetensors").write_bytes(b"")
    assert [path.name for path in resolve(str(folder)).paths] == ["x-1.safetensors", "x-2.safetensors"]
    for wrong in ({}, {"weight_map": []}, {"weight_map": {}}):
        put(index, wrong)
        fails(folder, "weight_map is missing")


@pytest.mark.parametrize(
    "shard",
    ["../secret.safetensors", "/etc/passwd", "a/../../secret.safetensors", "..\\secret.safetensors", "a\0.safetensors"],
)
def test_shards_stay_inside(folder: Path, shard: str) -> None:
    (folder.parent / "secret.safetensors").write_bytes(b"")
    put(folder / "model.safetensors.index.json", {"weight_map": {"a": shard}})
    fails(folder, "leads out of the model's folder")


def test_single_file_by_another_name(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    assert resolve(str(folder)).paths == (folder / "other.safetensors",)
    (folder / "more.safetensors").write_bytes(b"")
    fails(folder, "2 *.safetensors files")
    for path in folder.glob("*.safetensors"):
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"")
    fails(folder, "no *.safetensors file")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "not valid JSON"),
        (b"[]", "a JSON object is expected"),
        (b'"\xff"', "not UTF-8"),
        (b"[" * 100_000, "not valid JSON"),
    ],
)
def test_broken_config(folder: Path, content: bytes, words: str) -> None:
    (folder / "config.json").write_bytes(content)
    fails(folder, "config.json", words)


def test_no_such_thing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r"^models/nothing\.gguf: no such file or folder$"):  # no Hugging Face id
        resolve("models/nothing.gguf")
    fails(tmp_path / "nothing", "no such file or folder")
    with pytest.raises(ModelError, match=r"no such model; fetched by name: smollm2-135m-instruct; else .* org/name"):
        resolve("nothing")
    fails(tmp_path, "no config.json and no GGUF file")
    for wrong in ("", "smollm", "smollm2-135m-instruct\0", "a/b/c", "-x/y"):
        with pytest.raises(ModelError):
            resolve(wrong)


def test_revision_is_for_ids(folder: Path) -> None:
    for name in ("smollm2-135m-instruct", str(folder)):
        with pytest.raises(ModelError, match="for Hugging Face ids only"):
            resolve(name, revision="main")


def test_gguf_file(tmp_path: Path, cache: Path) -> None:
    pairs = {
        "general.sampling.temp": 0.25,
        "general.sampling.top_k": 7,
        "tokenizer.chat_template": "{{ x }}",
        "tokenizer.ggml.bos_token_id": 1,
    }
    path = make_gguf(tmp_path / "my-model.gguf", pairs)
    files = resolve(str(path))
    assert (files.kind, files.name, files.paths) == ("gguf", "my-model", (path,))
    assert files.config["llama.context_length"] == 64
    assert "tokenizer.ggml.bos_token_id" not in files.config
    assert files.generation_config == {"temperature": 0.25, "top_k": 7}
    assert files.chat_template == "{{ x }}"
    assert files.tokenizer_json is not None
    assert files.tokenizer_json.parent == cache / "tokenizers"
    assert from_gguf(path, "x", tokenizers=None).tokenizer_json is None


def test_folder_with_gguf(tmp_path: Path) -> None:
    path = make_gguf(tmp_path / "some" / "model.gguf")
    files = resolve(str(path.parent))
    assert (files.kind, files.name, files.paths) == ("gguf", "some", (path,))
    make_gguf(path.with_name("other.gguf"))
    fails(path.parent, "2 GGUF files")


def test_gguf_in_parts(tmp_path: Path) -> None:
    parts = [tmp_path / "big" / f"m-0000{part}-of-00003.gguf" for part in (1, 2, 3)]
    for number, path in enumerate(parts[:2]):
        make_gguf(path, {"split.count": 3, "split.no": number})
    fails(parts[0], "m-00003-of-00003.gguf is missing")
    make_gguf(parts[2], {"split.count": 3, "split.no": 2})
    assert resolve(str(parts[0])).paths == tuple(parts)
    assert resolve(str(tmp_path / "big")).paths == tuple(parts)
    fails(parts[1], "named by its first")


def test_rebuilt_tokenizer_is_kept(demo_files: ModelFiles, tmp_path: Path) -> None:
    """Once beside the model, then read from there; a broken or unwritable one costs time and nothing else."""
    path = demo_files.paths[0]
    kept = tmp_path / "kept"
    files = from_gguf(path, "demo", tokenizers=kept)
    first = Tokenizer.load(files).encode("Hello  world")
    (written,) = kept.iterdir()
    before = written.stat().st_mtime_ns
    assert Tokenizer.load(files).encode("Hello  world") == first
    assert written.stat().st_mtime_ns == before
    written.write_text("{", encoding="utf-8")
    assert Tokenizer.load(files).encode("Hello  world") == first
    assert written.stat().st_size > 1_000_000
    (tmp_path / "file").write_text("")
    unwritable = from_gguf(path, "demo", tokenizers=tmp_path / "file" / "folder")
    assert Tokenizer.load(unwritable).encode("Hello  world") == first


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"INTERLINGUA_CACHE": "/own", "XDG_CACHE_HOME": "/xdg"}, "/own"),
        ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/interlingua"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/interlingua"),
        ({"XDG_CACHE_HOME": ""}, "/home/me/.cache/interlingua"),
        ({}, "/home/me/.cache/interlingua"),
    ],
)
def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], folder: str) -> None:
    for name in ("INTERLINGUA_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/me", **variables}.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(folder) and cache_folder("/given") == Path("/given")
