"""The vendor server's configuration file, with every key that it has, starts the program as it says."""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from server import Server, running
from sockets import Connection, ask
from test_addresses import free_ports

from interlingua.hub import resolve

NAME = "llama_65b"
MANAGEMENT = "127.0.0.2"
MAX_SEQ_LEN, MAX_INPUT, MAX_ITER = 80, 60, 24
PROMPT = "Ships move slowly over calm water, and birds follow them home in the evening. " * 10


def config(folder: Path, *, https: bool, truncation: Any) -> dict[str, Any]:
    """The file as the vendor ships it, with limits that a test can reach."""
    port, management, metrics = free_ports(3)
    grpc_files = {"TlsCaPath": "security/grpc/ca/", "TlsCert": "security/grpc/certs/server.pem"}
    return {
        "Version": "1.0.0",
        "ServerConfig": {
            "ipAddress": "127.0.0.1",
            "managementIpAddress": MANAGEMENT,
            "port": port,
            "managementPort": management,
            "metricsPort": metrics,
            "allowAllZeroIpListening": False,
            "maxLinkNum": 3,
            "httpsEnabled": https,
            "fullTextEnabled": False,
            "tlsCaPath": "security/ca/",
            "tlsCaFile": ["ca.pem"],
            "tlsCert": "security/certs/server.pem",
            "tlsPk": "security/keys/server.key.pem",
            "tlsPkPwd": "",
            "tlsCrlPath": "security/certs/",
            "tlsCrlFiles": [],
            "managementTlsCaFile": ["management_ca.pem"],
            "managementTlsCert": "security/certs/management/server.pem",
            "managementTlsPk": "security/keys/management/server.key.pem",
            "managementTlsPkPwd": "security/pass/management/key_pwd.txt",
            "managementTlsCrlPath": "security/management/certs/",
            "managementTlsCrlFiles": ["server_crl.pem"],
            "kmcKsfMaster": "tools/pmt/master/ksfa",
            "kmcKsfStandby": "tools/pmt/standby/ksfb",
            "inferMode": "standard",
            "interCommTLSEnabled": True,
            "interCommPort": 1121,
            **{f"interComm{name}": value for name, value in grpc_files.items()},
            "openAiSupport": "vllm",
            "tokenTimeout": 600,
            "e2eTimeout": 600,
            "distDPServerEnabled": False,
        },
        "BackendConfig": {
            "backendName": "mindieservice_llm_engine",
            "modelInstanceNumber": 1,
            "npuDeviceIds": [[0, 1, 2, 3]],
            "tokenizerProcessNumber": 8,
            "multiNodesInferEnabled": False,
            "multiNodesInferPort": 1120,
            "interNodeTLSEnabled": True,
            **{f"interNode{name}": value for name, value in grpc_files.items()},
            "ModelDeployConfig": {
                "maxSeqLen": MAX_SEQ_LEN,
                "maxInputTokenLen": MAX_INPUT,
                "truncation": truncation,
                "ModelConfig": [
                    {
                        "modelInstanceType": "Standard",
                        "modelName": NAME,
                        "modelWeightPath": str(resolve("smollm2-135m-instruct").paths[0]),
                        "worldSize": 4,
                        "cpuMemSize": 5,
                        "npuMemSize": -1,
                        "backendType": "atb",
                        "trustRemoteCode": False,
                    },
                    {"modelName": "second", "modelWeightPath": "/nowhere"},
                ],
            },
            "ScheduleConfig": {
                "templateType": "Standard",
                "templateName": "Standard_LLM",
                "cacheBlockSize": 128,
                "maxPrefillBatchSize": 50,
                "maxPrefillTokens": 8192,
                "prefillTimeMsPerReq": 150,
                "prefillPolicyType": 0,
                "decodeTimeMsPerReq": 50,
                "decodePolicyType": 0,
                "maxBatchSize": 2,
                "maxIterTimes": MAX_ITER,
                "maxPreemptCount": 0,
                "supportSelectBatch": False,
                "maxQueueDelayMicroseconds": 5000,
            },
        },
        "LogConfig": {"dynamicLogLevel": "", "dynamicLogLevelValidHours": 2},
    }


def start(folder: Path, document: dict[str, Any]) -> Any:
    path = folder / "conf" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(document, indent=4))
    return running(["--config", str(path)], port=None)


