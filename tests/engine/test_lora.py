"""LoRA: equal to merged weights, the same bits in any company, its own cache keys, and adapters that are wrong."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_runner import F32, Runner, load, load_folder, log_softmax
from tiny_adapters import ALL, ATTENTION, CASES, adapter_weights, module_shapes, write_adapter, write_case
from tiny_models import tiny_prompt, tiny_weights, write_safetensors, write_tiny_model

from interlingua.contract.errors import GenerationError, ModelError, ValidationError
from interlingua.contract.events import EngineEvent, FailedEvent, FinishedEvent, StartedEvent, TokenEvent
from interlingua.contract.request import PreparedRequest, SamplingParams
from interlingua.engine.native._native import KV_BLOCK, LoraAdapter, kernel_names
from interlingua.engine.native.engine import NativeEngine, NativeOptions
from interlingua.engine.native.load import LoadedModel
from interlingua.engine.native.lora import read_adapter
from interlingua.engine.peft import read_config
from interlingua.hub.files import ModelFiles, from_folder

MAX_RANK = 64
GOLDEN = Path(__file__).parents[1] / "data" / "golden"


def adapter_of(loaded: LoadedModel, folder: Path) -> LoraAdapter:
    return read_adapter(folder, loaded.model, loaded.adaptable, MAX_RANK)[0]


def rms(x: F32) -> float:
    return float(np.sqrt(np.mean(np.square(x, dtype=np.float64))))


def merged_logits(tmp_path: Path, variant: str, deltas: dict[str, F32]) -> F32:
    """Of a checkpoint whose weights have the deltas in them, at the variant's prompt."""
    folder = write_tiny_model(variant, tmp_path / "merged")
    weights = tiny_weights(variant)
    for module, delta in deltas.items():
        weights[f"{module}.weight"] = weights[f"{module}.weight"] + delta
    write_safetensors(folder / "model.safetensors", weights, "float32")
    return Runner(load_folder(folder, quantize="none")).sequence(tiny_prompt(variant).tolist())


# --- equal to merged weights -----------------------------------------------------------------------------


@pytest.mark.parametrize("targets", [ALL, ATTENTION, ("q_proj", "v_proj"), ("up_proj",), ("gate_proj", "down_proj")])
@pytest.mark.parametrize("variant", ["mha_untied", "gqa_tied", "mqa_three_heads", "narrow_head", "biases"])
def test_equals_merged_weights(tmp_path: Path, variant: str, targets: tuple[str, ...]) -> None:
    loaded = load_folder(write_tiny_model(variant, tmp_path / "base"), quantize="none")
    weights = adapter_weights(module_shapes(loaded.config, targets), rank=8)
    adapter = adapter_of(loaded, write_adapter(tmp_path / "adapter", weights, lora_alpha=16))
    ids = tiny_prompt(variant).tolist()
    base = Runner(loaded).sequence(ids)
    merged = merged_logits(tmp_path, variant, {module: 2 * (b @ a) for module, (a, b) in weights.items()})
    ours = Runner(loaded).sequence(ids, adapter=adapter)
    change, error = rms(merged - base), rms(ours - merged)
    assert change > 0.05 * rms(base), "an adapter that changes nothing proves nothing"
    # bf16 keeps 8 bits: the merged weights are rounded once, ours in A, B and A x. Both are 2^-9 away at most.
    assert error < 0.02 * rms(merged), (error, change)
    assert error < 0.15 * change, (error, change)


