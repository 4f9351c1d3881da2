"""A worker process of Ray with a share: the program that Ray starts in the place of Python.

Ray is told by ``py_executable`` of a runtime environment to start ``python -m bursar._ray_worker SHARE default_worker.py …``.
This process sets the share aside in the ledger of one card, and only then lets the worker start, which draws on the share as
one of ``bursar run`` does. It holds the share for as long as the worker lives, and the worker is killed with it; it is itself
killed with the raylet that started it. So the bytes are back when any of the three ends, in whatever way.

The worker is forked off before anything else happens, while this process has one thread, and waits to be told its environment.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shlex
import signal
import stat
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._native import Delegation, Reservation, Waiting
    from .errors import BursarError

#: The environment variables by which a worker learns why it may not run anything, and has Ray call :func:`refuse`.
REFUSAL, _HOOK = "BURSAR_RAY_REFUSAL", "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"

#: How often a worker is looked at, in seconds.
_EVERY = 0.2
#: For how long a worker that has run a task may be idle: Ray counts its bytes as free from then on.
_IDLE = 1.5
#: For how long at least one may wait for its first task or actor, which another worker may have got instead. On a slow machine both the
#: start of a worker and what follows take long, and so it is also twice the time of the start.
_UNUSED = 3.0

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36


def main(words: list[str]) -> int:
    """Runs Ray's worker, ``words[1:]``, with the share that ``words[0]`` describes. Returns its exit status."""
    if len(words) < 2:
        print("usage: python -m bursar._ray_worker SHARE WORKER [ARGUMENT...]", file=sys.stderr)
        return 2
    _die_with(os.getppid())
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # By this name the ledger knows who it refused.
    libc.prctl(_PR_SET_NAME, holder_name(os.environ.get("RAY_JOB_ID", "")).encode(), 0, 0, 0)
    # The program of `_ray_start.py`.
    worker, tell = _fork([sys.executable, "-m", f"{__package__}._ray_start", *words[1:]])
    environment, delegation = _set_aside(json.loads(words[0]), words[1:])
    with os.fdopen(tell, "w") as pipe:
        json.dump(environment, pipe)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: _send(worker, number))
    status = _watch(worker, has_share=delegation is not None)
    _end_children()
    if delegation is not None:
        delegation.release()
    return status


def holder_name(job: str) -> str:
    """Returns the name of the process that asks for the share of a worker of one of Ray's jobs."""
    return f"ray-{job[:11]}"


def interpreter() -> str:
    """Returns the interpreter of a worker as a word for the shell that starts it: this one, or the node's if it is not there."""
    mine = shlex.quote(sys.executable)
    return f'"${{BURSAR_RAY_PYTHON:-$(test -x {mine} && echo {mine} || echo python3)}}"'


def refuse() -> None:
    """Raises the refusal of this worker's share. Ray calls it in the worker, before any code of a task or actor."""
    from .errors import OutOfMemory

    raise OutOfMemory(os.environ.get(REFUSAL, "this worker has no share"))


