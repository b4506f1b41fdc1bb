"""The vendor server's own configuration file (JSON, `ServerConfig` and `BackendConfig`) in our options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# Path in their file -> our option. `ModelConfig` is a list there; its first entry counts.
KEYS: dict[str, str] = {
    "ServerConfig.ipAddress": "host",
    "ServerConfig.port": "port",
    "ServerConfig.maxLinkNum": "max_concurrent_requests",
    "BackendConfig.ModelDeployConfig.maxSeqLen": "max_seq_len",
    "BackendConfig.ModelDeployConfig.maxInputTokenLen": "max_input_token_len",
    "BackendConfig.ModelDeployConfig.ModelConfig[0].modelName": "served_model_name",
    "BackendConfig.ModelDeployConfig.ModelConfig[0].modelWeightPath": "model",
    "BackendConfig.ScheduleConfig.maxBatchSize": "max_batch_size",
    "BackendConfig.ScheduleConfig.maxPrefillTokens": "max_batch_tokens",
    "BackendConfig.ScheduleConfig.maxIterTimes": "max_iter_times",
}


HTTPS = "ServerConfig.httpsEnabled"  # true there asks for what this server does not do


@dataclass(frozen=True, slots=True)
class Translated:
    values: dict[str, Any]  # by our names, not checked yet
    sources: dict[str, str]  # our name -> their path, for errors
    ignored: tuple[str, ...]  # their paths that mean nothing here
    https: bool  # the file asks for TLS


def translate(document: Mapping[str, Any]) -> Translated:
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    ignored: list[str] = []
    https = False
    for path, value in _leaves(document, ""):
        name = KEYS.get(path)
        if path == HTTPS:
            https = value is not False
        elif name is None:
            ignored.append(path)
        else:
            values[name] = value
            sources[name] = path
    return Translated(values, sources, tuple(ignored), https)


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}[{index}]")
    else:
        yield path, value