@pytest.mark.parametrize("name", CASES)
def test_as_peft_does_it(tmp_path: Path, name: str) -> None:
    """Modules, ranks, scales and logits are PEFT's (scripts/golden/make_adapters.py)."""
    golden = np.load(GOLDEN / "adapters.npz")
    variant, folder = CASES[name].variant, write_case(name, tmp_path / "adapter")
    loaded = load_folder(write_tiny_model(variant, tmp_path / "base"), quantize="none")
    config = read_config(folder, MAX_RANK)
    known = [part.module for linear in loaded.adaptable for part in linear.parts]
    theirs = {
        module: (rank, scale)
        for module, rank, scale in zip(
            *(golden[f"{name}.{key}"].tolist() for key in ("modules", "ranks", "scales")), strict=True
        )
    }
    ours = {module: (config.rank_of(module), config.scale_of(module)) for module in known if config.changes(module)}
    assert ours == theirs
    ids = tiny_prompt(variant).tolist()
    expected = log_softmax(golden[f"{name}.logits"])
    got, base = (
        log_softmax(Runner(loaded).sequence(ids, adapter=adapter)) for adapter in (adapter_of(loaded, folder), None)
    )
    kl, change = ((np.exp(expected) * (expected - other)).sum(1).mean() for other in (got, base))
    print(f"{name}: mean KL {kl:.1e}, of the base model {change:.1e}")
    assert kl <= 3e-4 and change > 20 * kl


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("targets", ["all-linear", None])
def test_files_of_every_dtype(tmp_path: Path, dtype: Any, targets: str | None) -> None:
    loaded = load_folder(write_tiny_model("gqa_tied", tmp_path / "base"), quantize="none")
    weights = adapter_weights(module_shapes(loaded.config))
    config = {} if targets is None else {"target_modules": targets}
    adapter = adapter_of(loaded, write_adapter(tmp_path / "a", weights, dtype, **config))
    expected = adapter_of(loaded, write_adapter(tmp_path / "b", weights))
    ids = tiny_prompt("gqa_tied").tolist()
    ours, theirs = (Runner(loaded).sequence(ids, adapter=a) for a in (adapter, expected))
    assert rms(ours - theirs) < 0.02 * rms(theirs)
    assert np.array_equal(ours, theirs) == (dtype != "float16")  # rounding to bf16 once or twice is the same


def test_some_layers_alone(tmp_path: Path) -> None:
    loaded = load_folder(write_tiny_model("gqa_tied", tmp_path / "base"), quantize="none")
    weights = {k: v for k, v in adapter_weights(module_shapes(loaded.config)).items() if ".layers.1." in k}
    given = {"layers_to_transform": [1], "exclude_modules": ["o_proj"]}
    weights = {k: v for k, v in weights.items() if not k.endswith("o_proj")}
    adapter = adapter_of(loaded, write_adapter(tmp_path / "a", weights, target_modules=list(ALL), **given))
    ids = tiny_prompt("gqa_tied").tolist()
    merged = merged_logits(tmp_path, "gqa_tied", {module: b @ a for module, (a, b) in weights.items()})
    assert rms(Runner(loaded).sequence(ids, adapter=adapter) - merged) < 0.02 * rms(merged)


# --- the same bits, whatever the company -----------------------------------------------------------------


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory, demo: LoadedModel) -> list[Path]:
    """For the demo model: ranks 16, 16, 64 and 5, on all linear layers or some."""
    folder = tmp_path_factory.mktemp("adapters")
    kinds = [(16, ALL), (16, ATTENTION), (64, ("q_proj", "v_proj", "down_proj")), (5, ("gate_proj", "k_proj"))]
    return [
        write_adapter(folder / str(i), adapter_weights(module_shapes(demo.config, targets), f"demo {i}", rank))
        for i, (rank, targets) in enumerate(kinds)
    ]


@pytest.fixture(scope="module")
def demo(demo_files: ModelFiles) -> LoadedModel:
    return load(demo_files, threads=2)


def random_ids(seed: int, count: int) -> list[int]:
    return np.random.Generator(np.random.PCG64(seed)).integers(3, 40000, count).tolist()


def test_many_adapters_in_one_batch(demo: LoadedModel, adapters: list[Path]) -> None:
    """32 sequences over four adapters and the base, mixed, in prefill and decode: each as alone, in any chunks."""
    loras = [adapter_of(demo, folder) for folder in adapters]
    chosen = [None if row % 5 == 4 else loras[row % 5] for row in range(32)]
    prompts = [random_ids(row, 3 + row % 7 * 5) for row in range(32)]
    runner = Runner(demo)
    blocks = [runner.blocks(len(prompt) + 3) for prompt in prompts]
    work = [(p, 0, b) for p, b in zip(prompts, blocks, strict=True)]
    together = runner.step(work, adapters=chosen)
    for row, got in enumerate(
        runner.step(work, adapters=chosen, last_only=True)
    ):  # the last layer computes these alone
        assert np.array_equal(got, together[row][-1:]), f"row {row} without its prompt's other rows"
    steps = [
        runner.step([([9 + i], len(p) + i, b) for p, b in zip(prompts, blocks, strict=True)], adapters=chosen)
        for i in range(3)
    ]
    for row in (0, 1, 2, 3, 4, 17, 31):
        expected = np.concatenate([together[row], *(step[row] for step in steps)])
        ids = [*prompts[row], 9, 10, 11]
        assert np.array_equal(runner.sequence(ids, adapter=chosen[row]), expected), f"row {row} alone"
        assert np.array_equal(runner.sequence(ids, 5, adapter=chosen[row]), expected), f"row {row} in chunks"
        if chosen[row] is not None:
            assert rms(runner.sequence(ids) - expected) > 0.04 * rms(expected), "the adapter must change something"
    long = random_ids(99, 70)  # several tiles of one adapter
    expected = runner.sequence(long, adapter=loras[0])
    assert np.array_equal(runner.sequence(long, 16, adapter=loras[0]), expected)


