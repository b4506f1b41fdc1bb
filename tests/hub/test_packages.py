"""Known models, fetched by the real pip from a folder of wheels, with no index and nothing from outside."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import textwrap
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from package_index import SilentProgress

from interlingua.contract.errors import ModelError
from interlingua.hub import packages, resolve
from interlingua.hub.packages import Package, PackagedModel
from interlingua.hub.progress import LineProgress

PIECES = (b"GGUF" + bytes(range(256)) * 40, b"second" * 1000)
WHOLE = b"".join(PIECES)


def wheel_name(part: int) -> str:
    return f"tiny_model_part{part}-1.0-py3-none-any.whl"


def make_wheel(folder: Path, part: int, piece: bytes) -> Path:
    """The least that pip takes for a wheel."""
    folder.mkdir(exist_ok=True)
    path = folder / wheel_name(part)
    info = f"tiny_model_part{part}-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"tiny_model_part{part}/piece.bin", piece)
        archive.writestr(f"{info}/LICENSE", f"terms {part}")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-model-part{part}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def tiny_model() -> PackagedModel:
    return PackagedModel(
        name="tiny",
        file="tiny.gguf",
        size=len(WHOLE),
        sha256=hashlib.sha256(WHOLE).hexdigest(),
        packages=tuple(
            Package(
                f"tiny-model-part{part}",
                "1.0",
                1000,
                member=f"tiny_model_part{part}/piece.bin",
                texts=(f"tiny_model_part{part}-1.0.dist-info/LICENSE",) if part == 0 else (),
            )
            for part in range(len(PIECES))
        ),
    )


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip's only source, holding all pieces."""
    folder = tmp_path / "wheels"
    for part, piece in enumerate(PIECES):
        make_wheel(folder, part, piece)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def fake_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """Stands in for the interpreter that runs pip; every call adds a line to the file returned."""
    calls = tmp_path / "calls"
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n{textwrap.dedent(script)}')
    program.chmod(0o755)
    monkeypatch.setattr(packages.sys, "executable", str(program))
    return calls


def fetch(cache: Path, model: PackagedModel | None = None) -> Path:
    return packages.fetch(model or tiny_model(), cache, SilentProgress())


def fails(cache: Path, *words: str, model: PackagedModel | None = None) -> str:
    with pytest.raises(ModelError) as caught:
        fetch(cache, model)
    for word in words:
        assert word in caught.value.message
    assert "\n" not in caught.value.message
    assert not (cache / "models" / "tiny" / "tiny.gguf").exists()
    assert not list((cache / "models").rglob("*.partial"))
    return caught.value.message


