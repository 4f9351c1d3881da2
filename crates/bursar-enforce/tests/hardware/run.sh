#!/usr/bin/env bash
# Runs the trials that hold on hardware, and prints a table of verdicts. OUT is a folder: results.jsonl, table.txt and logs.txt.
# usage: run.sh BURSAR ENFORCE_SO OUT [RUST_TESTS]
# RUST_TESTS is the built test program `enforce` of this crate, which has the program of cudarc.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [ $# -lt 3 ] || [ $# -gt 4 ]; then
    echo "usage: run.sh BURSAR ENFORCE_SO OUT [RUST_TESTS]" >&2
    exit 2
fi
# What an earlier program left in the environment is not for these.
unset LD_PRELOAD BURSAR_RESERVATION BURSAR_RESERVATION_SHARED BURSAR_DRIVER PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
exec python3 "$here/trials.py" "$@"
