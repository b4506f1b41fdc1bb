"""NUMA: what sysfs says, who runs which task, where memory lies, and the same bits on every topology.

Machines that run tests have one node. Topologies are forced: by files of a folder, or by nodes that do not exist.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from native_runner import F32, Runner, load, load_folder
from tiny_adapters import adapter_weights, module_shapes, write_adapter
from tiny_models import tiny_prompt, write_tiny_model

from interlingua.cli import commands
from interlingua.engine.native import _native
from interlingua.engine.native._native import (
    ActivationKind,
    KvKind,
    Model,
    NumaNode,
    ThreadPool,
    WeightKind,
    allowed_cpus,
    numa_nodes,
)
from interlingua.engine.native.lora import read_adapter
from interlingua.hub.files import ModelFiles

NOWHERE = 1000  # the id of a node that no machine has
HANG = 60.0


def nodes_of(*sizes: int) -> list[NumaNode]:
    """Nodes that get threads in these proportions and leave them on every CPU."""
    cpus = allowed_cpus()
    return [NumaNode(NOWHERE + i, [cpus[at % len(cpus)] for at in range(size)]) for i, size in enumerate(sizes)]


# --- topology --------------------------------------------------------------------------------------------


def sysfs(root: Path, **lists: str) -> str:
    """A folder as Linux has it, with a cpulist for each node."""
    for name, cpus in lists.items():
        (root / name).mkdir(parents=True)
        (root / name / "cpulist").write_text(cpus + "\n")
    (root / "has_cpu").write_text("0\n")
    (root / "power").mkdir()
    return str(root)


@pytest.mark.parametrize(
    ("lists", "allowed", "expected"),
    [
        ({"node0": "0-3"}, range(4), {0: [0, 1, 2, 3]}),
        ({"node0": "0-1", "node1": "2-3"}, range(4), {0: [0, 1], 1: [2, 3]}),
        # Hyper-threads are numbered behind all cores.
        ({"node0": "0-1,4-5", "node1": "2-3,6-7"}, range(8), {0: [0, 1, 4, 5], 1: [2, 3, 6, 7]}),
        ({f"node{i}": f"{2 * i}-{2 * i + 1}" for i in range(4)}, range(8), {i: [2 * i, 2 * i + 1] for i in range(4)}),
        ({"node10": "4-5", "node2": "2-3", "node0": "0-1"}, range(6), {0: [0, 1], 2: [2, 3], 10: [4, 5]}),
        # Offline CPUs are in nobody's mask.
        ({"node0": "0-3", "node1": "4-7"}, [0, 1, 3, 4, 6], {0: [0, 1, 3], 1: [4, 6]}),
        ({"node0": "0-3", "node1": "", "node2": "4-7"}, range(8), {0: [0, 1, 2, 3], 2: [4, 5, 6, 7]}),  # memory alone
        ({"node0": "0-3", "node1": "4-7"}, [5, 6], {1: [5, 6]}),  # the mask leaves a node out
        ({"node0": "0-1023", "node1": "1024-2047"}, [1, 1500], {0: [1], 1: [1500]}),
        ({"node0": "0-1"}, range(4), {}),  # CPUs of no node
        ({"node0": "0-2", "node1": "2-3"}, range(4), {}),  # a CPU of two
        ({"node0": "none", "node1": "0-"}, range(2), {}),
        ({"node": "0-1", "node0x": "0-1", "nodes0": "0-1", "node-1": "0-1"}, range(2), {}),
    ],
)
def test_topology(
    tmp_path: Path, lists: dict[str, str], allowed: range | list[int], expected: dict[int, list[int]]
) -> None:
    nodes = numa_nodes(list(allowed), sysfs(tmp_path, **lists))
    assert [(node.id, node.cpus) for node in nodes] == list(expected.items())


def test_no_sysfs(tmp_path: Path) -> None:
    assert numa_nodes([0, 1], str(tmp_path / "absent")) == []
    (tmp_path / "node0").mkdir()
    assert numa_nodes([0, 1], str(tmp_path)) == []


def test_this_machine() -> None:
    assert allowed_cpus() == sorted(os.sched_getaffinity(0))
    known = Path("/sys/devices/system/node/node0/cpulist").exists()
    assert sorted(cpu for node in numa_nodes(allowed_cpus()) for cpu in node.cpus) == (allowed_cpus() if known else [])


# --- tasks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(), (2,), (1, 1), (3, 1), (1, 1, 1, 1), (5, 2, 1)])
@pytest.mark.parametrize("threads", [1, 2, 3, 8, 9, 20])
def test_every_task_runs_once(sizes: tuple[int, ...], threads: int) -> None:
    pool = ThreadPool(threads, nodes_of(*sizes))
    for count in (0, 1, 2, 3, 7, 100):
        for common in {0, 1, count // 2, count} if count else {0}:
            ran = [0] * count
            workers: set[int] = set()

            def task(i: int, thread: int, ran: list[int] = ran, workers: set[int] = workers) -> None:
                ran[i] += 1
                workers.add(thread)

            pool.run(count, task, common)
            assert ran == [1] * count
            assert workers <= set(range(threads))


@pytest.mark.parametrize("sizes", [(), (1, 1)])
def test_own_share_first(sizes: tuple[int, ...]) -> None:
    """Two threads, on one node or on two: the first task that each takes is the first of its own share."""
    pool = ThreadPool(2, nodes_of(*sizes))
    took: dict[int, list[int]] = {0: [], 1: []}
    both = threading.Barrier(2)

    def task(i: int, thread: int) -> None:
        took[thread].append(i)
        if len(took[thread]) == 1:
            both.wait(HANG)

    pool.run(10, task)
    assert (took[0][0], took[1][0]) == (0, 5)


@pytest.mark.parametrize("sizes", [(), (1, 1)])
@pytest.mark.parametrize("stuck", [0, 1])
def test_helps_the_other(stuck: int, sizes: tuple[int, ...]) -> None:
    """One of two threads stays in its first task until all others are done: the other does them, of both shares."""
    pool = ThreadPool(2, nodes_of(*sizes))
    by: dict[int, int] = {}
    begun, rest = threading.Event(), threading.Event()

    def task(i: int, thread: int) -> None:
        if thread == stuck and not begun.is_set():
            begun.set()
            assert rest.wait(HANG)
        else:
            assert begun.wait(HANG)
        by[i] = thread
        if len(by) == 9:
            rest.set()

    pool.run(10, task)
    assert sorted(by) == list(range(10))
    assert sum(thread == stuck for thread in by.values()) == 1


def test_helps_where_its_node_has_no_share() -> None:
    """Two tasks for three nodes of one thread each: the first, the caller's, has none."""
    pool = ThreadPool(3, nodes_of(1, 1, 1))
    ran: list[int] = []
    for _ in range(1000):  # the others are rarely awake before the caller
        pool.run(2, lambda _, thread: ran.append(thread))
        if 0 in ran:
            break
    assert 0 in ran


