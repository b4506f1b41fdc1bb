"""PEFT's adapter_config.json: which linear layers a LoRA adapter changes, with which rank and scale.

Matching follows `peft.tuners.tuners_utils.check_target_module_exists` and `peft.utils.get_pattern_key`. What would
change the answer and is not done here (DoRA, saved modules, ...) is refused, never ignored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import orjson

from interlingua.contract.errors import ModelError

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"

_MAX_CONFIG_BYTES = 1 << 20
_ALL_LINEAR = "all-linear"
# Patterns come with the adapter, and Python's matcher holds the interpreter's lock: what could take exponential or
# high polynomial time is refused. A quantified group may nest repeats; the rest costs at most length^repeats.
_MAX_PATTERN, _MAX_REPEATS = 2048, 5
_MAX_KEYS, _MAX_KEY_REPEATS, _MAX_COSTLY_KEYS = 4096, 3, 64  # of rank_pattern and alpha_pattern
_REPEAT = re.compile(r"(?<!\\)[*+{]")
_QUANTIFIED_GROUP = re.compile(r"\)[*+{]")

# Keys whose values, unless empty, make an adapter that is more than B A x beside linear layers.
_REFUSED = (
    "use_dora",
    "modules_to_save",
    "lora_bias",
    "fan_in_fan_out",
    "target_parameters",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "layer_replication",
    "use_qalora",
)
# Ways to begin a training that change the base weights too: such an adapter fits only its own base.
_OTHER_BASE = ("pissa", "olora", "corda", "loftq")

T = TypeVar("T")
Matcher = str | re.Pattern[str] | tuple[str, ...]  # "all-linear", a pattern, or names of modules or their endings


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """What is used of adapter_config.json. Made by `read_config`, which has checked it."""

    rank: int
    alpha: float
    rank_stabilised: bool  # scale alpha / sqrt(r) (Kalajdzievski 2023) instead of alpha / r
    targets: Matcher
    excluded: Matcher = ()
    layers: tuple[int, ...] | None = None  # None = all
    layers_patterns: tuple[re.Pattern[str], ...]  # with a group `layer`, its number
    ranks: tuple[tuple[re.Pattern[str], int], ...] = ()  # the first pattern that ends a module's name rules
    alphas: tuple[tuple[re.Pattern[str], float], ...] = ()

    @property
    def highest_rank(self) -> int:
        return max(self.rank, *(rank for _, rank in self.ranks)) if self.ranks else self.rank

    def changes(self, module: str) -> bool:
        """Whether the adapter has weights for linear layer `module` (`model.layers.0.self_attn.q_proj`)."""
        if _matches(self.excluded, module) or not _matches(self.targets, module):
            return False
        return not isinstance(self.targets, tuple) or self.layers is None or self._layer(module) in self.layers

    def rank_of(self, module: str) -> int:
        return _by_pattern(self.ranks, module, self.rank)

    def scale_of(self, module: str) -> float:
        """The factor of B A x."""
        rank = self.rank_of(module)
        return _by_pattern(self.alphas, module, self.alpha) / (math.sqrt(rank) if self.rank_stabilised else rank)

    def _layer(self, module: str) -> int | None:
        found = (pattern.match(module) for pattern in self.layers_patterns)
        return next((int(match["layer"]) for match in found if match), None)


def _matches(matcher: Matcher, module: str) -> bool:
    if isinstance(matcher, tuple):
        return any(module == name or module.endswith(f".{name}") for name in matcher)
    return matcher == _ALL_LINEAR if isinstance(matcher, str) else matcher.fullmatch(module) is not None


def _by_pattern(values: tuple[tuple[re.Pattern[str], T], ...], module: str, default: T) -> T:
    return next((value for pattern, value in values if pattern.match(module)), default)


def read_config(folder: Path, max_rank: int) -> LoraConfig:
    """Reads and checks `folder`/adapter_config.json. Raises ModelError with one sentence."""
    path = folder / CONFIG_FILE
    try:
        if not folder.is_dir():
            raise ModelError(f"{folder}: there is no such folder")
        if not path.is_file():
            raise ModelError(f"{folder}: is no PEFT adapter, it has no {CONFIG_FILE}")
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            raise ModelError(f"{path}: has over {_MAX_CONFIG_BYTES} bytes")
        document = orjson.loads(path.read_bytes())
    except (OSError, ValueError):
        raise ModelError(f"{path}: cannot be read as JSON") from None
    if not isinstance(document, dict):
        raise ModelError(f"{path}: must hold a JSON object")
    try:
        return _checked(document, max_rank)
    except _BadConfigError as problem:
        raise ModelError(f"{path}: {problem}") from None


class _BadConfigError(ValueError):
    """What is wrong in a configuration, without the file's name."""


