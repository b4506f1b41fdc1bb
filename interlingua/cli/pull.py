"""`interlingua pull`: a model into the cache."""

from __future__ import annotations

from interlingua.cli import assemble
from interlingua.cli.options import Options


def run(options: Options) -> int:
    files = assemble.find(options)
    size = sum(path.stat().st_size for path in files.paths)
    print(f"{files.name}: {size / 1e6:,.1f} MB, {files.kind}, at {files.paths[0]}")
    return 0
