"""What a model family needs to know of a checkpoint, and the rotary frequencies that follow from it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from interlingua.contract.errors import ModelError

F32 = npt.NDArray[np.float32]


@contextmanager
def reading(what: str) -> Iterator[None]:
    """What a value of the checkpoint's configuration breaks inside the block is a ModelError."""
    try:
        yield
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise ModelError(f"{what}: missing or bad value ({error})") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding (Su et al. 2021) and its scaling, in the words of Hugging Face's config.json."""

    theta: float
    scaling: Mapping[str, Any]  # {} = none; has `rope_type`
    divisors: F32 | None = None  # a GGUF's rope_freqs: each frequency is divided by its entry


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    architecture: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int  # positions that the model was made for
    norm_eps: float
    rope: RopeConfig
    sliding_window: int = 0  # 0 = none

    def __post_init__(self) -> None:
        """Raises ModelError for a size that no model has. What is left is checked against the tensors' shapes."""
        sizes = ("hidden", "intermediate", "layers", "heads", "kv_heads", "head_dim", "vocab", "context")
        for name in sizes:
            if not 0 < getattr(self, name) < 2**31:
                raise ModelError(f"the configuration's {name} is {getattr(self, name)}; 1 to 2^31 - 1 is expected")
        if not 0 <= self.sliding_window < 2**31:
            raise ModelError(f"the configuration's sliding window is {self.sliding_window}; 0 to 2^31 - 1 is expected")
        if not (self.norm_eps >= 0 and self.rope.theta > 0 and math.isfinite(self.norm_eps + self.rope.theta)):
            raise ModelError("the configuration's norm epsilon or RoPE base is not a positive number")

    @property
    def padded_head(self) -> int:
        """Head size in the engine's memory: whole groups of 32 (zeros change no bit of a product)."""
        return (self.head_dim + 31) // 32 * 32


@reading("rope scaling")
def rotary_tables(rope: RopeConfig, head_dim: int, positions: int, original: int) -> tuple[F32, F32]:
    """cos and sin [positions, head_dim / 2] as transformers computes them.

    `original` is the context that the model was trained for. Scaling "dynamic" begins only past it, and no request
    may get there (`load_model` caps the context): its base would move with the length so far, and keys already in the
    cache, which other requests share, would be wrong.

    Raises:
        ModelError: a kind of scaling that is not known, or bad numbers for it.
    """
    scaling = dict(rope.scaling)
    kind = str(scaling.get("rope_type", scaling.get("type", "default")))
    if kind in ("linear", "llama3", "yarn") and not 0 < float(scaling["factor"]) < math.inf:
        raise ValueError(f"factor is {scaling['factor']}")
    half = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    frequencies = (1.0 / np.power(np.float32(rope.theta), half)).astype(np.float32)
    magnitude = 1.0
    if kind == "linear":
        frequencies = frequencies / np.float32(scaling["factor"])
    elif kind == "llama3":
        frequencies = _llama3(frequencies, scaling)
    elif kind == "yarn":
        frequencies, magnitude = _yarn(frequencies, scaling, rope.theta, head_dim, original)
    elif kind not in ("default", "dynamic"):
        raise ModelError(f"rope scaling {kind!r} is not supported; supported: default, linear, dynamic, llama3, yarn")
    if rope.divisors is not None:
        frequencies = (frequencies / rope.divisors).astype(np.float32)
    # Angles in float32 as in the reference; cos and sin in float64, so that all machines round to the same value.
    angles = (np.arange(positions, dtype=np.float32)[:, None] * frequencies[None, :]).astype(np.float64)
    return (
        (np.cos(angles) * magnitude).astype(np.float32),
        (np.sin(angles) * magnitude).astype(np.float32),
    )


def _llama3(frequencies: F32, scaling: Mapping[str, Any]) -> F32:
    """Llama 3.1's scaling: long waves are stretched by `factor`, short ones kept, those between blended."""
    factor, low, high = (
        float(scaling["factor"]),
        float(scaling["low_freq_factor"]),
        float(scaling["high_freq_factor"]),
    )
    original = float(scaling["original_max_position_embeddings"])
    waves = 2 * math.pi / frequencies.astype(np.float64)
    blend = (original / waves - low) / (high - low)
    blended = (1 - blend) * frequencies / factor + blend * frequencies
    out = np.where(waves > original / low, frequencies / factor, blended)
    return np.where(waves < original / high, frequencies, out).astype(np.float32)


def _yarn(frequencies: F32, scaling: Mapping[str, Any], theta: float, head_dim: int, context: int) -> tuple[F32, float]:
    """YaRN (Peng et al. 2023): frequencies blended by wavelength, cos and sin scaled by the attention factor."""
    original = float(scaling.get("original_max_position_embeddings") or context)
    factor = float(scaling["factor"])

    def get(name: str, default: float) -> float:
        value = scaling.get(name)
        return default if value is None else float(value)

    def magnitude_for(scale: float, by: float = 1.0) -> float:
        return 1.0 if scale <= 1 else 0.1 * by * math.log(scale) + 1.0

    attention = scaling.get("attention_factor")
    if attention is None:
        by, by_all = scaling.get("mscale"), scaling.get("mscale_all_dim")
        attention = (
            magnitude_for(factor, by) / magnitude_for(factor, by_all) if by and by_all else magnitude_for(factor)
        )

    def dimension(rotations: float) -> float:
        return head_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(get("beta_fast", 32)), dimension(get("beta_slow", 1))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((np.arange(head_dim // 2, dtype=np.float32) - low) / (high - low), 0, 1)
    blended = frequencies / factor * ramp + frequencies * (1 - ramp)
    return blended.astype(np.float32), float(attention)
