"""The vendor server's own configuration file (JSON, `ServerConfig` and `BackendConfig`) in our options."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Path in their file -> our option. `ModelConfig` is a list there; its first entry counts.
KEYS: dict[str, str] = {
    "ServerConfig.ipAddress": "host",
    "ServerConfig.port": "port",
    "ServerConfig.managementIpAddress": "management_host",
    "ServerConfig.managementPort": "management_port",
    "ServerConfig.metricsPort": "metrics_port",
    "ServerConfig.maxLinkNum": "max_concurrent_requests",
    "BackendConfig.ModelDeployConfig.maxSeqLen": "max_seq_len",
    "BackendConfig.ModelDeployConfig.maxInputTokenLen": "max_input_token_len",
    "BackendConfig.ModelDeployConfig.truncation": "truncation",
    "BackendConfig.ModelDeployConfig.ModelConfig[0].modelName": "served_model_name",
    "BackendConfig.ModelDeployConfig.ModelConfig[0].modelWeightPath": "model",
    "BackendConfig.ScheduleConfig.maxBatchSize": "max_batch_size",
    "BackendConfig.ScheduleConfig.maxPrefillTokens": "max_batch_tokens",
    "BackendConfig.ScheduleConfig.maxIterTimes": "max_iter_times",
}

# With HTTPS true there, these name files, relative to the folder above `conf`; with false they mean nothing.
HTTPS = "ServerConfig.httpsEnabled"
TLS_KEYS: dict[str, str] = {
    "ServerConfig.tlsCert": "tls_certificate",
    "ServerConfig.tlsPk": "tls_key",
    "ServerConfig.tlsPkPwd": "tls_key_password_file",
    "ServerConfig.tlsCaFile": "tls_client_ca",
    "ServerConfig.tlsCrlFiles": "tls_crl",
}
_FOLDERS = {"ServerConfig.tlsCaFile": "tlsCaPath", "ServerConfig.tlsCrlFiles": "tlsCrlPath"}

_TRUNCATION = "BackendConfig.ModelDeployConfig.truncation"
TRUNCATIONS = {"false": "off", "0": "off", "true": "head", "-1": "head", "1": "tail"}  # their JSON -> our value

# Why a key is ignored: what the first row says whose beginning of a path it has.
_REASONS = (
    ("BackendConfig.ScheduleConfig.cacheBlockSize", "KV blocks hold 32 tokens here"),
    ("BackendConfig.ModelDeployConfig.ModelConfig[0].", "no counterpart here"),
    ("BackendConfig.ModelDeployConfig.ModelConfig[", "the first model alone is served"),
    ("ServerConfig.managementTls", "the management port has the certificate and the clients' authorities of `port`"),
    ("ServerConfig.tls", "HTTPS is off"),
    ("", "no counterpart here"),
)


@dataclass(frozen=True, slots=True)
class Translated:
    values: dict[str, Any]  # by our names, not checked yet
    sources: dict[str, str]  # our name -> their path, for errors
    ignored: dict[str, list[str]]  # why -> their paths


def translate(document: Mapping[str, Any], file: Path) -> Translated:
    """The vendor's document in our options; `file` is where it stands. Raises ValueError with a key and its problem."""
    found = Translated({}, {}, {})
    server = document.get("ServerConfig")
    server = server if isinstance(server, dict) else {}
    https = wants_https(document)
    home = file.absolute().parent
    home = home.parent if home.name == "conf" else home
    for path, value in _leaves(document, ""):
        name = KEYS.get(path)
        if https and path in TLS_KEYS:
            name, value = TLS_KEYS[path], _files(value, home / str(server.get(_FOLDERS.get(path, ""), "")))
        elif path == _TRUNCATION and value is not None:
            value = _truncation(value)
        if name is not None:
            found.values[name] = value
            found.sources[name] = path
        elif path != HTTPS and not (https and path in ("ServerConfig.tlsCaPath", "ServerConfig.tlsCrlPath")):
            why = next(reason for prefix, reason in _REASONS if path.startswith(prefix))
            found.ignored.setdefault(why, []).append(path)
    return found


def wants_https(document: Mapping[str, Any]) -> bool:
    """Does the file ask for HTTPS? Never plain HTTP by mistake: only false, or no word about it at all, says no."""
    server = document.get("ServerConfig")
    return isinstance(server, dict) and server.get("httpsEnabled", "tlsCert" in server) is not False


def _truncation(value: Any) -> str:
    text = json.dumps(value)
    if text not in TRUNCATIONS:
        raise ValueError(f"`{_TRUNCATION}` must be false, true, 0, -1 or 1, got {value!r}")
    return TRUNCATIONS[text]


def _files(value: Any, folder: Path) -> Any:
    """Names become paths, an empty name or list nothing; what is no name is left for the check to refuse."""
    if isinstance(value, str):
        return str(folder / value) if value else None
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return [str(folder / name) for name in value if name] or None
    return value


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}[{index}]")
    else:
        yield path, value