@pytest.mark.parametrize("activations", ["int8", "int16"])
@pytest.mark.parametrize("tier", [name for name in kernel_names() if name != "scalar"])
def test_tiers_and_threads(demo_files: ModelFiles, adapters: list[Path], activations: str, tier: str) -> None:
    ids = random_ids(7, 20)
    results = []
    for isa, threads in ((None, 2), (tier, 1)):
        loaded = load(demo_files, isa=isa, threads=threads, activations=activations)
        runner = Runner(loaded)
        loras = [adapter_of(loaded, folder) for folder in adapters]
        work = [(ids[: 4 * i + 4], 0, runner.blocks(20)) for i in range(4)]
        results.append(np.concatenate(runner.step(work, adapters=loras)))
    assert np.array_equal(*results)


def test_scalar_reference(tmp_path: Path) -> None:
    """The reference tier, on models small enough for it, over every form of base weights."""
    for variant in ("biases", "mqa_three_heads"):
        folder = write_tiny_model(variant, tmp_path / variant)
        for quantize in ("none", "int8", "int4"):
            results = []
            for tier in kernel_names():
                loaded = load_folder(folder, isa=tier, quantize=quantize)
                shapes = module_shapes(loaded.config)
                loras = [
                    adapter_of(loaded, write_adapter(tmp_path / f"{r}", adapter_weights(shapes, f"{r}", r)))
                    for r in (4, 33)
                ]
                runner = Runner(loaded)
                ids = [tiny_prompt(variant, 20).tolist(), tiny_prompt(variant, 3).tolist()]
                results.append(np.concatenate(runner.step([(i, 0, runner.blocks(32)) for i in ids], adapters=loras)))
            for tier, result in zip(kernel_names(), results, strict=True):
                assert np.array_equal(result, results[0]), f"{variant} {quantize}: {tier}"


# --- in the engine ---------------------------------------------------------------------------------------


def prepared(
    engine: NativeEngine, adapter: str | None, count: int = 40, new: int = 12, seed: int = 1
) -> PreparedRequest:
    draw = np.random.Generator(np.random.PCG64(seed))
    return PreparedRequest(
        request_id="r",
        prompt_ids=tuple(draw.integers(3, engine.info.vocab_size, count).tolist()),
        max_new_tokens=new,
        sampling=SamplingParams(),
        stop_token_ids=frozenset(),
        adapter=None if adapter is None else engine.adapters[adapter],
    )


async def told(engine: NativeEngine, request: PreparedRequest) -> list[EngineEvent]:
    return [event async for event in engine.generate(request)]


async def answer(engine: NativeEngine, adapter: str | None, **given: int) -> tuple[list[tuple[int, float]], int]:
    """(tokens and logprobs, prompt tokens that came from the cache)."""
    events = await told(engine, prepared(engine, adapter, **given))
    assert isinstance(events[0], StartedEvent) and isinstance(events[-1], FinishedEvent)
    tokens = [(event.token_id, event.logprob) for event in events if isinstance(event, TokenEvent)]
    return tokens, events[0].cached_tokens


@pytest.fixture
async def engine(tmp_path: Path) -> Any:
    files = from_folder(write_tiny_model("gqa_tied", tmp_path / "base"), "tiny")
    made = NativeEngine(files, NativeOptions(threads=1, kv_memory=1 << 20))
    await made.start()
    yield made
    await made.stop()


