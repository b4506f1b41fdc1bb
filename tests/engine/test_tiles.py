"""Tile products: the emulation against the SDM's pseudo code in numpy, and the processor's tiles against the emulation.

The AMX tier runs over emulated tiles in the tests of tiers (`amx-emulated` in `kernel_names()`). What those prove rests
on the emulation being what the processor does, which is what is compared here.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from native_runner import load_folder
from tiny_models import write_tiny_model

from interlingua.cli import info
from interlingua.cli.options import Options
from interlingua.engine.native._native import ActivationKind, Model, TileProductKind, kernel_names, tile_product
from interlingua.engine.native.tiers import EMULATED

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

needs_emulation = pytest.mark.skipif(EMULATED not in kernel_names(), reason="emulated tiles need AVX-512 with VNNI")
needs_amx = pytest.mark.skipif("amx" not in kernel_names(), reason="this processor or its kernel has no AMX tiles")

SIGNS = {
    TileProductKind.SIGNED_SIGNED: (np.int8, np.int8),
    TileProductKind.SIGNED_UNSIGNED: (np.int8, np.uint8),
    TileProductKind.UNSIGNED_SIGNED: (np.uint8, np.int8),
    TileProductKind.UNSIGNED_UNSIGNED: (np.uint8, np.uint8),
}
# (rows of C, 4-byte columns of C, 4-byte columns of A): whole tiles, the kernels' own shapes, and partial ones.
SHAPES = [(16, 16, 16), (16, 16, 8), (1, 1, 1), (16, 1, 16), (1, 16, 3), (7, 5, 13), (9, 15, 2)]


# --- the SDM's pseudo code, independent of the C++ -------------------------------------------------------------------
def bytes_product(kind: TileProductKind, a: U8, b: U8, c: U8) -> U8:
    """TDPB[SU][SU]D: C's dword (m, n) += A's bytes 4k..4k+3 of row m times those of B's dword (k, n), modulo 2^32."""
    type_a, type_b = SIGNS[kind]
    left = a.view(type_a).astype(np.int64)  # [m][4k]
    right = b.view(type_b).astype(np.int64)  # [k][4n]
    out = c.view(np.int32).astype(np.int64)
    for m in range(a.shape[0]):
        for k in range(b.shape[0]):
            for n in range(c.shape[1] // 4):
                out[m, n] += int(left[m, 4 * k : 4 * k + 4] @ right[k, 4 * n : 4 * n + 4])
    return out.astype(np.uint64).astype(np.uint32).view(np.uint8)


def zero_subnormals(x: F32) -> F32:
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x).astype(np.float32)


def rounded(exact: F64, error: F64) -> F32:
    """The float32 nearest to `exact + error`: a sum and what its rounding to float64 lost. Tiny ones become zero.

    The float64 is made odd where something was lost: rounding it once more then gives what rounding once would have.
    What is tiny after rounding with an exponent without bounds is flushed (SDM, volume 1, 4.9.1.5).
    """
    lost = (error != 0) & np.isfinite(exact)
    even = (exact.view(np.uint64) & 1) == 0
    toward = np.where(error > 0, np.inf, -np.inf)
    odd = np.where(lost & even, np.nextafter(exact, toward), exact)
    scaled = (odd * 2.0**64).astype(np.float32)  # far from subnormal
    tiny = np.abs(scaled) < np.float32(2.0 ** (64 - 126))
    return np.where(tiny, np.copysign(np.float32(0), odd), odd.astype(np.float32)).astype(np.float32)


