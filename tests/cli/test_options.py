"""The table of options: a flag, a variable and a key of a file mean the same, and mistakes are told apart."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from interlingua.cli import parser
from interlingua.cli.kinds import (
    Arguments,
    Choice,
    Hosts,
    Integer,
    Kind,
    NamedFolders,
    Number,
    Size,
    Switch,
    Text,
    Texts,
)
from interlingua.cli.options import BY_NAME, OPTIONS, Group, Option, Options
from interlingua.cli.settings import Notes, UsageError, resolve


def sample(option: Option) -> tuple[str, object, object]:
    """(text, value in a file, value that both mean), other than the default."""
    kind: Kind[object] = option.kind
    if isinstance(kind, Choice):
        word = next(word for word in kind.choices if word != option.default)
        return word, word, word
    if isinstance(kind, Switch):
        return ("false", False, False) if option.default else ("true", True, True)
    if isinstance(kind, Size):
        return "3MiB", "3MiB", 3 * 1024**2
    if isinstance(kind, NamedFolders):
        return "a=/x,b/c=y z", {"a": "/x", "b/c": "y z"}, (("a", "/x"), ("b/c", "y z"))
    if isinstance(kind, Arguments):
        return "tensor-parallel-size=4", {"tensor-parallel-size": 4}, ("tensor-parallel-size=4",)
    if isinstance(kind, Hosts):
        return "B.example, ::1", ["b.example", "[0::1]"], ("b.example", "::1")
    if isinstance(kind, Texts):
        return "END", ["END"], ("END",)
    if isinstance(kind, Number):
        return "0.25", 0.25, 0.25
    if isinstance(kind, Integer):
        return "17", 17, 17
    assert isinstance(kind, Text)
    return "some text", "some text", "some text"


def flags_of(option: Option, text: str) -> list[str]:
    if option.positional:
        return [text]
    if isinstance(option.kind, Switch):
        return [option.flag if text == "true" else option.flag.replace("--", "--no-")]
    return [option.flag, text]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_flag_variable_and_key_mean_the_same(option: Option, tmp_path: Path) -> None:
    import yaml

    text, in_file, meaning = sample(option)
    assert meaning != option.default
    for command in option.commands:
        arguments = flags_of(option, text)
        if command == "generate":
            arguments = ["some-model", "some prompt", *arguments]
        if command == "detect-watermark":
            arguments = ["some-model", "some-file", *arguments]
        if command == "pull":
            arguments = ["some-model", *arguments]
        parsed, config, flags = parser.parse([command, *arguments])
        assert (parsed, config, flags[option.name]) == (command, None, meaning)
    assert getattr(resolve({}, {option.env: text}, None, Notes()), option.name) == meaning
    path = tmp_path / "options.yaml"
    path.write_text(yaml.safe_dump({option.name: in_file}))
    assert getattr(resolve({}, {}, str(path), Notes()), option.name) == meaning


def test_the_first_source_that_names_an_option_wins(tmp_path: Path) -> None:
    path = tmp_path / "options.yaml"
    path.write_text("port: 1\nhost: file\nthreads: 1\n")
    environ = {"INTERLINGUA_PORT": "2", "INTERLINGUA_HOST": "variable"}
    options = resolve({"port": 3}, environ, str(path), Notes())
    assert (options.port, options.host, options.threads, options.max_batch_size) == (3, "variable", 1, 256)


def test_the_documents_name_of_a_variable_counts_after_ours() -> None:
    theirs = {"ALLOWED_MEDIA_DOMAINS_ENV": "upload.example.org, C.example.com,10.0.0.1"}
    hosts = ("upload.example.org", "c.example.com", "10.0.0.1")
    assert resolve({}, theirs, None, Notes()).allowed_media_domains == hosts
    assert resolve({}, {"ALLOWED_MEDIA_DOMAINS_ENV": ""}, None, Notes()).allowed_media_domains == ()
    ours = {"INTERLINGUA_ALLOWED_MEDIA_DOMAINS": "ours.example"}
    for environ in (theirs | ours, ours | theirs):
        assert resolve({}, environ, None, Notes()).allowed_media_domains == ("ours.example",)
    assert resolve({"allowed_media_domains": ("flag.example",)}, theirs, None, Notes()).allowed_media_domains == (
        "flag.example",
    )


@pytest.mark.parametrize(
    "text", ["*.example.org", "http://h.example", "h.example:80", "h.example/a", "a,,b", "127.1", "é.org"]
)
def test_hosts_that_could_never_be_met_are_a_bad_start(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve({}, {"ALLOWED_MEDIA_DOMAINS_ENV": text}, None, Notes())
    assert str(caught.value).startswith("ALLOWED_MEDIA_DOMAINS_ENV must be hosts with commas between them")


def test_hosts_of_several_flags_and_commas() -> None:
    _, _, flags = parser.parse(["serve", "--allowed-media-domains", "a.b,c.d", "--allowed-media-domains", "1.2.3.4"])
    assert flags["allowed_media_domains"] == ("a.b", "c.d", "1.2.3.4")


def test_file_named_by_a_variable(tmp_path: Path) -> None:
    path = tmp_path / "options.yaml"
    path.write_text("port: 4\n")
    assert resolve({}, {"INTERLINGUA_CONFIG": str(path)}, None, Notes()).port == 4


def test_no_source_leaves_the_defaults() -> None:
    assert resolve({}, {"PATH": "/bin", "INTERLINGUA_PORT": ""}, None, Notes()) == Options()


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_rows_are_complete(option: Option) -> None:
    assert option.help[0].islower() or option.help.startswith("`")
    assert not option.help.endswith(".")
    assert option.default_text or option.default == ()
    assert option.commands
    assert isinstance(option.group, Group)


def test_every_default_is_a_good_value() -> None:
    for option in OPTIONS:
        if option.default is not None and option.default != ():
            assert option.kind.check(option.default) == option.default, option.name


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {"INTERLINGUA_PROT": "1"},
            "unknown environment variable INTERLINGUA_PROT; did you mean INTERLINGUA_PORT?",
        ),
        ({"INTERLINGUA_ZZZ": "1"}, "unknown environment variable INTERLINGUA_ZZZ"),
        ({"INTERLINGUA_PORT": "80a"}, "INTERLINGUA_PORT must be an integer from 0 to 65535, got '80a'"),
        ({"INTERLINGUA_PORT": "65536"}, "INTERLINGUA_PORT must be an integer from 0 to 65535, got '65536'"),
        (
            {"INTERLINGUA_PREFIX_CACHE": "maybe"},
            "INTERLINGUA_PREFIX_CACHE must be true or false, got 'maybe'",
        ),
        (
            {"INTERLINGUA_ISA": "sse"},
            "INTERLINGUA_ISA must be one of scalar, avx2, avxvnni, avx512, amx, amx-emulated, got 'sse'",
        ),
    ],
)
def test_wrong_variables(environ: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve({}, environ, None, Notes())
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot: 1", "unknown key `prot`; did you mean port?"),
        ("max-seq-len: 9", "unknown key `max-seq-len`; did you mean max_seq_len?"),
        ("1: 2", "unknown key `1`"),
        ("port: '80'", "`port` must be an integer from 0 to 65535, got '80'"),
        ("port: 80.0", "`port` must be an integer from 0 to 65535, got 80.0"),
        ("port: true", "`port` must be an integer from 0 to 65535, got True"),
        ("port: [80]", "`port` must be an integer from 0 to 65535, got [80]"),
        ("host: 8", "`host` must be a text that is not empty, got 8"),
        ("prefix_cache: 1", "`prefix_cache` must be true or false, got 1"),
        ("timeout: .nan", "`timeout` must be a number above 0 and up to 86400, got nan"),
        (
            "kv_memory: 5 parsecs",
            "`kv_memory` must be a size above 0 such as 67108864, 64MiB or 1.5GB, got '5 parsecs'",
        ),
        ("stop: [a, 3]", "`stop` must be texts that are not empty, got ['a', 3]"),
        ("- port", "must be a mapping of options, got list"),
        ("port: 1\nport: 2", "`port` stands there twice"),
        ("a: [", "expected the node content"),
        ("\x00", "is not YAML"),
    ],
)
def test_wrong_files(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "options.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        resolve({}, {}, str(path), Notes())
    assert message in str(caught.value) and str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        resolve({}, {}, str(tmp_path / "none.yaml"), Notes())


@pytest.mark.parametrize("text", ["", "# nothing\n", "port: null\n", "{}", "{port: null}"])
def test_file_that_names_nothing(text: str, tmp_path: Path) -> None:
    path = tmp_path / "options.yaml"
    path.write_text(text)
    assert resolve({}, {}, str(path), Notes()) == Options()


def test_a_secret_is_never_repeated(tmp_path: Path) -> None:
    path = tmp_path / "options.yaml"
    path.write_text("api_key: [hush]")
    with pytest.raises(UsageError) as caught:
        resolve({}, {}, str(path), Notes())
    assert "hush" not in str(caught.value) and "api_key" in str(caught.value)


def test_kubernetes_service_links_are_no_options() -> None:
    links = {
        "INTERLINGUA_SERVICE_HOST": "10.0.0.7",
        "INTERLINGUA_SERVICE_PORT": "8080",
        "INTERLINGUA_SERVICE_PORT_HTTP": "8080",
        "INTERLINGUA_PORT": "tcp://10.0.0.7:8080",
        "INTERLINGUA_PORT_8080_TCP": "tcp://10.0.0.7:8080",
        "INTERLINGUA_PORT_8080_TCP_PROTO": "tcp",
        "INTERLINGUA_PORT_8080_TCP_PORT": "8080",
        "INTERLINGUA_PORT_8080_TCP_ADDR": "10.0.0.7",
    }
    assert resolve({}, links, None, Notes()) == Options()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("64MiB", 64 * 1024**2),
        ("1.5GB", 1_500_000_000),
        ("2 k", 2000),
        ("1Ki", 1024),
        ("0", None),
        ("i", None),
    ],
)
def test_sizes(text: str, size: int | None) -> None:
    kind = BY_NAME["kv_memory"].kind
    if size is None:
        with pytest.raises(ValueError, match="must be a size"):
            kind.read(text)
    else:
        assert kind.read(text) == size


def test_fields_and_rows_are_one_table() -> None:
    assert [field.name for field in dataclasses.fields(Options)] == [option.name for option in OPTIONS]


@pytest.mark.parametrize("text", ["a", "a=", "=x", "a=x,a=y", "None=x", "../a=x", "a=x,", "a b=x", "a=x,b"])
def test_wrong_adapters(text: str) -> None:
    kind = BY_NAME["lora_adapters"].kind
    with pytest.raises(ValueError, match="must be names and folders as in NAME=FOLDER"):
        kind.read(text)
    with pytest.raises(ValueError, match="must be names and folders"):
        kind.check([text])
