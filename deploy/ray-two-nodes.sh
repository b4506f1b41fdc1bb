#!/usr/bin/env bash
# One model over two machines: on the head `bash ray-two-nodes.sh head MODEL`, on the other `… worker HEAD_ADDRESS`.
# Each machine needs the same environment with interlingua[vllm] and ray, and the model under the same path. Options after
# MODEL go to `interlingua serve`. Unseen: this project has no second machine.
set -euo pipefail
role="${1:?head MODEL, or worker HEAD_ADDRESS}"
target="${2:?head MODEL, or worker HEAD_ADDRESS}"
shift 2
port="${RAY_PORT:-6379}"
devices="${DEVICES_PER_NODE:-8}"
case "$role" in
    head)
        ray start --head --port="$port" --num-gpus="$devices"
        trap 'ray stop' EXIT
        until [ "$(ray status 2>/dev/null | grep -c ' node_')" -ge 2 ]; do
            echo "waiting for the second machine ..." >&2
            sleep 2
        done
        interlingua serve "$target" --engine vllm \
            --vllm-arg distributed-executor-backend=ray \
            --vllm-arg tensor-parallel-size="$devices" \
            --vllm-arg pipeline-parallel-size=2 "$@"
        ;;
    worker) exec ray start --address="$target:$port" --num-gpus="$devices" --block ;;
    *) echo "head MODEL, or worker HEAD_ADDRESS" >&2; exit 2 ;;
esac
