"""Many clients at once, and clients that vanish. `bench/soak.py` does the same for as long as you like."""

from __future__ import annotations

import pytest
from server import running
from soak import GROWTH, POOL, soak


async def test_32_streams_and_100_vanishing_clients_leave_nothing_behind(capsys: pytest.CaptureFixture[str]) -> None:
    """Every joined stream equals its whole answer, before and after; gauges are at zero and memory is flat."""
    with running(POOL) as server:
        report = await soak(server, seconds=6, streams=32, cases=28, vanishing=100)
        with capsys.disabled():
            print(f"\n{report.streams} streams in {report.seconds} s, {report.preemptions} preemptions, ", end="")
            print(f"memory {report.resident_mb} MB ", end="")
        assert report.faults == []
        assert report.vanished == 100
        assert report.streams >= 64
        after = await soak(server, seconds=0, streams=8, cases=8)
        assert after.faults == []
        assert after.answers.items() <= report.answers.items()
        assert after.resident_mb[-1] <= report.resident_mb[1] + GROWTH / 1e6
