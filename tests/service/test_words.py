"""Numbers in sentences."""

from __future__ import annotations

import asyncio
import time

import pytest

from interlingua.contract.errors import RequestTimeoutError
from interlingua.contract.words import counted
from interlingua.service.deadline import Deadline


@pytest.mark.parametrize(
    ("number", "words"),
    [(1, "1 second"), (1.0, "1 second"), (0.5, "0.5 seconds"), (0, "0 seconds"), (2.0, "2 seconds")],
)
def test_one_is_no_plural(number: float, words: str) -> None:
    assert counted(number, "second") == words


def test_large_counts_keep_their_digits() -> None:
    assert counted(41_943_040, "byte") == "41943040 bytes"


async def test_the_time_limit_of_a_second() -> None:
    deadline = Deadline(time.monotonic() - 2, 1.0)
    try:
        with pytest.raises(RequestTimeoutError, match="time limit of 1 second has passed"), deadline:
            await asyncio.sleep(5)
    finally:
        deadline.close()
