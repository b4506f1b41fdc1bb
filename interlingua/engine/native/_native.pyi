"""
Native engine of interlingua: packed weights, KV pool, one call a step.
"""

from collections.abc import Callable, Sequence
import enum
from typing import Annotated

import numpy
from numpy.typing import NDArray


KV_BLOCK: int = 32

LATE: int = -1

DROPPED: int = -3

FAILED: int = -4

UNUSABLE: int = -2

def bound_free_heap(bytes: int) -> None:
    """
    From now on pieces of so many bytes go back to the system when they are freed, and so does what is free at the end of a thread's heap when it is more. Has an effect with glibc alone, as `trim_heap`.
    """

def trim_heap() -> None:
    """Gives what is free within the heaps of all threads back to the system."""

def kernel_names() -> list[str]:
    """Kernel tiers that run on this machine, slowest first."""

def philox_uniform(seed: int, position: int) -> float:
    """Uniform double in [0, 1) of (seed, position)."""

class WeightKind(enum.Enum):
    INT4 = 0

    INT8 = 1

    BF16 = 2

class ActivationKind(enum.Enum):
    INT8 = 0

    INT16 = 1

    BF16 = 2

class SourceFormat(enum.Enum):
    Q4_0 = 0

    Q4_1 = 1

    Q8_0 = 2

    F32 = 3

    F16 = 4

    BF16 = 5

class Epilogue(enum.Enum):
    STORE = 0

    ADD = 1

    SILU_GATE = 2

class KvKind(enum.Enum):
    FP16 = 0

    INT8 = 1

def kv_head_bytes(kind: KvKind, head_dim: int) -> int:
    """Bytes of one KV head's part of a KV block in one layer."""

def time_linear(isa: str, threads: int, kind: WeightKind, activations: ActivationKind, n: int, k: int, rows: int, repeat: int) -> float:
    """Least seconds of one linear layer, for bench/kernels.py."""

def time_prepare(isa: str, threads: int, activations: ActivationKind, k: int, rows: int, repeat: int) -> float:
    """Least seconds of one norm and rounding, for bench/kernels.py."""

def time_attention(isa: str, threads: int, kind: KvKind, sequences: int, context: int, rows: int, kv_heads: int, heads_per_kv: int, head_dim: int, repeat: int) -> float:
    """Least seconds of one layer's attention, for bench/kernels.py."""

class TileProductKind(enum.Enum):
    SIGNED_SIGNED = 0

    SIGNED_UNSIGNED = 1

    UNSIGNED_SIGNED = 2

    UNSIGNED_UNSIGNED = 3

    BF16 = 4

def tile_product(isa: str, kind: TileProductKind, a: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], b: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], c: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], palette: int = 1) -> Annotated[NDArray[numpy.uint8], dict(shape=(None, None))]:
    """
    c + a b as one tile instruction of a tier computes it; bytes, shaped as the tiles are configured: a [m][4k], b [k][4n], c [m][4n]. For tests: a shape or palette that the instructions refuse ends the process.
    """

def read_bandwidth(threads: int, bytes: int, repeat: int) -> float:
    """Bytes a second that all threads together read."""

class SamplingParams:
    def __init__(self, *, do_sample: bool = False, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, typical_p: float = 1.0, min_p: float = 0.0, repetition_penalty: float = 1.0, frequency_penalty: float = 0.0, presence_penalty: float = 0.0, frequency_over_output: bool = False, seed: int = 0, top_n: int = 0, logit_bias: Sequence[tuple[int, float]] = [], suppressed: Sequence[int] = [], min_new_tokens: int = 0, watermark_gamma: float = 0.0, watermark_delta: float = 0.0) -> None: ...

def choose(isa: str, logits: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], prompt: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], output: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], params: SamplingParams, first: int, count: int, allowed: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> list[int]:
    """
    Tokens chosen for one row of logits at `count` positions from `first` on.
    """

def distribution(isa: str, logits: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], prompt: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], output: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], params: SamplingParams) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]:
    """
    Probabilities [vocab] that `choose` draws from; 0 where an id was filtered out.
    """

def green_list(last_id: int, vocab: int, gamma: float) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
    """
    Which ids the watermark favours after `last_id`: bit id % 8 of byte id // 8.
    """

