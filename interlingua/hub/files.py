"""What is known of a model before its weights are read, in one value for all sources."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal

from interlingua.contract.errors import ModelError
from interlingua.hub.gguf import GgufFile

# Sampling defaults that newer GGUF files carry -> their names in generation_config.json.
_SAMPLING_KEYS: Final = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model on disk. Immutable; every path exists, but for `tokenizer_json` of a GGUF.

    Attributes:
        kind: how the weights are stored.
        name: what the model is called unless the operator says otherwise.
        paths: the weight files; more than one if they are sharded.
        config: config.json; of a GGUF the scalars and short lists of its metadata, under their own keys.
        generation_config: generation_config.json, {} if there is none; of a GGUF its sampling defaults.
        tokenizer_config: tokenizer_config.json, {} if there is none.
        tokenizer_json: of a folder the tokenizer. Of a GGUF where its rebuilt tokenizer may be kept, None if nowhere.
        chat_template: Jinja text, None if the model has none.
        revision: the commit that a hub resolved the model to.
        gguf: the open file of a GGUF model.
    """

    kind: Literal["gguf", "safetensors"]
    name: str
    paths: tuple[Path, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    tokenizer_config: Mapping[str, Any] = field(default_factory=dict)
    tokenizer_json: Path | None = None
    chat_template: str | None = None
    revision: str | None = None
    gguf: GgufFile | None = None


def from_gguf(path: Path, name: str, tokenizers: Path | None, revision: str | None = None) -> ModelFiles:
    """A model in a GGUF file. `tokenizers` is a folder for rebuilt tokenizers, None to keep none.

    Raises ModelError if it is no good GGUF file, or the later part of a model split over several.
    """
    file = GgufFile(path)
    config = {
        key: value
        for key in file.metadata
        if not key.startswith("tokenizer.") and isinstance(value := file.metadata[key], int | float | str | list)
    }
    template = file.metadata.get("tokenizer.chat_template")
    kept = None
    if tokenizers is not None:
        digest = hashlib.sha256(file.metadata_bytes()).hexdigest()[:16]
        kept = tokenizers / f"tokenizer-{digest}.json"
    return ModelFiles(
        kind="gguf",
        name=name,
        paths=_gguf_parts(file),
        config=config,
        generation_config={
            theirs: file.metadata[ours] for ours, theirs in _SAMPLING_KEYS.items() if ours in file.metadata
        },
        tokenizer_json=kept,
        chat_template=template if isinstance(template, str) else None,
        revision=revision,
        gguf=file,
    )


def _gguf_parts(file: GgufFile) -> tuple[Path, ...]:
    """The file itself, or all files of a model that was split as `NAME-00001-of-00003.gguf` and so on."""
    count = file.metadata.get("split.count", 1)
    if not isinstance(count, int) or count <= 1:
        return (file.path,)
    first = f"-00001-of-{count:05d}.gguf"
    if not file.path.name.endswith(first):
        raise ModelError(f"{file.path}: a model split over {count} files is named by its first, *{first}")
    stem = file.path.name.removesuffix(first)
    parts = tuple(file.path.with_name(f"{stem}-{part:05d}-of-{count:05d}.gguf") for part in range(1, count + 1))
    for part in parts:
        if not part.is_file():
            raise ModelError(f"{part} is missing: the model is split over {count} files")
    return parts


def from_folder(folder: Path, name: str, revision: str | None = None) -> ModelFiles:
    """A model in a folder as Hugging Face lays it out: config.json, safetensors, tokenizer.json.

    Raises ModelError if one of these is missing or cannot be read.
    """
    config_path = folder / "config.json"
    if not config_path.is_file():
        raise ModelError(f"{folder}: no config.json and no GGUF file")
    tokenizer_json = folder / "tokenizer.json"
    tokenizer_config = _read_optional(folder / "tokenizer_config.json")
    # Older models keep the names of special tokens in a file of their own.
    tokenizer_config = {**_read_optional(folder / "special_tokens_map.json"), **tokenizer_config}
    return ModelFiles(
        kind="safetensors",
        name=name,
        paths=_safetensors(folder),
        config=read_object(config_path),
        generation_config=_read_optional(folder / "generation_config.json"),
        tokenizer_config=tokenizer_config,
        tokenizer_json=tokenizer_json if tokenizer_json.is_file() else None,
        chat_template=_chat_template(folder, tokenizer_config),
        revision=revision,
    )


def _safetensors(folder: Path) -> tuple[Path, ...]:
    index_path = folder / "model.safetensors.index.json"
    if index_path.is_file():
        weights = read_object(index_path).get("weight_map")
        if not isinstance(weights, dict) or not weights:
            raise ModelError(f"{index_path}: weight_map is missing")
        paths = tuple(folder / _plain_name(index_path, shard) for shard in sorted(set(map(str, weights.values()))))
        for path in paths:
            if not path.is_file():
                raise ModelError(f"{path} is missing; {index_path.name} names it")
        return paths
    single = folder / "model.safetensors"
    found = [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return (found[0],)
    if not found:
        raise ModelError(f"{folder}: no *.safetensors file (other weight formats are not read)")
    raise ModelError(f"{folder}: {len(found)} *.safetensors files and no model.safetensors.index.json to order them")


def _plain_name(index: Path, name: str) -> str:
    """A shard's name, which must stay inside the folder of its index."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise ModelError(f"{index}: the shard name {name!r} leads out of the model's folder")
    return name


def _chat_template(folder: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    """From chat_template.jinja, chat_template.json or tokenizer_config.json; of several, the one named default."""
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        return read_text(jinja)
    value = _read_optional(folder / "chat_template.json").get("chat_template", tokenizer_config.get("chat_template"))
    if isinstance(value, list):
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None


def read_text(path: Path) -> str:
    """The text of a UTF-8 file. Raises ModelError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ModelError(f"{path}: not UTF-8 text") from None


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises ModelError if there is none."""
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError):
        raise ModelError(f"{path}: not valid JSON") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path}: a JSON object is expected")
    return value


def _read_optional(path: Path) -> dict[str, Any]:
    return read_object(path) if path.is_file() else {}