@pytest.mark.parametrize("sizes", [(), (1, 1), (1, 1, 1)])
def test_common_tasks_come_first(sizes: tuple[int, ...]) -> None:
    """As many as there are threads, each of which stays in its task until all have one: no other may begin before."""
    pool = ThreadPool(3, nodes_of(*sizes))
    for _ in range(50):
        begun: list[int] = []
        all_begun = threading.Barrier(3)

        def task(i: int, _: int, begun: list[int] = begun, all_begun: threading.Barrier = all_begun) -> None:
            begun.append(i)
            if i < 3:
                all_begun.wait(HANG)

        pool.run(12, task, common=3)
        assert sorted(begun[:3]) == [0, 1, 2]
        assert sorted(begun) == list(range(12))


@pytest.mark.parametrize("bad", [0, 49, 50, 99])
def test_exceptions(bad: int) -> None:
    pool = ThreadPool(3, nodes_of(1, 1, 1))
    for _ in range(20):
        ran: list[int] = []

        def task(i: int, _: int, ran: list[int] = ran) -> None:
            if i == bad:
                raise KeyError(i)
            ran.append(i)

        with pytest.raises(KeyError, match=str(bad)):
            pool.run(100, task)
        assert len(ran) == len(set(ran)) < 100
        whole: list[int] = []
        pool.run(100, lambda i, _, whole=whole: whole.append(i))  # type: ignore[misc]
        assert sorted(whole) == list(range(100))


