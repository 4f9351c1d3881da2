"""The cost of an allocation and its free through PyTorch and through CuPy, beside their own. Prints lines of JSON.

Every allocator has a process of its own. The processes of one generation live at the same time and measure in turns, each round on a
core that is the same for all of them, since two cores of a shared host differ by more than two allocators do; a generation begins with new
processes. Of all turns the median and the best are printed, and the median of what the pool takes beside PyTorch's or CuPy's own in the
same round.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable

import allocators
from workers import Worker, move_to_core

SIZES = (1024, 1 << 20, 64 << 20)
LIBRARIES = {"torch": ("default", "expandable", "bursar"), "cupy": ("default", "bursar")}


def measure(pair: Callable[[], object], seconds: float) -> tuple[float, float]:
    """Returns the nanoseconds of a pair: the median and the best of rounds."""
    for _ in range(200):
        pair()
    rounds, ends = [], time.monotonic() + seconds
    gc.disable()
    while time.monotonic() < ends or len(rounds) < 3:
        begin = time.perf_counter_ns()
        for _ in range(200):
            pair()
        rounds.append((time.perf_counter_ns() - begin) / 200)
    gc.enable()
    return round(statistics.median(rounds), 1), round(min(rounds), 1)


def torch_pairs(name: str) -> dict[str, Callable[[], object]]:
    allocators.prepare(name)
    import torch

    allocators.use(name, None)
    torch.zeros(1, device="cuda")
    return {str(size): lambda size=size: torch.empty(size, dtype=torch.uint8, device="cuda") for size in SIZES}


def cupy_pairs(name: str) -> dict[str, Callable[[], object]]:
    import cupy  # type: ignore[import-not-found]

    if name == "bursar":
        import bursar.cupy

        bursar.cupy.enable()
    cupy.zeros(1)
    pairs: dict[str, Callable[[], object]] = {}
    for size in SIZES:
        pairs[str(size)] = lambda size=size: cupy.cuda.alloc(size)
        pairs[f"empty {size}"] = lambda size=size: cupy.empty(size, dtype=cupy.uint8)
    return pairs


def take_turns(library: str, name: str) -> None:
    """Measures once for each line of the input, which says for how many seconds, and on which core."""
    pairs = (torch_pairs if library == "torch" else cupy_pairs)(name)
    print("ready", flush=True)
    for line in sys.stdin:
        seconds, core = line.split()
        move_to_core(int(core))
        print(json.dumps({what: measure(pair, float(seconds)) for what, pair in pairs.items()}), flush=True)


def compare(library: str, options: argparse.Namespace) -> None:
    """Prints the costs of a library's allocators."""
    costs: dict[str, dict[str, list[list[float]]]] = {name: {} for name in LIBRARIES[library]}
    absent: dict[str, str] = {}
    cores = sorted(os.sched_getaffinity(0))
    for _ in range(options.generations):
        names = [name for name in LIBRARIES[library] if name not in absent]
        workers = [Worker(name, "allocations.py", ["--one", library, name]) for name in names]
        ready = [worker for worker in workers if worker.is_ready()]
        for _ in range(options.rounds):
            core = random.choice(cores[1:] or cores)
            for worker in ready:
                worker.ask(f"{options.seconds} {core}")
                for what, cost in json.loads(worker.answer()).items():
                    costs[worker.name].setdefault(what, []).append(cost)
        for worker in workers:
            said = worker.end()
            if worker not in ready:
                absent[worker.name] = said
    line: dict[str, object] = {"bench": "allocations", "library": library}
    for at, (how, of) in enumerate((("median", statistics.median), ("best", min))):
        numbers = {
            name: {what: of(turn[at] for turn in turns) for what, turns in sizes.items()}
            for name, sizes in costs.items()
            if sizes
        }
        ours, theirs = numbers.get("bursar", {}), numbers.get("default", {})
        line[f"{how}_ns"] = numbers
        line[f"{how}_ratio"] = {what: round(cost / theirs[what], 3) for what, cost in ours.items() if what in theirs}
    turns = {what: zip(own, costs["default"].get(what, []), strict=True) for what, own in costs["bursar"].items()}
    beside = {what: [ours[0] / theirs[0] for ours, theirs in rounds] for what, rounds in turns.items() if costs["default"]}
    line["median_of_ratios"] = {what: round(statistics.median(ratios), 3) for what, ratios in beside.items()}
    print(json.dumps({**line, "absent": absent} if absent else line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=2, metavar=("LIBRARY", "ALLOCATOR"))
    parser.add_argument("--layers", nargs=2, metavar=("LIBRARY", "ALLOCATOR"), help="print what each layer costs instead")
    parser.add_argument("--seconds", type=float, default=0.05, help="for each size and turn")
    parser.add_argument("--rounds", type=int, default=7, help="of turns in a generation of processes")
    parser.add_argument("--generations", type=int, default=3)
    options = parser.parse_args()
    if options.one:
        take_turns(*options.one)
    elif options.layers:
        import layers

        library, name = options.layers
        print(json.dumps({"bench": "layers", "library": library, "allocator": name, "ns": layers.costs(library, name)}))
    else:
        for library in LIBRARIES:
            compare(library, options)


if __name__ == "__main__":
    main()