def _checked(document: Mapping[str, Any], max_rank: int) -> LoraConfig:
    kind = document.get("peft_type")
    if kind != "LORA":
        raise _BadConfigError(f"`peft_type` must be LORA, got {_shown(kind)}")
    for key in _REFUSED:
        if document.get(key):
            raise _BadConfigError(f"`{key}` is not supported, got {_shown(document[key])}")
    if document.get("bias", "none") != "none":
        raise _BadConfigError(f'`bias` must be "none", got {_shown(document["bias"])}')
    start = document.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_OTHER_BASE):
        raise _BadConfigError(
            f"`init_lora_weights` {_shown(start)} changes the base weights too, which is not supported"
        )
    targets = _matcher(document, "target_modules")
    if not targets:
        raise _BadConfigError("`target_modules` must name modules")
    layers = document.get("layers_to_transform")
    if layers is not None:
        layers = tuple(layers) if isinstance(layers, list) else (layers,)
        if not all(isinstance(layer, int) for layer in layers):
            raise _BadConfigError(f"`layers_to_transform` must hold numbers of layers, got {_shown(layers)}")
    patterns = document.get("layers_pattern") or "[^.]*"
    if not isinstance(patterns, str | list):
        raise _BadConfigError(f"`layers_pattern` must be a text or a list of texts, got {_shown(patterns)}")
    return LoraConfig(
        rank=_rank(document.get("r"), "r", max_rank),
        alpha=_number(document.get("lora_alpha"), "lora_alpha"),
        rank_stabilised=bool(document.get("use_rslora")),
        targets=targets,
        excluded=_matcher(document, "exclude_modules"),
        layers=layers or None,
        layers_patterns=_patterns(
            [patterns] if isinstance(patterns, str) else patterns, "layers_pattern", 1, r".*\.{}\.(?P<layer>\d+)\."
        ),
        ranks=_table(document, "rank_pattern", lambda value, key: _rank(value, key, max_rank)),
        alphas=_table(document, "alpha_pattern", _number),
    )


def _matcher(document: Mapping[str, Any], key: str) -> Matcher:
    value = document.get(key)
    if value is None:
        return ()
    if isinstance(value, str):
        return value if value == _ALL_LINEAR else _patterns([value], key)[0]
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise _BadConfigError(f"`{key}` must be a text or a list of texts, got {_shown(value)}")
    return tuple(value)


def _table(
    document: Mapping[str, Any], key: str, read: Callable[[object, str], T]
) -> tuple[tuple[re.Pattern[str], T], ...]:
    value = document.get(key) or {}
    if not isinstance(value, dict):
        raise _BadConfigError(f"`{key}` must be an object, got {_shown(value)}")
    costly = sum(_REPEAT.search(pattern) is not None for pattern in value)
    if len(value) > _MAX_KEYS or costly > _MAX_COSTLY_KEYS:
        raise _BadConfigError(
            f"`{key}` must have at most {_MAX_KEYS} patterns, {_MAX_COSTLY_KEYS} of them with repeats, "
            f"got {len(value)} and {costly}"
        )
    patterns = _patterns(list(value), key, _MAX_KEY_REPEATS, r"(.*\.)?({})$")
    values = [read(given, f"{key}.{pattern[:80]}") for pattern, given in value.items()]
    return tuple(zip(patterns, values, strict=True))


def _patterns(
    patterns: Sequence[str], key: str, repeats: int = _MAX_REPEATS, inside: str = "{}"
) -> tuple[re.Pattern[str], ...]:
    """Each pattern, in the place of `{}` of `inside`, compiled and known to be quick."""
    compiled = []
    for pattern in patterns:
        try:
            compiled.append(re.compile(inside.replace("{}", pattern)))
        except (re.error, TypeError, AttributeError, RecursionError, OverflowError):
            raise _BadConfigError(f"`{key}` must be a regular expression, got {_shown(pattern)}") from None
        costly = _QUANTIFIED_GROUP.search(pattern) or len(_REPEAT.findall(pattern)) > repeats
        if costly or len(pattern) > _MAX_PATTERN:
            raise _BadConfigError(
                f"`{key}` must be a pattern of at most {_MAX_PATTERN} characters and {repeats} repeats, "
                f"none of a group, got {_shown(pattern)}"
            )
    return tuple(compiled)


def _rank(value: object, key: str, max_rank: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _BadConfigError(f"`{key}` must be an integer from 1 to {max_rank}, got {_shown(value)}")
    if value > max_rank:
        raise _BadConfigError(f"`{key}` must be at most {max_rank} (--max-lora-rank), got {value}")
    return value


def _number(value: object, key: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < 1e9:
        raise _BadConfigError(f"`{key}` must be a number, got {_shown(value)}")
    return float(value)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