# --- where threads and memory are ------------------------------------------------------------------------


def masks() -> dict[int, str]:
    """CPUs that each thread of this process may run on."""
    found: dict[int, str] = {}
    for task in Path("/proc/self/task").iterdir():
        lines = (task / "status").read_text().splitlines()
        found[int(task.name)] = next(line for line in lines if line.startswith("Cpus_allowed_list:")).split()[1]
    return found


two_cpus = pytest.mark.skipif(len(allowed_cpus()) < 2, reason="one CPU: nothing to bind a thread to")


@two_cpus
def test_threads_stay_on_their_node() -> None:
    first, second = allowed_cpus()[:2]
    before = masks()
    pool = ThreadPool(6, [NumaNode(0, [first]), NumaNode(1, [second])])
    assert "threads" not in pool.placement
    added = sorted(mask for thread, mask in masks().items() if thread not in before)
    assert added == sorted([str(first)] * 2 + [str(second)] * 3)  # the caller is the sixth
    assert {thread: mask for thread, mask in masks().items() if thread in before} == before


@two_cpus
def test_the_caller_stays_for_a_step(demo_files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = allowed_cpus()[:2]
    force(monkeypatch, [NumaNode(0, [first]), NumaNode(1, [second])])
    runner = Runner(load(demo_files, threads=2))
    blocks = runner.blocks(100)
    done = threading.Event()

    def steps() -> None:
        free = os.sched_getaffinity(0)
        while not done.is_set():
            runner.step([(list(range(3, 103)), 0, blocks)])
            assert os.sched_getaffinity(0) == free

    caller = threading.Thread(target=steps)
    caller.start()
    try:
        for _ in range(100_000):
            assert caller.native_id is not None
            if masks()[caller.native_id] == str(first):
                break
        else:
            pytest.fail("was never seen on its node")
    finally:
        done.set()
        caller.join(HANG)


def preferred() -> Iterator[int]:
    """Bytes of each mapping that prefers a node."""
    sizes = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = line.split()[0].split("-")
        sizes[begin.lstrip("0")] = int(end, 16) - int(begin, 16)
    for line in Path("/proc/self/numa_maps").read_text().splitlines():
        address, policy = line.split()[:2]
        if policy.startswith("prefer"):
            yield sizes[address.lstrip("0")]


def test_weights_lie_by_share() -> None:
    """Three quarters of the threads are on a node that exists, and so is that share of the pages of a weight."""
    here, cpus = numa_nodes(allowed_cpus()), allowed_cpus()
    probe = Model("", 2, ActivationKind.INT8, 16, [NumaNode(node.id, cpus) for node in here[:1] * 2])
    probe.add_weight(WeightKind.INT8, 16, 32)
    if not here or "memory" in probe.placement:
        pytest.skip(f"memory cannot be bound here; nodes: {len(here)}; {probe.placement}")
    before = sorted(preferred())
    model = Model("", 4, ActivationKind.INT8, 16, [NumaNode(here[0].id, cpus[:1] * 3), NumaNode(NOWHERE, cpus[:1])])
    model.add_weight(WeightKind.INT8, 4096, 4096)
    quants, scales = 4096 * 4096, 4096 * 4096 // 32 * 2
    added = sorted(preferred())
    for size in before:
        added.remove(size)
    assert added == [scales * 3 // 4, quants * 3 // 4]
    assert model.placement == "2 NUMA nodes, memory not bound to them (Invalid argument)"


def test_refusals_are_told_and_change_nothing() -> None:
    pool = ThreadPool(2, [NumaNode(NOWHERE, allowed_cpus()[:1]), NumaNode(NOWHERE + 1, [8000])])
    assert pool.placement == "2 NUMA nodes, threads not bound to them (Invalid argument)"
    ran: list[int] = []
    pool.run(50, lambda i, _: ran.append(i))
    assert sorted(ran) == list(range(50))
    model = Model("", 2, ActivationKind.INT8, 16, nodes_of(1, 1))
    model.set_kv(KvKind.FP16, 1, 8, 1, 32)
    assert model.placement == "2 NUMA nodes, memory not bound to them (Invalid argument)"
    assert model.touch_kv(0) == model.kv_bytes, "first writers choose where pages lie"


@pytest.mark.parametrize(("threads", "sizes"), [(2, ()), (2, (4,)), (1, (1, 1))])
def test_one_node_is_no_topology(threads: int, sizes: tuple[int, ...]) -> None:
    before = masks()
    model = Model("", threads, ActivationKind.INT8, 16, nodes_of(*sizes))
    model.set_kv(KvKind.FP16, 1, 8, 1, 32)
    assert model.placement == ""
    assert set(masks().values()) == set(before.values())


# --- the same bits ---------------------------------------------------------------------------------------


def force(monkeypatch: pytest.MonkeyPatch, nodes: list[NumaNode]) -> None:
    def forced(_: list[int]) -> list[NumaNode]:
        return nodes

    monkeypatch.setattr("interlingua.engine.native.load.numa_nodes", forced)


@pytest.mark.parametrize("options", [{}, {"kv_cache_dtype": "int8"}])
def test_bits(demo_files: ModelFiles, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]) -> None:
    ids = [3 + i * i % 40000 for i in range(70)]

    def logits(threads: int, *sizes: int) -> list[F32]:
        force(monkeypatch, nodes_of(*sizes))
        loaded = load(demo_files, threads=threads, **options)
        assert (f"{threads} threads on {len(sizes)} NUMA nodes" in loaded.info.description) == (len(sizes) > 1)
        runner = Runner(loaded)
        blocks = runner.blocks(80)
        return [runner.step([(ids, 0, blocks)])[0], runner.step([([7], 70, blocks)])[0]]

    expected = logits(2)
    for threads, *sizes in ((2, 1, 1), (3, 2, 1), (4, 1, 1, 1)):
        for ours, theirs in zip(logits(threads, *sizes), expected, strict=True):
            assert np.array_equal(ours, theirs), (threads, sizes)


def test_bits_of_adapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their tasks wait for each other within a run."""
    folder = write_tiny_model("mha_untied", tmp_path / "base")
    ids = tiny_prompt("mha_untied").tolist()
    weights: Path | None = None
    results = []
    for threads, sizes in ((2, ()), (2, (1, 1)), (5, (3, 1, 1))):
        force(monkeypatch, nodes_of(*sizes))
        loaded = load_folder(folder, quantize="none", threads=threads)
        if weights is None:
            weights = write_adapter(tmp_path / "adapter", adapter_weights(module_shapes(loaded.config)))
        adapter = read_adapter(weights, loaded.model, loaded.adaptable, 64)[0]
        results.append([Runner(loaded).sequence(ids, adapter=one) for one in (adapter, None)])
    for with_adapter, without in results:
        assert np.array_equal(with_adapter, results[0][0])
        assert np.array_equal(without, results[0][1])
        assert not np.array_equal(with_adapter, without)


def test_info(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def row() -> list[str]:
        assert commands.run(["info"]) == 0
        return [line for line in capsys.readouterr().out.splitlines() if "NUMA" in line]

    monkeypatch.setattr(_native, "numa_nodes", lambda _: [NumaNode(0, [0])])
    assert row() == []
    monkeypatch.setattr(_native, "numa_nodes", lambda _: [NumaNode(0, [0, 1]), NumaNode(2, [4, 5, 6])])
    assert [line.split(maxsplit=2)[2] for line in row()] == ["2 NUMA nodes: 2 cores on node 0, 3 cores on node 2"]
