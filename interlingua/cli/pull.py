"""`interlingua pull`: a model into the cache."""

from __future__ import annotations

from interlingua.cli import assemble
from interlingua.cli.options import Options
from interlingua.cli.progress import Progress


def run(options: Options) -> int:
    with Progress() as progress:
        files = assemble.find(options, progress)
    size = sum(path.stat().st_size for path in files.paths)
    print(f"{files.name}: {size / 1e6:,.1f} MB, {files.kind}, at {files.paths[0]}")
    return 0
