"""LoRA adapters as requests and operators name them: what a name may be, and what is said of one that is unknown."""

from __future__ import annotations

import re
from collections.abc import Mapping

from interlingua.contract.errors import ValidationError
from interlingua.contract.request import PLACEHOLDER_MODELS, Adapter

BASE = "None"  # the vendor's word for the base model; no adapter can have it
_TAKEN = (BASE, *PLACEHOLDER_MODELS)
NAME_RULE = f"1 to 256 letters, digits and . _ / -, no path and none of {', '.join(_TAKEN)}"
_NAME = re.compile(r"[A-Za-z0-9._/-]{1,256}")
_MAX_PATH = 4096
_MOST_LISTED = 16


def is_name(name: str) -> bool:
    """Whether an adapter can be called `name`. A hub id (`owner/name`) is fine; what reads as a path is not."""
    return bool(_NAME.fullmatch(name)) and name not in _TAKEN and not {"", ".", ".."} & set(name.split("/"))


def find(adapters: Mapping[str, Adapter], name: str, field: str) -> Adapter:
    """The loaded adapter `name`. Raises ValidationError naming `field` and what is loaded."""
    adapter = adapters.get(name)
    if adapter is None:
        raise ValidationError(field, f"must name a loaded adapter ({listing(adapters)}), got {name!r}")
    return adapter


def listing(adapters: Mapping[str, Adapter], nothing: str = "none is loaded") -> str:
    """The names for an error message: the first few, or `nothing`."""
    names = sorted(adapters)
    more = len(names) - _MOST_LISTED
    return (", ".join(names[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")) or nothing


def check_load(name: str, path: str, model_name: str) -> None:
    """What can be said about a load before any file is touched. Raises ValidationError.

    `path` may come from the network: it must be plain, so that a log line shows where it leads.
    """
    if not is_name(name):
        raise ValidationError("lora_name", f"must be {NAME_RULE}, got {name!r}")
    if name == model_name:
        raise ValidationError("lora_name", f"must differ from the served model's name, got {name!r}")
    if not 0 < len(path) <= _MAX_PATH or not path.isprintable() or ".." in path.split("/"):
        raise ValidationError(
            "lora_path", f"must be a folder of 1 to {_MAX_PATH} printable characters without `..`, got {path[:256]!r}"
        )
