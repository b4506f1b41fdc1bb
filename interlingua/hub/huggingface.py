"""Models by Hugging Face id, through huggingface_hub. Its errors become ModelError here and nowhere else."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub import errors as hub_errors
from tqdm.auto import tqdm  # type: ignore[import-untyped]

from interlingua.contract.errors import ModelError
from interlingua.hub.files import ModelFiles, from_folder, from_gguf
from interlingua.hub.progress import Progress, default_progress, reported

# Nothing else is fetched: repositories often hold the same weights again in other formats.
_TEXTS: Final = ("*.json", "*.jinja", "LICENSE*", "NOTICE*")
_SPLIT: Final = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


def fetch(
    name: str,
    revision: str | None,
    token: str | None,
    hub_cache: Path | None,
    tokenizers: Path,
    progress: Progress | None,
) -> ModelFiles:
    """The files of `org/name` or `org/name:FILE.gguf`, fetched where the cache lacks them.

    Without a connection, what an earlier fetch of this revision left in the cache is used. `hub_cache` None = Hugging
    Face's own cache. `progress` None = a bar or lines on stderr.
    """
    repository, _, wanted = name.partition(":")
    with _one_line(repository, revision):
        try:
            info = HfApi(token=token).model_info(repository, revision=revision, files_metadata=True)
        except hub_errors.HfHubHTTPError:
            raise  # the hub did answer
        except Exception:
            # No connection: which class says so depends on the HTTP client that huggingface_hub is built on.
            return _offline(name, revision, hub_cache, tokenizers)
        sizes = {item.rfilename: item.size or 0 for item in info.siblings or ()}
        patterns = [*_TEXTS, *_weights(repository, list(sizes), wanted)]
        total = sum(size for file, size in sizes.items() if any(fnmatch.fnmatch(file, one) for one in patterns))
        with reported(progress or default_progress(), name, total) as shown:
            folder = snapshot_download(
                repository,
                revision=revision,
                token=token,
                cache_dir=hub_cache,
                allow_patterns=patterns,
                tqdm_class=_counter(shown),
            )
    return _open(Path(folder), name, wanted, tokenizers)


def _offline(name: str, revision: str | None, hub_cache: Path | None, tokenizers: Path) -> ModelFiles:
    repository, _, wanted = name.partition(":")
    # With a pattern, as the repository as a whole was never fetched, and would be refused as incomplete.
    folder = Path(
        snapshot_download(
            repository,
            revision=revision,
            cache_dir=hub_cache,
            local_files_only=True,
            allow_patterns=[wanted or "config.json"],
        )
    )
    try:
        return _open(folder, name, wanted, tokenizers)
    except ModelError as error:
        raise ModelError(f"{error.message}; there is no connection to the hub to fetch more of {repository}") from None


def _counter(progress: Progress) -> type[tqdm]:
    """A bar for huggingface_hub that draws nothing and tells `progress` of the bytes.

    It opens several bars: of bytes that arrived, of bytes that are in place, of files. The furthest of bytes counts.
    """
    furthest = 0

    class Counter(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})
            self._counts = kwargs.get("unit") == "B"
            self._bytes = 0

        def update(self, n: float | None = 1) -> None:
            nonlocal furthest
            if self._counts:
                self._bytes += int(n or 0)
                furthest = max(furthest, self._bytes)
                progress.update(furthest)

    return Counter


def _weights(repository: str, files: Sequence[str], wanted: str) -> list[str]:
    """Which weight files of a repository to fetch."""
    if wanted:
        if wanted not in files:
            raise ModelError(f"{repository} holds no file {wanted}")
        return _with_parts(wanted)
    # Files in folders and `consolidated` ones are the same weights again, under other names.
    tensors = [file for file in files if re.fullmatch(r"(?!consolidated)[^/]+\.safetensors", file)]
    if tensors:
        return tensors
    ggufs = sorted(file for file in files if file.endswith(".gguf") and not _is_later_part(file))
    if len(ggufs) == 1:
        return _with_parts(ggufs[0])
    if ggufs:
        raise ModelError(f"{repository} holds {len(ggufs)} GGUF files; name one, such as {repository}:{ggufs[0]}")
    raise ModelError(f"{repository} holds no safetensors and no GGUF file")


def _is_later_part(file: str) -> bool:
    found = _SPLIT.search(file)
    return found is not None and int(found[1]) > 1


def _with_parts(file: str) -> list[str]:
    """All files of a GGUF model that is split over several, of which `file` is the first."""
    found = _SPLIT.search(file)
    if found is None:
        return [file]
    return [f"{file[: found.start()]}-{part:05d}-of-{found[2]}.gguf" for part in range(1, int(found[2]) + 1)]


def _open(folder: Path, name: str, wanted: str, tokenizers: Path) -> ModelFiles:
    revision = folder.name  # a snapshot's folder is named for its commit
    if wanted:
        return from_gguf(folder / wanted, name, tokenizers, revision)
    ggufs = [file for file in sorted(folder.rglob("*.gguf")) if not _is_later_part(file.name)]
    if len(ggufs) == 1 and not list(folder.glob("*.safetensors")):
        return from_gguf(ggufs[0], name, tokenizers, revision)
    return from_folder(folder, name, revision)


@contextmanager
def _one_line(repository: str, revision: str | None) -> Iterator[None]:
    """Says in one line what huggingface_hub says in ten."""
    try:
        yield
    except ModelError:
        raise
    except hub_errors.GatedRepoError:
        raise ModelError(f"{repository} is gated: accept its terms on its page and give a token (HF_TOKEN)") from None
    except hub_errors.RepositoryNotFoundError:
        raise ModelError(
            f"{repository}: no such file or folder, and no such repository on the hub (or a private one, and no token "
            "that may read it)"
        ) from None
    except hub_errors.RevisionNotFoundError:
        raise ModelError(f"{repository} has no revision {revision}") from None
    except hub_errors.LocalEntryNotFoundError:
        raise ModelError(
            f"{repository}: no such file or folder, and as a Hugging Face id it is not in the cache, and there is no "
            "connection to the hub"
        ) from None
    except hub_errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "no"
        raise ModelError(f"{repository} cannot be fetched: the hub answered with status {status}") from None
    except Exception as error:  # of its HTTP client, the disk, its own checks
        reason = str(error).strip().splitlines()
        raise ModelError(f"{repository} cannot be fetched: {reason[0] if reason else type(error).__name__}") from None
