"""From flags, environment, file and defaults to one `Options`: the first that names an option wins."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from interlingua.cli import vendor
from interlingua.cli.options import BY_NAME, CONFIG_ENV, ENV_PREFIX, OPTIONS, Options

# Kubernetes sets these in every pod beside a service called "interlingua"; they are not ours.
_SERVICE_LINK = re.compile(ENV_PREFIX + r"(SERVICE_(HOST|PORT\w*)|PORT_\d+_(TCP|UDP|SCTP)\w*)")


class UsageError(Exception):
    """The operator's words are wrong. The message is one line; the exit code is 2."""


class Notes(list[str]):
    """Lines about harmless oddities (a foreign key that was ignored), to be printed before the start."""


def resolve(flags: Mapping[str, object], environ: Mapping[str, str], config: str | None, notes: Notes) -> Options:
    """The value of every option: flag, else environment, else file, else default.

    Args:
        flags: options given on the command line, read and checked already.
        config: the file named by `--config`; None = the one in `INTERLINGUA_CONFIG`, if any.

    Raises:
        UsageError: an unknown name or a wrong value, with where it stands.
    """
    from_environment = read_environment(environ, notes)
    path = config or environ.get(CONFIG_ENV)
    from_file = read_file(Path(path), notes) if path else {}
    values: dict[str, Any] = {**from_file, **from_environment, **flags}
    return Options(**values)


def read_environment(environ: Mapping[str, str], notes: Notes) -> dict[str, object]:
    """The options among the variables; an empty variable counts as absent."""
    by_env = {option.env: option for option in OPTIONS}
    others = {option.other_env: option for option in OPTIONS if option.other_env}
    values: dict[str, object] = {}
    for name, text in sorted(environ.items(), key=lambda item: item[0] not in others):  # the last word is that of ours
        if not (name.startswith(ENV_PREFIX) or name in others) or name == CONFIG_ENV or not text:
            continue
        if _SERVICE_LINK.fullmatch(name) or text.startswith("tcp://"):
            notes.append(f"{name} looks like a Kubernetes service link and is ignored")
            continue
        option = by_env.get(name) or others.get(name)
        if option is None:
            known = [other.removeprefix(ENV_PREFIX) for other in (*by_env, CONFIG_ENV)]
            guess = did_you_mean(name.removeprefix(ENV_PREFIX), known, ENV_PREFIX)
            raise UsageError(f"unknown environment variable {name}{guess}")
        try:
            values[option.name] = option.kind.read(text)
        except ValueError as problem:
            raise UsageError(f"{name} {_without_secret(str(problem), option.secret)}") from None
    return values


def read_file(path: Path, notes: Notes) -> dict[str, object]:
    """The options in a configuration file: our YAML, or the vendor's JSON (told apart by `BackendConfig`)."""
    document = _load(path)
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise UsageError(f"{path}: must be a mapping of options, got {type(document).__name__}")
    if "BackendConfig" in document or "ServerConfig" in document:
        try:
            translated = vendor.translate(document, path)
        except ValueError as problem:
            raise UsageError(f"{path}: {problem}") from None
        if vendor.wants_https(document) and not {"tls_certificate", "tls_key"} <= translated.values.keys():
            raise UsageError(f"{path}: `{vendor.HTTPS}` is true, and that needs `tlsCert` and `tlsPk` beside it")
        if translated.ignored:
            groups = (f"{', '.join(keys)} ({why})" for why, keys in translated.ignored.items())
            notes.append(f"{path}: ignored keys of the vendor's configuration: {'; '.join(groups)}")
        return _checked(path, translated.values, translated.sources)
    return _checked(path, document, {})


def _load(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as problem:
        raise UsageError(f"{path}: cannot be read ({problem.strerror})") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: is not UTF-8 text") from None
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            pass  # a YAML mapping in braces, or broken: YAML's message names line and column
    import yaml  # late: most starts read no file

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if isinstance(root, yaml.MappingNode):
            _refuse_twins(path, [key.value for key, _ in root.value])
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark
        where = f" line {mark.line + 1}, column {mark.column + 1}:" if mark else ""
        raise UsageError(f"{path}:{where} {problem.problem or 'is not YAML'}") from None
    except (yaml.YAMLError, ValueError, RecursionError):  # ValueError: a date that does not exist
        raise UsageError(f"{path}: is not YAML") from None


def _refuse_twins(path: Path, keys: list[Any]) -> None:
    """YAML would silently let the last of two equal keys win."""
    for key in keys:
        if isinstance(key, str) and keys.count(key) > 1:
            raise UsageError(f"{path}: `{key}` stands there twice")


def _checked(path: Path, document: Mapping[Any, Any], sources: Mapping[str, str]) -> dict[str, object]:
    """`document` as options; null = absent. `sources` gives the name that the file itself uses."""
    values: dict[str, object] = {}
    for key, value in document.items():
        option = BY_NAME.get(key) if isinstance(key, str) else None
        if option is None:
            raise UsageError(f"{path}: unknown key `{key}`{did_you_mean(str(key), BY_NAME)}")
        if value is None:
            continue
        try:
            values[key] = option.kind.check(value)
        except ValueError as problem:
            name = sources.get(key, key)
            raise UsageError(f"{path}: `{name}` {_without_secret(str(problem), option.secret)}") from None
    return values


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """The end of a message about an unknown `name`: "; did you mean ...?", or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {prefix}{close[0]}?" if close else ""


def _without_secret(problem: str, secret: bool) -> str:
    return problem.partition(", got ")[0] if secret else problem
