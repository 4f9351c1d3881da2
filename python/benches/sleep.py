"""Times how tensors sleep and wake on a GPU: in the pool, and as others do it. A line of JSON for each way.

The ways are ``bursar`` (the pool under PyTorch, ``bursar.sleep`` and ``bursar.wake``), ``one-by-one`` (for each tensor: pin host
memory, copy, free, as vLLM's sleep mode does) and ``torch_memory_saver``, where it is installed. Each has a process of its own,
and checks its tensors after the last wake.

    python sleep.py --gib 16 --block-mib 256 --rounds 3
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

WAYS = ("bursar", "one-by-one", "torch_memory_saver")


def tensors(count: int, block: int) -> list[Any]:
    """Makes tensors of random bytes."""
    import torch

    torch.manual_seed(1)
    return [torch.randint(0, 1 << 31, (block // 4,), dtype=torch.int32, device="cuda") for _ in range(count)]


def checksum(all_tensors: list[Any]) -> list[int]:
    """Returns a number for each tensor that depends on every element and its place."""
    import torch

    sums = []
    for tensor in all_tensors:
        places = torch.arange(1, tensor.numel() + 1, dtype=torch.int32, device=tensor.device)
        sums.append(int((tensor ^ places).sum(dtype=torch.int64)))
    torch.cuda.synchronize()
    return sums


def timed(act: Callable[[], object]) -> float:
    import torch

    torch.cuda.synchronize()
    start = time.perf_counter()
    act()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def in_pool(count: int, block: int, rounds: int) -> dict[str, Any]:
    import bursar
    import bursar.torch

    bursar.torch.enable()
    held = tensors(count, block)
    before, times = checksum(held), []
    bursar.trim()
    for _ in range(rounds):
        times.append((timed(bursar.sleep), timed(bursar.wake)))
    return {"times": times, "intact": checksum(held) == before}


def one_by_one(count: int, block: int, rounds: int) -> dict[str, Any]:
    import torch

    held = tensors(count, block)
    before, times, on_host = checksum(held), [], []

    def sleep() -> None:
        while held:
            tensor = held.pop(0)
            pinned = torch.empty(tensor.numel(), dtype=tensor.dtype, pin_memory=True)
            pinned.copy_(tensor)
            on_host.append(pinned)
            del tensor
            torch.cuda.empty_cache()

    def wake() -> None:
        while on_host:
            pinned = on_host.pop(0)
            tensor = torch.empty(pinned.numel(), dtype=pinned.dtype, device="cuda")
            tensor.copy_(pinned)
            held.append(tensor)

    for _ in range(rounds):
        times.append((timed(sleep), timed(wake)))
    return {"times": times, "intact": checksum(held) == before}


def memory_saver(count: int, block: int, rounds: int) -> dict[str, Any]:
    from torch_memory_saver import torch_memory_saver

    with torch_memory_saver.region(tag="bench", enable_cpu_backup=True):
        held = tensors(count, block)
    before, times = checksum(held), []
    for _ in range(rounds):
        times.append((timed(lambda: torch_memory_saver.pause("bench")), timed(lambda: torch_memory_saver.resume("bench"))))
    return {"times": times, "intact": checksum(held) == before}


def environment(way: str) -> dict[str, str]:
    """Returns the variables of the process that measures a way."""
    if way != "torch_memory_saver":
        return dict(os.environ)
    try:
        from torch_memory_saver import configure_subprocess
    except ImportError:
        return dict(os.environ)
    # It is preloaded: as an allocator of PyTorch's it ends the process when a tensor is freed outside its region.
    with configure_subprocess():
        return dict(os.environ)


def one(way: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures one way, in this process."""
    block = arguments.block_mib << 20
    count = max(1, (arguments.gib << 30) // block)
    measure = {"bursar": in_pool, "one-by-one": one_by_one, "torch_memory_saver": memory_saver}[way]
    found = measure(count, block, arguments.rounds)
    rate = lambda seconds: count * block / seconds / 1e9  # noqa: E731
    (first_sleep, first_wake), *later = found["times"]
    answer = {"bench": "sleep", "way": way, "bytes": count * block, "block": block, "intact": found["intact"]}
    answer |= {"first_sleep_gb_s": rate(first_sleep), "first_wake_gb_s": rate(first_wake)}
    if later:
        answer["later_sleeps_gb_s"] = [rate(sleep) for sleep, _ in later]
        answer["later_wakes_gb_s"] = [rate(wake) for _, wake in later]
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=int, default=16)
    parser.add_argument("--block-mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--one", choices=WAYS, help="measures this way alone, in this process")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(one(arguments.one, arguments)), flush=True)
        return
    for way in arguments.ways:
        command = [sys.executable, __file__, *sys.argv[1:], "--one", way]
        done = subprocess.run(command, env=environment(way), capture_output=True, text=True)
        printed = done.stdout.strip().splitlines()
        said = done.stderr.strip().splitlines()
        failed = json.dumps({"bench": "sleep", "way": way, "failed": said[-1] if said else str(done.returncode)})
        print(printed[-1] if done.returncode == 0 and printed else failed, flush=True)


if __name__ == "__main__":
    main()