async def test_the_whole_file_takes_effect(server: Server, tmp_path: Path) -> None:
    document = config(tmp_path, https=False, truncation=True)
    ports = document["ServerConfig"]
    with start(tmp_path, document) as site:
        assert site.url == f"http://127.0.0.1:{ports['port']}" and site.model == NAME
        models = (await ask(site.port, "GET", "/v1/models")).json["data"]
        assert [model["id"] for model in models] == [NAME]

        # Limits, as told and as kept.
        info = (await ask(site.port, "GET", "/info")).json
        assert (info["max_input_length"], info["max_total_tokens"]) == (MAX_INPUT, MAX_SEQ_LEN)
        assert info["max_concurrent_requests"] == 3
        for answers, status in ((3, 200), (4, 400)):
            wanted = {"model": NAME, "prompt": "Ships", "max_tokens": 1, "n": answers}
            assert (await ask(site.port, "POST", "/v1/completions", wanted)).status == status
        for prompt, generated in (("Ships", MAX_ITER), (PROMPT, MAX_SEQ_LEN - MAX_INPUT)):
            parameters = {"max_new_tokens": 1000, "ignore_eos": True, "decoder_input_details": True}
            wanted = {"inputs": prompt, "parameters": parameters}
            details = (await ask(site.port, "POST", "/generate", wanted)).json["details"]
            assert (details["finish_reason"], details["generated_tokens"]) == ("length", generated)

        # The long prompt was cut to its first tokens.
        tokens = (await ask(server.port, "POST", "/tokenize", {"inputs": PROMPT})).json
        assert len(tokens) > MAX_INPUT == details["prompt_tokens"]
        assert [token["id"] for token in details["prefill"]] == [token["id"] for token in tokens[:MAX_INPUT]]

        # Each plane at its own address; three answers at once make a batch of two.
        metrics = await Connection.open(ports["metricsPort"], MANAGEMENT)
        assert b"\ntgi_request_success 3\n" in (await metrics.ask("GET", "/metrics")).body
        metrics.close()
        management = await Connection.open(ports["managementPort"], MANAGEMENT)
        wanted = {"model": NAME, "prompt": "Ships", "max_tokens": MAX_ITER, "n": 3, "ignore_eos": True}
        running_answers = set()
        for _ in range(3):
            asked = asyncio.create_task(ask(site.port, "POST", "/v1/completions", wanted))
            while not asked.done():
                status = (await management.ask("GET", "/v1/status")).json
                running_answers.add(status["resource"]["runningRequestNum"])
            assert (await asked).status == 200
        management.close()
        assert max(running_answers) == 2
        for path in ("/v1/status", "/metrics"):
            assert (await ask(site.port, "GET", path)).status == 404
    (line,) = [line for line in site.errors if "ignored keys" in line]
    assert "BackendConfig.ScheduleConfig.cacheBlockSize (KV blocks hold 32 tokens here)" in line
    for key in ("ServerConfig.tlsCert", "ModelConfig[1].modelName", "LogConfig.dynamicLogLevel", "fullTextEnabled"):
        assert key in line


async def test_https_as_the_file_asks_for_it(tmp_path: Path) -> None:
    """With the vendor's folders, and clients that show a certificate of its authority."""
    authority = trustme.CA()
    for folder in ("ca", "certs", "keys"):
        (tmp_path / "security" / folder).mkdir(parents=True)
    authority.cert_pem.write_to_path(tmp_path / "security" / "ca" / "ca.pem")
    issued = authority.issue_cert("127.0.0.1", MANAGEMENT)
    issued.private_key_pem.write_to_path(tmp_path / "security" / "keys" / "server.key.pem")
    for pem in issued.cert_chain_pems:
        pem.write_to_path(tmp_path / "security" / "certs" / "server.pem", append=True)
    stranger, client = ssl.create_default_context(), ssl.create_default_context()
    for context in (stranger, client):
        authority.configure_trust(context)
    authority.issue_cert("client@example.org").configure_cert(client)
    document = config(tmp_path, https=True, truncation=1)
    with start(tmp_path, document) as site:
        for host, name in (("127.0.0.1", "port"), (MANAGEMENT, "managementPort"), (MANAGEMENT, "metricsPort")):
            port = document["ServerConfig"][name]
            connection = await Connection.open(port, host, client)
            path = {"port": "/info", "managementPort": "/v1/config", "metricsPort": "/metrics"}[name]
            assert (await connection.ask("GET", path)).status == 200
            connection.close()
            with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):
                refused = await Connection.open(port, host, stranger)
                await refused.ask("GET", path)
            with pytest.raises((ConnectionError, EOFError)):
                plain = await Connection.open(port, host)
                await plain.ask("GET", path)
        connection = await Connection.open(site.port, "127.0.0.1", client)
        wanted = {"inputs": PROMPT + "End", "parameters": {"max_new_tokens": 1, "decoder_input_details": True}}
        details = (await connection.ask("POST", "/generate", wanted)).json["details"]
        connection.close()
        assert details["prompt_tokens"] == MAX_INPUT and details["prefill"][-1]["text"].strip() == "End"