def tiny_adapter(engine: NativeEngine, folder: Path, key: str, **config: Any) -> str:
    assert engine._loaded is not None
    shapes = module_shapes(engine._loaded.config)
    return str(write_adapter(folder / key, adapter_weights(shapes, key, strength=1.0), **config))


async def test_cache_keys_tell_adapters_and_versions_apart(engine: NativeEngine, tmp_path: Path) -> None:
    path = tiny_adapter(engine, tmp_path, "one")
    await engine.load_adapter("one", path)
    await engine.load_adapter("two", tiny_adapter(engine, tmp_path, "two"))
    first = {name: await answer(engine, name) for name in (None, "one", "two")}
    assert [cached for _, cached in first.values()] == [0, 0, 0]
    assert len({tuple(tokens) for tokens, _ in first.values()}) == 3
    for name, (tokens, _) in first.items():  # the same again comes from the cache and is the same
        assert await answer(engine, name) == (tokens, 32)
    await engine.load_adapter("one", path)
    assert await answer(engine, "one") == (first["one"][0], 0), "a new version has keys of its own"
    await engine.unload_adapter("two")
    await engine.load_adapter("two", path)
    assert await answer(engine, "two") == (first["one"][0], 0)


async def test_unload_and_reload_while_requests_run(engine: NativeEngine, tmp_path: Path) -> None:
    await engine.load_adapter("one", tiny_adapter(engine, tmp_path, "one"))
    expected = await answer(engine, "one", new=100)
    base = await answer(engine, None, new=100)
    old = prepared(engine, "one", new=100)
    running = engine.generate(old)
    events = [await anext(running) for _ in range(3)]
    queued = asyncio.ensure_future(told(engine, old))
    await asyncio.sleep(0)  # it has asked: it may end
    await engine.unload_adapter("one")
    (refused,) = await told(engine, old)
    assert isinstance(refused, FailedEvent) and isinstance(refused.error, ValidationError)
    assert refused.error.field == "adapter_id"
    await engine.load_adapter("one", tiny_adapter(engine, tmp_path, "other"))
    (refused,) = await told(engine, old)
    assert isinstance(refused, FailedEvent), "an old version is not the new one of its name"
    others = await asyncio.gather(answer(engine, None, new=100), answer(engine, "one", new=100))
    events += [event async for event in running]
    for got in (events, await queued):
        tokens = [(event.token_id, event.logprob) for event in got if isinstance(event, TokenEvent)]
        assert tokens == expected[0]
    assert others[0][0] == base[0] and others[1][0] not in (base[0], expected[0])


async def test_preemption_and_drafts_are_invisible(engine: NativeEngine, tmp_path: Path) -> None:
    """Many long answers over two adapters and the base, in a pool that holds few of them, each as it was alone."""
    for name in ("one", "two"):
        await engine.load_adapter(name, tiny_adapter(engine, tmp_path, name))
    names = [None, "one", "two"] * 4
    alone = [(await answer(engine, name, new=100, seed=seed))[0] for seed, name in enumerate(names)]
    assert engine.stats().preemptions_total == 0
    block = 2 * 2 * 32 * 2 * 2 * KV_BLOCK  # layers, kv heads, padded head, k and v, fp16
    files = from_folder(tmp_path / "base", "tiny")
    small = NativeEngine(files, NativeOptions(threads=2, kv_memory=8 * block))
    await small.start()
    try:
        for name in ("one", "two"):
            await small.load_adapter(name, str(tmp_path / name))
        calls = (answer(small, name, new=100, seed=seed) for seed, name in enumerate(names))
        together = await asyncio.wait_for(asyncio.gather(*calls), 60)
        assert small.stats().preemptions_total > 0
    finally:
        await small.stop()
    assert [tokens for tokens, _ in together] == alone


async def test_unloaded_memory_is_freed_with_the_last_request(engine: NativeEngine, tmp_path: Path) -> None:
    await engine.load_adapter("one", tiny_adapter(engine, tmp_path, "one"))
    running = engine.generate(prepared(engine, "one", new=100))
    await anext(running)

    def alive() -> int:
        gc.collect()
        return sum(isinstance(thing, LoraAdapter) for thing in _reachable())

    await engine.unload_adapter("one")
    assert alive() == 1
    async for _ in running:
        pass
    del running
    for _ in range(200):  # the engine's thread drops the sequence right after it has handed the end over
        if not alive():
            break
        await asyncio.sleep(0.01)
    assert alive() == 0