def test_joined(wheels: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fetch(cache)
    assert path == cache / "models" / "tiny" / "tiny.gguf"
    assert path.read_bytes() == WHOLE
    assert (path.parent / "LICENSE").read_text() == "terms 0"
    assert not list((cache / "downloads").iterdir())
    calls = fake_python(tmp_path, monkeypatch, "exit 1")
    assert fetch(cache) == path
    assert not calls.exists()
    path.write_bytes(WHOLE[:-1])  # cut after it had been checked: wanted again
    with pytest.raises(ModelError):
        fetch(cache)
    assert calls.exists()


def test_wrong_content(wheels: Path, cache: Path) -> None:
    make_wheel(wheels, 1, b"SECOND" * 1000)
    fails(cache, "SHA-256", "nothing is kept")
    assert not list(cache.rglob("*.whl"))
    make_wheel(wheels, 1, PIECES[1])
    assert fetch(cache).read_bytes() == WHOLE


def test_piece_missing(wheels: Path, cache: Path) -> None:
    model = tiny_model()
    wrong = replace(model.packages[1], member="tiny_model_part1/none.bin")
    fails(cache, "does not hold", model=replace(model, packages=(model.packages[0], wrong)))


@pytest.mark.parametrize("way", ["cut", "flipped"])
def test_damaged_wheel(wheels: Path, cache: Path, way: str) -> None:
    """What a crash of the machine may leave: found, removed, and fetched anew by the next try."""
    good = (wheels / wheel_name(0)).read_bytes()
    (wheels / wheel_name(1)).rename(wheels / "aside")
    fails(cache, "tiny-model-part1")
    (wheels / "aside").rename(wheels / wheel_name(1))
    kept = cache / "downloads" / "tiny" / "tiny-model-part0" / wheel_name(0)
    assert kept.read_bytes() == good
    flipped = bytearray(good)
    flipped[60:70] = bytes(10)  # in the compressed piece
    kept.write_bytes(good[: len(good) // 2] if way == "cut" else bytes(flipped))
    fails(cache, "damaged", "try again")
    assert fetch(cache).read_bytes() == WHOLE


def test_pieces_are_reused(wheels: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failure at the last piece only that piece is fetched."""
    (wheels / wheel_name(1)).rename(tmp_path / wheel_name(1))
    message = fails(cache, "tiny-model-part1", "cannot be fetched")
    assert "No matching distribution" in message
    (tmp_path / wheel_name(1)).rename(wheels / wheel_name(1))
    calls = fake_python(tmp_path, monkeypatch, f'exec {sys.executable} "$@"')
    assert fetch(cache).read_bytes() == WHOLE
    assert [line.split()[-1] for line in calls.read_text().splitlines()] == ["tiny-model-part1==1.0"]


def test_offline(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip itself, with an index that nobody answers for."""
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    fails(cache, "tiny-model-part0 1.0", "no connection to pip's package index")
    assert not list((cache / "downloads" / "tiny").iterdir())


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo /usr/bin/python: No module named pip; exit 1", "has no pip"),
        ("echo 'ERROR: first'; echo 'ERROR: No space left on device'; exit 2", "No space left on device"),
        ("echo 'Temporary failure in name resolution'; exit 1", "no connection"),
        (
            "echo 'WARNING: Retrying (Retry(total=1))'; echo 'ERROR: HTTP error 404 while getting x'; exit 1",
            "error 404",
        ),
        ("exit 3", "pip failed"),
        ("exit 0", "pip fetched 0 files"),
    ],
)
def test_pip_fails(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str) -> None:
    fake_python(tmp_path, monkeypatch, script)
    fails(cache, words)


def test_cache_cannot_be_written(tmp_path: Path, wheels: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="cannot be put into"):
        fetch(tmp_path / "file" / "cache")


START = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_packages import fetch
print(fetch(Path({cache!r})))
"""


def start(cache: Path, python: Path | None = None) -> subprocess.Popen[str]:
    """A process that fetches the model, in a session of its own."""
    code = START.format(tests=str(Path(__file__).parent), cache=str(cache))
    if python is not None:
        code = code.replace(
            "print(", f"from interlingua.hub import packages\npackages.sys.executable = {str(python)!r}\nprint("
        )
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def test_two_at_once(wheels: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them fetches, the other waits for it."""
    calls = fake_python(tmp_path, monkeypatch, f'sleep 0.3; exec {sys.executable} "$@"')
    program = Path(packages.sys.executable)
    monkeypatch.undo()
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(wheels))):
        monkeypatch.setenv(name, value)
    both = [start(cache, program), start(cache, program)]
    for process in both:
        out, problem = process.communicate(timeout=60)
        assert process.returncode == 0, problem
        assert Path(out.strip()).read_bytes() == WHOLE
    assert len(calls.read_text().splitlines()) == len(PIECES)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_interrupted(wheels: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: int) -> None:
    """A start that is killed while pip runs: the next one works, even beside the pip that was left behind."""
    script = 'case "$*" in *part1*) sleep 2;; esac\n' + f'exec {sys.executable} "$@"'
    calls = fake_python(tmp_path, monkeypatch, script)
    program = Path(packages.sys.executable)
    monkeypatch.undo()
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(wheels))):
        monkeypatch.setenv(name, value)
    process = start(cache, program)
    deadline = time.monotonic() + 30
    while not calls.exists() or "part1" not in calls.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(how)
    process.communicate(timeout=30)
    assert process.returncode != 0
    assert not list((cache / "models").rglob("*.gguf"))
    assert fetch(cache).read_bytes() == WHOLE
    assert calls.read_text().count("part0") == 1


def test_progress(wheels: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packages.fetch(tiny_model(), cache, LineProgress(interval=0))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("tiny: 0 MB to go\n")
    assert "tiny: unpacking" in err
    assert err.endswith("done\n")
    (wheels / wheel_name(1)).unlink()
    with pytest.raises(ModelError):
        packages.fetch(tiny_model(), cache / "other", LineProgress(interval=0))
    assert capsys.readouterr().err.endswith("given up\n")


def test_known_models() -> None:
    """Names, versions and hashes are pinned, so this is all that an index could be asked for."""
    smol, gemma = (packages.KNOWN_MODELS[name] for name in ("smollm2-135m-instruct", "gemma3-270m"))
    assert smol.size == 98_362_432
    assert smol.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert [package.member is None for package in gemma.packages] == [True, False, False, False, False]
    for model in packages.KNOWN_MODELS.values():
        assert len(model.sha256) == 64
        assert all(package.version for package in model.packages)


def test_demo_model(capsys: pytest.CaptureFixture[str]) -> None:
    files = resolve("smollm2-135m-instruct")
    assert (files.kind, files.name) == ("gguf", "smollm2-135m-instruct")
    assert files.tokenizer_json is not None
    assert files.tokenizer_json.parent == files.paths[0].parent
    assert (files.paths[0].parent / "LICENSE").is_file()
    assert "Apache License" in (files.paths[0].parent / "LICENSE").read_text()
