#!/usr/bin/env bash
# Measures the pool under PyTorch and CuPy on a GPU, beside their own allocators and RMM's. A line of JSON for each result.
# Usage: run.sh [allocations|layers|streams|training|largest|graphs|suite]...   (all but the last, where nothing is named)
# BENCH_SECONDS bounds each workload and bench (40); PYTORCH_TESTS is a folder with PyTorch's test_cuda.py, for `suite`.
set -u
cd "$(dirname "$0")"
python=${PYTHON:-python3}
seconds=${BENCH_SECONDS:-40}
limit=${BENCH_LIMIT_GIB:-20}
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(allocations layers streams training largest graphs)

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
    allocations) bounded 120 "$python" allocations.py ;;
    layers)
        for library in torch cupy; do
            for allocator in default bursar; do
                bounded 60 "$python" allocations.py --layers $library $allocator
            done
        done
        ;;
    graphs) bounded $((seconds * 6)) "$python" graphs.py ;;
    streams) bounded $((seconds * 4)) "$python" streams.py --seconds "$seconds" ;;
    training) bounded $((seconds * 6)) "$python" training.py --seconds "$seconds" ;;
    largest) bounded $((seconds * 6)) "$python" training.py --seconds "$seconds" --largest-under "$limit" ;;
    suite) bounded $((seconds * 20)) "$python" -m pytest -p enable_pool -q --timeout=300 "${PYTORCH_TESTS:?}/test_cuda.py" ;;
    *) printf '{"failed": "%s is no part"}\n' "$part" ;;
    esac
done
