"""The short form of `bench/soak.py`, which goes on as long as you like; SOAK_SECONDS=120 makes this one two minutes."""

from __future__ import annotations

import os

import pytest
from soak import serving, soak

SECONDS = float(os.environ.get("SOAK_SECONDS", "8"))


async def test_mixed_clients_bursts_and_vanishing_ones_leave_nothing_behind(capsys: pytest.CaptureFixture[str]) -> None:
    """Every joined stream equals its whole answer, at any time; every request has one ending; memory becomes steady."""
    with serving() as served:
        report = await soak(served, seconds=SECONDS, streams=24, cases=36, vanishing=60)
    with capsys.disabled():
        print(f"\n{report.streams} streams in {report.seconds} s, endings {report.endings}, ", end="")
        print(f"{report.preemptions} preemptions, memory {report.resident_mb} MB, then {report.rounds_mb} ", end="")
    assert report.faults == []
    assert report.streams >= 28 and report.vanished >= 60
    assert report.bursts > 0 and report.refused > 0
