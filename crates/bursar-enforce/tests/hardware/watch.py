"""Runs one trial and watches it: answers its questions, judges its marks, and sees that everything comes back."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

from card import LedgerFolder

MIB = 1 << 20
GIB = 1 << 30
#: The seconds within which memory must be back after its program has ended.
RETURNED_S = 5
#: What the card may have given out more after a trial than before it.
LEFT_OVER_MAX = 16 * MIB
#: What a card gives out for a context beyond what NVML counts for its process: 5.6 MiB were seen.
CARD_BESIDE = 8 * MIB


@dataclasses.dataclass
class Trial:
    """A program in a share, and what to expect of it."""

    name: str
    command: list
    share: int = 10 * GIB
    workers: int = 1
    timeout: float = 60
    environment: dict = dataclasses.field(default_factory=dict)
    #: True for a program outside every share.
    is_bare: bool = False
    #: Options of `bursar run`.
    options: list = dataclasses.field(default_factory=list)
    #: True where what is charged may differ from what the card has given out.
    is_loose: bool = False
    #: True where the program is to be killed, so that its exit status says nothing.
    is_killed: bool = False


@dataclasses.dataclass
class Bench:
    """What all trials have in common."""

    bursar: str
    library: str
    card: object
    folder: str
    #: What the card gives out for a context alone.
    context_bytes: int = 0

    @property
    def apart_max(self):
        """The most that a charge and the card may differ by, for one process."""
        return max(self.context_bytes, 32 * MIB)


class Run:
    """A trial under way."""

    def __init__(self, bench, trial, ledger_folder=None):
        self.bench, self.trial = bench, trial
        self.folder = tempfile.mkdtemp(prefix="trial-", dir=bench.folder)
        # A folder of its own, unless the caller names one.
        ledger_folder = ledger_folder or os.environ.get("BURSAR_LEDGER_DIR")
        ledgers = ledger_folder or tempfile.mkdtemp(prefix="bursar-trial-", dir=_shared_memory())
        self.owns_ledgers = ledger_folder is None
        self.ledger = LedgerFolder(bench.bursar, ledgers)
        self.checks, self.marks, self.pending = [], [], []
        self.base = None
        self.before = bench.card.used()
        self.started = time.monotonic()
        self.output = open(os.path.join(self.folder, "output"), "wb")
        self.process = subprocess.Popen(
            self._command(),
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            env=self._environment(),
            cwd=self.folder,
            start_new_session=True,
        )

    def _command(self):
        trial = self.trial
        if trial.is_bare:
            return trial.command
        options = ["--pool", "vram", "--per-worker", str(trial.share), "--want", str(trial.workers), "--headroom", "1"]
        options += ["--label", "trial", "--grace", "3", "--driver", "cuda", *trial.options]
        return [self.bench.bursar, "run", *options, "--", *trial.command]

    def _environment(self):
        environment = dict(os.environ)
        environment.update(
            BURSAR_ENFORCE_LIBRARY=self.bench.library,
            BURSAR_LEDGER_DIR=self.ledger.folder,
            TRIAL_DIR=self.folder,
            TRIAL_SHARE=str(self.trial.share),
            PYTHONDONTWRITEBYTECODE="1",
        )
        if self.trial.is_bare:
            environment["TRIAL_BARE"] = "1"
        environment.update(self.trial.environment)
        return environment

    def check(self, holds, name, detail=""):
        self.checks.append(("ok" if holds else "no", name, detail))

    def see(self, name, detail):
        self.checks.append(("see", name, detail))

    def is_running(self):
        return self.process.poll() is None

    def step(self):
        """Answers what has been asked. Returns the marks that were answered."""
        answered = []
        for entry in sorted(os.listdir(self.folder)):
            if entry.startswith("ask-"):
                path = os.path.join(self.folder, entry)
                with open(path) as file:
                    question = json.load(file)
                os.rename(path, os.path.join(self.folder, "seen-" + entry[4:]))
                self.pending.append((entry[4:], question))
        waiting = []
        for number, question in self.pending:
            # Workers of one run go on together.
            same = {other["pid"] for _, other in self.pending if other["name"] == question["name"]}
            if question["kind"] == "mark" and len(same) < self.trial.workers:
                waiting.append((number, question))
            else:
                self._answer(number, question)
                answered.append(question)
        self.pending = waiting
        return answered

    def _answer(self, number, question):
        if self.base is None:
            self.base = self.bench.card.used()
        given, charged, charged_here = self.bench.card.used() - self.base, -1, -1
        if question["kind"] == "mark":
            charged, charged_here = self._mark(question, given)
        draft = os.path.join(self.folder, "answer-draft")
        with open(draft, "w") as file:
            file.write(f"{given} {charged} {charged_here}\n")
        os.rename(draft, os.path.join(self.folder, "answer-" + number))

    def _mark(self, question, given):
        """Compares what the ledger has charged with what the card has given out."""
        if self.trial.is_bare:
            self.marks.append({"mark": question["name"], "given_device": given})
            return -1, -1
        held, undrawn, by_process = self.ledger.read()
        listed = self.bench.card.by_process()
        holders = [pid for pid, bytes_held in by_process.items() if bytes_held > 0]
        # Memory that two processes have in common may be listed for both: the card as a whole counts it once.
        visible = len(holders) == 1 and holders[0] in listed
        seen = sum(listed[pid] for pid in holders) if visible else given
        mark = {
            "mark": question["name"], "pid": question["pid"], "charged": held, "undrawn": undrawn,
            "given": seen, "given_by": "process" if visible else "device", "given_device": given,
            "charged_by_process": by_process, "given_by_process": {pid: listed.get(pid) for pid in holders},
        }
        self.marks.append(mark)
        if question["name"] != "start":
            self._judge(mark, max(1, len(holders)))
        return held, by_process.get(question["pid"], 0)

    def _judge(self, mark, processes):
        charged, seen, name = mark["charged"], mark["given"], mark["mark"]
        share, apart_max = self.trial.share * self.trial.workers, self.bench.apart_max * processes
        both = f"charged {charged / GIB:.3f}, given {seen / GIB:.3f} GiB ({mark['given_by']})"
        self.check(charged <= share, f"{name}: charged within the share", f"{both} of {share / GIB:.3f}")
        # The card gives out a little for each context that NVML counts for no process.
        beside = CARD_BESIDE * processes if mark["given_by"] == "device" else 0
        self.check(seen <= share + beside, f"{name}: given within the share", f"{both} of {share / GIB:.3f}")
        if not self.trial.is_loose:
            bar = f"bar {apart_max / MIB:.0f}"
            self.check(abs(charged - seen) <= apart_max, f"{name}: charged is given", f"{both}: {(charged - seen) / MIB:+.1f} MiB, {bar}")

    def stop(self):
        """Ends what was started, politely and then not."""
        for sent, patience in ((signal.SIGTERM, 6), (signal.SIGKILL, 6)):
            if not self.is_running():
                return
            try:
                os.killpg(self.process.pid, sent)
            except ProcessLookupError:
                return
            try:
                self.process.wait(patience)
            except subprocess.TimeoutExpired:
                continue

    def watch(self, deadline):
        """Answers until the trial ends. Returns false if it had to be ended."""
        end = min(deadline, self.started + self.trial.timeout)
        while self.is_running():
            self.step()
            if time.monotonic() > end:
                self.stop()
                return False
            time.sleep(0.0005)
        return True

    def returned(self):
        """Checks that nothing is charged and the card has everything back."""
        end = time.monotonic() + RETURNED_S
        while True:
            held, undrawn, _ = (0, 0, {}) if self.trial.is_bare else self.ledger.read()
            more = self.bench.card.used() - self.before
            is_back = held == 0 and undrawn == 0 and more <= LEFT_OVER_MAX
            if is_back or time.monotonic() > end:
                break
            time.sleep(0.05)
        detail = f"{held} charged, {undrawn} set aside, {more / MIB:.1f} MiB more in use than before"
        self.check(is_back, "everything is back", detail)

    def close(self):
        """Takes in the program's own checks, and returns its output."""
        self.output.close()
        path = os.path.join(self.folder, "checks")
        if os.path.exists(path):
            with open(path, errors="replace") as file:
                lines = [line.rstrip("\n").split("\t") for line in file]
            self.checks[:0] = [tuple((line + ["", ""])[:3]) for line in lines]
        with open(os.path.join(self.folder, "output"), errors="replace") as file:
            output = file.read()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.owns_ledgers:
            shutil.rmtree(self.ledger.folder, ignore_errors=True)
        return output


