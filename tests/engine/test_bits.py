"""The same bits, whatever the company: tiers, threads, chunks, neighbours, cache and preemption (compared with ==)."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from native_runner import F32, Runner, load, load_folder
from tiny_models import VARIANTS, TinyModel, write_tiny_model

from interlingua.engine.native._native import KV_BLOCK, kernel_names
from interlingua.engine.native.load import LoadedModel
from interlingua.engine.native.tiers import EMULATED
from interlingua.hub.files import ModelFiles

LENGTH = 300  # crosses a boundary of KV blocks and of attention's blocks of 256


def random_ids(seed: int, count: int, vocab: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(3, vocab) for _ in range(count)]


LONG = {"max_position_embeddings": 4096, "head_dim": 64, "num_attention_heads": 6, "num_key_value_heads": 2}
NUMERICS = {
    "int8": {"activations": "int8"},
    "int16": {"activations": "int16"},
    "bf16": {"quantize": "none"},
    "int8 with int8 KV": {"activations": "int8", "kv_cache_dtype": "int8"},
}


@pytest.fixture(scope="module", params=list(NUMERICS))
def numerics(request: pytest.FixtureRequest) -> dict[str, str]:
    return NUMERICS[request.param]


@pytest.fixture(scope="module")
def best(demo_files: ModelFiles, numerics: dict[str, str]) -> LoadedModel:
    return load(demo_files, threads=2, **numerics)


@pytest.fixture(scope="module")
def alone(best: LoadedModel) -> tuple[list[int], F32]:
    """A sequence and its logits, computed alone in one chunk on the best tier with two threads."""
    ids = random_ids(1, LENGTH, 40000)
    return ids, Runner(best).sequence(ids)


def test_chunks(best: LoadedModel, alone: tuple[list[int], F32]) -> None:
    ids, expected = alone
    runner = Runner(best)
    for chunk in (16, 1, 256):
        count = 24 if chunk == 1 else LENGTH
        assert np.array_equal(runner.sequence(ids[:count], chunk), expected[:count]), f"chunks of {chunk}"


def test_neighbours(best: LoadedModel, alone: tuple[list[int], F32]) -> None:
    """Alone, and among 31 others of random lengths, in prefill and in decode."""
    ids, expected = alone
    runner = Runner(best)
    draw = random.Random(2)
    others = [random_ids(10 + i, draw.randrange(2, 60), 40000) for i in range(31)]
    blocks = [runner.blocks(len(other) + 8) for other in others]
    mine = runner.blocks(LENGTH)
    prompt = LENGTH - 4
    work = [(other, 0, b) for other, b in zip(others, blocks, strict=True)]
    results = runner.step([*work[:17], (ids[:prompt], 0, mine), *work[17:]])
    assert np.array_equal(results[17], expected[:prompt])
    for position in range(prompt, LENGTH):  # decode with 31 decoding neighbours
        step = [([7], len(other) + position - prompt, b) for other, b in zip(others, blocks, strict=True)]
        results = runner.step([*step[:5], ([ids[position]], position, mine), *step[5:]])
        assert np.array_equal(results[5][0], expected[position])


@pytest.mark.parametrize("tier", [name for name in kernel_names() if name != "scalar"])
@pytest.mark.parametrize("threads", [1, 2])
def test_tiers_and_threads(
    demo_files: ModelFiles, numerics: dict[str, str], alone: tuple[list[int], F32], tier: str, threads: int
) -> None:
    loaded = load(demo_files, isa=tier, threads=threads, **numerics)
    assert loaded.model.kernels == tier, "the tier that was asked for must be the one that runs"
    assert loaded.model.threads == threads
    ids, expected = alone
    count = LENGTH if threads == 2 and tier != "avx2" else 40
    runner = Runner(loaded)
    blocks = runner.blocks(LENGTH)
    got = runner.step([(ids[:count], 0, blocks)])[0]
    assert np.array_equal(got, expected[:count])
    one = runner.step([(ids[count - 1 : count], count - 1, blocks)])[0]  # few rows take another path
    assert np.array_equal(one, expected[count - 1 : count])


@pytest.mark.parametrize("tier", [name for name in kernel_names() if name not in ("scalar", EMULATED)])
def test_every_number_of_rows(
    demo_files: ModelFiles, numerics: dict[str, str], alone: tuple[list[int], F32], tier: str
) -> None:
    """Kernels take rows and blocks in passes of many sizes, threads in parts: each size gives the bits of any other."""
    ids, expected = alone
    runner = Runner(load(demo_files, isa=tier, threads=3, **numerics))
    blocks = runner.blocks(LENGTH)
    for count in (*range(1, 24), 31, 33, 70):
        assert np.array_equal(runner.step([(ids[:count], 0, blocks)])[0], expected[:count]), f"{count} rows"


def test_scalar_reference(tmp_path: Path) -> None:
    """The reference tier, on models small enough for it: every weight kind and numerics, with biases and windows."""
    print(f"tiers that ran: {', '.join(kernel_names())}")
    for variant in ("biases", "sliding_window", "gqa_tied"):
        folder = write_tiny_model(variant, tmp_path / variant)
        for quantize in ("auto", "int8", "int4"):
            for activations, kv in (("int8", "fp16"), ("int16", "fp16"), ("int8", "int8")):
                ids = random_ids(5, 70, 90)
                options = {"quantize": quantize, "activations": activations, "kv_cache_dtype": kv}
                results = [Runner(load_folder(folder, isa=tier, **options)).sequence(ids) for tier in kernel_names()]
                for tier, result in zip(kernel_names(), results, strict=True):
                    assert np.array_equal(result, results[0]), f"{variant} {options}: {tier}"


@pytest.mark.parametrize("kv", ["fp16", "int8"])
@pytest.mark.parametrize("window", [None, 700])
def test_long_context_over_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kv: str, window: int | None
) -> None:
    """What few queries see is shared out: the bits of one thread, also for a draft's rows across blocks."""
    mistral = {"sliding_window": window, "architectures": ["MistralForCausalLM"]} if window else {}
    monkeypatch.setitem(VARIANTS, "long", TinyModel({**LONG, **mistral}))
    folder = write_tiny_model("long", tmp_path)
    ids = random_ids(8, 2310, 90)
    runners = [Runner(load_folder(folder, threads=threads, kv_cache_dtype=kv)) for threads in (1, 2, 5)]
    results = []
    for runner in runners:
        blocks = runner.blocks(len(ids))
        steps = [(0, 1024), (1024, 2044), (2044, 2045), (2045, 2052), (2052, 2300), (2300, 2301)]
        results.append(np.concatenate([runner.step([(ids[a:b], a, blocks)])[0] for a, b in steps]))
        spread = runner.model.threads > 1
        assert runner.model.merged_queries == (LONG["num_attention_heads"] if spread else 0), "the last row's"
    assert np.array_equal(results[1], results[0])
    assert np.array_equal(results[2], results[0])


