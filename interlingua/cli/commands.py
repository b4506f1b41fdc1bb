"""One command from its arguments to its exit code: parse, resolve the options, hand over to the command's own module.

A mistake of the operator (UsageError) and a bad start (ModelError) are one line on standard error and exit code 2, or 1
if the same command may succeed a moment later.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from interlingua.cli import parser, settings
from interlingua.contract.errors import AddressInUseError, InterlinguaError


def run(argv: Sequence[str]) -> int:
    """Runs the command that `argv` names. Returns the exit code."""
    try:
        return _run(argv)
    except (settings.UsageError, InterlinguaError) as problem:
        print(f"interlingua: {' '.join(str(problem).split())}", file=sys.stderr)
        return 1 if isinstance(problem, AddressInUseError) else 2


def _run(argv: Sequence[str]) -> int:
    command, config, flags = parser.parse(argv)
    prompt, file, url = flags.pop("prompt", None), flags.pop("file", None), flags.pop("url", None)
    notes = settings.Notes()
    options = settings.resolve(flags, os.environ, config, notes)
    for note in notes:
        print(f"interlingua: {note}", file=sys.stderr)
    # Late imports: each command pays for what it needs alone.
    if command == "serve":
        from interlingua.cli import serve

        return serve.run(options)
    if command == "generate":
        from interlingua.cli import generate

        return generate.run(options, str(prompt))
    if command == "detect-watermark":
        from interlingua.cli import detect

        return detect.run(options, str(file))
    if command == "pull":
        from interlingua.cli import pull

        return pull.run(options)
    if command == "verify":
        from interlingua.cli import verify

        return verify.run(options)
    if command == "top":
        from interlingua.cli import top

        return top.run(options, str(url))
    from interlingua.cli import info

    return info.run(options)
