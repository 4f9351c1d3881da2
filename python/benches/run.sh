#!/usr/bin/env bash
# Measures the pool under PyTorch and CuPy on a GPU, beside their own allocators and RMM's. A line of JSON for each result.
# Usage: run.sh [allocations|streams|training|largest|suite]...   (all but the last, where nothing is named)
# BENCH_SECONDS bounds each part of a bench (30); PYTORCH_TESTS is a folder with PyTorch's test_cuda.py, for `suite`.
set -u
cd "$(dirname "$0")"
python=${PYTHON:-python3}
seconds=${BENCH_SECONDS:-30}
limit=${BENCH_LIMIT_GIB:-20}
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(allocations streams training largest)

bounded() { # seconds command...
    timeout --kill-after=10 "$@"
    local status=$?
    [ $status -eq 0 ] || printf '{"failed": "%s", "status": %d}\n' "${*:2}" $status
}

$python - <<'PROGRAM'
import json
answer = {"bench": "machine"}
for name in ("torch", "cupy", "numba", "rmm", "bursar"):
    try:
        answer[name] = getattr(__import__(name), "__version__", "here")
    except Exception as error:
        answer[name] = f"absent: {type(error).__name__}"
try:
    import torch
    answer["device"] = torch.cuda.get_device_name(0)
except Exception as error:
    answer["device"] = f"absent: {error}"
print(json.dumps(answer))
PROGRAM

for part in "${parts[@]}"; do
    case $part in
    allocations) bounded $((seconds * 20)) "$python" allocations.py --seconds "$(awk "BEGIN { print $seconds / 30 }")" ;;
    streams) bounded $((seconds * 8 + 60)) "$python" streams.py --seconds $((seconds * 4)) ;;
    training | largest)
        for workload in transformer resnet generation; do
            for allocator in default expandable rmm bursar; do
                more=()
                [ $part = training ] || more=(--largest-under "$limit" --steps 6)
                bounded $((seconds * 3 + 60)) "$python" training.py --workload $workload --allocator $allocator \
                    --seconds "$seconds" ${more[@]+"${more[@]}"}
            done
        done
        ;;
    suite) bounded $((seconds * 20)) "$python" -m pytest -p enable_pool -q --timeout=300 "${PYTORCH_TESTS:?}/test_cuda.py" ;;
    *) printf '{"failed": "%s is no part"}\n' "$part" ;;
    esac
done
