"""Workloads under every allocator: what each held, how long a step took, and the largest batch that fits.

Prints a line of JSON for each workload and allocator. The processes of a workload's allocators live at the same time and take
turns after every step, with the same numbers, so that a step of one is the same work as that of the others and runs beside it
on a host that is never equally busy for long. Where a program runs on one thread, all of them run a step on the same core, and
the next ones on another: two cores of a shared host differ by more than two allocators do. So do two processes of one program,
by where their memory happens to lie, which is why several of each allocator can be had. Equal hashes of losses are losses equal
to the bit.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import random
import statistics
import sys
import time
from typing import Any

import allocators
from workers import Worker, move_to_core

GIB = 1 << 30
#: The steps at the beginning of a workload that are not timed.
WARM = 3
#: The steps that are run on one core before the next.
STEPS_ON_CORE = 8
WORKLOADS = ("transformer", "resnet", "generation", "decoding")
#: Those that run on one thread: no gradients are computed.
ONE_THREAD = ("generation", "decoding")


class Run:
    """One workload under one allocator."""

    def __init__(self, workload: str, name: str, limit: int | None, seed: int, smoke: bool) -> None:
        import torch
        import workloads

        self.workload, self.name, self.seed, self.smoke = workload, name, seed, smoke
        self.allocator = None if smoke else allocators.use(name, limit)
        self.device, self.batch = ("cpu", 2) if smoke else ("cuda", workloads.BATCHES[workload])
        self.steps = WARM + (3 if smoke else workloads.STEPS[workload])
        self.peaks: dict[str, object] = {}
        self.running: Any = None
        torch.use_deterministic_algorithms(True, warn_only=True)
        if smoke:
            torch.set_num_threads(1)

    def begin(self, batch: int, steps: int) -> Any:
        import workloads

        return workloads.ALL[self.workload](batch, steps, self.device, self.seed, self.smoke)

    def step(self) -> dict[str, Any]:
        """Runs the next step of the workload; returns its loss and its seconds, and once it is over what was held."""
        self.running = self.running or self.begin(self.batch, self.steps)
        began = time.perf_counter()
        loss = next(self.running, None)
        took = time.perf_counter() - began
        if loss is not None:
            return {"loss": loss.hex(), "seconds": took}
        if self.allocator is not None and not self.peaks:
            # Those of a process that ran the workload once.
            allocated, reserved = self.allocator.peak_allocated(), self.allocator.peak_reserved()
            self.peaks = {"peak_allocated": allocated, "peak_reserved": reserved, "ratio": round(reserved / allocated, 4)}
        self.running = None
        gc.collect()
        return {"batch": self.batch, **self.peaks, **self.pool()}

    def pool(self) -> dict[str, object]:
        """Returns what the pool did, where it is ours."""
        if self.name != "bursar" or self.allocator is None:
            return {}
        import bursar
        from bursar import _native

        counts, frames = bursar.statistics()[0], _native.torch_counts(0)
        pool = {key: getattr(counts, key) for key in ("held", "held_peak", "cached", "pending", "live_peak", "allocations")}
        return {"pool": {**pool, "frames_made": frames["frames_made"], "frames_released": frames["frames_released"]}}

    def fits(self, batch: int, steps: int) -> bool:
        """Returns whether some steps of a batch can be run."""
        import torch

        try:
            for _ in self.begin(batch, steps):
                if self.smoke and batch > 4:
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
            if self.allocator is not None:
                torch.cuda.synchronize()
                self.allocator.empty()

    def largest(self, seconds: float) -> dict[str, object]:
        """Looks for the largest batch that fits: doubles it, then halves the step."""
        import workloads

        steps = workloads.FITTING_STEPS[self.workload]
        best, step, ends, complete = 0, self.batch, time.monotonic() + seconds, True
        while complete and self.fits(best + step, steps):
            best += step
            step = best
            complete = time.monotonic() <= ends
        while complete and step > max(1, best // 32):
            step //= 2
            best += step if self.fits(best + step, steps) else 0
            complete = time.monotonic() <= ends
        return {"largest_batch": best, "complete": complete}


def take_turns(options: argparse.Namespace) -> None:
    """Runs a step of the workload for each line of the input, on a core that it names, or looks for the largest batch."""
    workload, name = options.one
    allocators.prepare(name)
    limit = int(options.largest_under * GIB) or None
    run = Run(workload, name, limit, options.seed, options.smoke)
    print("ready", flush=True)
    core = None
    for line in sys.stdin:
        if line.strip() and core != int(line):
            core = int(line)
            move_to_core(core)
        answer = run.largest(options.seconds) if limit else run.step()
        print(json.dumps(answer), flush=True)


def worker(workload: str, name: str, options: argparse.Namespace) -> Worker:
    """Starts a process with one workload under one allocator."""
    arguments = ["--one", workload, name, "--seed", str(options.seed)]
    arguments += ["--largest-under", str(options.largest_under), "--seconds", str(options.seconds)]
    return Worker(name, "training.py", arguments + ["--smoke"] * options.smoke)


#: What the processes of each allocator did in a round, a step after the other.
Round = dict[str, list[list[dict[str, Any]]]]


def compare(workers: list[Worker], options: argparse.Namespace) -> dict[str, dict[str, object]]:
    """Has the workers run a workload, a step of each in turn, and returns what those of each allocator did."""
    rounds: list[Round] = []
    began = time.monotonic()
    while len(rounds) < options.rounds:
        rounds.append(one_round(workers, options.on_one_core))
        if (time.monotonic() - began) * (len(rounds) + 1) / len(rounds) > options.seconds:
            break
    return {worker.name: result(worker.name, rounds) for worker in workers}


def one_round(workers: list[Worker], on_one_core: bool) -> Round:
    """Has every worker run the workload once; returns the steps of those that finished it."""
    steps: dict[Worker, list[dict[str, Any]]] = {worker: [] for worker in workers}
    going, cores, turn, core = list(workers), sorted(os.sched_getaffinity(0)), 0, ""
    while going:
        if on_one_core and turn % STEPS_ON_CORE == 0:
            # The first one is left to this process.
            core = str(random.choice(cores[1:] or cores))
        turn += 1
        # Whoever runs after another finds the caches as that one left them, so nobody is always the same one's successor.
        random.shuffle(going)
        for worker in list(going):
            worker.ask(core)
            answer = worker.answer()
            if not answer:
                del steps[worker]
                going.remove(worker)
                continue
            steps[worker].append(json.loads(answer))
            if "loss" not in steps[worker][-1]:
                going.remove(worker)
    finished: Round = {}
    for worker, own in steps.items():
        finished.setdefault(worker.name, []).append(own)
    return finished


def means(processes: list[list[dict[str, Any]]]) -> list[float]:
    """Returns the seconds of each step that is timed, on average of those who ran it."""
    timed = [[step["seconds"] for step in steps[WARM:-1]] for steps in processes]
    return [statistics.mean(each) for each in zip(*timed)]


def result(name: str, rounds: list[Round]) -> dict[str, object]:
    """Returns what the workers of an allocator did in all rounds, and how long their steps took beside those of the others."""
    ran = [steps for steps in rounds if name in steps]
    if not ran:
        return {"failed": True}
    losses = [[step["loss"] for step in steps[:-1]] for each in ran for steps in each[name]]
    seconds = [means(each[name]) for each in ran]
    beside = {}
    for other in ran[0]:
        if other != name:
            pairs = (zip(means(each[name]), means(each[other])) for each in ran if other in each)
            ratios = sorted(ours / theirs for each in pairs for ours, theirs in each)
            beside[other] = [round(ratios[len(ratios) * part // 4], 4) for part in (1, 2, 3)]
    first, last = ran[0][name][0][-1], ran[-1][name][0][-1]
    return {
        "rounds": len(ran),
        "processes": len(ran[0][name]),
        "steps": len(losses[0]),
        "step_ms": round(1000 * statistics.median(time for times in seconds for time in times), 3),
        "mean_step_ms": round(1000 * statistics.mean(time for times in seconds for time in times), 3),
        "best_step_ms": round(1000 * statistics.mean(map(min, zip(*seconds))), 3),
        "beside": beside,
        "losses": hashlib.sha256(" ".join(losses[0]).encode()).hexdigest()[:16],
        "last_loss": float.fromhex(losses[0][-1]),
        "same_in_all_rounds": all(each == losses[0] for each in losses),
        **first,
        **{key: value for key, value in last.items() if key == "pool"},
    }


def largest(workers: list[Worker], options: argparse.Namespace) -> dict[str, dict[str, object]]:
    """Has the workers look for the largest batch, all at the same time: what fits does not depend on the others."""
    for worker in workers:
        worker.ask()
    answers = {worker.name: worker.answer() for worker in workers}
    limit = {"limit_gib": options.largest_under}
    return {name: {**limit, **json.loads(answer)} if answer else {"failed": True} for name, answer in answers.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=2, metavar=("WORKLOAD", "ALLOCATOR"))
    parser.add_argument("--workload", choices=WORKLOADS, action="append", help="only these")
    parser.add_argument("--allocator", choices=allocators.NAMES, action="append", help="only these")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1, help="the processes of each allocator that run a workload")
    parser.add_argument("--largest-under", type=float, default=0.0, help="GiB: look for the largest batch that fits instead")
    parser.add_argument("--seconds", type=float, default=40.0, help="begin nothing more of a workload after this long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--smoke", action="store_true", help="a tiny run without a GPU, to see that the program works")
    options = parser.parse_args()
    if options.one:
        return take_turns(options)
    for workload in options.workload or WORKLOADS:
        names = options.allocator or allocators.NAMES
        started = [worker(workload, name, options) for _ in range(options.processes) for name in names]
        ready = [one for one in started if one.is_ready()]
        options.on_one_core = workload in ONE_THREAD
        results = (largest if options.largest_under else compare)(ready, options)
        bench = "largest" if options.largest_under else "training"
        said = {one.name: one.end() for one in started}
        for name in names:
            result = results.get(name, {"absent": said[name]})
            if result.get("failed"):
                result["failed"] = said[name]
            line = {"bench": bench, "workload": workload, "allocator": name}
            print(json.dumps({**line, **result}), flush=True)
    return None


if __name__ == "__main__":
    main()
