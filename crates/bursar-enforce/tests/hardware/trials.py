"""The trials that hold on hardware, in order, and the table of their verdicts.

usage: trials.py BURSAR LIBRARY OUT [RUST_TESTS]
"""

import dataclasses
import json
import os
import re
import shutil
import signal
import statistics
import sys
import tempfile
import time

import watch
from build import SOURCES, build
from card import Card
from watch import GIB, MIB, Bench, Outcome, Run, Trial, outcome_of

#: The seconds that all trials have together.
SECONDS = float(os.environ.get("TRIALS_SECONDS", "460"))
#: A pattern that names the trials to make; all of them where it is not set.
ONLY = os.environ.get("TRIALS_ONLY", "")
#: The most that an allocating call, and any other, may cost more, in nanoseconds.
ALLOCATING_MAX_NS = 1000
OTHER_MAX_NS = 0
#: The trial that the others are judged by.
CONTEXT = "a context, outside a share"
WAYS = ["linear", "pitch", "arrays", "mipmaps", "managed", "ordered", "pools", "handles", "graphs", "ipc"]
LOOKUPS = ["dlsym", "address1:0", "address1:1", "address1:2", "address2:0", "address2:1", "address2:2"]
#: What the driver itself may have taken beside the shares before a share of half the card is made.
CONTEXTS_BYTES = 3 * GIB


def python(script, *words):
    return [sys.executable, os.path.join(SOURCES, script), *words]


