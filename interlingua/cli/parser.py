"""The argument parser, made from the table of options. Light: `--help` imports nothing but argparse."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from interlingua import __version__
from interlingua.cli.kinds import Switch, Texts
from interlingua.cli.options import BY_NAME, CONFIG_ENV, DEFAULT_MODEL, DEFAULT_URL, OPTIONS, Group, Option
from interlingua.cli.settings import UsageError, did_you_mean

COMMANDS: dict[str, tuple[str, str]] = {
    "serve": (
        "serve a model over HTTP",
        f"Serves MODEL (the demo model {DEFAULT_MODEL} if none is named) on every dialect until interrupted.",
    ),
    "generate": (
        "generate text in the terminal",
        "Continues PROMPT with MODEL and writes the text as it comes. PROMPT - reads it from standard input.",
    ),
    "detect-watermark": (
        "tell whether a text was generated with a watermark",
        "Counts the watermark of MODEL in FILE: a text, a JSON list of token ids, or a saved answer or stream of any "
        "route that generates (its token ids if it has them). FILE - reads standard input.",
    ),
    "pull": (
        "fetch a model into the cache",
        "Fetches the model NAME, checks it and keeps it, so that a later start needs no network.",
    ),
    "verify": (
        "prove that answers are reproducible here",
        f"Answers seeded requests of every kind with MODEL (the demo model {DEFAULT_MODEL} if none is named), each "
        "alone and then in company, in small steps, preempted, with every cache, thread count and tier of kernels, "
        "and compares every bit. Exit code 0: all are equal; 1: they are not.",
    ),
    "top": (
        "watch a server in the terminal",
        f"Shows queue, batch, memory and speed of the server at URL ({DEFAULT_URL} if none is given), read from its "
        "/metrics, until interrupted.",
    ),
    "info": (
        "show versions, processor, kernels and models",
        "Shows what this installation runs on and with.",
    ),
}

_ARGUMENTS = {
    "serve": "[MODEL]",
    "generate": "MODEL PROMPT",
    "detect-watermark": "MODEL FILE",
    "top": "[URL]",
    "pull": "NAME",
    "verify": "[MODEL]",
    "info": "",
}
_EPILOG = (
    "Every option is also an environment variable (INTERLINGUA_...) and a key of the YAML file of "
    "--config. The command line wins over the environment, the environment over the file. "
    "docs/configuration.md lists all."
)


class _Parser(argparse.ArgumentParser):
    """Raises UsageError with one line instead of printing the usage and exiting."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message.removeprefix("argument "))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.dest == "command" and value not in COMMANDS:
            raise UsageError(f"unknown command {value!r}{did_you_mean(value, COMMANDS)}")
        super()._check_value(action, value)


class _Formatter(argparse.HelpFormatter):
    """As wide as the terminal; a switch is shown once, as `--[no-]name`."""

    def __init__(self, prog: str) -> None:
        width = max(60, min(110, shutil.get_terminal_size().columns - 2))
        super().__init__(prog, max_help_position=30, width=width)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, argparse.BooleanOptionalAction):
            return action.option_strings[0].replace("--", "--[no-]")
        return super()._format_action_invocation(action)


def parse(argv: Sequence[str]) -> tuple[str, str | None, dict[str, Any]]:
    """Command, `--config` and the options given as flags. Prints help or version and exits where asked to.

    Raises:
        UsageError: an unknown command or option, or a wrong value.
    """
    parser, flags = build()
    namespace, extra = parser.parse_known_args(argv)
    values = vars(namespace)
    command = values.pop("command")
    if extra:
        raise UsageError(_unknown(extra[0], flags.get(command, ("--help", "--version"))))
    if command is None:
        parser.print_help()
        parser.exit(0)
    config = values.pop("config", None)
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return command, config, values


def build() -> tuple[argparse.ArgumentParser, dict[str, list[str]]]:
    """The parser, and the flags of each command."""
    parser = _Parser(
        prog="interlingua",
        description="One text-inference server that speaks every client's language.",
        epilog="`interlingua COMMAND --help` explains a command.",
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"interlingua {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=_Parser)
    flags: dict[str, list[str]] = {}
    for name, (summary, description) in COMMANDS.items():
        command = subparsers.add_parser(
            name,
            help=summary,
            usage=f"interlingua {name} [OPTIONS] {_ARGUMENTS[name]}",
            description=description,
            epilog=_EPILOG,
            formatter_class=_Formatter,
            allow_abbrev=False,
        )
        _add_arguments(command, name)
        flags[name] = [flag for action in command._actions for flag in action.option_strings]
    return parser, flags


def _add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    if command == "generate":
        parser.add_argument("model", metavar="MODEL", type=_reader(BY_NAME["model"]), help="as for `serve`")
        parser.add_argument("prompt", metavar="PROMPT", help="the text to continue; - = standard input")
    if command == "detect-watermark":
        parser.add_argument("model", metavar="MODEL", type=_reader(BY_NAME["model"]), help="as for `serve`")
        parser.add_argument("file", metavar="FILE", help="what to judge; - = standard input")
    if command == "pull":
        help = "a known name or a Hugging Face id"
        parser.add_argument("model", metavar="NAME", type=_reader(BY_NAME["model"]), help=help)
    if command == "top":
        parser.add_argument("url", metavar="URL", nargs="?", default=DEFAULT_URL, help="where its /metrics are")
    parser.add_argument(
        "--config",
        metavar="FILE",
        default=argparse.SUPPRESS,
        help=f"YAML file with options, or the vendor server's JSON configuration [env: {CONFIG_ENV}]",
    )
    for group in Group:
        options = [option for option in OPTIONS if option.group is group and command in option.commands]
        if options:
            section = parser.add_argument_group(group.title.lower())
            for option in options:
                _add_option(section, option)


def _add_option(section: argparse._ArgumentGroup, option: Option) -> None:
    help = f"{option.help} [default: {option.default_text or 'none'}] [env: {option.env}]".replace("%", "%%")
    if option.positional:
        section.add_argument(
            option.name,
            nargs="?",
            type=_reader(option),
            metavar=option.metavar,
            default=argparse.SUPPRESS,
            help=help,
        )
    elif isinstance(option.kind, Switch):
        section.add_argument(
            option.flag,
            dest=option.name,
            action=argparse.BooleanOptionalAction,
            default=argparse.SUPPRESS,
            help=help,
        )
    else:
        section.add_argument(
            option.flag,
            dest=option.name,
            action="extend" if isinstance(option.kind, Texts) else "store",
            type=_reader(option),
            metavar="|".join(option.kind.choices) or option.metavar,
            default=argparse.SUPPRESS,
            help=help,
        )


def _reader(option: Option) -> Callable[[str], object]:
    def read(text: str) -> object:
        try:
            return option.kind.check([text]) if isinstance(option.kind, Texts) else option.kind.read(text)
        except ValueError as problem:
            message = str(problem).partition(", got ")[0] if option.secret else str(problem)
            raise argparse.ArgumentTypeError(message) from None

    return read


def _unknown(argument: str, flags: Iterable[str]) -> str:
    if not argument.startswith("-"):
        return f"unexpected argument {argument!r}"
    flag = argument.partition("=")[0]
    return f"unknown option {flag}{did_you_mean(flag, flags)}"
