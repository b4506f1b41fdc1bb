"""Hugging Face ids through the real huggingface_hub, against a local imitation of its hub.

Every case resolves in a process of its own: huggingface_hub reads HF_ENDPOINT once, when it is imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest
from fake_hub import Hub, Repository, running

COMMIT, OLDER = "a" * 40, "b" * 40
REVISIONS = {"main": COMMIT, "v1": OLDER, COMMIT: COMMIT, OLDER: OLDER}

PROGRAM = """
import json, sys
from pathlib import Path
from interlingua.contract.errors import ModelError
from interlingua.hub import resolve
arguments = json.loads(sys.argv[1])
try:
    files = resolve(**arguments)
except ModelError as error:
    print(json.dumps({"error": error.message}))
else:
    print(json.dumps({
        "kind": files.kind, "name": files.name, "revision": files.revision,
        "paths": [str(path) for path in files.paths], "config": dict(files.config),
        "tokenizer": str(files.tokenizer_json), "template": files.chat_template,
        "content": [path.read_bytes().decode("latin-1") for path in files.paths],
    }, default=str))
"""


def gguf_bytes(path: Path, pairs: dict[str, int] | None = None) -> bytes:
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in (pairs or {}).items():
        writer.add_uint32(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    texts = {"config.json": b'{"model_type": "llama", "of": "COMMIT"}', "README.md": b"# Model"}
    one = gguf_bytes(tmp_path / "made.gguf")
    parts = [gguf_bytes(tmp_path / f"made{part}.gguf", {"split.count": 2, "split.no": part}) for part in range(2)]
    with running(
        Hub(
            {
                "org/tensors": Repository(
                    {
                        **texts,
                        "tokenizer.json": b"{}",
                        "chat_template.jinja": b"{{ messages }}",
                        "LICENSE": b"terms",
                        "model-00001-of-00002.safetensors": b"one",
                        "model-00002-of-00002.safetensors": b"two",
                        "model.safetensors.index.json": json.dumps(
                            {
                                "weight_map": {
                                    "a": "model-00001-of-00002.safetensors",
                                    "b": "model-00002-of-00002.safetensors",
                                }
                            }
                        ).encode(),
                        "consolidated.safetensors": b"one and two",
                        "original/model.safetensors": b"one and two",
                        "pytorch_model.bin": b"pickle",
                    },
                    REVISIONS,
                ),
                "org/private": Repository({**texts, "model.safetensors": b"x"}, REVISIONS, token="hf_secret"),
                "org/gated": Repository({**texts, "model.safetensors": b"x"}, REVISIONS, token="hf_secret", gated=True),
                "org/single": Repository({"README.md": b"", "q4.gguf": one}, REVISIONS),
                "org/several": Repository(
                    {
                        "q4.gguf": one,
                        "q8.gguf": one,
                        "big/f16-00001-of-00002.gguf": parts[0],
                        "big/f16-00002-of-00002.gguf": parts[1],
                    },
                    REVISIONS,
                ),
                "org/pickles": Repository({**texts, "pytorch_model.bin": b"pickle"}, REVISIONS),
            }
        )
    ) as served:
        yield served


@pytest.fixture
def ask(hub: Hub, tmp_path: Path) -> Any:
    """Resolves in a new process, all of which share one cache."""

    def run(name: str, endpoint: str | None = None, more: dict[str, str] | None = None, **arguments: str) -> Any:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
        environment = {
            **kept,
            "HF_ENDPOINT": endpoint or hub.endpoint,
            "HF_HOME": str(tmp_path / "hf"),
            "HF_HUB_DISABLE_XET": "1",
            "INTERLINGUA_CACHE": str(tmp_path / "cache"),
            **(more or {}),
        }
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, json.dumps({"name_or_path": name, **arguments})],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        answer["stderr"] = done.stderr
        assert "\n" not in answer.get("error", "")
        return answer

    return run


def test_tensors(hub: Hub, ask: Any, tmp_path: Path) -> None:
    """Weights once and the texts, from the branch's commit, into Hugging Face's own cache."""
    answer = ask("org/tensors")
    assert (answer["kind"], answer["name"], answer["revision"]) == ("safetensors", "org/tensors", COMMIT)
    assert answer["content"] == ["one", "two"]
    assert answer["config"]["of"] == COMMIT
    assert answer["template"] == "{{ messages }}"
    assert hub.fetched() == {
        "config.json",
        "tokenizer.json",
        "chat_template.jinja",
        "LICENSE",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    }
    assert all(path.startswith(str(tmp_path / "hf")) for path in answer["paths"])
    assert not any(authorization for _, _, authorization in hub.requests)
    assert answer["stderr"].startswith("org/tensors: 0 MB to go\n")
    assert answer["stderr"].endswith("done\n")

    hub.requests.clear()
    assert ask("org/tensors")["content"] == ["one", "two"]
    assert not hub.fetched()  # the second time only the commit is asked for


def test_revision(hub: Hub, ask: Any) -> None:
    for revision in ("v1", OLDER):
        answer = ask("org/tensors", revision=revision)
        assert answer["revision"] == OLDER
        assert answer["config"]["of"] == OLDER
    asked = {path for _, path, _ in hub.requests}
    assert "/api/models/org/tensors/revision/v1" in asked
    assert not any("main" in path or COMMIT in path for path in asked)
    assert ask("org/tensors", revision="v9")["error"] == "org/tensors has no revision v9"


def test_cache_dir(ask: Any, tmp_path: Path) -> None:
    answer = ask("org/single", cache_dir=str(tmp_path / "mine"))
    assert answer["paths"][0].startswith(str(tmp_path / "mine" / "huggingface"))
    assert answer["tokenizer"].startswith(str(tmp_path / "mine" / "tokenizers"))
    assert not (tmp_path / "hf").exists()


def test_token(hub: Hub, ask: Any) -> None:
    answer = ask("org/private", token="hf_secret")
    assert answer["content"] == ["x"]
    assert {authorization for _, _, authorization in hub.requests} == {"Bearer hf_secret"}


def test_token_of_the_environment(hub: Hub, ask: Any) -> None:
    assert ask("org/private", more={"HF_TOKEN": "hf_secret"})["content"] == ["x"]
    assert {authorization for _, _, authorization in hub.requests} == {"Bearer hf_secret"}


def test_no_good_token(ask: Any) -> None:
    assert "no token that may read it" in ask("org/private")["error"]
    assert "no token that may read it" in ask("org/private", token="hf_other")["error"]
    assert "accept its terms" in ask("org/gated", token="hf_other")["error"]
    answer = ask("org/nothing")
    assert "no such file or folder, and no such repository" in answer["error"]


def test_single_gguf(hub: Hub, ask: Any) -> None:
    answer = ask("org/single")
    assert (answer["kind"], answer["revision"]) == ("gguf", COMMIT)
    assert hub.fetched() == {"q4.gguf"}


def test_one_gguf_of_several(hub: Hub, ask: Any) -> None:
    answer = ask("org/several")
    assert "3 GGUF files; name one, such as org/several:big/f16-00001-of-00002.gguf" in answer["error"]
    assert "holds no file q5.gguf" in ask("org/several:q5.gguf")["error"]
    assert not hub.fetched()
    answer = ask("org/several:q8.gguf")
    assert (answer["kind"], answer["name"]) == ("gguf", "org/several:q8.gguf")
    assert hub.fetched() == {"q8.gguf"}


def test_gguf_in_parts(hub: Hub, ask: Any) -> None:
    answer = ask("org/several:big/f16-00001-of-00002.gguf")
    assert [Path(path).name for path in answer["paths"]] == ["f16-00001-of-00002.gguf", "f16-00002-of-00002.gguf"]
    assert hub.fetched() == {"big/f16-00001-of-00002.gguf", "big/f16-00002-of-00002.gguf"}


def test_other_weights(hub: Hub, ask: Any) -> None:
    assert "no safetensors and no GGUF file" in ask("org/pickles")["error"]
    assert not hub.fetched()


def test_offline(hub: Hub, ask: Any) -> None:
    """Nobody answers: what was fetched is used, what was not is one line."""
    nobody = "http://127.0.0.1:9"
    answer = ask("org/tensors", endpoint=nobody)
    assert "no such file or folder, and as a Hugging Face id it is not in the cache" in answer["error"]
    for name in ("org/tensors", "org/single", "org/several:q8.gguf"):
        online = ask(name)
        offline = ask(name, endpoint=nobody)
        assert offline["paths"] == online["paths"]
        assert offline["content"] == online["content"]
    assert ask("org/tensors", more={"HF_HUB_OFFLINE": "1"})["content"] == ["one", "two"]
    assert "no connection" in ask("org/several:q4.gguf", endpoint=nobody)["error"]
    assert "no connection" in ask("org/tensors", endpoint=nobody, revision="v1")["error"]


def test_hub_fails(hub: Hub, ask: Any) -> None:
    hub.failing = True
    assert "the hub answered with status 503" in ask("org/tensors")["error"]
