"""OpenVINO GenAI in process, for bench/engines.py: tokens a second over whole answers, greedy.

python openvino_engine.py MODEL.gguf FOLDER < job.json       {"prompts": [...], "tokens": 128, "streams": [1, 8]}
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("folder", type=Path, help="of OpenVINO's own form of it, which is else made beside the file")
    arguments = parser.parse_args()
    import openvino_genai as genai

    gguf, folder = arguments.model, arguments.folder
    job: dict[str, Any] = json.load(sys.stdin)
    if not (folder / "openvino_model.xml").exists():
        genai.LLMPipeline(str(gguf), "CPU", enable_save_ov_model=True)  # writes the model beside the file
        folder = gguf.parent
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size, scheduler.max_num_batched_tokens, scheduler.max_num_seqs = 2, 2048, 64
    pipeline = genai.ContinuousBatchingPipeline(str(folder), scheduler, "CPU")
    config = genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.do_sample = job["tokens"], True, False
    prompts = iter(job["prompts"])
    for streams in [1, *job["streams"]]:  # the first is the warm-up
        batch = [next(prompts) for _ in range(streams)]
        begun = time.perf_counter()
        pipeline.generate(batch, [config] * streams)
        seconds = time.perf_counter() - begun
        print(json.dumps({"streams": streams, "tokens_per_s": round(streams * job["tokens"] / seconds, 1)}), flush=True)


if __name__ == "__main__":
    main()
