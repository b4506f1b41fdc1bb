"""Models by Hugging Face id, through huggingface_hub. Its errors become ModelError here and nowhere else."""

from __future__ import annotations

import fnmatch
import sys
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


class _SilentBar(tqdm):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "disable": True})


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
    Face's own cache. `progress` None = huggingface_hub's bars on a terminal, lines elsewhere.
    """
    repository, _, wanted = name.partition(":")
    with _one_line(repository, revision):
        try:
            info = HfApi(token=token).model_info(repository, revision=revision, files_metadata=True)
        except (hub_errors.OfflineModeIsEnabled, OSError) as error:
            if isinstance(error, hub_errors.HfHubHTTPError):
                raise
            folder = snapshot_download(repository, revision=revision, cache_dir=hub_cache, local_files_only=True)
            return _open(Path(folder), name, wanted, tokenizers)
        sizes = {item.rfilename: item.size or 0 for item in info.siblings or ()}
        patterns = [*_TEXTS, *_weights(repository, list(sizes), wanted)]
        total = sum(size for file, size in sizes.items() if any(fnmatch.fnmatch(file, one) for one in patterns))
        bars = progress is None and sys.stderr.isatty()
        if bars:
            folder = snapshot_download(
                repository, revision=revision, token=token, cache_dir=hub_cache, allow_patterns=patterns
            )
        else:
            with reported(progress or default_progress(), name, total):
                folder = snapshot_download(
                    repository,
                    revision=revision,
                    token=token,
                    cache_dir=hub_cache,
                    allow_patterns=patterns,
                    tqdm_class=_SilentBar,
                )
    return _open(Path(folder), name, wanted, tokenizers)


def _weights(repository: str, files: Sequence[str], wanted: str) -> list[str]:
    """Which weight files of a repository to fetch."""
    if wanted:
        if wanted not in files:
            raise ModelError(f"{repository} holds no file {wanted}")
        return [wanted]
    if any(file.endswith(".safetensors") and "/" not in file for file in files):
        return ["*.safetensors"]
    ggufs = [file for file in files if file.endswith(".gguf")]
    if len(ggufs) == 1:
        return ggufs
    if ggufs:
        raise ModelError(f"{repository} holds {len(ggufs)} GGUF files; name one: {repository}:{sorted(ggufs)[0]}")
    raise ModelError(f"{repository} holds no safetensors and no GGUF file")


def _open(folder: Path, name: str, wanted: str, tokenizers: Path) -> ModelFiles:
    revision = folder.name  # a snapshot's folder is named for its commit
    if wanted:
        path = folder / wanted
        if not path.is_file():
            raise ModelError(f"{name} is not in the cache, and there is no connection")
        return from_gguf(path, name, tokenizers, revision)
    ggufs = sorted(folder.rglob("*.gguf"))
    if len(ggufs) == 1 and not list(folder.glob("*.safetensors")):
        return from_gguf(ggufs[0], name, tokenizers, revision)
    return from_folder(folder, name, revision)


@contextmanager
def _one_line(repository: str, revision: str | None) -> Iterator[None]:
    """Says in one line what huggingface_hub says in ten."""
    try:
        yield
    except hub_errors.GatedRepoError:
        raise ModelError(f"{repository} is gated: accept its terms on its page and give a token (HF_TOKEN)") from None
    except hub_errors.RepositoryNotFoundError:
        raise ModelError(f"{repository}: no such repository, or a private one and no token that may read it") from None
    except hub_errors.RevisionNotFoundError:
        raise ModelError(f"{repository} has no revision {revision}") from None
    except (hub_errors.LocalEntryNotFoundError, hub_errors.OfflineModeIsEnabled):
        raise ModelError(f"{repository} is not in the cache, and there is no connection to its hub") from None
    except hub_errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "no"
        raise ModelError(f"{repository} cannot be fetched: the hub answered with status {status}") from None
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()
        raise ModelError(f"{repository} cannot be fetched: {reason[0] if reason else type(error).__name__}") from None