def test_parts_of_groups_and_of_spread_contexts_have_one_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six sequences over blocks of their own and six in a group: either would fit into 64 MiB, and both do not."""
    context, rows, bound = 1 << 16, 16, 16 << 20
    monkeypatch.setitem(VARIANTS, "long", TinyModel({**LONG, "max_position_embeddings": context}))
    folder = write_tiny_model("long", tmp_path)
    ids, first = random_ids(9, rows, 90), context - rows
    results, merged = [], []
    for threads in (1, 32):
        runner = Runner(load_folder(folder, threads=threads))
        (common,), shared = runner.blocks(1), runner.blocks(1)
        # What lies before is one block of zeros, over and over.
        tables = [
            [*begin, *[common] * (context // KV_BLOCK - 2), *runner.blocks(1)]
            for begin in (*(runner.blocks(1) for _ in range(6)), *[shared] * 6)
        ]
        results.append(runner.step([(ids, first, table) for table in tables]))
        merged.append(runner.model.merged_queries)
    queries = rows * LONG["num_attention_heads"]
    floats = context // 256 * (16 + LONG["head_dim"])  # of a query
    assert merged == [6 * queries, 8 * queries], "the group, and who else has room"
    assert 8 * queries * floats <= bound < 9 * queries * floats
    assert np.array_equal(results[0], results[1])


@pytest.mark.parametrize("kv", ["fp16", "int8"])
def test_shared_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kv: str) -> None:
    """Sequences that decode from the same KV blocks go together over them: as each alone, over blocks of its own."""
    monkeypatch.setitem(VARIANTS, "long", TinyModel(LONG))
    folder = write_tiny_model("long", tmp_path)
    for tier in kernel_names():
        check_shared_blocks(load_folder(folder, isa=tier, kv_cache_dtype=kv))


def check_shared_blocks(loaded: LoadedModel) -> None:
    runner = Runner(loaded)
    prefix, other = random_ids(20, 544, 90), random_ids(21, 300, 90)
    shared = runner.blocks(len(prefix))
    runner.step([(prefix, 0, shared)], last_only=True)
    tails = [random_ids(30 + i, 5 + 40 * i, 90) for i in range(5)]
    tables = [shared + runner.blocks(len(tail)) for tail in tails]
    tables[4][16:17] = runner.blocks(1)  # the last block of the prefix is this one's own
    runner.step([(prefix[512:], 512, tables[4])], last_only=True)
    alone = runner.blocks(len(other))
    runner.step([(tail[:-4], len(prefix), table) for tail, table in zip(tails, tables, strict=True)], last_only=True)
    runner.step([(other[:-1], 0, alone)], last_only=True)
    # One row each, and of one sequence four, as drafts are; a chunk of a prompt and a stranger beside them.
    rows = [1, 4, 1, 1, 1]
    decode = [
        (t[-4 : len(t) - 4 + n], len(prefix) + len(t) - 4, table)
        for t, table, n in zip(tails, tables, rows, strict=True)
    ]
    chunk = (random_ids(40, 100, 90), 0, runner.blocks(100))
    together = runner.step([decode[0], chunk, *decode[1:], (other[-1:], len(other) - 1, alone)])
    assert runner.model.merged_queries == sum(rows) * LONG["num_attention_heads"], "those of the group, and no others"
    for tail, count, got in zip(tails, rows, [together[0], *together[2:6]], strict=True):
        ids = prefix + tail[: len(tail) - 4 + count]
        expected = runner.step([(ids, 0, runner.blocks(len(ids)))])[0]
        assert np.array_equal(got, expected[-count:])


@pytest.mark.parametrize("kv", ["fp16", "int8"])
def test_wanted_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kv: str) -> None:
    """The last layer leaves out the rows whose logits nobody wants: the others and all KV are as if it did not."""
    monkeypatch.setitem(VARIANTS, "long", TinyModel(LONG))
    loaded = load_folder(write_tiny_model("long", tmp_path), threads=2, kv_cache_dtype=kv, kv_memory=64 << 20)
    runner = Runner(loaded)
    # What is known, and what comes: two chunks of prompts, a few rows like those of a token and its drafts, and a
    # context that is spread over threads.
    lengths = [(0, 50), (300, 33), (270, 1), (250, 9), (1040, 7)]
    ids = [random_ids(50 + i, before + count, 90) for i, (before, count) in enumerate(lengths)]
    blocks = [runner.blocks(len(i)) for i in ids]
    for known, table, (before, _) in zip(ids, blocks, lengths, strict=True):
        if before:
            runner.step([(known[:before], 0, table)], last_only=True)
    work = [(i[before:], before, table) for i, table, (before, _) in zip(ids, blocks, lengths, strict=True)]
    expected = runner.step(work)
    stored = [runner.kv(table, loaded.config.layers) for table in blocks]
    draw = random.Random(6)
    none: list[list[int]] = [[] for _ in work]
    last = [[count - 1] for _, count in lengths]
    some = [
        [draw.choices(range(count), k=draw.randrange(count + 1)) for _, count in lengths]  # in any order, also twice
        for _ in range(20)
    ]
    for wanted in (none, last, [[], [], [0], [2, 3], []], *some):
        runner.step([(random_ids(70, len(i), 90), before, table) for i, before, table in work])  # other keys and values
        for got, numbers, whole in zip(runner.step(work, wanted=wanted), wanted, expected, strict=True):
            assert np.array_equal(got, whole[numbers]), f"{wanted}"
        for table, kept in zip(blocks, stored, strict=True):
            for layer_block, value in zip(runner.kv(table, loaded.config.layers), kept, strict=True):
                assert np.array_equal(layer_block, value)


@pytest.mark.parametrize("head", [64, 96, 128, 256])
def test_head_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: int) -> None:
    """Both forms of KV on every tier, past a block of attention, with a window that starts within one."""
    window = {"sliding_window": 270, "architectures": ["MistralForCausalLM"]}
    model = TinyModel({"head_dim": head, "max_position_embeddings": 512, **window})
    monkeypatch.setitem(VARIANTS, "head", model)
    folder = write_tiny_model("head", tmp_path)
    ids = random_ids(head, LENGTH, 90)
    for kv in ("fp16", "int8"):
        whole = [Runner(load_folder(folder, isa=tier, kv_cache_dtype=kv)).sequence(ids) for tier in kernel_names()]
        pieces = Runner(load_folder(folder, kv_cache_dtype=kv)).sequence(ids, chunk=37)
        for tier, result in zip([*kernel_names(), "chunks"], [*whole, pieces], strict=True):
            assert np.array_equal(result, whole[0]), f"{kv} KV: {tier}"


@pytest.mark.parametrize("options", [options for name, options in NUMERICS.items() if name != "bf16"])
def test_prefill_equals_decode(demo_files: ModelFiles, options: dict[str, str]) -> None:
    """Prefill of n tokens = prefill of n-k and decode of k, logits and KV, for k = 1..64."""
    loaded = load(demo_files, **options, kv_memory=1 << 30)
    runner = Runner(loaded)
    n = 100
    ids = random_ids(3, n, 40000)
    reference = runner.blocks(n)
    expected = runner.step([(ids, 0, reference)])[0]
    kv = runner.kv(reference, loaded.config.layers)
    tables = [runner.blocks(n) for _ in range(64)]
    # All 64 splits advance side by side: split k has n-k tokens of prefill, then decodes.
    for k, table in zip(range(1, 65), tables, strict=True):
        runner.step([(ids[: n - k], 0, table)], last_only=True)
    for position in range(n - 64, n):
        live = [(k, table) for k, table in zip(range(1, 65), tables, strict=True) if position >= n - k]
        for (k, _), got in zip(live, runner.step([([ids[position]], position, t) for _, t in live]), strict=True):
            assert np.array_equal(got[0], expected[position]), f"k = {k}, position {position}"
    for k, table in zip(range(1, 65), tables, strict=True):
        for ours, theirs in zip(runner.kv(table, loaded.config.layers), kv, strict=True):
            assert np.array_equal(ours, theirs), f"KV differs, k = {k}"
