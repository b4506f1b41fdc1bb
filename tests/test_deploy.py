"""The files of deploy/ as far as they can be checked without a cluster: by linters, and against the server itself.

Not run here: images are not built and no cluster, systemd or Grafana is asked. nginx is, in tests/e2e/test_nginx.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from interlingua.cli.options import BY_NAME, OPTIONS
from interlingua.cli.parser import COMMANDS
from interlingua.server.run import DIED
from interlingua.service.metrics import Metrics

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
VARIABLES = {option.env for option in OPTIONS}
GRACE: Any = BY_NAME["stop_grace"].default


def text_of(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def beside(python: str, name: str) -> str:
    return str(Path(python).parent / name)


@pytest.mark.parametrize("path", sorted(DEPLOY.iterdir()), ids=lambda path: path.name)
def test_variables_are_those_of_options(path: Path) -> None:
    named = set(re.findall(r"\bINTERLINGUA_[A-Z_]+", path.read_text(encoding="utf-8")))
    assert named <= VARIABLES


# --- the image -------------------------------------------------------------------------------------------


def test_the_image_passes_its_linter() -> None:
    run(beside(sys.executable, "hadolint"), "--failure-threshold", "style", str(DEPLOY / "Dockerfile"))


def test_what_is_copied_into_the_image_exists_and_is_sent_to_the_builder() -> None:
    sent = {line.removeprefix("!") for line in text_of("Dockerfile.dockerignore").splitlines() if line.startswith("!")}
    copied = [line.split()[1:-1] for line in text_of("Dockerfile").splitlines() if re.match(r"COPY (?!--from)", line)]
    names = {name for line in copied for name in line}
    assert names == sent
    assert all((ROOT / name).exists() for name in names)


def test_the_image_serves_as_nobody_in_particular() -> None:
    final = text_of("Dockerfile").rpartition("\nFROM ")[2]
    assert re.search(r"^USER 65532:65532$", final, re.MULTILINE)
    assert json.loads(final[final.index('CMD ["serve') + 4 :]) == ["serve"] and "serve" in COMMANDS
    assert "g++" not in final, "the compiler stays behind"


# --- compose and Kubernetes ------------------------------------------------------------------------------


def test_compose() -> None:
    """Docker's own check where its plugin is there; the structure in any case."""
    compose: dict[str, Any] = yaml.safe_load(text_of("compose.yaml"))
    service = compose["services"]["interlingua"]
    assert int(service["stop_grace_period"].removesuffix("s")) > GRACE
    assert service["restart"] == "on-failure" and service["cap_drop"] == ["ALL"] and service["read_only"]
    for name, one in compose["services"].items():
        assert set(one.get("depends_on", ())) <= compose["services"].keys()
        for volume in one.get("volumes", ()):
            assert (DEPLOY / volume.partition(":")[0]).exists(), f"{name}: {volume}"
        assert {config["source"] for config in one.get("configs", ())} <= compose.get("configs", {}).keys()
    for config in compose["configs"].values():
        assert yaml.safe_load(config["content"])["apiVersion"] == 1
    (target,) = yaml.safe_load(text_of("prometheus.yml"))["scrape_configs"][0]["static_configs"][0]["targets"]
    assert target.partition(":")[0] in compose["services"]


@pytest.mark.skipif(
    shutil.which("docker") is None
    or subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode != 0,
    reason="docker compose is not installed",
)
def test_compose_passes_docker(tmp_path: Path) -> None:
    run("docker", "compose", "-f", str(DEPLOY / "compose.yaml"), "--profile", "monitoring", "config", "--quiet")


@pytest.mark.parametrize("version", ["1.28", "1.32"])
def test_manifests_have_the_shape_that_kubernetes_wants(version: str) -> None:
    said = run(
        beside(sys.executable, "kubernetes-validate"), "-k", version, "--strict", str(DEPLOY / "kubernetes.yaml")
    )
    assert said.count("passed") == 3


def test_the_deployment_lets_requests_end_and_asks_the_right_routes() -> None:
    documents: list[dict[str, Any]] = list(yaml.safe_load_all(text_of("kubernetes.yaml")))
    deployment, service, budget = documents
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["terminationGracePeriodSeconds"] >= GRACE + 5 + 10, "preStop, the grace and some room"
    assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert {container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")} == {
        "/health"
    }
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    for selector in (deployment["spec"]["selector"]["matchLabels"], service["spec"]["selector"]):
        assert selector.items() <= labels.items()
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert service["spec"]["ports"][0]["targetPort"] == container["ports"][0]["name"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in spec["volumes"]}
    assert spec["securityContext"]["runAsNonRoot"] and container["securityContext"]["readOnlyRootFilesystem"]
    for variable in container["env"]:
        option = next(option for option in OPTIONS if option.env == variable["name"])
        option.kind.read(variable["value"])


# --- systemd ---------------------------------------------------------------------------------------------


def test_the_unit_tries_again_what_can_pass_and_not_a_wrong_option() -> None:
    unit = text_of("interlingua.service")
    values = dict(line.split("=", 1) for line in unit.splitlines() if re.match(r"[A-Z]\w+=", line))
    assert values["Restart"] == "on-failure" and values["RestartPreventExitStatus"] == "2" and DIED == 1
    assert int(values["TimeoutStopSec"]) > GRACE
    tries = int(values["StartLimitBurst"]) * int(values["RestartSec"])
    assert tries >= GRACE, "the server before it may have the port as long as its last requests take"
    assert tries < int(values["StartLimitIntervalSec"]), "it gives up some time"
    assert re.fullmatch(r"\S+/interlingua serve --config \S+", values["ExecStart"])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_unit_passes_systemd(tmp_path: Path) -> None:
    """With the program where it is here."""
    installed = re.sub(r"(?<=ExecStart=)\S+", beside(sys.executable, "interlingua"), text_of("interlingua.service"))
    path = tmp_path / "interlingua.service"
    path.write_text(installed)
    assert run("systemd-analyze", "verify", "--man=no", str(path)) == ""


# --- the board -------------------------------------------------------------------------------------------


def test_the_board_asks_for_metrics_that_exist() -> None:
    metrics = Metrics()
    metrics.failed("timeout")
    page = metrics.render().decode()
    exist = {sample.name for family in text_string_to_metric_families(page) for sample in family.samples}
    exist |= {name.removesuffix("_total") for name in exist if name.startswith("tgi_")}
    board = json.loads(text_of("grafana.json"))
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"]) >= 12
    places = set()
    for panel in board["panels"]:
        assert panel["datasource"]["uid"] == "${datasource}" and panel["title"]
        places |= {(panel["gridPos"]["x"], panel["gridPos"]["y"])}
        for target in panel["targets"]:
            query = target["expr"]
            named = set(re.findall(r"\b(?:vllm:|tgi_|interlingua_|process_)\w+", query))
            assert named and named <= exist, f"{panel['title']}: {named - exist}"
            assert query.count("(") == query.count(")") and query.count("{") == query.count("}")
    assert len(places) == len(board["panels"]), "no panel lies on another"
    variables = {one["name"] for one in board["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(board["panels"]))) <= variables | {"__rate_interval"}


def test_every_file_is_explained() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    for path in DEPLOY.iterdir():
        assert f"deploy/{path.name}" in page, path.name


def test_no_file_holds_a_key() -> None:
    for path in DEPLOY.iterdir():
        assert not re.search(r"\b[0-9a-f]{32,}\b", path.read_text(encoding="utf-8")), path.name
        assert not os.access(path, os.X_OK)
