"""The program as an operator meets it: exit codes, one line for each mistake, help that starts at once."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from command_line import refused, run

from interlingua import __version__
from interlingua.cli.options import OPTIONS
from interlingua.cli.parser import COMMANDS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--prot", "1"], "unknown option --prot; did you mean --port?"),
        (["serve", "--por=1"], "unknown option --por; did you mean --port?"),
        (["serve", "--xyzzy"], "unknown option --xyzzy"),
        (["serve", "one", "two"], "unexpected argument 'two'"),
        (["serve", "--port", "x"], "--port: must be an integer from 0 to 65535, got 'x'"),
        (["serve", "--port"], "--port: expected one argument"),
        (["serve", "--engine", "gpu"], "--engine: must be one of native, vllm, auto, echo, got 'gpu'"),
        (["serve", ""], "MODEL: must be a text that is not empty, got ''"),
        (["generate", "model"], "the following arguments are required: PROMPT"),
        (["pull"], "the following arguments are required: NAME"),
        (["serv"], "unknown command 'serv'; did you mean serve?"),
        (["--verbose"], "unknown option --verbose; did you mean --version?"),
    ],
)
def test_wrong_command_lines(arguments: list[str], message: str) -> None:
    assert refused(run(*arguments)) == message


def test_a_wrong_variable_and_a_wrong_file(tmp_path: Path) -> None:
    assert "INTERLINGUA_PROT" in refused(run("info", INTERLINGUA_PROT="1"))
    path = tmp_path / "options.yaml"
    path.write_text("prot: 1\n")
    assert "did you mean port?" in refused(run("info", "--config", str(path)))
    assert "No such file" in refused(run("serve", "--config", str(tmp_path / "none")))


def test_a_secret_stays_out_of_the_refusal() -> None:
    assert "hush" not in refused(run("serve", "--api-key", "", INTERLINGUA_TOKEN="hush"))


@pytest.mark.parametrize("key", [" ", " key", "key\n"])
def test_a_key_that_no_header_can_carry(key: str) -> None:
    says = "must be a text without blanks around it, that is not empty"
    assert refused(run("serve", "--api-key", key)) == f"--api-key: {says}"
    assert refused(run("serve", INTERLINGUA_ADMIN_KEY=key)) == f"INTERLINGUA_ADMIN_KEY {says}"


@pytest.mark.parametrize("flag", ["--port", "--management-port", "--metrics-port"])
def test_a_port_in_use_is_no_wrong_option(flag: str) -> None:
    """It can pass: a supervisor tries again."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused(run("serve", "--engine", "echo", "--port", "0", flag, str(port)), code=1)
    assert line == f"cannot listen on 127.0.0.1:{port}: Address already in use; {flag} chooses another"


def test_a_port_for_grpc_that_is_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run("serve", "--engine", "echo", "--port", "0", "--grpc-port", str(port))
    assert result.returncode == 1
    # Before it stands a line of the gRPC library's own.
    line = result.stderr.splitlines()[-1]
    assert line.startswith(f"interlingua: cannot listen on 127.0.0.1:{port} for gRPC: the address is taken")


def test_an_address_that_is_not_this_machines_is_a_wrong_option() -> None:
    assert "cannot listen on 192.0.2.1:0" in refused(
        run("serve", "--engine", "echo", "--host", "192.0.2.1", "--port", "0")
    )


def test_lines_in_json_are_all_in_json() -> None:
    """From the one that says the server is ready to the one that says it stops."""
    arguments = ("serve", "--engine", "echo", "--port", "0", "--log-format", "json", "--stop-grace", "7")
    with subprocess.Popen(
        [sys.executable, "-m", "interlingua.cli.main", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        impatience = threading.Timer(60, process.kill)
        impatience.start()
        assert process.stdout is not None and process.stderr is not None
        ready = json.loads(process.stderr.readline())
        process.terminate()
        stopping = json.loads(process.stderr.readline())
        ended = json.loads(process.stderr.readline())
        assert (process.stdout.read(), process.stderr.read(), process.wait()) == ("", "", 0)
        impatience.cancel()
    assert ready["message"].startswith("Ready in ") and ready["url"] in ready["message"]
    assert (ready["engine"], ready["model"], ready["level"]) == ("echo", "smollm2-135m-instruct", "info")
    assert stopping["message"] == "stopping: no request is running"
    assert ended["message"] == "ended with exit code 0"


def test_what_cannot_be_served_is_listed_as_such() -> None:
    (line,) = (line for line in run("info").stdout.splitlines() if "gemma3-270m" in line)
    assert "cannot be served: no engine here runs its architecture, gemma3" in line


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_every_option_with_its_variable_and_default(command: str) -> None:
    result = run(command, "--help")
    assert result.returncode == 0 and result.stderr == ""
    words = " ".join(result.stdout.split())
    for option in OPTIONS:
        listed = f"[env: {option.env}]" in words
        assert listed == (command in option.commands), option.name
        if listed and option.default_text:
            assert f"[default: {option.default_text}]" in words
    assert "[default: ()]" not in words


def test_help_without_a_command_and_version() -> None:
    assert "serve" in run().stdout and run().returncode == 0
    assert run("--version").stdout == f"interlingua {__version__}\n"


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys; from interlingua.cli.main import main\n"
        "try: main(['serve', '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'starlette', 'pydantic', 'yaml', 'rich', 'asyncio', 'tokenizers'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(("redirection", "code"), [(">&-", 0), ("| true", 0), (">/dev/full", 1)])
@pytest.mark.parametrize("command", ["info", "generate smollm2-135m-instruct Once --max-new-tokens 3"])
def test_output_that_nobody_can_read(command: str, redirection: str, code: int) -> None:
    line = f"set -o pipefail; {sys.executable} -m interlingua.cli.main {command} {redirection}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr == ("" if code == 0 else "interlingua: No space left on device\n")