class GreenLists:
    def __init__(self, vocab: int, capacity_bytes: int) -> None: ...

    def get(self, last_id: int, gamma: float) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]: ...

    @property
    def bytes(self) -> int: ...

class NumaNode:
    def __init__(self, id: int, cpus: Sequence[int]) -> None: ...

    @property
    def id(self) -> int: ...

    @property
    def cpus(self) -> list[int]: ...

def allowed_cpus() -> list[int]:
    """CPUs that the calling thread may run on, ascending."""

def numa_nodes(cpus: Sequence[int], root: str = '/sys/devices/system/node') -> list[NumaNode]:
    """
    Nodes that have some of `cpus` (ascending), with these CPUs alone; none if the system does not tell of each.
    """

class ThreadPool:
    """The threads of a model; for tests."""

    def __init__(self, threads: int, nodes: Sequence[NumaNode] = []) -> None: ...

    def run(self, count: int, task: Callable[[int, int], None], common: int = 0) -> None: ...

    @property
    def placement(self) -> str: ...

class LoraAdapter:
    def __init__(self) -> None: ...

    @property
    def bytes(self) -> int: ...

class Model:
    def __init__(self, isa: str, threads: int, activations: ActivationKind, max_rows: int, nodes: Sequence[NumaNode] = []) -> None: ...

    def add_weight(self, kind: WeightKind, n: int, k: int) -> int: ...

    def fill_weight(self, weight: int, format: SourceFormat, source: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def add_vector(self, values: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> int: ...

    def set_kv(self, kind: KvKind, layers: int, blocks: int, kv_heads: int, head_dim: int) -> None: ...

    def add_buffer(self, width: int) -> int: ...

    def add_activations(self, width: int, integer: bool, bf16: bool) -> int: ...

    def op_embed(self, weight: int, out: int, scale: float) -> None: ...

    def op_prepare(self, source: int, norm: int, eps: float, activations: int) -> None: ...

    def op_linear(self, activations: int, weight: int, out: int, epilogue: Epilogue, bias: int, column: int) -> int: ...

    def add_lora(self, adapter: LoraAdapter, op: int, ranks: Sequence[int], slices: Sequence[int], a: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], b: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> None: ...

    def op_rope_store(self, qkv: int, layer: int, heads: int, rotary: int, cos: int, sin: int) -> None: ...

    def op_attention(self, qkv: int, out: int, layer: int, heads: int, window: int, scale: float) -> None: ...

    def op_narrow(self, buffers: Sequence[int]) -> None: ...

    def op_logits(self, source: int, norm: int, eps: float, weight: int, vocab: int) -> None: ...

    def add_sampler(self, params: SamplingParams, prompt: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> int: ...

    def top_tokens(self, slot: int) -> list[tuple[int, float]]:
        """
        (id, raw logprob) of the alternatives to the slot's last choice, best first.
        """

    def remove_sampler(self, slot: int) -> None: ...

    @property
    def sampler_count(self) -> int: ...

    def copy_block(self, source: int, target: int) -> None: ...

    def touch_kv(self, begin: int) -> int:
        """
        Has the system give a piece of the KV pool's pages from byte `begin`, a piece's begin, ahead of their use. Returns where to go on; `kv_bytes` when nothing is left to do.
        """

    def step(self, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], block_tables: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], logit_index: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], slots: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], targets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')], logprobs: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')], logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')] | None = None, allowed: Sequence[Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None] = [], adapters: Sequence[LoraAdapter] = [], adapter_of: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> None: ...

    def set_profiling(self, on: bool) -> None: ...

    @property
    def op_seconds(self) -> list[float]: ...

    @staticmethod
    def op_kinds() -> list[str]: ...

    def kv_block(self, layer: int, block: int) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]: ...

    @property
    def kernels(self) -> str: ...

    @property
    def threads(self) -> int: ...

    @property
    def placement(self) -> str:
        """The NUMA nodes that threads and memory are spread over; empty on one."""

    @property
    def weight_bytes(self) -> int: ...

    @property
    def merged_queries(self) -> int:
        """
        Queries of the last step whose attention several tasks computed, over the first layer; for tests.
        """

    @property
    def kv_bytes(self) -> int: ...
