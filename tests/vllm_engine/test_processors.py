"""Our processor in vLLM's workers against the native sampler, on the same logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch comes with vLLM: scripts/setup-vllm")
pytest.importorskip("vllm", reason="vLLM is not installed here: scripts/setup-vllm")

from interlingua.contract.request import PreparedRequest, SamplingParams, Watermark  # noqa: E402
from interlingua.engine.native._native import SamplingParams as NativeSampling  # noqa: E402
from interlingua.engine.native._native import distribution, kernel_names  # noqa: E402
from interlingua.engine.vllm import needs_processor, parameters  # noqa: E402
from interlingua.engine.vllm_processors import change, green_mask, warp  # noqa: E402

VOCAB = 512
CASES: list[dict[str, Any]] = [
    {"typical_p": 0.7},
    {"typical_p": 0.2, "temperature": 1.7},
    {"typical_p": 0.95, "top_k": 40, "top_p": 0.9, "temperature": 0.6},
    {"frequency_penalty": 1.5, "repetition_penalty": 1.2},
    {"frequency_penalty": -1.9},
    {"frequency_penalty": 0.8, "presence_penalty": 0.4, "frequency_over": "output", "typical_p": 0.8},
    {"min_p": 0.05, "top_k": 30, "top_p": 0.8},
    {"logit_bias": ((3, 4.0), (5, -7.5)), "repetition_penalty": 1.4},
    {"watermark": Watermark(0.5, 2.0)},
    {"watermark": Watermark(0.25, 5.0), "repetition_penalty": 0.8, "typical_p": 0.9, "temperature": 0.9},
]


def native(sampling: SamplingParams, logits: Any, prompt: list[int], output: list[int]) -> Any:
    mark = sampling.watermark
    params = NativeSampling(
        do_sample=True,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        typical_p=sampling.typical_p,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_over_output=sampling.frequency_over == "output",
        logit_bias=list(sampling.logit_bias),
        watermark_gamma=mark.gamma if mark else 0.0,
        watermark_delta=mark.delta if mark else 0.0,
    )
    ids = (np.array(part, np.int32) for part in (prompt, output))
    return distribution(kernel_names()[-1], logits, *ids, params)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_same_distribution(case: dict[str, Any], seed: int) -> None:
    draw = np.random.default_rng(seed)
    logits = (draw.standard_normal(VOCAB) * 3).astype(np.float32)
    prompt, output = draw.integers(0, VOCAB, 12).tolist(), draw.integers(0, VOCAB, 7).tolist()
    request = PreparedRequest(
        request_id="x",
        prompt_ids=tuple(prompt),
        max_new_tokens=20,
        sampling=SamplingParams(do_sample=True, **case),
        stop_token_ids=frozenset({1}),
    )
    assert needs_processor(request)
    wanted = parameters(request)
    scores = change(
        torch.from_numpy(logits),
        wanted,
        prompt,
        output,
        lambda last, gamma: green_mask(last, VOCAB, gamma),
    )
    ours = torch.softmax(warp(scores, wanted).double(), -1).numpy()
    expected = native(request.sampling, logits, prompt, output)
    np.testing.assert_allclose(ours, expected, atol=2e-6)
    assert np.array_equal(ours > 0, expected > 0), "the same tokens may be drawn"


def test_what_vllm_does_itself_stays_with_it() -> None:
    plain = SamplingParams(do_sample=True, temperature=0.7, top_k=50, top_p=0.9, repetition_penalty=1.1)
    greedy = SamplingParams(logit_bias=((1, 1.0),), presence_penalty=0.5, frequency_over="output")
    for sampling in (SamplingParams(), plain, greedy):
        assert not needs_processor(
            PreparedRequest(
                request_id="x", prompt_ids=(1,), max_new_tokens=1, sampling=sampling, stop_token_ids=frozenset()
            )
        )


def test_early_ends_are_suppressed() -> None:
    request = PreparedRequest(
        request_id="x",
        prompt_ids=(1,),
        max_new_tokens=9,
        sampling=SamplingParams(do_sample=True, typical_p=0.5),
        stop_token_ids=frozenset({7, 9}),
        min_new_tokens=2,
    )
    wanted = parameters(request)
    logits = torch.zeros(16)
    early, late = (change(logits, wanted, [1], output, lambda *_: logits) for output in ([2], [2, 3]))
    assert torch.isinf(early[[7, 9]]).all() and torch.isfinite(late).all()
