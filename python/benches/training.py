"""One workload under one allocator: what it held, how long a step took, and the largest batch that fits.

Prints a line of JSON. The losses are compared by their hash: equal hashes are losses equal to the bit.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import statistics
import time

import allocators

GIB = 1 << 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", choices=["transformer", "resnet", "generation"], required=True)
    parser.add_argument("--allocator", choices=allocators.NAMES, required=True)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--largest-under", type=float, default=0.0, help="GiB: look for the largest batch that fits instead")
    parser.add_argument("--seconds", type=float, default=60.0, help="stop after this long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--smoke", action="store_true", help="a tiny run without a GPU, to see that the program works")
    options = parser.parse_args()
    allocators.prepare(options.allocator)
    result = {"bench": "training", "workload": options.workload, "allocator": options.allocator}
    try:
        measure = largest if options.largest_under else train
        result.update(measure(options))
    except ImportError as error:
        result["absent"] = str(error)
    print(json.dumps(result), flush=True)


def train(options: argparse.Namespace) -> dict[str, object]:
    """Runs the workload and measures it, after a few steps that warm up."""
    import torch
    import workloads

    allocator = None if options.smoke else allocators.use(options.allocator, None)
    torch.use_deterministic_algorithms(True, warn_only=True)
    batch = 2 if options.smoke else workloads.BATCHES[options.workload]
    device, warm = "cpu" if options.smoke else "cuda", 5
    steps = workloads.ALL[options.workload](batch, options.steps + warm, device, options.seed, options.smoke)
    ends, losses, times = time.monotonic() + options.seconds, [], []
    before = time.perf_counter()
    for number, loss in enumerate(steps):
        now = time.perf_counter()
        losses.append(loss.hex())
        if number >= warm:
            times.append(now - before)
        before = now
        if time.monotonic() > ends:
            break
    answer: dict[str, object] = {
        "batch": batch,
        "steps": len(losses),
        "step_ms": round(1000 * statistics.median(times or [0.0]), 3),
        "losses": hashlib.sha256(" ".join(losses).encode()).hexdigest()[:16],
        "last_loss": float.fromhex(losses[-1]),
    }
    if allocator is not None:
        allocated, reserved = allocator.peak_allocated(), allocator.peak_reserved()
        answer.update(peak_allocated=allocated, peak_reserved=reserved, ratio=round(reserved / max(1, allocated), 4))
    return answer


def largest(options: argparse.Namespace) -> dict[str, object]:
    """Doubles the batch until it does not fit, then halves the difference."""
    import torch
    import workloads

    limit = int(options.largest_under * GIB)
    allocator = None if options.smoke else allocators.use(options.allocator, limit)
    device, ends = "cpu" if options.smoke else "cuda", time.monotonic() + options.seconds

    def fits(batch: int) -> bool:
        try:
            for _ in workloads.ALL[options.workload](batch, options.steps, device, options.seed, options.smoke):
                if options.smoke and batch > 4:
                    return False
            return True
        except (torch.cuda.OutOfMemoryError, MemoryError):
            return False
        except RuntimeError as error:
            # RMM's refusal is an error of C++.
            if "out_of_memory" not in str(error) and "bad_alloc" not in str(error):
                raise
            return False
        finally:
            gc.collect()
            if allocator is not None:
                torch.cuda.synchronize()
                allocator.empty()

    best, step, complete = 0, 2 if options.smoke else workloads.BATCHES[options.workload], True
    while fits(best + step):
        best += step
        step = best
        if time.monotonic() > ends:
            complete = False
            break
    while step > max(1, best // 64) and complete:
        step //= 2
        if fits(best + step):
            best += step
        complete = time.monotonic() <= ends
    return {"limit_gib": options.largest_under, "largest_batch": best, "complete": complete}


if __name__ == "__main__":
    main()
