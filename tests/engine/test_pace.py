"""What steps cost is learnt from those that were, whatever the machine; what is learnt decides when, never what."""

from __future__ import annotations

import random

import pytest

from interlingua.engine.native.pace import StepCost, Work

# Seconds of the step itself, a row, a position read, a position attended to.
Prices = tuple[float, float, float, float]
AVX512: Prices = (2.0e-3, 2.0e-4, 6.0e-7, 2.0e-7)
SLOW_MODEL: Prices = (0.2, 1.5e-2, 2.0e-5, 1.0e-5)
TILES: Prices = (2.0e-3, 2.0e-5, 4.0e-7, 3.0e-8)  # a row costs nearly nothing beside the weights' reading


def _seconds(work: Work, prices: Prices) -> float:
    return sum(p * x for p, x in zip(prices, (1, work.rows, work.read, work.attended), strict=True))


def _mixed(rng: random.Random, decodes: int) -> Work:
    chunk = [(rng.randrange(0, 2000), rng.randrange(4, 40))] if rng.random() < 0.7 else []
    return Work.of([(rng.randrange(100, 600), 1) for _ in range(decodes)] + chunk)


@pytest.mark.parametrize("prices", [AVX512, SLOW_MODEL, TILES])
def test_costs_are_learnt_on_any_machine(prices: Prices) -> None:
    """Also where one step in twenty takes three times as long as it should."""
    rng = random.Random(5)
    cost = StepCost()
    for _ in range(200):
        work = _mixed(rng, rng.randrange(1, 32))
        cost.learn(work, _seconds(work, prices) * (3.0 if rng.random() < 0.05 else 1.0) * rng.uniform(0.95, 1.05))
    for _ in range(50):
        work = _mixed(rng, rng.randrange(1, 32))
        assert cost.estimate(work) == pytest.approx(_seconds(work, prices), rel=0.15)


def test_steps_of_one_kind_say_nothing_of_others() -> None:
    """Ten thousand steps that only decode leave the assumed proportions for prompts: no price runs away."""
    cost = StepCost()
    decoding = Work.of([(200, 1)] * 8)
    for _ in range(10_000):
        cost.learn(decoding, 0.005)
    assert cost.estimate(decoding) == pytest.approx(0.005, rel=0.01)
    mixed = Work.of([(200, 1)] * 8 + [(1000, 16)])
    assert 0.008 < cost.estimate(mixed) < 0.04
