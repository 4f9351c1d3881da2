"""The cost of an allocation and its free through PyTorch and through CuPy, beside their own. Prints lines of JSON."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import allocators

SIZES = (1024, 1 << 20, 64 << 20)


def measure(pair: Callable[[], object], seconds: float) -> float:
    """Returns the median of rounds, in nanoseconds a pair."""
    for _ in range(1000):
        pair()
    rounds, ends = [], time.monotonic() + seconds
    while time.monotonic() < ends or len(rounds) < 5:
        begin = time.perf_counter_ns()
        for _ in range(2000):
            pair()
        rounds.append((time.perf_counter_ns() - begin) / 2000)
    return round(statistics.median(rounds), 1)


def torch_pairs(name: str, seconds: float) -> dict[str, float]:
    allocators.prepare(name)
    import torch

    allocators.use(name, None)
    answer = {}
    for size in SIZES:
        answer[str(size)] = measure(lambda size=size: torch.empty(size, dtype=torch.uint8, device="cuda"), seconds)
    return answer


def cupy_pairs(name: str, seconds: float) -> dict[str, float]:
    import cupy  # type: ignore[import-not-found]

    if name == "bursar":
        import bursar.cupy

        bursar.cupy.enable()
    answer = {}
    for size in SIZES:
        answer[str(size)] = measure(lambda size=size: cupy.cuda.alloc(size), seconds)
        answer[f"empty {size}"] = measure(lambda size=size: cupy.empty(size, dtype=cupy.uint8), seconds)
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=2, metavar=("LIBRARY", "ALLOCATOR"))
    parser.add_argument("--seconds", type=float, default=1.0, help="for each size")
    parser.add_argument("--rounds", type=int, default=3, help="of processes that alternate")
    options = parser.parse_args()
    if options.one:
        library, name = options.one
        pairs = torch_pairs if library == "torch" else cupy_pairs
        print(json.dumps(pairs(name, options.seconds)), flush=True)
        return
    for library, names in (("torch", ("default", "expandable", "bursar")), ("cupy", ("default", "bursar"))):
        collected: dict[str, dict[str, list[float]]] = {name: {} for name in names}
        absent = ""
        for _ in range(options.rounds):
            for name in names:
                command = [sys.executable, __file__, "--one", library, name, "--seconds", str(options.seconds)]
                ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
                if ran.returncode:
                    absent = (ran.stderr.strip().splitlines() or ["failed"])[-1]
                    continue
                for size, cost in json.loads(ran.stdout.strip().splitlines()[-1]).items():
                    collected[name].setdefault(size, []).append(cost)
        costs = {name: {size: statistics.median(each) for size, each in sizes.items()} for name, sizes in collected.items()}
        line = {"bench": "allocations", "library": library, "nanoseconds": costs}
        print(json.dumps({**line, "absent": absent} if absent else line), flush=True)


if __name__ == "__main__":
    main()
