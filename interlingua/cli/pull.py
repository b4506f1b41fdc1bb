"""`interlingua pull`: a model into the cache."""

from __future__ import annotations

from interlingua.cli import assemble
from interlingua.cli.options import Options
from interlingua.text.tokenizer import Tokenizer


def run(options: Options) -> int:
    files = assemble.find(options)
    size = sum(path.stat().st_size for path in files.paths)
    print(f"{files.name}: {size / 1e6:,.1f} MB, {files.kind}, at {files.paths[0]}")
    Tokenizer.load(files)  # rebuilds a GGUF's and keeps it, so that the first start need not
    return 0
