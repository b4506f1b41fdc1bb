"""What can be said of the vLLM engine where vLLM is not installed."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

import pytest
import yaml

from interlingua.contract.errors import ModelError
from interlingua.contract.request import SamplingParams
from interlingua.engine import reference
from interlingua.engine.vllm import CAPABILITIES, VllmEngine, VllmOptions, available

ROOT = Path(__file__).parents[2]


def test_the_page_is_fresh() -> None:
    page = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
    assert page == reference.page(), "docs/engines.md is stale: run scripts/make-docs"


def test_every_sampling_parameter_is_in_the_table() -> None:
    names = {field.name for field in dataclasses.fields(SamplingParams)} - {"do_sample", "frequency_over"}
    assert not [name for name in names if not any(name in key for key in CAPABILITIES)]


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_without_vllm_the_start_says_what_to_install() -> None:
    assert not available()
    with pytest.raises(ModelError, match=r"interlingua\[vllm\]"):
        VllmEngine("/nowhere", VllmOptions(), None)  # type: ignore[arg-type]


def test_manifests_are_yaml_with_probes() -> None:
    parts = list(yaml.safe_load_all((ROOT / "deploy" / "kubernetes-vllm.yaml").read_text(encoding="utf-8")))
    workers, service = parts
    (server,) = workers["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["spec"]["containers"]
    assert {"readinessProbe", "startupProbe"} <= server.keys()
    assert service["spec"]["ports"][0]["targetPort"] == server["ports"][0]["containerPort"]
