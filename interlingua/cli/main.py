"""Entry point of `interlingua`: parse, resolve the options, hand over to the command's own module.

A mistake of the operator (UsageError) and a bad start (ModelError) are one line on standard error and exit
code 2.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from interlingua.cli import parser, settings
from interlingua.contract.errors import InterlinguaError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Returns the exit code."""
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except (settings.UsageError, InterlinguaError) as problem:
        print(f"interlingua: {' '.join(str(problem).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has left, as in `interlingua info | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(argv: Sequence[str]) -> int:
    command, config, flags = parser.parse(argv)
    prompt, file = flags.pop("prompt", None), flags.pop("file", None)
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
    from interlingua.cli import info

    return info.run(options)


if __name__ == "__main__":
    sys.exit(main())
