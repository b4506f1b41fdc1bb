"""What there is to say of the tiers of kernels."""

from __future__ import annotations

from typing import Final

EMULATED: Final = "amx-emulated"  # the AMX tier's code over tiles in software: never chosen unless asked for by name


def describe(tier: str) -> str:
    """A tier's name for operators, who must see when they run one that is for tests."""
    return f"{tier} (for tests: AMX's tiles emulated in software, slow)" if tier == EMULATED else tier
