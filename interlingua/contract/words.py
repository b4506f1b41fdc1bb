"""Numbers in sentences for people."""

from __future__ import annotations


def counted(number: float, noun: str) -> str:
    """`1 second`, `0.5 seconds`, `1048576 bytes`: a number with what it counts, whose plural ends in `s`."""
    figure = f"{number}" if isinstance(number, int) else f"{number:g}"
    return f"{figure} {noun}" if number == 1 else f"{figure} {noun}s"
