"""How a program of these trials speaks with the one that watches it; `programs/trial.h` says the same in C."""

import json
import os
import sys
import time

FOLDER = os.environ.get("TRIAL_DIR", ".")
SHARE = int(os.environ.get("TRIAL_SHARE", "0"))
PATIENCE_S = 60
MIB = 1 << 20
GIB = 1 << 30

_asked = 0
_failures = 0


def _append(outcome, name, detail):
    line = f"{outcome}\t{name}\t{str(detail)[:1000]}".replace("\n", " ") + "\n"
    with open(os.path.join(FOLDER, "checks"), "a") as file:
        file.write(line)
    sys.stderr.write(line)


def check(holds, name, detail=""):
    """Records whether something holds, with what was seen."""
    global _failures
    _failures += not holds
    _append("ok" if holds else "no", name, detail)
    return bool(holds)


def see(name, detail):
    """Records a figure that is worth seeing in the table."""
    _append("see", name, detail)


def skip(name, detail):
    """Records that the machine does not have what is to be tried."""
    _append("skip", name, detail)


def ask(kind, name):
    """Returns what the card has given out since the trial began, what is charged in all, and what to this process."""
    global _asked
    pid = os.getpid()
    question, reply = (os.path.join(FOLDER, f"{what}-{pid}-{_asked}") for what in ("ask", "answer"))
    draft = os.path.join(FOLDER, f"draft-{pid}")
    _asked += 1
    with open(draft, "w") as file:
        json.dump({"kind": kind, "name": name, "pid": pid}, file)
    os.rename(draft, question)
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if os.path.exists(reply):
            with open(reply) as file:
                return tuple(int(word) for word in file.read().split())
        time.sleep(0.0005)
    check(False, name, f"nobody answered for {PATIENCE_S} s")
    sys.exit(1)


def mark(name):
    """Has the watcher judge what is charged against what the card has given out."""
    return ask("mark", name)


def _unexpected(kind, error, traceback):
    check(False, "nothing unexpected is raised", f"{kind.__name__}: {str(error)[:300]}")
    sys.__excepthook__(kind, error, traceback)


sys.excepthook = _unexpected


def begin():
    """The first thing a program does: the watcher takes note of the card before CUDA is touched."""
    mark("start")
    name = os.path.basename(os.environ.get("BURSAR_ENFORCE_LIBRARY", "libbursar_enforce.so"))
    with open("/proc/self/maps") as maps:
        loaded = "/" + name in maps.read()
    if not check(loaded, "the library is loaded", os.environ.get("LD_PRELOAD", "LD_PRELOAD is not set")):
        end()


def is_share(total):
    """Checks that the program is told its share. Without that it would go on to fill the card, so it ends."""
    if not check(total == SHARE, "the share is what there is", f"{total}, share {SHARE}"):
        end()


def end():
    """Ends the program, with a status that says whether every check held."""
    see("checks that failed", _failures)
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(1 if _failures else 0)


def without(module):
    """Ends the program because a module is not there to be tried."""
    skip(module, "not installed")
    sys.exit(0)


def mark_full(holds):
    """Marks that the program holds so much, all of which must be charged."""
    charged = mark("full")[1]
    check(charged >= holds, "what it holds is charged", f"{charged} charged, {holds} held")


def gib(count):
    """Returns a number of bytes as people read it."""
    return f"{count / GIB:.3f} GiB"
