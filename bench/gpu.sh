#!/usr/bin/env bash
# On a machine with an accelerator that vLLM runs on, in an environment with interlingua[vllm,dev]: the routes' tests over
# vLLM, and tokens a second through this server over those of vLLM's own. bench/gpu.sh [MODEL FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
python="${PYTHON:-python3}"
model="${1:-build/demo-safetensors}"
[ -f "$model/config.json" ] || "$python" scripts/demo_safetensors.py "$model"
"$python" -m pytest tests/vllm_engine/test_processors.py
INTERLINGUA_TEST_FLAGS="$model --engine vllm --served-model-name smollm2-135m-instruct --max-seq-len 2048" \
    "$python" -m pytest -m "not bit_exact" tests/e2e/test_routes.py tests/e2e/test_samples.py
exec "$python" bench/over_vllm.py "$model" --streams 32 128
