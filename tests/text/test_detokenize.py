"""Pieces, held-back text and stops, against plain string search over the whole text."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlingua.contract.request import StopMode
from interlingua.text.detokenize import Detokenizer, Piece, StopMatcher, TokenTable

CUT, KEEP = StopMode.CUT, StopMode.KEEP
EOS_TEXT = "</s>"


class Words:
    """A vocabulary of just these byte strings, and one special token after them."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.token_bytes = [*tokens, EOS_TEXT.encode()]
        self.special_ids = frozenset({len(tokens)})
        self.eos_ids = self.special_ids
        self.eos = len(tokens)

    def id_to_text(self, token_id: int) -> str:
        return self.token_bytes[token_id].decode()


def run(
    tokens: Sequence[bytes | None], stops: Sequence[str] = (), mode: StopMode = CUT
) -> tuple[list[list[Piece]], Detokenizer]:
    """What each push released, the last entry what `finish` did. None in `tokens` = the special token."""
    words = Words([token for token in tokens if token is not None])
    detokenizer = Detokenizer(TokenTable(words), StopMatcher(stops) if stops else None, mode)
    releases = []
    following = 0
    for token in tokens:
        if token is None:
            releases.append(detokenizer.push(words.eos))
        else:
            releases.append(detokenizer.push(following))
            following += 1
        if detokenizer.stopped:
            break
    releases.append(detokenizer.finish())
    return releases, detokenizer


def flat(releases: list[list[Piece]]) -> list[Piece]:
    return [piece for release in releases for piece in release]


def texts(releases: list[list[Piece]]) -> list[str]:
    return [piece.text for piece in flat(releases)]


def joined(releases: list[list[Piece]]) -> str:
    return "".join(piece.text for piece in flat(releases) if not piece.special)


def split(text: str) -> list[bytes]:
    """Tokens of a text in which "|" stands between two."""
    return [part.encode() for part in text.split("|")]


# --- one row of examples per rule ------------------------------------------------------------------------


def test_character_belongs_to_the_token_that_completes_it():
    smile = "😀".encode()
    releases, detokenizer = run([b"a", smile[:1], smile[1:3], smile[3:] + b"b", "你".encode()])
    assert texts(releases) == ["a", "", "", "😀b", "你"]
    assert detokenizer.text == "a😀b你"


def test_incomplete_last_character_is_dropped():
    releases, detokenizer = run([b"a", "é".encode()[:1]])
    assert texts(releases) == ["a", ""]
    assert detokenizer.text == "a"


def test_invalid_bytes_inside_become_replacement_characters():
    releases, detokenizer = run([b"a\xff", b"\xe4\xbd", b"b", b"\xc3("])
    assert texts(releases) == ["a\ufffd", "", "\ufffdb", "\ufffd("]
    assert detokenizer.text == "a\ufffd\ufffdb\ufffd("


def test_replacement_character_written_by_the_model_passes():
    releases, _ = run(["\ufffd".encode(), b"x"])
    assert texts(releases) == ["\ufffd", "x"]


def test_leading_spaces_are_kept():
    releases, _ = run([b" ", b"   return", b" x"])
    assert joined(releases) == "    return x"


def test_special_tokens_show_their_text_and_are_no_part_of_the_answer():
    first, second = "é".encode()[:1], "é".encode()[1:]
    releases, detokenizer = run([b"a", None, first, None, second, None])
    assert flat(releases) == [
        Piece("a", False),
        Piece(EOS_TEXT, True),
        Piece("", False),
        Piece(EOS_TEXT, True),
        Piece("é", False),
        Piece(EOS_TEXT, True),
    ]
    assert detokenizer.text == "aé"


def test_ids_past_the_vocabulary_contribute_nothing():
    detokenizer = Detokenizer(TokenTable(Words([b"a"])))
    assert detokenizer.push(10_000) == [Piece("", False)]


@pytest.mark.parametrize(
    ("tokens", "stops", "mode", "expected"),
    [
        # inside a token, over tokens, and two stops that end in the same token
        ("alpha| beta| gamma", ["ha be"], CUT, ["alp", ""]),
        ("alpha| beta| gamma", ["ha be"], KEEP, ["alpha", " be"]),
        ("alpha| beta| gamma", ["lph"], CUT, ["a"]),
        ("alpha| beta| gamma", ["lph"], KEEP, ["alph"]),
        ("alpha| beta| gamma", ["ta", "a b"], CUT, ["alph", ""]),
        ("alpha| beta| gamma", ["ta", "a b"], KEEP, ["alpha", " b"]),
        # a partial match that fails is released unchanged, once, in order
        ("Car|ol|! D|an", ["onetwothree", "Carol:"], CUT, ["Car", "ol", "! D", "an"]),
        ("one|two|three|four", ["onetwothree", "Carol:"], CUT, ["", "", ""]),
        # the match that is complete first wins, and at the same end the longest
        ("a|b|c|d", ["abcd", "bc"], CUT, ["a", "", ""]),
        ("a|b|c|d", ["bc", "abc"], CUT, ["", "", ""]),
        ("xabc", ["c", "bc", "abc"], CUT, ["x"]),
        # a stop is literal
        ("a.c|abc", ["a.c"], CUT, [""]),
        ("abc|a.c", ["a.c"], CUT, ["abc", ""]),
        ("x|]-^\\", ["]-^\\"], CUT, ["x", ""]),
        ("x|\n\n", ["\n\n"], CUT, ["x", ""]),
    ],
)
def test_stops(tokens: str, stops: list[str], mode: StopMode, expected: list[str]):
    releases, detokenizer = run(split(tokens), stops, mode)
    assert texts(releases) == expected
    assert detokenizer.text == "".join(expected)


