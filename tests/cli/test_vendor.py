"""The vendor server's configuration file, taken as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from interlingua.cli.options import BY_NAME
from interlingua.cli.settings import Notes, UsageError, resolve
from interlingua.cli.vendor import KEYS, TLS_KEYS
from interlingua.engine.native._native import KV_BLOCK

CONFIG: dict[str, Any] = {
    "Version": "1.0.0",
    "ServerConfig": {
        "ipAddress": "127.0.0.1",
        "managementIpAddress": "127.0.0.2",
        "port": 1025,
        "managementPort": 1026,
        "metricsPort": 1027,
        "maxLinkNum": 1000,
        "httpsEnabled": False,
        "fullTextEnabled": False,
    },
    "BackendConfig": {
        "backendName": "mindieservice_llm_engine",
        "npuDeviceIds": [[0, 1, 2, 3]],
        "ModelDeployConfig": {
            "maxSeqLen": 2560,
            "maxInputTokenLen": 2048,
            "truncation": False,
            "ModelConfig": [
                {"modelName": "llama_65b", "modelWeightPath": "/data/llama", "worldSize": 4, "npuMemSize": -1}
            ],
        },
        "ScheduleConfig": {"maxPrefillTokens": 8192, "maxIterTimes": 512, "maxBatchSize": 200},
    },
}


def write(tmp_path: Path, config: Any) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    return str(path)


def test_known_keys_become_options_and_others_are_listed_once(tmp_path: Path) -> None:
    notes = Notes()
    options = resolve({}, {}, write(tmp_path, CONFIG), notes)
    assert (options.host, options.port, options.max_concurrent_requests) == ("127.0.0.1", 1025, 1000)
    assert (options.management_host, options.management_port, options.metrics_port) == ("127.0.0.2", 1026, 1027)
    assert (options.max_seq_len, options.max_input_token_len, options.max_iter_times) == (2560, 2048, 512)
    assert (options.served_model_name, options.model) == ("llama_65b", "/data/llama")
    assert (options.max_batch_size, options.max_batch_tokens) == (200, 8192)
    assert options.truncation == "off"
    assert len(notes) == 1
    for key in ("Version", "ServerConfig.fullTextEnabled", "BackendConfig.npuDeviceIds"):
        assert key in notes[0]
    for key in KEYS:
        assert key not in notes[0]


def changed(path: str, value: object) -> dict[str, Any]:
    """`CONFIG` with one key of it set."""
    config = json.loads(json.dumps(CONFIG))
    inner = config
    *folders, last = path.split(".")
    for name in folders:
        inner = inner[name]
    inner[last] = value
    return config


TRUNCATION = "BackendConfig.ModelDeployConfig.truncation"


@pytest.mark.parametrize(
    ("value", "means"), [(False, "off"), (0, "off"), (None, "off"), (True, "head"), (-1, "head"), (1, "tail")]
)
def test_truncation_in_each_of_its_spellings(tmp_path: Path, value: object, means: str) -> None:
    assert resolve({}, {}, write(tmp_path, changed(TRUNCATION, value)), Notes()).truncation == means


@pytest.mark.parametrize("value", [2, "true", 1.0, [], "head"])
def test_truncation_that_it_does_not_know(tmp_path: Path, value: object) -> None:
    with pytest.raises(UsageError) as caught:
        resolve({}, {}, write(tmp_path, changed(TRUNCATION, value)), Notes())
    assert f"`{TRUNCATION}` must be false, true, 0, -1 or 1, got {value!r}" in str(caught.value)


def test_ignored_keys_are_listed_with_the_reason(tmp_path: Path) -> None:
    config = changed("BackendConfig.ScheduleConfig.cacheBlockSize", 128)
    config["BackendConfig"]["ModelDeployConfig"]["ModelConfig"].append({"modelName": "second"})
    config["ServerConfig"] |= TLS | {"httpsEnabled": False, "managementTlsCert": "m.pem"}
    notes = Notes()
    assert resolve({}, {}, write(tmp_path, config), notes).served_model_name == "llama_65b"
    (line,) = notes
    groups = line.partition("configuration: ")[2].split("; ")
    assert f"BackendConfig.ScheduleConfig.cacheBlockSize (KV blocks hold {KV_BLOCK} tokens here)" in groups
    second = "BackendConfig.ModelDeployConfig.ModelConfig[1].modelName"
    assert f"{second} (the first model alone is served)" in groups
    tls = ", ".join(f"ServerConfig.{name}" for name in TLS if name != "httpsEnabled")
    assert f"{tls} (HTTPS is off)" in groups
    management = "the management port has the certificate and the clients' authorities of `port`"
    assert f"ServerConfig.managementTlsCert ({management})" in groups


def test_wrong_value_is_named_as_the_file_names_it(tmp_path: Path) -> None:
    config = json.loads(json.dumps(CONFIG))
    config["BackendConfig"]["ModelDeployConfig"]["maxSeqLen"] = "long"
    with pytest.raises(UsageError, match=r"`BackendConfig\.ModelDeployConfig\.maxSeqLen` must be an integer"):
        resolve({}, {}, write(tmp_path, config), Notes())


TLS = {
    "httpsEnabled": True,
    "tlsCaPath": "security/ca/",
    "tlsCaFile": ["ca.pem", "other.pem"],
    "tlsCert": "security/certs/server.pem",
    "tlsPk": "security/keys/server.key.pem",
    "tlsPkPwd": "/run/secrets/password.txt",
    "tlsCrlPath": "security/certs/",
    "tlsCrlFiles": [],
}


def test_https_takes_its_files_along(tmp_path: Path) -> None:
    config = {**CONFIG, "ServerConfig": {**CONFIG["ServerConfig"], **TLS}}
    folder = tmp_path / "conf"
    folder.mkdir()
    notes = Notes()
    options = resolve({}, {}, write(folder, config), notes)
    security = tmp_path / "security"
    assert options.tls_certificate == str(security / "certs/server.pem")
    assert options.tls_key == str(security / "keys/server.key.pem")
    assert options.tls_key_password_file == "/run/secrets/password.txt"
    assert options.tls_client_ca == (str(security / "ca/ca.pem"), str(security / "ca/other.pem"))
    assert options.tls_crl == ()
    assert ".tls" not in notes[0] and "httpsEnabled" not in notes[0]


def test_https_switched_off_needs_no_files(tmp_path: Path) -> None:
    config = {**CONFIG, "ServerConfig": {**CONFIG["ServerConfig"], **TLS, "httpsEnabled": False}}
    notes = Notes()
    options = resolve({}, {}, write(tmp_path, config), notes)
    assert options.tls_certificate is None and options.tls_client_ca == ()
    assert "ServerConfig.tlsCert" in notes[0]


@pytest.mark.parametrize("asked", [True, "true", 1, None])
def test_https_without_a_certificate_is_no_plain_http(tmp_path: Path, asked: object) -> None:
    config = {**CONFIG, "ServerConfig": {**CONFIG["ServerConfig"], "httpsEnabled": asked}}
    with pytest.raises(UsageError, match=r"`ServerConfig\.httpsEnabled` is true"):
        resolve({}, {}, write(tmp_path, config), Notes())


def test_a_certificate_without_a_word_about_https_is_used(tmp_path: Path) -> None:
    """As there, where HTTPS is the default."""
    server = {**CONFIG["ServerConfig"], **TLS}
    del server["httpsEnabled"]
    assert resolve({}, {}, write(tmp_path, {**CONFIG, "ServerConfig": server}), Notes()).tls_certificate is not None


def test_command_line_wins_over_it(tmp_path: Path) -> None:
    assert resolve({"port": 9}, {}, write(tmp_path, CONFIG), Notes()).port == 9


def test_it_maps_to_options_that_exist() -> None:
    assert set(KEYS.values()) | set(TLS_KEYS.values()) <= set(BY_NAME)


def test_json_with_our_own_keys(tmp_path: Path) -> None:
    assert resolve({}, {}, write(tmp_path, {"port": 7}), Notes()).port == 7