def _die_with(parent: int) -> None:
    """Has this process killed when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _fork(command: list[str]) -> tuple[int, int]:
    """Forks the process that becomes the worker once it is told its environment. Returns it and the pipe to tell it by."""
    hear, tell = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child:
        os.close(hear)
        return child, tell
    try:
        os.close(tell)
        _die_with(parent)
        with os.fdopen(hear) as pipe:
            environment = pipe.read()
        os.execve(command[0], command, json.loads(environment))
    finally:
        os._exit(127)


def _set_aside(share: dict[str, Any], worker: list[str]) -> tuple[dict[str, str], Delegation | None]:
    """Sets the share aside. Returns the environment of the worker, and the share unless it was refused."""
    from . import _native
    from .errors import BursarError

    environment = dict(os.environ)
    for name in ("BURSAR_RESERVATION_SHARED", "BURSAR_RESERVATION", REFUSAL):
        environment.pop(name, None)
    try:
        preload = _preloaded(environment) if share["enforce"] else environment.get("LD_PRELOAD", "")
        reservation = _reserve(share)
        uuid = reservation.uuid
        delegation = reservation.delegate()
    except BursarError as error:
        # No card is visible to a worker that has none. Ray is told the reason by the worker, for want of another way.
        message = _message(share, worker, error)
        print(f"bursar: {message}", file=sys.stderr, flush=True)
        return {**environment, "CUDA_VISIBLE_DEVICES": "", REFUSAL: message, _HOOK: f"{__package__}._ray_worker.refuse"}, None
    environment |= {
        "BURSAR_LABEL": share["label"],
        "BURSAR_RESERVATION": delegation.token,
        "BURSAR_WORKER": "0",
        "BURSAR_WORKERS": "1",
        "CUDA_VISIBLE_DEVICES": uuid,
        # Else Ray hides every card from a worker to which it gives none of its own GPUs.
        "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
    }
    if preload:
        environment["LD_PRELOAD"] = preload
    if _native.driver()[0] == "simulated":
        environment.setdefault("BURSAR_DRIVER", "sim")
    return environment, delegation


def _preloaded(environment: dict[str, str]) -> str:
    """Returns the libraries to load first: the one that keeps a worker inside its share, and those that there are."""
    from ._command import PACKAGE
    from .errors import Unsupported

    library = environment.get("BURSAR_ENFORCE_LIBRARY") or str(PACKAGE / "_lib" / "libbursar_enforce.so")
    if not os.path.isfile(library) or any(letter in library for letter in ": \t\n"):
        raise Unsupported(f"{library} cannot be preloaded, so nothing would keep the worker inside its share")
    others = environment.get("LD_PRELOAD", "").replace(":", " ").split()
    name = os.path.basename(library)
    return ":".join([library, *(other for other in others if os.path.basename(other) != name)])


def _reserve(share: dict[str, Any]) -> Reservation:
    """Reserves the bytes on one card: at once on the one with the least that is enough, or else on the first that has them."""
    from . import _native
    from ._devices import devices
    from ._ledger import ledger
    from .errors import NoDevice, SimulatedWarning

    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error", SimulatedWarning)
        try:
            devices()
        except SimulatedWarning as warning:
            raise NoDevice(f"there is no GPU here: {warning}") from None
    size, ends = int(share["bytes"]), time.monotonic() + float(share["timeout"])
    cards = [card for card in ledger().devices if card.device is not None]
    if share["device"] is not None:
        cards = [card for card in cards if card.uuid == share["device"]]
    if not cards:
        raise NoDevice(f"there is no card {share['device']} here" if share["device"] else "there is no card here")
    left = {card.uuid: card.limit - card.held - card.set_aside - card.unmanaged for card in cards}
    cards.sort(key=lambda card: (left[card.uuid] < size, left[card.uuid] if left[card.uuid] >= size else -left[card.uuid]))
    waiting = [_native.Waiting(size, card.device or 0, "", 128, share["label"]) for card in cards if card.limit >= size]
    if not waiting:
        return _native.Waiting(size, cards[0].device or 0, "", 128, share["label"]).now()
    try:
        return _first(waiting, ends)
    finally:
        for request in waiting:
            request.close()


def _first(waiting: list[Waiting], ends: float) -> Reservation:
    """Waits until one of the requests is granted, and gives the first one up at the end of the time."""
    while True:
        for request in list(waiting):
            granted = request.poll()
            if granted is not None:
                return granted
        left = ends - time.monotonic()
        if left <= 0:
            return waiting[0].give_up()
        select.select([request.fileno() for request in waiting], [], [], min(left, _EVERY))


def _message(share: dict[str, Any], worker: list[str], error: BursarError) -> str:
    """Returns what a refusal says: the node, its cards, what is left on each, and who has the rest."""
    from ._ray_cards import describe_cards, node_name, size_text
    from .errors import BursarError as AnyError

    try:
        from ._ledger import ledger

        reading = ledger()
        cards = describe_cards(reading.devices, reading.unreadable)
    except AnyError:
        cards = []
    asked = f"{size_text(int(share['bytes']))} of one card"
    where = f"on node {node_name(worker)}"
    return "\n".join([f"{asked} could not be had {where} within {share['timeout']:g} s: {error}", *cards])


def _send(process: int, number: int) -> None:
    """Sends a signal, if the process is still there."""
    try:
        os.kill(process, number)
    except ProcessLookupError:
        pass


def _watch(worker: int, *, has_share: bool) -> int:
    """Waits for the worker, and ends one that Ray keeps for a later task. Returns its exit status."""
    began = since = time.monotonic()
    started, told = 0.0, 0.0
    handle = os.pidfd_open(worker)
    while True:
        select.select([handle], [], [], _EVERY)
        status = _reap(worker)
        if status is not None:
            return status
        now, named = time.monotonic(), _named(worker)
        is_idle = has_share and _title(worker).startswith("ray::IDLE") and b":actor_name:" not in named
        if not is_idle:
            since = now
            continue
        started = started or now - began
        longest = _IDLE if b":task_name:" in named else max(_UNUSED, 2 * started)
        if told and now - told > 2:
            _send(worker, signal.SIGKILL)
        elif not told and now - since > longest:
            told = now
            _send(worker, signal.SIGTERM)


def _title(process: int) -> str:
    """Returns the name that Ray has given a worker: ``ray::IDLE``, or that of its task or actor."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
    except OSError:
        return ""


def _named(process: int) -> bytes:
    """Returns the beginning of what a worker has printed, in which Ray names its actor and each of its tasks, however short."""
    try:
        with open(f"/proc/{process}/fd/1", "rb") as printed:
            return printed.read(4096) if stat.S_ISREG(os.fstat(printed.fileno()).st_mode) else b""
    except OSError:
        return b""


def _reap(worker: int) -> int | None:
    """Buries every child that has ended. Returns the exit status of the worker if it is one of them."""
    found = None
    while True:
        try:
            child, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return 1 if found is None else found
        if child == 0:
            return found
        if child == worker:
            code = os.waitstatus_to_exitcode(status)
            found = code if code >= 0 else 128 - code


def _end_children() -> None:
    """Kills the processes that the worker has left behind, which came to this one."""
    ends = time.monotonic() + 2
    while time.monotonic() < ends:
        try:
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        except OSError:
            return
        if not children:
            return
        for child in children:
            _send(int(child), signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
