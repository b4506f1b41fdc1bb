"""Makes docs/configuration.md from the table of options (`scripts/make-docs` runs it).

A test compares the two, so the page cannot drift.
"""

from __future__ import annotations

from interlingua.cli import vendor
from interlingua.cli.options import CONFIG_ENV, OPTIONS, Group, Option

_INTRODUCTION = f"""\
# Configuration

<!-- Made by scripts/make-docs from interlingua/cli/options.py; edit that instead. -->

Every option can be given in three ways; the first that names it wins:

1. on the command line: `interlingua serve --port 9000`
2. as an environment variable: `INTERLINGUA_PORT=9000`
3. as a key of a YAML file, named by `--config FILE` or by `{CONFIG_ENV}`:

```yaml
model: smollm2-135m-instruct
port: 9000
kv_memory: 2GiB
prefix_cache: true
```

A name that is in no table below is refused with exit code 2 wherever it stands, and so is a value of a wrong
type: a typing mistake never passes in silence. An empty variable and a `null` in the file count as absent.
A switch takes `--name` or `--no-name` as a flag, `true` or `false` (or 1, 0, yes, no, on, off) as a variable.
A size takes bytes or a unit: `67108864`, `64MiB`, `1.5GB`. Several texts are a repeated flag, a list in the
file, or the lines of a variable. One file may serve all commands: a key that a command has no use for is
checked and then left alone.
"""

_VENDOR = """\
## The vendor server's configuration file

`--config` also takes the JSON file of the server whose TGI and Triton routes this one speaks (it is known by
`BackendConfig`). These keys are used; all others are listed in one line at the start, with the reason, and ignored. A
key that the file lacks has our default. Where address and port of management or metrics are those of the data routes,
they share them. With `ServerConfig.httpsEnabled` true (or absent beside a `tlsCert`) the keys `tls...` name files,
relative to the folder above `conf` (`tlsCaFile` and `tlsCrlFiles` below `tlsCaPath` and `tlsCrlPath`); with
`tlsCaFile` clients need a certificate, as there; the password in `tlsPkPwd` is read as plain text. With false all of
them are ignored.

`truncation`: false or 0 refuses a prompt over `maxInputTokenLen`, true or -1 takes its first tokens, 1 its last ones.
`cacheBlockSize` is ignored: the native engine keeps the KV cache in blocks of 32 tokens, which changes no answer and
no limit (for vLLM: `--vllm-arg block-size=128`). Of several models in `ModelConfig` the first is served.

| key | option |
|---|---|
"""

_ELSEWHERE = """\
## Variables of others

| variable | effect |
|---|---|
| `HF_TOKEN` | access token for Hugging Face, when `token` is absent |
| `HF_ENDPOINT`, `HF_HUB_OFFLINE` | as in `huggingface_hub` |

Variables that Kubernetes sets beside a service called `interlingua` (`INTERLINGUA_PORT=tcp://...`,
`INTERLINGUA_SERVICE_HOST`, ...) are recognised and ignored.
"""


def page() -> str:
    """The text of docs/configuration.md."""
    parts = [_INTRODUCTION]
    for group in Group:
        rows = [_row(option) for option in OPTIONS if option.group is group]
        head = "| flag | variable | key | value | default | what it does |\n|---|---|---|---|---|---|\n"
        parts.append(f"## {group.title}\n\n{group.sentence}\n\n{head}" + "".join(rows))
    parts.append(
        _VENDOR + "".join(f"| `{path}` | `{name}` |\n" for path, name in (vendor.KEYS | vendor.TLS_KEYS).items())
    )
    parts.append(_ELSEWHERE)
    return "\n".join(parts)


def _row(option: Option) -> str:
    flag = f"`{option.metavar}`" if option.positional else f"`{option.flag}`"
    commands = "" if option.commands == ("serve",) else f" ({', '.join(option.commands)})"
    default = option.default_text if option.default is None else f"`{option.default_text}`"
    if option.default == ():
        default = "none"
    cells = (
        flag,
        f"`{option.env}`" + (f" or `{option.other_env}`" if option.other_env else ""),
        f"`{option.name}`",
        option.kind.accepts,
        default,
        option.help + commands,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


if __name__ == "__main__":
    print(page(), end="")
