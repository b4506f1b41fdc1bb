"""Prompt lookup alone: what is proposed, and how often."""

from __future__ import annotations

from interlingua.engine.native.drafts import Drafter


def test_proposes_what_followed_last_time() -> None:
    ids = [1, 2, 3, 4, 5, 6, 1, 2, 3]
    assert list(Drafter(6).propose(ids, 6)) == [4, 5, 6]
    assert list(Drafter(6).propose(ids, 2)) == [4, 5]
    assert list(Drafter(1).propose(ids, 6)) == [4]
    assert list(Drafter(6).propose([7, 2, 3, 9, 8, 2, 3], 6)) == [9, 8, 2], "two tokens are enough"
    assert list(Drafter(6).propose([1, 2, 3, 8, 1, 2, 3, 9, 1, 2, 3], 1)) == [9], "the latest place counts"
    assert not Drafter(6).propose([1, 2, 3, 4], 6)
    assert not Drafter(6).propose([1], 6)


def test_index_grows_with_the_text() -> None:
    drafter = Drafter(6)
    ids = [5, 6, 7]
    assert not drafter.propose(ids, 6)
    ids += [8, 5, 6, 7]
    assert list(drafter.propose(ids, 6)) == [8, 5, 6]


def test_success_makes_guesses_longer() -> None:
    drafter = Drafter(12)
    ids = list(range(30)) * 2
    lengths = []
    for _ in range(4):
        drafts = drafter.propose(ids, 100)
        lengths.append(len(drafts))
        drafter.learn(len(drafts), len(drafts))
    assert lengths == [3, 6, 12, 12]


def test_failure_makes_guesses_rare() -> None:
    drafter = Drafter(6)
    ids = [1, 2, 3, 1, 2, 3]
    asked = 0
    for _ in range(500):
        drafts = drafter.propose(ids, 6)
        if drafts:
            asked += 1
            drafter.learn(len(drafts), 0)
    assert 5 <= asked <= 15