def _shared_memory():
    return "/dev/shm" if os.path.isdir("/dev/shm") else None


@dataclasses.dataclass
class Outcome:
    """The verdict on a trial."""

    name: str
    verdict: str
    seconds: float
    seen: str
    checks: list = dataclasses.field(default_factory=list)
    marks: list = dataclasses.field(default_factory=list)
    output: str = ""


def outcome_of(trial, checks, marks, output, elapsed, ended_itself=True, status=0):
    """Decides on a trial from its checks, and says in a line what was seen."""
    failed = [f"{name}: {detail}" if detail else name for result, name, detail in checks if result == "no"]
    skipped = [f"{name}: {detail}" for result, name, detail in checks if result == "skip"]
    seen = [f"{name} {detail}" for result, name, detail in checks if result == "see" and name != "checks that failed"]
    passed = sum(result == "ok" for result, _, _ in checks)
    if not ended_itself:
        verdict, line = "TIMEOUT", [f"ended after {elapsed:.0f} s", *failed]
    elif failed:
        verdict, line = "FAIL", [f"{len(failed)} of {passed + len(failed)} checks", *failed]
    elif status != 0 and not trial.is_killed:
        verdict, line = "FAIL", [f"exit status {status}", _last_line(output)]
    elif skipped and all(mark["mark"] == "start" for mark in marks):
        verdict, line = "not run", skipped
    elif passed < 2:
        verdict, line = "FAIL", ["it checked nothing", _last_line(output)]
    else:
        full = [f"{mark['mark']}: charged {mark['charged'] / GIB:.3f}, given {mark['given'] / GIB:.3f} GiB" for mark in marks if mark["mark"] != "start" and "charged" in mark]
        verdict, line = "pass", [f"{passed} checks", *full[:2], *seen, *skipped]
    return Outcome(trial.name, verdict, elapsed, "; ".join(line), checks, marks, output)


def _last_line(output):
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


def run(bench, trial, deadline):
    """Runs a trial from its start until everything is back."""
    started = time.monotonic()
    trial_run = Run(bench, trial)
    ended_itself, status = False, -1
    try:
        ended_itself = trial_run.watch(deadline)
        status = trial_run.process.returncode
        trial_run.returned()
    except Exception as why:  # One trial that cannot be watched does not stop the rest.
        trial_run.check(False, "the trial can be watched", f"{type(why).__name__}: {why}")
    finally:
        trial_run.stop()
        output = trial_run.close()
    elapsed = time.monotonic() - started
    return outcome_of(trial, trial_run.checks, trial_run.marks, output, elapsed, ended_itself, status)
