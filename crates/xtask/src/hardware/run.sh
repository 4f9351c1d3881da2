#!/usr/bin/env bash
# Tries Bursar on this machine's GPU, with what `cargo xtask hardware` packed beside this script. It needs no Rust and no network.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

help() {
    cat <<TEXT
Usage: bash run.sh [PART]...   (trials and python, where nothing is named)

  trials     the test programs that ask a driver; one that finds no GPU fails
  python     the tests of the Python package with PyTorch, CuPy and Numba, as far as these are installed
  sleep      bench: 16 GiB asleep and awake again, beside copies of their own
  turns      two programs that take 20 turns with memory for one of them
  training   bench: steps and largest batches under each allocator of PyTorch
  graphs     bench: graphs beside PyTorch's private pools, and 1,000 replays of each

HARDWARE_SECONDS bounds each program (540), HARDWARE_THREADS is how many trials run at a time (6), HARDWARE_OUT is the folder for
what they print (out, beside this script), and HARDWARE_SLEEP how much the bench of sleep puts to sleep (16GiB).
A line a program says passed, FAILED or not run; the status is 1 if one failed, or if none was run.
TEXT
}

parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(trials python)
for part in "${parts[@]}"; do
    case $part in
    trials | python | sleep | turns | training | graphs) ;;
    -h | --help) help && exit 0 ;;
    *) echo "run.sh: there is no part \`$part\`; see --help" >&2 && exit 2 ;;
    esac
done

seconds=${HARDWARE_SECONDS:-540}
out=${HARDWARE_OUT:-$here/out}
python=${PYTHON:-python3}
mkdir -p "$out"
ledgers=$(mktemp -d)
trap 'rm -rf "$ledgers"' EXIT
export BURSAR_REQUIRE_CUDA=1 BURSAR_LEDGER_DIR=$ledgers
ran=0 failed=0

# Runs a command for a bounded time, and says how it ended: with its last line that counts something, if there is one.
try() { # name command...
    local name=$1 began=$SECONDS status
    shift
    timeout --kill-after=10 "$seconds" "$@" >"$out/$name.txt" 2>&1
    status=$?
    ran=$((ran + 1))
    local said
    said=$(grep -E 'test result|passed|failed|skipped' "$out/$name.txt" | tail -n 1 | cut -c1-160)
    case $status in
    0) printf 'passed   %-20s %4d s  %s\n' "$name" $((SECONDS - began)) "$said" ;;
    *)
        failed=$((failed + 1))
        [ $status -ne 124 ] || said="it took more than $seconds s; $said"
        printf 'FAILED   %-20s %4d s  status %d: %s\n' "$name" $((SECONDS - began)) $status "$said"
        grep -nE '^failures:|panicked|^FAILED|^E  ' "$out/$name.txt" | head -n 20 | sed 's/^/         /'
        ;;
    esac
}

not_run() { # name why
    printf 'not run  %-20s %s\n' "$1" "$2"
}

# Installs the package and pytest for the parts in Python, once, into a folder beside this script.
install() {
    [ -z "${installed:-}" ] || return "$installed"
    installed=1
    compgen -G "$here/wheels/bursar-*.whl" >/dev/null || return 1
    rm -rf "$here/site"
    "$python" -m pip install --quiet --no-index --find-links "$here/wheels" --target "$here/site" bursar pytest >"$out/install.txt" 2>&1 || return 1
    export PYTHONPATH=$here/site${PYTHONPATH:+:$PYTHONPATH}
    installed=0
}

for part in "${parts[@]}"; do
    case $part in
    trials)
        for program in "$here"/trials/*; do
            try "$(basename "$program")" "$program" cuda --test-threads "${HARDWARE_THREADS:-6}"
        done
        ;;
    sleep) try sleep env BURSAR_DRIVER=cuda "$here/bin/bursar" bench sleep --block 256MiB --bytes "${HARDWARE_SLEEP:-16GiB}" ;;
    turns) try turns env BURSAR_DRIVER=cuda "$here/bin/13-take-turns" 16GiB 20 ;;
    python | training | graphs)
        if ! install; then
            not_run "$part" "the Python package could not be installed; see $out/install.txt"
            continue
        fi
        case $part in
        python)
            for library in torch cupy numba; do
                if "$python" -c "import $library" 2>/dev/null; then
                    try "$library" "$python" -m pytest -q -rs -p no:cacheprovider "$here/tests/test_$library.py"
                else
                    not_run "$library" "it is not installed"
                fi
            done
            ;;
        *) try "$part" bash "$here/benches/run.sh" "$part" ;;
        esac
        ;;
    esac
done
[ $ran -gt 0 ] && [ $failed -eq 0 ]
