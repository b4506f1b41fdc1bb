"""The program with media allowed as the API documents say: by their variable, and by a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from server import running
from sockets import ask

NOR = "is an image, and the served model reads text only; nor would it be taken from there: it "


async def test_media_by_the_documents_variable_and_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLOWED_MEDIA_DOMAINS_ENV", "upload.example.org, 10.1.2.3")
    folder = tmp_path / "inputs"
    folder.mkdir()
    (folder / "a.png").write_bytes(b"x")
    (folder / "link.png").symlink_to(folder / "a.png")
    (folder / "big.png").write_bytes(b"")
    (folder / "big.png").open("r+b").truncate(20 * 1024**2 + 1)  # Triton takes 20 MiB, TGI 40
    rules = {
        "http://upload.example.org/a.png": "is an image, and the served model reads text only",
        "https://10.1.2.3:8443/a.png": "is an image, and the served model reads text only",
        f"{folder}/a.png": "is an image, and the served model reads text only",
        "http://sub.upload.example.org/a.png": NOR + "must name a host that is allowed here",
        "http://10.1.2.4/a.png": NOR + "must name no private",
        "http://0x0a010203/a.png": NOR + "must be a host name",
        f"{folder}/../inputs/a.png": NOR + "must be an absolute path",
        f"{folder}/link.png": NOR + "must lead through no symbolic link",
        "/data/multimodal_inputs/a.png": NOR + f"must be a path below {folder}",
    }
    with running(["--engine", "echo", "--allowed-local-media-path", str(folder)]) as server:
        generate = f"/v2/models/{server.model}/generate"

        async def refusal(path: str, field: str, status: int, source: str) -> str:
            body: dict[str, Any] = {field: [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": source}]}
            reply = await ask(server.port, "POST", path, body)
            assert (reply.status, reply.json["error_type"]) == (status, "validation"), reply.body
            place = f"`{field}[1].image_url` "
            assert reply.json["error"].startswith(place)
            return str(reply.json["error"].removeprefix(place))

        for source, rule in rules.items():
            for path in ("/generate", "/generate_stream"):
                assert (await refusal(path, "inputs", 422, source)).startswith(rule), source
            assert (await refusal(generate, "text_input", 400, source)).startswith(rule), source
        big = f"{folder}/big.png"
        assert "text only" in await refusal("/generate", "inputs", 422, big)
        assert "at most 20971520 bytes and not of 20971521" in await refusal(generate, "text_input", 400, big)
        answer = await ask(server.port, "POST", "/generate", {"inputs": "a", "parameters": {"max_new_tokens": 1}})
        assert answer.status == 200
