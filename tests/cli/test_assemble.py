"""Every setting of the other rooms can be set, or is left out for a reason."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers

from interlingua.cli import assemble
from interlingua.cli.generate import request_of
from interlingua.cli.options import BY_NAME, Options
from interlingua.contract.dialect import DialectSettings
from interlingua.contract.errors import ModelError
from interlingua.engine import vllm
from interlingua.engine.native.engine import NativeOptions
from interlingua.server.settings import ServerSettings
from interlingua.service.prepare import Limits, ModelDefaults

# Settings that are no options of their own: the loaded model says them, or the documents fix them.
NO_OPTION = {"model_name", "vocab_size", "compute_type", "chat", "max_prompt_chars", "max_prompt_tokens"}


@pytest.mark.parametrize("settings", [ServerSettings, DialectSettings, Limits, NativeOptions])
def test_every_setting_is_an_option(settings: Any) -> None:
    for field in dataclasses.fields(settings):
        if field.name not in NO_OPTION:
            option = BY_NAME[field.name]
            assert field.default == option.default, f"{field.name} has two defaults"


@pytest.mark.parametrize("make", [assemble.server_settings, assemble.wire_settings, assemble.limits])
def test_every_option_arrives(make: Any) -> None:
    before = make(Options())
    for field in dataclasses.fields(before):
        if field.name in NO_OPTION:
            continue
        option = BY_NAME[field.name]
        value = next((word for word in option.kind.choices if word != option.default), None)
        if value is None:
            value = (not option.default) if isinstance(option.default, bool) else 77
        after = make(dataclasses.replace(Options(), **{field.name: value}))
        assert getattr(after, field.name) == value


@pytest.mark.parametrize(
    ("engine", "given"),
    [
        ("vllm", {"threads": 2}),
        ("vllm", {"isa": "scalar"}),
        ("vllm", {"activations": "int16"}),
        ("vllm", {"speculate": 0}),
        ("vllm", {"quantize": "int4"}),
        ("native", {"vllm_arg": ("tensor-parallel-size=2",)}),
    ],
)
async def test_an_option_of_the_other_engine_is_refused(engine: str, given: dict[str, Any]) -> None:
    options = dataclasses.replace(Options(), model="/nowhere", engine=engine, **given)
    (name,) = given
    with pytest.raises(ModelError, match=f"^{name}: .*engine {engine} was chosen"):
        await assemble.load(options)
    with pytest.raises(ModelError, match="nowhere"):  # `auto` takes both kinds, and looks for the model
        await assemble.load(dataclasses.replace(options, engine="auto"))


def test_options_reach_vllm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[vllm.VllmOptions] = []
    monkeypatch.setattr(vllm, "VllmEngine", lambda model, options, vocabulary: made.append(options))
    files: Any = SimpleNamespace(kind="safetensors", name="m", paths=[tmp_path / "model.safetensors"])
    given: dict[str, Any] = {
        "max_seq_len": 2048,
        "kv_memory": 1 << 30,
        "max_batch_size": 7,
        "max_batch_tokens": 4096,
        "prefix_cache": False,
        "max_lora_rank": 8,
    }
    tokenizer: Any = None
    for options in (Options(), Options(**given, vllm_arg=("max-loras=3", "dtype=float16"))):
        assemble._vllm(options, files, tokenizer)
    assert made == [vllm.VllmOptions(), vllm.VllmOptions(**given, arguments=(("dtype", "float16"),), max_loras=3)]


async def test_sampling_defaults_come_from_both_files_of_a_model(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1}, []))
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 64, "top_k": 50, "temperature": 0.1}')
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.6}')
    served = await assemble.load(Options(model=str(tmp_path), engine="echo"))
    assert served.defaults == ModelDefaults(temperature=0.6, weights_top_k=50)
    served = await assemble.load(Options(model=str(tmp_path), engine="echo", ignore_generation_config=True))
    assert served.defaults == ModelDefaults()


def test_lenient_ranges_let_longer_prompts_through_the_service_too() -> None:
    """The dialects would take them; a limit of the service's own must not refuse them after all."""
    assert assemble.limits(Options()).max_prompt_chars == Limits().max_prompt_chars == 4_194_304
    assert assemble.limits(Options(lenient_ranges=True)).max_prompt_chars == 41_943_040


def test_sampling_options_switch_sampling_on() -> None:
    assert not request_of(Options(), "x").sampling.do_sample
    assert not request_of(Options(repetition_penalty=1.2), "x").sampling.do_sample
    assert not request_of(Options(temperature=0), "x").sampling.do_sample
    greedy = request_of(Options(temperature=0.0, top_k=3, top_p=0.5, typical_p=0.5, seed=7, stop=("a",)), "x")
    assert greedy == request_of(Options(stop=("a",)), "x"), "0 wins, as on the routes that take it"
    for chosen in ({"seed": 0}, {"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.5}, {"typical_p": 0.5}):
        assert request_of(Options(**chosen), "x").sampling.do_sample  # type: ignore[arg-type]