def test_only_a_real_prefix_is_held_back():
    releases, _ = run(split("ab|x|a|c|ab"), ["abc"])
    assert [[piece.text for piece in release] for release in releases] == [
        [],
        ["ab", "x"],
        [],
        ["a", "c"],
        [],
        ["ab"],
    ]


def test_held_back_special_tokens_keep_their_place():
    releases, detokenizer = run([b"a", None, b"b", b"x"], ["abc"])
    assert [[piece.text for piece in release] for release in releases] == [
        [],
        [],
        [],
        ["a", EOS_TEXT, "b", "x"],
        [],
    ]
    assert detokenizer.text == "abx"


def test_stop_across_a_special_token():
    releases, detokenizer = run([b"xa", None, b"b", b"c"], ["ab"])
    assert texts(releases) == ["x", EOS_TEXT, ""]
    assert detokenizer.stopped and detokenizer.text == "x"


def test_stop_equal_to_the_text_of_a_special_token_does_not_match_it():
    _, detokenizer = run([b"a", None, b"b"], [EOS_TEXT])
    assert not detokenizer.stopped and detokenizer.text == "ab"


# --- properties ------------------------------------------------------------------------------------------

few = st.sampled_from("ab é😀\n")
new_texts = st.text(few, max_size=40)
stop_lists = st.lists(st.text(few, min_size=1, max_size=5), min_size=1, max_size=4)


@st.composite
def tokenisations(draw: st.DrawFn) -> list[bytes | None]:
    """A text cut anywhere, inside characters too, with special tokens and broken bytes in between."""
    data = draw(new_texts).encode()
    if draw(st.booleans()):
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.sampled_from([b"\xff", b"\xe4\xbd", b"\xc0"])) + data[at:]
    cuts = sorted(draw(st.sets(st.integers(0, len(data)), max_size=30)) | {0, len(data)})
    tokens: list[bytes | None] = [data[a:b] for a, b in itertools.pairwise(cuts)]
    for at in draw(st.lists(st.integers(0, len(tokens)), max_size=3)):
        tokens.insert(at, None)
    return tokens


def whole_text(tokens: Sequence[bytes | None]) -> str:
    data = b"".join(token for token in tokens if token is not None)
    text = data.decode("utf-8", "replace")
    try:
        data.decode()
    except UnicodeDecodeError as problem:
        # The last character may be incomplete, which is dropped; whatever is broken before it is replaced.
        while problem.end < len(data):
            rest = data[problem.end :]
            try:
                rest.decode()
            except UnicodeDecodeError as next_problem:
                data, problem = rest, next_problem
            else:
                return text
        if problem.reason == "unexpected end of data":
            return text[:-1]
    return text


def searched(text: str, stops: Sequence[str], mode: StopMode) -> str:
    """Plain search: the match that ends first, of those the longest."""
    matches = [(text.find(stop) + len(stop), -len(stop)) for stop in stops if stop in text]
    if not matches:
        return text
    end, length = min(matches)
    return text[: end if mode is KEEP else end + length]


@given(tokenisations(), stop_lists, st.sampled_from(StopMode))
def test_stream_is_answer_is_plain_search(tokens: list[bytes | None], stops: list[str], mode: StopMode) -> None:
    releases, detokenizer = run(tokens, stops, mode)
    expected = searched(whole_text(tokens), stops, mode)
    assert joined(releases) == detokenizer.text == expected
    assert detokenizer.stopped == any(stop in whole_text(tokens) for stop in stops)


@given(tokenisations())
def test_without_stops_every_token_is_shown_at_once(tokens: list[bytes | None]) -> None:
    releases, detokenizer = run(tokens)
    assert [len(release) for release in releases] == [1] * len(tokens) + [0]
    assert joined(releases) == detokenizer.text == whole_text(tokens)


@given(tokenisations(), stop_lists, st.sampled_from(StopMode))
def test_pieces_come_unchanged_in_order_and_no_later_than_they_must(
    tokens: list[bytes | None], stops: list[str], mode: StopMode
) -> None:
    plain, _ = run(tokens)
    releases, detokenizer = run(tokens, stops, mode)
    pieces, shown = flat(plain), flat(releases)
    assert len(shown) == len(releases) - 1  # one for each token heard
    end = len(detokenizer.text)
    at = 0
    for mine, original in zip(shown, pieces, strict=False):
        assert mine.special == original.special
        if original.special:
            assert mine.text == original.text
        else:
            assert mine.text == original.text[: max(0, end - at)]
            at += len(original.text)

    released = 0
    seen = ""
    for heard, release in enumerate(releases[:-1], start=1):
        seen += "" if pieces[heard - 1].special else pieces[heard - 1].text
        released += len(release)
        if released < heard and not (detokenizer.stopped and heard == len(releases) - 1):
            first = sum(len(piece.text) for piece in pieces[: released + 1] if not piece.special)
            begins = [
                k
                for k in range(len(seen))
                if any(stop.startswith(seen[k:]) and len(stop) > len(seen) - k for stop in stops)
            ]
            assert begins and min(begins) < max(first, 1), "held back without need"


# --- cost ------------------------------------------------------------------------------------------------


def test_long_answers_and_many_stops_stay_linear():
    """1,000 stops over 40,000 tokens; a scan of the whole text for each token would take minutes."""
    stops = [f"stop number {i}." for i in range(1000)]
    words = Words([b" stop", b" number", b" 77", b" x"])
    detokenizer = Detokenizer(TokenTable(words), StopMatcher(stops))
    begun = time.process_time()
    for _ in range(10_000):
        for token in range(4):
            detokenizer.push(token)
    assert time.process_time() - begun < 4.0
    assert not detokenizer.stopped
