"""Integer products at their extremes, on every tier: they must be exact, whatever width a tier adds them up in."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from interlingua.engine.native._native import ActivationKind, Model, SourceFormat, WeightKind, kernel_names

GROUP = OUTPUTS = 32
RANGE = {ActivationKind.INT8: 127, ActivationKind.INT16: 127 * 256}
# Of a row's largest value. A half is 64 * 256 - 128 in two terms, whose low one is then the least that there is.
INPUTS = (1.0, -1.0, 0.5, -0.5, 0.99609375, -0.99609375, 0.0)

F32 = npt.NDArray[np.float32]


def ones_in_half(count: int) -> npt.NDArray[np.uint8]:
    return np.ones(count, np.float16).view(np.uint8).reshape(count, 2)


def weights(kind: WeightKind) -> tuple[SourceFormat, npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """GGUF's bytes of a group for each output, of a scale of 1 and no minimum, and the integers they stand for."""
    draw = np.random.default_rng(3)
    least, most = (0, 15) if kind == WeightKind.INT4 else (-128, 127)
    values = draw.choice([least, most], (OUTPUTS, GROUP))
    values[0], values[1], values[2] = most, least, draw.integers(least, most + 1, GROUP)
    if kind == WeightKind.INT8:
        return SourceFormat.Q8_0, np.hstack([ones_in_half(OUTPUTS), values.astype(np.int8).view(np.uint8)]), values
    nibbles = (values[:, :16] | values[:, 16:] << 4).astype(np.uint8)
    minimum = np.zeros((OUTPUTS, 2), np.uint8)
    return SourceFormat.Q4_1, np.hstack([ones_in_half(OUTPUTS), minimum, nibbles]), values


@pytest.mark.parametrize("tier", kernel_names())
@pytest.mark.parametrize("kind", [WeightKind.INT4, WeightKind.INT8])
@pytest.mark.parametrize("activations", list(RANGE))
def test_extremes(tier: str, kind: WeightKind, activations: ActivationKind) -> None:
    draw = np.random.default_rng(5)
    inputs = draw.choice(np.array(INPUTS, np.float32), (GROUP, GROUP))
    inputs[:, 0] = 1.0  # which makes the row's scale
    inputs[0], inputs[1], inputs[2] = 1.0, -1.0, 0.5
    inputs[2, 0] = 1.0
    form, source, values = weights(kind)
    outputs = np.arange(OUTPUTS, dtype=np.int32)
    for rows in (*range(1, 10), 16, 23, 32):
        model = Model(tier, 1, activations, GROUP)
        embedding = model.add_weight(WeightKind.BF16, GROUP, GROUP)
        model.fill_weight(embedding, SourceFormat.F32, inputs.view(np.uint8).ravel(), np.arange(GROUP, dtype=np.int32))
        head = model.add_weight(kind, OUTPUTS, GROUP)
        model.fill_weight(head, form, np.ascontiguousarray(source).ravel(), outputs)
        x = model.add_buffer(GROUP)
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
        integers = np.rint(inputs[:rows] * np.float32(RANGE[activations])).astype(np.int64)
        expected = (integers @ values.T).astype(np.float32) * (np.float32(1) / np.float32(RANGE[activations]))
        assert np.array_equal(logits, expected), f"{rows} rows"
