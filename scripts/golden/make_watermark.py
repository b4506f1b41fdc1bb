"""Writes tests/data/golden/watermark.npz: torch's green lists, and what transformers' detector says of 40 answers.

In two steps, since the engine and PyTorch need not live in one environment:

    .venv/bin/python scripts/golden/make_watermark.py sample ANSWERS.json

    python3 -m venv VENV && VENV/bin/pip install torch==2.13.0 transformers==5.24.0 numpy
    VENV/bin/python scripts/golden/make_watermark.py judge ANSWERS.json

The first lets this project's engine sample 20 answers with the watermark and 20 without; the second judges them with
no code of this project.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "tests" / "data" / "golden" / "watermark.npz"
HASHING_KEY = 15485863
GAMMA, DELTA = 0.5, 2.0
SMOLLM2_VOCAB, SMOLLM2_BOS = 49152, 1
# Vocabulary, share, ids: the smallest, those past 32 bits of key * id, the last.
LISTS = [
    (20, 0.5, [0, 1, 2, 7, 19]),
    (97, 0.25, [0, 1, 50, 96]),
    (49152, 0.5, [0, 1, 2, 277, 278, 1000, 30000, 49151]),
    (49152, 0.1, [5, 49151]),
    (262144, 0.5, [2, 128000, 262143]),
]


def sample(path: Path) -> None:
    """Writes the ids of the answers, first the watermarked ones."""
    sys.path.insert(0, str(ROOT / "tests"))
    from watermarked import answers

    path.write_text(json.dumps(asyncio.run(answers(GAMMA, DELTA))))


def judge(path: Path) -> None:
    import torch
    import transformers
    from transformers import LlamaConfig, WatermarkDetector, WatermarkingConfig, WatermarkLogitsProcessor

    digests, green = [], []
    for vocab, gamma, ids in LISTS:
        processor = WatermarkLogitsProcessor(vocab, "cpu", gamma, DELTA, HASHING_KEY, "lefthash", 1)
        for token in ids:
            mask = np.zeros(vocab, np.uint8)
            mask[processor._get_greenlist_ids(torch.tensor([token])).numpy()] = 1
            digests.append(hashlib.sha256(mask.tobytes()).hexdigest())
            green.append(int(mask.sum()))
    answers = torch.tensor(json.loads(path.read_text()))
    detector = WatermarkDetector(
        LlamaConfig(vocab_size=SMOLLM2_VOCAB, bos_token_id=SMOLLM2_BOS),
        "cpu",
        WatermarkingConfig(greenlist_ratio=GAMMA, bias=DELTA, hashing_key=HASHING_KEY, seeding_scheme="lefthash"),
        ignore_repeated_ngrams=True,
    )
    found = [detector(row[None], return_dict=True) for row in answers]
    z = np.array([output.z_score[0] for output in found])
    marked, plain = z[:20], z[20:]
    print(f"z: watermarked {marked.min():.2f} to {marked.max():.2f}, plain {plain.min():.2f} to {plain.max():.2f}")
    np.savez_compressed(
        TARGET,
        lists=np.array(json.dumps(LISTS)),
        digests=np.array(digests),
        green=np.array(green),
        answers=answers.numpy().astype(np.uint16),
        gamma=np.array(GAMMA),
        scored=np.array([output.num_tokens_scored[0] for output in found]),
        hits=np.array([output.num_green_tokens[0] for output in found]),
        z=z,
        p=np.array([output.p_value[0] for output in found]),
        versions=np.array([f"torch {torch.__version__}", f"transformers {transformers.__version__}"]),
    )
    print(f"{TARGET.name}: {TARGET.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    {"sample": sample, "judge": judge}[sys.argv[1]](Path(sys.argv[2]))