def two_sum(x: F64, y: F64) -> tuple[F64, F64]:
    """x + y and, exactly, what the rounding of that sum lost (Knuth)."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def fused(x: F32, y: F32, z: F32) -> F32:
    """x * y + z, rounded once to nearest even, DAZ = FTZ = 1. x * y is exact in float64, for they are bfloat16."""
    product = zero_subnormals(x).astype(np.float64) * zero_subnormals(y).astype(np.float64)
    return rounded(*two_sum(product, zero_subnormals(z).astype(np.float64)))


def added(x: F32, y: F32) -> F32:
    return rounded(*two_sum(zero_subnormals(x).astype(np.float64), zero_subnormals(y).astype(np.float64)))


def bf16_product(a: U8, b: U8, c: U8) -> U8:
    """TDPBF16PS: chains from zero over the even and over the odd bfloat16 of each pair; their sum is added to C."""
    left = (a.view(np.uint16).astype(np.uint32) << 16).view(np.float32)  # [m][2k]
    right = (b.view(np.uint16).astype(np.uint32) << 16).view(np.float32)  # [k][2n]
    even, odd = np.zeros((2, a.shape[0], c.shape[1] // 4), np.float32)
    with np.errstate(all="ignore"):
        for k in range(b.shape[0]):
            even = fused(left[:, 2 * k, None], right[None, k, 0::2], even)
            odd = fused(left[:, 2 * k + 1, None], right[None, k, 1::2], odd)
        return added(c.view(np.float32), added(even, odd)).view(np.uint8)


# --- operands ---------------------------------------------------------------------------------------------------------
def random_bytes(draw: np.random.Generator, rows: int, columns: int) -> U8:
    return draw.integers(0, 256, (rows, 4 * columns), np.uint8)


def extreme_bytes(draw: np.random.Generator, rows: int, columns: int) -> U8:
    return draw.choice(np.array([0, 1, 127, 128, 255], np.uint8), (rows, 4 * columns))


def full_range(draw: np.random.Generator, rows: int, columns: int) -> F32:
    """Finite values of every magnitude that float32 has, subnormal ones included."""
    exponents = draw.integers(0, 255, (rows, columns)).astype(np.uint32)
    fractions = draw.integers(0, 1 << 24, (rows, columns)).astype(np.uint32)  # with the sign in bit 23
    return ((fractions >> 23 << 31) | exponents << 23 | (fractions & 0x7FFFFF)).view(np.float32)


def near_one(draw: np.random.Generator, rows: int, columns: int) -> F32:
    return draw.standard_normal((rows, columns)).astype(np.float32)


def near_smallest(draw: np.random.Generator, rows: int, columns: int) -> F32:
    """Products and sums around 2^-126, where results are flushed."""
    return (draw.standard_normal((rows, columns)) * 2.0**-63).astype(np.float32)


def smallest_sums(draw: np.random.Generator, rows: int, columns: int) -> F32:
    return (draw.standard_normal((rows, columns)) * 2.0**-126).astype(np.float32)


def special(draw: np.random.Generator, rows: int, columns: int) -> F32:
    tiny, most = float(np.finfo(np.float32).tiny), 3.38e38
    values = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, tiny, -tiny, tiny / 2, -tiny / 4, most, -most, 2.0**-64, 2.0**64]
    return draw.choice(np.array(values, np.float32), (rows, columns), p=[0.1] * 4 + [0.01] * 2 + [0.58 / 8] * 8)


FLOATS: dict[str, tuple[Callable[..., F32], Callable[..., F32]]] = {  # inputs, sums
    "near one": (near_one, near_one),
    "full range": (full_range, full_range),
    "subnormal results": (near_smallest, smallest_sums),
    "special": (special, special),
}


def bf16_operands(draw: np.random.Generator, kind: str, m: int, n: int, k: int) -> tuple[U8, U8, U8]:
    inputs, sums = FLOATS[kind]

    def pairs(rows: int, columns: int) -> U8:
        return (inputs(draw, rows, 2 * columns).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)

    return pairs(m, k), pairs(k, n), np.ascontiguousarray(sums(draw, m, n)).view(np.uint8)


def same_floats(ours: U8, theirs: U8) -> bool:
    """Equal bits; a NaN (infinity minus infinity, infinity times zero) must meet a NaN, with whatever payload."""
    x, y = ours.view(np.float32), theirs.view(np.float32)
    both = np.isnan(x) & np.isnan(y)
    return bool(np.all(both | (x.view(np.uint32) == y.view(np.uint32))))


# --- tests ------------------------------------------------------------------------------------------------------------
@needs_emulation
@pytest.mark.parametrize("kind", SIGNS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("values", [random_bytes, extreme_bytes])
def test_emulated_bytes(kind: TileProductKind, values: Callable[..., U8]) -> None:
    draw = np.random.default_rng(1)
    for m, n, k in SHAPES:
        a, b, c = values(draw, m, k), values(draw, k, n), values(draw, m, n)
        got = tile_product(EMULATED, kind, a, b, c)
        assert np.array_equal(got, bytes_product(kind, a, b, c)), (m, n, k)


@needs_emulation
def test_emulated_sums_wrap() -> None:
    most = np.full((16, 64), 127, np.uint8)
    c = np.full((16, 16), 2**31 - 1, np.int32).view(np.uint8)
    got = tile_product(EMULATED, TileProductKind.SIGNED_SIGNED, most, most, c)
    assert np.all(got.view(np.int32) == 2**31 - 1 + 64 * 127 * 127 - 2**32)


@needs_emulation
@pytest.mark.parametrize("kind", FLOATS)
def test_emulated_bf16(kind: str) -> None:
    draw = np.random.default_rng(2)
    for m, n, k in SHAPES * 8:
        a, b, c = bf16_operands(draw, kind, m, n, k)
        got = tile_product(EMULATED, TileProductKind.BF16, a, b, c)
        assert same_floats(got, bf16_product(a, b, c)), (m, n, k)


def test_the_reference_knows_what_it_claims() -> None:
    """Cases computed by hand, in which another order of the sums or results that are not flushed would differ."""

    def product(a: list[float], b: list[float], c: float) -> float:
        def bf16(values: list[float]) -> U8:
            return (np.array(values, np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)

        k = len(a) // 2
        right = np.ascontiguousarray(bf16(b).view(np.uint16).reshape(k, 2)).view(np.uint8)
        return float(
            bf16_product(bf16(a)[None], right, np.array([[c]], np.float32).view(np.uint8)).view(np.float32)[0, 0]
        )

    big = 2.0**24
    assert product([1, 1, 1, 1], [big, 1, 1, 1], 0) == big + 2  # the even chain loses its 1; one chain would lose all
    assert product([1, 0, 1, 0], [2.0**-60, 0, 2.0**-60, 0], 1) == 1
    assert product([2.0**-70, 0], [2.0**-70, 0], 0) == 0  # tiny
    assert product([2.0**-127, 0], [2.0**100, 0], 0) == 0  # a subnormal input is zero
    assert product([1, 0], [0, 0], 2.0**-127) == 0  # and so is a subnormal sum
    assert rounded(np.array([2.0**-126 * (1 - 2.0**-25)]), np.zeros(1))[0] == np.float32(
        2.0**-126
    )  # tiny is said after rounding


@needs_emulation
@needs_amx
def test_hardware_equals_emulation() -> None:
    draw = np.random.default_rng(3)
    for m, n, k in SHAPES * 40:
        for kind in SIGNS:
            for values in (random_bytes, extreme_bytes):
                a, b, c = values(draw, m, k), values(draw, k, n), values(draw, m, n)
                emulated = tile_product(EMULATED, kind, a, b, c)
                assert np.array_equal(tile_product("amx", kind, a, b, c), emulated), (kind, m, n, k)
        for name in FLOATS:
            a, b, c = bf16_operands(draw, name, m, n, k)
            emulated = tile_product(EMULATED, TileProductKind.BF16, a, b, c)
            assert same_floats(tile_product("amx", TileProductKind.BF16, a, b, c), emulated), (name, m, n, k)


@needs_emulation
@pytest.mark.parametrize(
    ("a", "b", "c", "palette", "reason"),
    [
        ((17, 64), (16, 64), (17, 64), 1, "LDTILECFG: a tile has at most 16 rows"),
        ((16, 68), (17, 64), (16, 64), 1, "LDTILECFG: a row has at most 64 bytes"),
        ((16, 64), (16, 64), (0, 64), 1, "LDTILECFG: rows without bytes, or bytes without rows"),
        ((16, 64), (16, 64), (16, 64), 2, "LDTILECFG: there are palettes 0 and 1"),
        ((16, 64), (16, 64), (16, 64), 0, "TILELOADD: tiles are not configured"),
        ((16, 64), (0, 0), (16, 64), 1, "TILELOADD: this tile is not configured"),
        ((16, 62), (16, 64), (16, 64), 1, "TDPBSSD: rows must have a multiple of 4 bytes"),
        ((15, 64), (16, 64), (16, 64), 1, "TDPBSSD: A and C differ in rows"),
        ((16, 64), (15, 64), (16, 64), 1, "TDPBSSD: A's columns are not B's rows"),
        ((16, 64), (16, 60), (16, 64), 1, "TDPBSSD: B and C differ in columns"),
    ],
)
def test_faults(a: tuple[int, int], b: tuple[int, int], c: tuple[int, int], palette: int, reason: str) -> None:
    """What the processor faults on ends the process, and says why."""
    program = (
        "import numpy as np\n"
        "from interlingua.engine.native._native import TileProductKind, tile_product\n"
        f"a, b, c = (np.zeros(shape, np.uint8) for shape in ({a}, {b}, {c}))\n"
        f"tile_product({EMULATED!r}, TileProductKind.SIGNED_SIGNED, a, b, c, {palette})\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == -6, ended.stderr
    assert f"interlingua: emulated {reason}\n" in ended.stderr


def test_tiers_without_tiles() -> None:
    zeros = np.zeros((16, 64), np.uint8)
    with pytest.raises(ValueError, match="kernel tier 'scalar' has no tiles"):
        tile_product("scalar", TileProductKind.BF16, zeros, zeros, zeros)


@needs_emulation
def test_emulation_is_named_as_such_and_never_chosen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("INTERLINGUA_ISA", raising=False)
    assert Model("", 1, ActivationKind.INT8, 1).kernels == kernel_names()[-1] != EMULATED

    def kernels(options: Options) -> str:
        info.run(options)
        return next(line for line in capsys.readouterr().out.splitlines() if line.startswith("kernels"))

    assert "emulated in software" not in kernels(Options())
    assert kernels(Options()).endswith(f"; for tests alone: {EMULATED})")
    assert "amx-emulated (for tests: AMX's tiles emulated in software, slow)" in kernels(Options(isa=EMULATED))


@needs_emulation
def test_the_start_says_that_tiles_are_emulated(tmp_path: Path) -> None:
    folder = write_tiny_model("biases", tmp_path / "tiny")
    assert "(for tests: AMX's tiles emulated" in load_folder(folder, isa=EMULATED).info.description