def _reachable() -> list[object]:
    from interlingua.engine.native.lora import Lora

    return [thing.native for thing in gc.get_objects() if isinstance(thing, Lora)]


async def test_an_adapter_that_overflows_ends_its_own_requests_alone(engine: NativeEngine, tmp_path: Path) -> None:
    assert engine._loaded is not None
    shapes = module_shapes(engine._loaded.config)
    huge = {module: (a * np.float32(1e30), b * np.float32(1e30)) for module, (a, b) in adapter_weights(shapes).items()}
    await engine.load_adapter("huge", str(write_adapter(tmp_path / "huge", huge)))
    expected = await answer(engine, None, seed=3)
    events, base = await asyncio.gather(told(engine, prepared(engine, "huge")), answer(engine, None, seed=4))
    assert len(events) == 1 and isinstance(events[0], FailedEvent) and isinstance(events[0].error, GenerationError)
    assert len(base[0]) == 12
    assert (await answer(engine, None, seed=3))[0] == expected[0]
    await engine.unload_adapter("huge")


@pytest.mark.parametrize("kv", ["fp16", "int8"])
@pytest.mark.parametrize("tier", kernel_names())
def test_what_overflowed_does_not_outlive_its_request(tmp_path: Path, kv: str, tier: str) -> None:
    """Blocks are not cleared between owners: what an infinite value leaves behind must weigh nothing with the next."""
    loaded = load_folder(write_tiny_model("gqa_tied", tmp_path / "base"), isa=tier, kv_cache_dtype=kv)
    shapes = module_shapes(loaded.config, ["v_proj"])
    huge = {
        module: (a * np.float32(1e30), np.full_like(b, 1e30))
        for module, (a, b) in adapter_weights(shapes, rank=1).items()
    }
    adapter = adapter_of(loaded, write_adapter(tmp_path / "huge", huge))
    runner, ids = Runner(loaded), tiny_prompt("gqa_tied").tolist()[:KV_BLOCK]
    few = ids[: KV_BLOCK // 2]  # what lies behind them in the block is as it was left
    expected, blocks = runner.sequence(few), runner.blocks(len(ids))
    assert not np.array_equal(runner.step([(ids, 0, blocks)], adapters=[adapter])[0][: len(few)], expected)
    assert np.array_equal(runner.step([(few, 0, blocks)])[0], expected)


# --- adapters that are wrong -----------------------------------------------------------------------------

Spoil = Callable[[Path, dict[str, tuple[F32, F32]]], None]


def config_with(**values: Any) -> Spoil:
    def spoil(folder: Path, weights: dict[str, tuple[F32, F32]]) -> None:
        write_adapter(folder, weights, **values)

    return spoil


def weights_with(change: Callable[[dict[str, tuple[F32, F32]]], None], **values: Any) -> Spoil:
    def spoil(folder: Path, weights: dict[str, tuple[F32, F32]]) -> None:
        change(weights)
        write_adapter(folder, weights, **{"r": 8, "lora_alpha": 8, "target_modules": list(ALL), **values})

    return spoil


def file_with(change: Callable[[bytes], bytes], name: str = "adapter_model.safetensors") -> Spoil:
    def spoil(folder: Path, weights: dict[str, tuple[F32, F32]]) -> None:
        path = write_adapter(folder, weights) / name
        path.write_bytes(change(path.read_bytes()))

    return spoil


def without(name: str) -> Spoil:
    def spoil(folder: Path, weights: dict[str, tuple[F32, F32]]) -> None:
        (write_adapter(folder, weights) / name).unlink()

    return spoil


Q0 = "model.layers.0.self_attn.q_proj"


def _set(module: str, a: Callable[[F32], F32] = lambda a: a, b: Callable[[F32], F32] = lambda b: b) -> Any:
    def change(weights: dict[str, tuple[F32, F32]]) -> None:
        weights[module] = a(weights[module][0]), b(weights[module][1])

    return change


def _nan(values: F32) -> F32:
    values = values.copy()
    values[-1, -1] = np.nan
    return values


WRONG: dict[str, tuple[Spoil, str]] = {
    "no config": (without("adapter_config.json"), "is no PEFT adapter"),
    "no weights": (without("adapter_model.safetensors"), "is missing"),
    "config no JSON": (file_with(lambda _: b"{", "adapter_config.json"), "cannot be read as JSON"),
    "config a list": (file_with(lambda _: b"[]", "adapter_config.json"), "must hold a JSON object"),
    "config huge": (file_with(lambda _: b" " * (2 << 20), "adapter_config.json"), "has over"),
    "another kind": (config_with(peft_type="LOHA"), "`peft_type` must be LORA, got 'LOHA'"),
    "DoRA": (config_with(use_dora=True), "`use_dora` is not supported"),
    "saved modules": (config_with(modules_to_save=["lm_head"]), "`modules_to_save` is not supported"),
    "bias": (config_with(bias="all"), '`bias` must be "none"'),
    "lora bias": (config_with(lora_bias=True), "`lora_bias` is not supported"),
    "transposed": (config_with(fan_in_fan_out=True), "`fan_in_fan_out` is not supported"),
    "PiSSA": (config_with(init_lora_weights="pissa_niter_4"), "changes the base weights"),
    "rank 0": (config_with(r=0), "`r` must be an integer from 1 to 64, got 0"),
    "rank a text": (config_with(r="8"), "`r` must be an integer"),
    "rank too high": (config_with(r=65), "`r` must be at most 64 (--max-lora-rank), got 65"),
    "rank of a pattern too high": (
        config_with(rank_pattern={"q_proj": 9999}),
        "`rank_pattern.q_proj` must be at most 64",
    ),
    "rank unlike the file": (config_with(r=16), "has shape (8, 64); model and configuration say (16, 64)"),
    "alpha not finite": (config_with(lora_alpha=1e9), "`lora_alpha` must be a number"),
    "no alpha": (config_with(lora_alpha=None), "`lora_alpha` must be a number"),
    "scale overflows": (
        weights_with(_set(Q0, b=lambda b: b * np.float32(1e32)), lora_alpha=9e8),
        "holds values that are not finite, scale included",
    ),
    "no targets": (config_with(target_modules=[]), "`target_modules` must name modules"),
    "targets a number": (config_with(target_modules=3), "`target_modules` must be a text or a list"),
    "pattern broken": (config_with(target_modules="(q_proj"), "`target_modules` must be a regular expression"),
    "pattern of doom": (config_with(target_modules="(a+)+$"), "repeats, none of a group"),
    "pattern of doom in ranks": (config_with(rank_pattern={"(.*)*x": 4}), "`rank_pattern` must be a pattern"),
    "too many repeats": (config_with(target_modules=".*.*.*.*.*.*x"), "5 repeats"),
    "repeats in a rank's pattern": (config_with(rank_pattern={".*.*.*.*x": 4}), "3 repeats"),
    "pattern that breaks inside": (config_with(rank_pattern={"(?i)q_proj": 4}), "`rank_pattern` must be a regular"),
    "layers pattern broken": (config_with(layers_pattern="(", layers_to_transform=1), "`layers_pattern` must be"),
    "layers pattern no text": (config_with(layers_pattern=[3], layers_to_transform=1), "`layers_pattern` must be"),
    "layers pattern an object": (
        config_with(layers_pattern={"a": 1}, layers_to_transform=[1]),
        "`layers_pattern` must",
    ),
    "layers no numbers": (config_with(layers_to_transform=["1"]), "`layers_to_transform` must hold numbers"),
    "too many patterns": (config_with(rank_pattern={f"m{i}": 4 for i in range(4097)}), "at most 4096 patterns"),
    "too many slow patterns": (config_with(alpha_pattern={f".*{i}": 4 for i in range(65)}), "64 of them with repeats"),
    "the slowest good pattern": (config_with(target_modules=".*.*.*.*.*x"), "targets no linear layer"),
    "targets the head": (
        weights_with(lambda w: w.update(lm_head=w[Q0]), target_modules=[*ALL, "lm_head"]),
        "tensor base_model.model.lm_head.lora_A.weight is no LoRA matrix of a linear layer",
    ),
    "targets nothing here": (
        weights_with(
            lambda w: w.clear() or w.update({"model.layers.0.attn.qkv": (np.zeros((8, 64), np.float32),) * 2})
        ),
        "is no LoRA matrix of a linear layer",
    ),
    "a layer too many": (
        weights_with(lambda w: w.update({"model.layers.2.self_attn.q_proj": w[Q0]})),
        "is no LoRA matrix of a linear layer",
    ),
    "not targeted": (config_with(target_modules=["q_proj"]), "belongs to no module that the configuration targets"),
    "missing module": (weights_with(lambda w: w.pop(Q0) and None), f"tensor {Q0}.lora_A.weight is missing"),
    "wrong inputs": (weights_with(_set(Q0, a=lambda a: a[:, :32])), f"tensor {Q0}.lora_A.weight has shape (8, 32)"),
    "wrong outputs": (weights_with(_set(Q0, b=lambda b: b[:32])), f"tensor {Q0}.lora_B.weight has shape (32, 8)"),
    "swapped": (weights_with(_set(Q0, a=lambda a: a.T)), "has shape (64, 8)"),
    "a vector": (weights_with(_set(Q0, a=lambda a: a[0])), "has shape (64,)"),
    "NaN in A": (weights_with(_set(Q0, a=_nan)), f"{Q0}.lora_A.weight holds values that are not finite"),
    "NaN in B": (weights_with(_set(Q0, b=_nan)), f"{Q0}.lora_B.weight holds values that are not finite"),
    "infinity": (weights_with(_set(Q0, a=lambda a: a + np.float32(np.inf))), "holds values that are not finite"),
    "cut short": (file_with(lambda data: data[:-100]), "reaches past the end of the file"),
    "cut in the header": (file_with(lambda data: data[:100]), "not a whole safetensors file"),
    "empty": (file_with(lambda _: b""), "not a whole safetensors file"),
    "header length huge": (file_with(lambda data: b"\xff" * 8 + data[8:]), "not a whole safetensors file"),
    "header noise": (file_with(lambda data: data[:8] + b"\x00" * 64 + data[72:]), "not a whole safetensors file"),
    "negative offsets": (file_with(lambda data: data.replace(b"[0, ", b"[-1,", 1)), "safetensors file|past the end"),
    "unknown dtype": (file_with(lambda data: data.replace(b'"F32"', b'"F99"')), "has dtype F99"),
    "file far too large": (file_with(lambda data: data + bytes(20 << 20)), "at most"),
}


@pytest.mark.parametrize("case", WRONG)
async def test_wrong_adapters_are_refused_in_one_sentence(engine: NativeEngine, tmp_path: Path, case: str) -> None:
    assert engine._loaded is not None
    weights = adapter_weights(module_shapes(engine._loaded.config))
    spoil, says = WRONG[case]
    await engine.load_adapter("kept", str(write_adapter(tmp_path / "good", weights)))
    kept = dict(engine.adapters)
    spoil(tmp_path / "bad", dict(weights))
    with pytest.raises(ModelError) as caught:
        await engine.load_adapter("kept", str(tmp_path / "bad"))
    assert any(part in caught.value.message for part in says.split("|")), caught.value.message
    assert "\n" not in caught.value.message and len(caught.value.message) < 400
    assert dict(engine.adapters) == kept
    assert len((await answer(engine, "kept"))[0]) == 12, "the server goes on"


@pytest.mark.parametrize("path", ["/no/such/folder", "/dev/null", "/etc/passwd"])
async def test_what_is_no_folder_is_refused(engine: NativeEngine, path: str) -> None:
    with pytest.raises(ModelError, match="there is no such folder"):
        await engine.load_adapter("one", path)
    assert not engine.adapters


def test_every_adapter_that_is_written_here_is_good_but_for_its_fault(tmp_path: Path) -> None:
    """The cases above would prove nothing if the adapter under them were refused anyway."""
    loaded = load_folder(write_tiny_model("gqa_tied", tmp_path / "base"))
    weights = adapter_weights(module_shapes(loaded.config))
    for number, spoil in enumerate((config_with(), weights_with(lambda w: None), file_with(lambda data: data))):
        spoil(tmp_path / str(number), dict(weights))
        assert json.loads((tmp_path / str(number) / "adapter_config.json").read_text())["r"] == 8
        assert adapter_of(loaded, tmp_path / str(number)).bytes > 0
