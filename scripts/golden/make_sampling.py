"""Writes tests/data/golden/sampling.npz: the distribution that each sampling parameter leaves, from transformers.

    python3 -m venv VENV && VENV/bin/pip install torch==2.13.0 transformers==5.24.0 numpy
    VENV/bin/python scripts/golden/make_sampling.py

No code of this project runs here. Each case goes through transformers' logits processors and warpers in float64, in
the order of docs/numerics.md. Two rules that transformers lacks are written out: frequency and presence penalty as
OpenAI's API reference states them, and frequency penalty as text-generation-inference computes it.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
    WatermarkLogitsProcessor,
)

TARGET = Path(__file__).parents[2] / "tests" / "data" / "golden" / "sampling.npz"
VOCAB = 120
HASHING_KEY = 15485863

F64 = npt.NDArray[np.float64]
Params = dict[str, Any]

SINGLE: list[Params] = [
    {},
    {"temperature": 0.05},
    {"temperature": 0.5},
    {"temperature": 3.0},
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": VOCAB - 1},
    {"top_p": 0.001},
    {"top_p": 0.5},
    {"top_p": 0.95},
    {"typical_p": 0.01},
    {"typical_p": 0.4},
    {"typical_p": 0.95},
    {"min_p": 0.05},
    {"min_p": 0.4},
    {"min_p": 1.0},
    {"repetition_penalty": 1.8},
    {"repetition_penalty": 0.5},
    {"frequency_penalty": 2.0},
    {"frequency_penalty": -1.5},
    {"frequency_penalty": 1.25, "frequency_over_output": True},
    {"frequency_penalty": -2.0, "frequency_over_output": True},
    {"presence_penalty": 1.5, "frequency_over_output": True},
    {"presence_penalty": -2.0, "frequency_over_output": True},
    {"logit_bias": [[7, 3.0], [0, -4.0], [VOCAB - 1, 100.0], [3, -100.0]]},
    {"min_new_tokens": 9, "suppressed": [2, 40, 41]},
    {"min_new_tokens": 8, "suppressed": [2, 40, 41]},
    {"watermark_gamma": 0.5, "watermark_delta": 2.0},
    {"watermark_gamma": 0.25, "watermark_delta": 5.0},
]


def combinations(rng: np.random.Generator, count: int) -> list[Params]:
    """Random sets of parameters, each present half of the time."""
    found: list[Params] = []
    while len(found) < count:
        openai = bool(rng.random() < 0.5)
        drawn: Params = {
            "temperature": rng.choice([0.3, 0.7, 1.3]),
            "top_k": rng.choice([3, 10, 40]),
            "top_p": rng.choice([0.3, 0.8, 0.95]),
            "typical_p": rng.choice([0.5, 0.9]),
            "min_p": rng.choice([0.02, 0.1]),
            "repetition_penalty": rng.choice([0.8, 1.2]),
            "frequency_penalty": rng.choice([-1.0, 0.5, 1.5]),
            "logit_bias": [[int(i), float(rng.choice([-3.0, 2.0]))] for i in rng.choice(VOCAB, 5, replace=False)],
            "min_new_tokens": 10,
            "watermark_gamma": rng.choice([0.25, 0.5]),
        }
        params = {name: v.item() if hasattr(v, "item") else v for name, v in drawn.items() if rng.random() < 0.5}
        if openai:
            params |= {"presence_penalty": 0.75, "frequency_over_output": True}
        if "min_new_tokens" in params:
            params["suppressed"] = [int(i) for i in rng.choice(VOCAB, 3, replace=False)]
        if "watermark_gamma" in params:
            params["watermark_delta"] = 2.0
        found.append(params)
    return found


def penalties(scores: F64, prompt: list[int], output: list[int], params: Params) -> F64:
    """Frequency and presence penalty."""
    scores = scores.copy()
    frequency, presence = params.get("frequency_penalty", 0.0), params.get("presence_penalty", 0.0)
    if params.get("frequency_over_output"):  # OpenAI: mu[j] - c[j] * frequency - (c[j] > 0) * presence
        for token, count in Counter(output).items():
            scores[token] += -count * frequency - float(count > 0) * presence
    else:  # TGI: frequency * count / length over everything seen
        for token, count in Counter(prompt + output).items():
            scores[token] -= frequency * count / (len(prompt) + len(output))
    return scores


def distribution(logits: F64, prompt: list[int], output: list[int], params: Params) -> F64:
    """Probabilities [VOCAB] after every processor."""
    ids = torch.tensor([prompt + output])
    scores = torch.tensor(logits, dtype=torch.float64)[None]
    if "watermark_gamma" in params:
        ratio, bias = params["watermark_gamma"], params["watermark_delta"]
        scores = WatermarkLogitsProcessor(VOCAB, "cpu", ratio, bias, HASHING_KEY, "lefthash", 1)(ids, scores)
    if "repetition_penalty" in params:
        scores = RepetitionPenaltyLogitsProcessor(params["repetition_penalty"])(ids, scores)
    scores = torch.tensor(penalties(scores[0].numpy(), prompt, output, params))[None]
    if "logit_bias" in params:
        scores = SequenceBiasLogitsProcessor([[[token], bias] for token, bias in params["logit_bias"]])(ids, scores)
    if "min_new_tokens" in params:
        eos, least = params["suppressed"], params["min_new_tokens"]
        scores = MinNewTokensLengthLogitsProcessor(len(prompt), least, eos, device="cpu")(ids, scores)
    for name, warper in (
        ("temperature", TemperatureLogitsWarper),
        ("top_k", TopKLogitsWarper),
        ("top_p", TopPLogitsWarper),
        ("typical_p", TypicalLogitsWarper),
        ("min_p", MinPLogitsWarper),
    ):
        if name in params:
            scores = warper(params[name])(ids, scores)
    return np.asarray(torch.softmax(scores[0], -1).numpy())


def main() -> None:
    rng = np.random.default_rng(20261130)
    cases = SINGLE + combinations(rng, 40)
    logits = rng.normal(0, 2.5, (len(cases), VOCAB)).astype(np.float32)
    tied = [i for i, params in enumerate(cases) if params.get("top_k") == 5]
    for i in tied:  # the fifth to ninth best are equal, and all stay
        order = np.argsort(-logits[i])
        logits[i, order[4:9]] = logits[i, order[4]]
    prompt = [int(i) for i in rng.choice(VOCAB, 12)]
    output = [int(i) for i in rng.choice(prompt + list(range(VOCAB)), 8)]
    probabilities = [
        distribution(row.astype(np.float64), prompt, output, params) for row, params in zip(logits, cases, strict=True)
    ]
    for i in tied:
        assert (probabilities[i] > 0).sum() == 9
    np.savez_compressed(
        TARGET,
        cases=np.array([json.dumps(params) for params in cases]),
        singles=np.array(len(SINGLE)),
        logits=logits,
        prompt=np.array(prompt, np.int32),
        output=np.array(output, np.int32),
        probabilities=np.stack(probabilities),
        versions=np.array([f"torch {torch.__version__}", f"transformers {transformers.__version__}"]),
    )
    print(f"{TARGET.name}: {len(cases)} cases, {TARGET.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