class Trials:
    """All trials of one call, one after the other."""

    def __init__(self, bench, programs, missing, results, logs, started):
        self.bench, self.programs, self.missing = bench, programs, missing
        self.results, self.logs = results, logs
        self.deadline = started + SECONDS
        self.outcomes = []

    def report(self, outcome):
        """Prints a line, and writes everything that is known to the files."""
        self.outcomes.append(outcome)
        print(f"{outcome.name:34} {outcome.verdict:8} {outcome.seconds:6.1f}  {outcome.seen[:400]}", flush=True)
        row = dataclasses.asdict(outcome)
        output = row.pop("output")
        self.results.write(json.dumps(row) + "\n")
        self.results.flush()
        self.logs.write(f"\n===== {outcome.name}: {outcome.verdict}\n{outcome.seen}\n----- output\n{output[-20000:]}\n")
        self.logs.flush()

    def attempt(self, name, act, needs=None):
        """Makes a trial by calling `act`, unless what it needs is missing or there is no time left."""
        why = self.missing.get(needs) if needs else None
        if not re.search(ONLY, name) and name != CONTEXT:
            return
        if why:
            self.report(Outcome(name, "not run", 0, why.replace("\n", " ")[:300], output=why))
        elif time.monotonic() > self.deadline - 5:
            self.report(Outcome(name, "not run", 0, "no time is left"))
        else:
            try:
                outcome = act()
            except Exception as error:  # One trial that cannot be made does not stop the rest.
                outcome = Outcome(name, "FAIL", 0, f"it cannot be made: {type(error).__name__}: {error}")
            self.report(outcome)

    def run(self, trial, needs=None):
        self.attempt(trial.name, lambda: watch.run(self.bench, trial, self.deadline), needs)

    def program(self, name, *words):
        return [os.path.join(self.programs, name), *words]

    def context(self):
        """Measures what the card gives out for a context alone."""
        trial = Trial(CONTEXT, self.program("processes", "context"), is_bare=True, timeout=30)
        outcome = watch.run(self.bench, trial, self.deadline)
        taken = [mark["given_device"] for mark in outcome.marks if mark["mark"] == "context"]
        if taken:
            self.bench.context_bytes = max(0, taken[0])
            outcome.seen = f"{taken[0] / MIB:.1f} MiB by {self.bench.card.source}"
        return outcome

    def two_halves(self):
        """Two programs that each take 90 % of what they are told there is, at once."""
        half = (self.bench.card.memory()[1] - CONTEXTS_BYTES) // 2 // MIB * MIB
        trial = Trial("PyTorch twice, 90 % each", python("torch_two.py"), share=half, workers=2, timeout=90)
        outcome = watch.run(self.bench, trial, self.deadline)
        held = [mark for mark in outcome.marks if mark["mark"] == "both hold"]
        if len(held) != 2 and outcome.verdict == "pass":
            outcome.verdict, outcome.seen = "FAIL", f"{len(held)} of two held their part at once; {outcome.seen}"
        return outcome

    def killed(self):
        """A program is killed with memory mapped: a share that was refused for want of it is there within five seconds."""
        started = time.monotonic()
        hold = self.program("processes", "hold", str(9 * GIB))
        trial = Trial("killed, and another share gets it", hold, is_killed=True, timeout=40)
        first = Run(self.bench, trial)
        runs = [first]
        try:
            holder = self._wait_for_mark(first, "holding", 25)
            first.check(holder is not None, "the first holds 9 GiB")
            if holder is None:
                return self._outcome_of_runs(trial, runs, started)
            first.ledger.limit(0, str(15 * GIB))
            refused = Run(self.bench, trial, first.ledger.folder)
            runs.append(refused)
            refused.watch(time.monotonic() + 20)
            first.check(refused.process.returncode == 1, "another share of 10 GiB is refused", f"exit status {refused.process.returncode}")
            os.kill(holder, signal.SIGKILL)
            killed, tried, took = time.monotonic(), None, None
            while took is None and time.monotonic() < killed + 15:
                tried = time.monotonic() - killed
                again = Run(self.bench, trial, first.ledger.folder)
                runs.append(again)
                if self._wait_for_mark(again, "holding", 15) is not None:
                    took = time.monotonic() - killed
            detail = f"started {tried:.2f} s after the kill, held it after {took or -1:.2f} s, {len(runs) - 2} tries"
            first.check(took is not None and tried <= 5, "a program that is started within 5 s of the kill holds 9 GiB", detail)
            first.see("the other share:", detail)
        finally:
            for run in reversed(runs):
                run.stop()
            first.ledger.limit(0, str(self.bench.card.total))
        return self._outcome_of_runs(trial, runs, started)

    def _outcome_of_runs(self, trial, runs, started):
        for run in reversed(runs):
            run.stop()
        runs[0].returned()
        outputs = [run.close() for run in reversed(runs)]
        checks = runs[0].checks + [check for run in runs[1:] for check in run.checks if check[0] == "no"]
        return outcome_of(trial, checks, [mark for run in runs for mark in run.marks], "\n".join(outputs), time.monotonic() - started)

    def _wait_for_mark(self, run, name, patience):
        """Answers until a program has made a mark, and returns the number of that process; none if it ends before."""
        end = time.monotonic() + patience
        while run.is_running() and time.monotonic() < end:
            for question in run.step():
                if question["name"] == name:
                    return question["pid"]
            time.sleep(0.001)
        return None

    def cost(self):
        """The library's cost a call, in three rounds, each with a round without the library before it."""
        started = time.monotonic()
        rounds = {"bare": {}, "enforced": {}}
        checks, outputs = [], []
        for _ in range(3):
            for kind, is_bare in (("bare", True), ("enforced", False)):
                trial = Trial("cost", self.program("cost", "67"), is_bare=is_bare, timeout=40)
                outcome = watch.run(self.bench, trial, self.deadline)
                checks += [check for check in outcome.checks if check[0] == "no"]
                if outcome.verdict == "TIMEOUT":
                    checks.append(("no", "it ends", outcome.seen))
                outputs.append(outcome.output)
                for row in _rows(outcome.output):
                    rounds[kind].setdefault(row["call"], []).append(row)
        seen = []
        for call, rows in rounds["enforced"].items():
            bare = rounds["bare"].get(call, [])
            added = statistics.median(row["added_ns"] for row in rows)
            # Without the library both sides are one function: what they differ by is the measurement's own.
            noise = max([abs(row["added_ns"]) for row in bare] or [0])
            own = statistics.median(row["own_ns"] for row in rows)
            line = f"{call}: {added:+.0f} ns on {own:.0f} (noise {noise:.0f})"
            bar = {"allocating": ALLOCATING_MAX_NS, "other": OTHER_MAX_NS}.get(rows[0]["kind"])
            if bar is None:
                checks.append(("see", "no bar:", line))
            else:
                checks.append(("ok" if added <= bar + noise else "no", f"at most {bar} ns more", line))
                seen.append(line)
        if len(rounds["enforced"]) < 7:
            checks.append(("no", "every call is timed", f"{len(rounds['enforced'])} of 7"))
        checks.append(("see", "added:", ", ".join(seen)))
        trial = Trial("cost a call", [])
        return outcome_of(trial, checks, [], "\n".join(outputs), time.monotonic() - started)

    def all(self):
        """Makes every trial."""
        self.attempt(CONTEXT, self.context, "processes")
        allocators = {"native": None, "expandable segments": "expandable_segments:True", "cudaMallocAsync": "backend:cudaMallocAsync"}
        for name, setting in allocators.items():
            environment = {"PYTORCH_CUDA_ALLOC_CONF": setting} if setting else {}
            self.run(Trial(f"PyTorch, {name}", python("torch_trial.py"), environment=environment, timeout=75))
        for runtime in ("shared", "static"):
            for way in WAYS:
                name = f"plain-{runtime}"
                # What is managed is charged when it is asked for, and lies on the card when it is used.
                loose = way == "managed"
                self.run(Trial(f"{runtime} cudart, {way}", self.program(name, way), timeout=40, is_loose=loose), name)
        for way in LOOKUPS:
            self.run(Trial(f"driver by {way}", self.program("lookup", way), timeout=30), "lookup")
        for what in ("forks", "executes"):
            self.run(Trial(f"a program that {what}", self.program("processes", what), timeout=50), "processes")
        self.run(Trial("killed, and its share is there", self.program("processes", "inherits"), timeout=60), "processes")
        self.attempt("killed, and another share gets it", self.killed, "processes")
        self.attempt("PyTorch twice, 90 % each", self.two_halves)
        self.attempt("cost a call", self.cost, "cost")
        for kind in ("default", "async"):
            self.run(Trial(f"CuPy, {kind} pool", python("cupy_trial.py", kind), timeout=50))
        self.run(Trial("Numba", python("numba_trial.py"), timeout=50))
        self.run(Trial("JAX", python("jax_trial.py"), timeout=75))
        role = ["--exact", "cudarc_program::role", "--ignored", "--nocapture"]
        self.run(Trial("cudarc", self.program("rust-tests", *role), timeout=60), "rust-tests")


