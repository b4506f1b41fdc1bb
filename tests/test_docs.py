"""The documentation tells the truth: examples run, links lead somewhere, generated pages are fresh."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interlingua.cli import parser, reference
from interlingua.cli.options import BY_NAME, OPTIONS
from interlingua.contract.dialect import Dialect
from interlingua.server.routes import discover, paths_of
from interlingua.service.choices import child_seed

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
README = (ROOT / "README.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8080"
CALLS = (ROOT / "docs" / "calls.md").read_text(encoding="utf-8")
# Commands of these pages that are not run as they stand, and what is checked instead.
ELSEWHERE = {
    "./scripts/serve": "the fixture `server` starts the same command with another port",
    "./scripts/test": "that is this very run",
}


def blocks(text: str) -> list[str]:
    return re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(block: str) -> list[str]:
    """The commands of a block: lines, joined where one ends in a backslash or inside a quote."""
    found: list[str] = []
    for line in block.splitlines():
        if found and (found[-1].endswith("\\") or found[-1].count("'") % 2):
            found[-1] += "\n" + line
        elif line.strip():
            found.append(line)
    return found


def examples(page: str) -> list[str]:
    return [command for block in blocks(page) for command in commands(block)]


EXAMPLES = list(dict.fromkeys(examples(README) + examples(CALLS)))
DECODING = (ROOT / "docs" / "decoding.md").read_text(encoding="utf-8")
DECODING_EXAMPLES = examples(DECODING)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real server of the demo model, started as `./scripts/serve` starts it, with one adapter."""
    poet = tmp_path_factory.mktemp("poet")  # what ./scripts/demo-adapter writes, but for its ./scripts/setup
    subprocess.run([sys.executable, str(ROOT / "scripts" / "demo_adapter.py"), str(poet)], check=True)
    environ = {**os.environ, "INTERLINGUA_PORT": "0", "INTERLINGUA_LORA_ADAPTERS": f"poet={poet}"}
    process = subprocess.Popen(
        [sys.executable, "-m", "interlingua.cli.main", "serve"],
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://\S+?(?=[,\s])", line)
        assert found, f"no address in {line!r}"
        yield found[0]
    finally:
        process.terminate()
        process.wait(timeout=30)


def run(command: str) -> str:
    result = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, f"{command}\n{result.stderr}"
    return result.stdout


def request_of(command: str) -> tuple[str, dict[str, Any] | None]:
    """(URL, body) of a curl command."""
    words = shlex.split(command)
    body = json.loads(words[words.index("-d") + 1]) if "-d" in words else None
    return next(word for word in words if word.startswith("http")), body


@pytest.mark.parametrize("command", [command for command in EXAMPLES if command.startswith("curl")])
def test_curl_examples_answer(command: str, server: str) -> None:
    url, body = request_of(command)
    assert url.startswith(ADDRESS)
    output = run(command.replace("curl ", "curl --fail-with-body ").replace(ADDRESS, server))
    if body is None:
        assert url.endswith("/health") or output
    elif "-sN" in command:
        lines = [line.removeprefix("data: ") for line in output.splitlines() if line]
        if lines[-1] == "[DONE]":
            assert url.startswith(ADDRESS + "/v1/")
            lines.pop()
        events = [json.loads(line) for line in lines]
        most = body["parameters"]["max_new_tokens"] if "parameters" in body else body["max_tokens"] + 2
        assert 1 <= len(events) <= most
        assert all(event.keys() & {"token", "text_output", "choices", "text"} for event in events)
    else:
        text = text_of(json.loads(output))
        assert isinstance(text, str) and text.strip()


def test_the_first_answer_is_right(server: str) -> None:
    """A reader's first impression: the call does not sample, which a small model bears badly."""
    first = next(command for command in EXAMPLES if command.startswith("curl"))
    assert "Paris" in text_of(json.loads(run(first.replace(ADDRESS, server))))


def text_of(answer: Any) -> Any:
    """The text of any dialect's answer."""
    if isinstance(answer, list):
        return text_of(answer[0])
    if "choices" in answer:
        choice = answer["choices"][0]
        return choice["message"]["content"] if "message" in choice else choice["text"]
    if "outputs" in answer:
        return answer["outputs"][0]["data"][0]
    return answer["text"][0] if "text" in answer else answer.get("generated_text", answer.get("text_output"))


@pytest.mark.parametrize("command", DECODING_EXAMPLES)
def test_decoding_examples_answer(command: str, server: str) -> None:
    request, _, piped = command.partition("| .venv/bin/interlingua ")
    shown = run(request.removesuffix("\\\n  ").replace("curl ", "curl --fail-with-body ").replace(ADDRESS, server))
    answer = json.loads(shown)
    assert (answer["generated_text"] if "generated_text" in answer else answer["choices"][0]["text"]).strip()
    if piped:
        program = f"{shlex.quote(sys.executable)} -m interlingua.cli.main"
        assert "verdict   watermarked" in run(f"echo {shlex.quote(shown)} | {program} {piped}")


def test_every_decoding_parameter_has_a_paragraph_and_a_call() -> None:
    from interlingua.dialects._tgi_table import PARAMETERS

    bodies = [request_of(command)[1] or {} for command in DECODING_EXAMPLES]
    given = {name for body in bodies for name in body.get("parameters", body)}
    headings = set(re.findall(r"^### (\w+)$", DECODING, re.MULTILINE))
    openai = {"n", "min_p", "logit_bias", "presence_penalty", "min_tokens", "stop_token_ids"}
    for name in (set(PARAMETERS.names) | openai) - {"grammar"}:
        assert name in given and name in headings, name


@pytest.mark.parametrize("command", [command for command in EXAMPLES if "interlingua " in command])
def test_examples_of_the_command_line_run(command: str) -> None:
    program = f"{shlex.quote(sys.executable)} -m interlingua.cli.main"
    assert run(command.replace(".venv/bin/interlingua", program)).strip()


def test_seeds_of_several_answers_are_as_the_page_says() -> None:
    page = (ROOT / "docs" / "reproducibility.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(program, names)
    for seed in (0, 7, 2**64 - 1):
        for answer in range(9):
            assert names["seed_of_answer"](seed, answer) == child_seed(seed, answer)
    for command in examples(page):
        parser.parse(shlex.split(command, comments=True)[1:])


def test_every_example_is_run_or_accounted_for() -> None:
    for command in EXAMPLES:
        assert command.startswith("curl") or "interlingua " in command or command in ELSEWHERE, command
    for command in ELSEWHERE:
        assert command in EXAMPLES


def paths_called(page: str) -> set[str]:
    return {request_of(command)[0].removeprefix(ADDRESS) for command in examples(page) if command.startswith("curl")}


def as_called(path: str) -> str:
    return path.replace("{model}", "smollm2-135m-instruct")


def test_every_generation_route_has_a_call() -> None:
    routes = {route.path for dialect in discover() for route in dialect.routes}
    named = {as_called(route) for route in routes if "versions" not in route}
    assert named - {"/invocations"} <= paths_called(CALLS)


@pytest.mark.parametrize("dialect", discover(), ids=lambda dialect: dialect.name)
def test_the_readme_has_a_call_of_each_dialect(dialect: Dialect) -> None:
    mounted = {as_called(path) for route in dialect.routes for path in paths_of(dialect, route.path)}
    assert mounted & paths_called(README)


def test_the_demo_adapter_changes_an_answer(server: str) -> None:
    call = next(command for command in DECODING_EXAMPLES if "poet" in command).replace(ADDRESS, server)
    plain = text_of(json.loads(run(call.replace("poet", "None"))))
    assert text_of(json.loads(run(call))) != plain


def test_the_demo_adapter_says_what_is_wrong(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "demo_adapter.py"), str(tmp_path / "one"), "no-such-model"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith("scripts/demo-adapter: no-such-model: no such model")


PIP = [
    "Collecting numpy",
    "*** Configuring CMake...",
    *(f"  [{step}/40] Building CXX object a.o" for step in range(1, 41)),
    "Installing collected packages: interlingua",
    "the end without a line's",
]


def test_a_build_shows_how_far_it_is(tmp_path: Path) -> None:
    command = [str(ROOT / "scripts" / "build-progress"), str(tmp_path / "log")]
    result = subprocess.run(command, input="\n".join(PIP), capture_output=True, text=True, check=True)
    shown = [re.sub(r", \d+ s$", "", line.strip()) for line in result.stderr.splitlines()]
    tenths = [f"compiling {step} of 40" for step in (1, *range(4, 41, 4))]
    assert shown == ["fetching packages", "configuring", *tenths, "installing"] and not result.stdout
    assert (tmp_path / "log").read_text() == "\n".join(PIP) + "\n"


def test_a_build_on_a_terminal_is_one_line_that_moves(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    command = [str(ROOT / "scripts" / "build-progress"), str(tmp_path / "log")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=theirs, text=True) as process:
        assert process.stdin is not None
        process.stdin.write("  [7/40] Building\n  [8/")
        process.stdin.flush()
        time.sleep(1.5)  # a line in two pieces, with a second of silence between them
        process.stdin.write("40] Building\n")
        process.stdin.close()
        assert process.wait(20) == 0
    os.close(theirs)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert "\n" not in shown and shown.count("compiling 7 of 40") >= 2 and "compiling 8 of 40" in shown
    assert shown.endswith("\r\x1b[K") and (tmp_path / "log").read_text() == "  [7/40] Building\n  [8/40] Building\n"


@pytest.mark.parametrize(
    "name", ["setup", "serve", "test", "check", "bench", "make-docs", "build-progress", "demo-adapter"]
)
def test_scripts_can_be_run(name: str) -> None:
    path = ROOT / "scripts" / name
    assert os.access(path, os.X_OK)
    subprocess.run(["bash", "-n", str(path)], check=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" not in target:
            assert (page.parent / target.partition("#")[0]).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_named_in_the_text_exist(page: Path) -> None:
    """Paths in backquotes: from the root, or from the package as docs/architecture.md writes them."""
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|md|cpp|h|txt|inl))`", text):
        if "NAME" not in name:
            assert (ROOT / name).exists() or (ROOT / "interlingua" / name).exists(), f"{page.name}: {name}"


def test_configuration_page_is_fresh() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert page == reference.page(), "docs/configuration.md is stale: run scripts/make-docs"


def test_every_option_is_documented() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    for option in OPTIONS:
        assert f"`{option.env}`" in page and f"`{option.name}`" in page
        assert option.positional or f"`{option.flag}`" in page


def test_flags_named_in_the_pages_exist() -> None:
    known = {option.flag for option in OPTIONS} | {"--config", "--help", "--version", "--no-name", "--name"}
    for page in PAGES:
        for flag in re.findall(r"`(--[a-z][a-z-]+)", page.read_text(encoding="utf-8")):
            assert flag in known, f"{page.name}: {flag}"


def test_the_address_of_the_examples_is_the_default() -> None:
    assert f"http://{BY_NAME['host'].default}:{BY_NAME['port'].default}" == ADDRESS
