"""`interlingua generate` as a reader calls it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from command_line import refused, run

MODEL = "smollm2-135m-instruct"


@pytest.mark.parametrize("prompt", ["-", "A text"])
def test_a_dash_is_standard_input(prompt: str) -> None:
    """The engine says its prompt again."""
    command = [sys.executable, "-m", "interlingua.cli.main", "generate", "--engine", "echo", MODEL, prompt]
    result = subprocess.run(command, input="Other words", capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout == ("Other words\n" if prompt == "-" else "A text\n")


def test_temperature_0_is_greedy() -> None:
    plain = run("generate", MODEL, "The sky is", "--max-new-tokens", "8")
    greedy = run("generate", MODEL, "The sky is", "--max-new-tokens", "8", "--temperature", "0", "--seed", "3")
    assert greedy.returncode == 0 and greedy.stdout == plain.stdout and len(plain.stdout) > 8
    problem = refused(run("generate", MODEL, "x", "--temperature", "-0.1"))
    assert problem == "--temperature: must be a number of at least 0, got '-0.1'"
