"""A small imitation of the Hugging Face hub's API: what huggingface_hub asks for models, and nothing else."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

API = re.compile(r"/api/models/([\w-]+/[\w-]+)(?:/(revision|tree)/([^/?]+))?")
FILE = re.compile(r"/([\w-]+/[\w-]+)/resolve/([^/]+)/(.+)")


@dataclass
class Repository:
    """`revisions`: branch, tag or commit -> commit. All commits hold the same files but for `config.json`."""

    files: dict[str, bytes]
    revisions: dict[str, str]
    token: str | None = None
    gated: bool = False

    def content(self, commit: str, name: str) -> bytes:
        return self.files[name].replace(b"COMMIT", commit.encode())


@dataclass
class Hub:
    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)  # method, path, Authorization header
    failing: bool = False
    port: int = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def fetched(self) -> set[str]:
        """Names of the files whose content was asked for."""
        return {found[3] for method, path, _ in self.requests if method == "GET" and (found := FILE.fullmatch(path))}


@contextmanager
def running(hub: Hub) -> Iterator[Hub]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def answer(self) -> None:
            path = unquote(self.path.partition("?")[0])
            authorization = self.headers.get("Authorization")
            if hub.failing:
                return self.send(503, {}, {})
            api, file = API.fullmatch(path), FILE.fullmatch(path)
            found = api or file
            if found:  # of models only: huggingface_hub has questions of its own
                hub.requests.append((self.command, path, authorization))
            repository = hub.repositories.get(found[1]) if found else None
            if repository is None:
                return self.send(404, {"X-Error-Code": "RepoNotFound"}, {"error": "Repository not found"})
            if repository.token is not None and authorization != f"Bearer {repository.token}":
                if repository.gated:
                    return self.send(403, {"X-Error-Code": "GatedRepo"}, {"error": "gated"})
                return self.send(401, {"X-Error-Code": "RepoNotFound"}, {"error": "Repository not found"})
            revision = (api[3] if api else file[2] if file else None) or "main"
            commit = repository.revisions.get(revision, revision)
            if commit not in repository.revisions.values():
                return self.send(404, {"X-Error-Code": "RevisionNotFound"}, {"error": "Invalid rev id"})
            if file:
                return self.send_file(repository, commit, file[3])
            assert api
            sizes = {name: len(repository.content(commit, name)) for name in repository.files}
            if api[2] == "tree":
                return self.send(
                    200,
                    {},
                    [
                        {"type": "file", "path": name, "size": size, "oid": self.etag(repository.content(commit, name))}
                        for name, size in sizes.items()
                    ],
                )
            siblings = [{"rfilename": name, "size": size} for name, size in sizes.items()]
            return self.send(200, {}, {"id": found[1], "sha": commit, "siblings": siblings})

        @staticmethod
        def etag(content: bytes) -> str:
            return hashlib.sha1(content).hexdigest()

        def send_file(self, repository: Repository, commit: str, name: str) -> None:
            if name not in repository.files:
                return self.send(404, {"X-Error-Code": "EntryNotFound"}, {"error": "Entry not found"})
            content = repository.content(commit, name)
            return self.send(200, {"X-Repo-Commit": commit, "ETag": f'"{self.etag(content)}"'}, content)

        def send(self, status: int, headers: dict[str, str], body: object) -> None:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
