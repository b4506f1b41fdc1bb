"""Integer products at their extremes, on every tier: they must be exact, whatever width a tier adds them up in."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from interlingua.engine.native._native import ActivationKind, Model, SourceFormat, WeightKind, kernel_names

GROUP, GROUPS = 32, 5  # more groups than the tile unit's products run ahead
INPUTS, OUTPUTS, TOKENS = GROUP * GROUPS, 48, 32  # an odd number of 16-blocks
RANGE = {ActivationKind.INT8: 127, ActivationKind.INT16: 127 * 256}
# Of a row's largest value. A half is 64 * 256 - 128 in two terms, whose low one is then the least that there is.
VALUES = (1.0, -1.0, 0.5, -0.5, 0.99609375, -0.99609375, 0.0)

F32 = npt.NDArray[np.float32]


def ones_in_half(count: int) -> npt.NDArray[np.uint8]:
    return np.ones(count, np.float16).view(np.uint8).reshape(count, 2)


def weights(kind: WeightKind) -> tuple[SourceFormat, npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """GGUF's bytes of all groups of each output, of a scale of 1 and no minimum, and the integers they stand for."""
    draw = np.random.default_rng(3)
    least, most = (0, 15) if kind == WeightKind.INT4 else (-128, 127)
    values = draw.choice([least, most], (OUTPUTS * GROUPS, GROUP))
    values[0], values[1], values[2] = most, least, draw.integers(least, most + 1, GROUP)
    values[-1] = most
    outputs = OUTPUTS * GROUPS
    if kind == WeightKind.INT8:
        return SourceFormat.Q8_0, np.hstack([ones_in_half(outputs), values.astype(np.int8).view(np.uint8)]), values
    nibbles = (values[:, :16] | values[:, 16:] << 4).astype(np.uint8)
    minimum = np.zeros((outputs, 2), np.uint8)
    return SourceFormat.Q4_1, np.hstack([ones_in_half(outputs), minimum, nibbles]), values


def logits_of(tier: str, kind: WeightKind, activations: ActivationKind, inputs: F32, rows: int) -> F32:
    """Of a model that is nothing but its head, for the first `rows` inputs."""
    form, source, _ = weights(kind)
    model = Model(tier, 1, activations, TOKENS)
    embedding = model.add_weight(WeightKind.BF16, TOKENS, INPUTS)
    model.fill_weight(embedding, SourceFormat.F32, inputs.view(np.uint8).ravel(), np.arange(TOKENS, dtype=np.int32))
    head = model.add_weight(kind, OUTPUTS, INPUTS)
    model.fill_weight(head, form, np.ascontiguousarray(source).ravel(), np.arange(OUTPUTS, dtype=np.int32))
    x = model.add_buffer(INPUTS)
    model.op_embed(embedding, x, 1.0)
    model.op_logits(x, -1, 0.0, head, OUTPUTS)
    logits = np.zeros((rows, OUTPUTS), np.float32)
    tokens = np.arange(rows, dtype=np.int32)
    model.step(
        tokens,
        np.zeros(rows, np.int32),
        np.arange(rows + 1, dtype=np.int32),
        np.zeros((rows, 1), np.int32),
        tokens,
        np.full(rows, -1, np.int32),
        np.zeros(rows, np.int32),
        np.zeros(rows, np.int32),
        np.zeros(rows, np.float32),
        logits,
    )
    return logits


@pytest.mark.parametrize("tier", kernel_names())
@pytest.mark.parametrize("kind", [WeightKind.INT4, WeightKind.INT8])
@pytest.mark.parametrize("activations", list(RANGE))
def test_extremes(tier: str, kind: WeightKind, activations: ActivationKind) -> None:
    draw = np.random.default_rng(5)
    inputs = draw.choice(np.array(VALUES, np.float32), (TOKENS, INPUTS))
    inputs[0], inputs[1], inputs[2] = 1.0, -1.0, 0.5
    inputs[:, ::GROUP] = 1.0  # which makes each group's scale
    values = weights(kind)[2]
    for rows in (*range(1, 10), 16, 23, 32):
        integers = np.rint(inputs[:rows] * np.float32(RANGE[activations])).astype(np.int64)
        sums = np.einsum("rgi,ogi->gro", integers.reshape(rows, GROUPS, GROUP), values.reshape(OUTPUTS, GROUPS, GROUP))
        expected = np.zeros((rows, OUTPUTS), np.float32)
        for group in sums:  # a fused step each, rounded once
            scale = np.float64(np.float32(1) / np.float32(RANGE[activations]))
            exact = group.astype(np.float32) * scale + expected  # of float64
            expected = exact.astype(np.float32)
        assert np.array_equal(logits_of(tier, kind, activations, inputs, rows), expected), f"{rows} rows"


@pytest.mark.parametrize("tier", kernel_names())
@pytest.mark.parametrize("activations", list(RANGE))
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_row(tier: str, activations: ActivationKind, bad: float) -> None:
    """One input of one row, in a tile of 16: no output of that row is finite, and all others are what they were."""
    draw = np.random.default_rng(6)
    inputs = draw.standard_normal((TOKENS, INPUTS)).astype(np.float32)
    plain = logits_of(tier, WeightKind.INT4, activations, inputs, 20)
    for row, place in ((3, 40), (18, 159)):  # of a whole tile, and of the rows beyond
        spoilt = inputs.copy()
        spoilt[row, place] = bad
        logits = logits_of(tier, WeightKind.INT4, activations, spoilt, 20)
        assert not np.isfinite(logits[row]).any()
        assert np.array_equal(np.delete(logits, row, 0), np.delete(plain, row, 0))


@pytest.mark.parametrize("kind", [WeightKind.INT4, WeightKind.INT8])
@pytest.mark.parametrize("place", [0, 1, 31])
def test_a_weight_that_is_no_number_makes_its_output_none(kind: WeightKind, place: int) -> None:
    values = np.random.default_rng(7).standard_normal((16, GROUP)).astype(np.float32)
    values[5, place] = np.nan
    model = Model(kernel_names()[-1], 1, ActivationKind.INT8, 1)
    embedding = model.add_weight(WeightKind.BF16, 16, GROUP)
    model.fill_weight(
        embedding, SourceFormat.F32, np.ones(16 * GROUP, np.float32).view(np.uint8), np.arange(16, dtype=np.int32)
    )
    head = model.add_weight(kind, 16, GROUP)
    model.fill_weight(head, SourceFormat.F32, values.view(np.uint8).ravel(), np.arange(16, dtype=np.int32))
    x = model.add_buffer(GROUP)
    model.op_embed(embedding, x, 1.0)
    model.op_logits(x, -1, 0.0, head, 16)
    zero, logits = np.zeros(1, np.int32), np.zeros((1, 16), np.float32)
    ends = np.array([0, 1], np.int32)
    model.step(zero, zero, ends, zero[None], zero, zero - 1, zero, zero.copy(), np.zeros(1, np.float32), logits)
    assert np.flatnonzero(~np.isfinite(logits[0])).tolist() == [5]