def _rows(output):
    """Returns the JSON objects among lines that may have the number of a worker before them."""
    for line in output.splitlines():
        start = line.find('{"call"')
        if start >= 0:
            try:
                yield json.loads(line[start:])
            except ValueError:
                continue


def _table(outcomes):
    lines = [f"{'trial':34} {'verdict':8} {'s':>6}  seen", "-" * 120]
    lines += [f"{outcome.name:34} {outcome.verdict:8} {outcome.seconds:6.1f}  {outcome.seen[:160]}" for outcome in outcomes]
    counts = {verdict: sum(outcome.verdict == verdict for outcome in outcomes) for verdict in ("pass", "FAIL", "TIMEOUT", "not run")}
    return "\n".join([*lines, "-" * 120, ", ".join(f"{count} {verdict}" for verdict, count in counts.items())])


def main():
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    bursar, library, out, *rust_tests = (os.path.abspath(path) for path in sys.argv[1:])
    os.makedirs(out, exist_ok=True)
    for path in (bursar, library, *rust_tests):
        if not os.path.isfile(path):
            sys.exit(f"there is no {path}")
    started = time.monotonic()
    folder = tempfile.mkdtemp(prefix="bursar-trials-")
    try:
        try:
            card = Card(bursar)
        except (RuntimeError, OSError, ValueError) as why:
            sys.exit(f"{why}")
        missing = build(folder)
        if rust_tests:
            os.symlink(rust_tests[0], os.path.join(folder, "rust-tests"))
        else:
            missing["rust-tests"] = "RUST_TESTS is not given: cargo test --release -p bursar-enforce --test enforce --no-run"
        print(f"{card.name}, {card.total / GIB:.1f} GiB, {card.used() / MIB:.0f} MiB in use, by {card.source}; built in {time.monotonic() - started:.1f} s", flush=True)
        with open(os.path.join(out, "results.jsonl"), "w") as results, open(os.path.join(out, "logs.txt"), "w") as logs:
            bench = Bench(bursar, library, card, folder)
            trials = Trials(bench, folder, missing, results, logs, started)
            trials.all()
        table = _table(trials.outcomes)
        with open(os.path.join(out, "table.txt"), "w") as file:
            file.write(table + "\n")
        print(f"\n{table}\n{time.monotonic() - started:.0f} s", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(any(outcome.verdict in ("FAIL", "TIMEOUT") for outcome in trials.outcomes))


if __name__ == "__main__":
    main()
