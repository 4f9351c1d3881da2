"""Memory of the pool that sleeps: its contents wait on the host, and its addresses stay."""

from __future__ import annotations

import atexit
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from . import _native
from ._blocks import in_blocks
from ._devices import DeviceName, device_index
from ._timeouts import seconds
from .errors import StillInUse, StreamMisuse

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class SleepReport:
    """The bytes of a sleep, and the time that it took."""

    #: Device memory that went back to the driver.
    released: int
    #: Contents that were copied to pinned host memory.
    saved: int
    #: Contents that were given up.
    discarded: int
    #: What was to sleep and stays on the device, because it shares pages with memory that is awake.
    kept: int
    #: The time that it took.
    seconds: float


@dataclass(frozen=True)
class WakeReport:
    """The bytes of a wake, and the time that it took."""

    #: Device memory that was taken from the driver again.
    taken: int
    #: Contents that were copied back.
    restored: int
    #: The time that it took.
    seconds: float


@dataclass(frozen=True)
class SleepState:
    """Whether the pool sleeps, and how much of it."""

    #: "awake", "partly asleep", "falling asleep or waking" or "asleep".
    state: str
    #: The device memory that waking takes.
    asleep: int
    #: The host memory that contents lie in.
    on_host: int


def sleep(
    *tags: str,
    discard: str | Iterable[str] | bool = (),
    keep_place: bool = False,
    timeout: float | None = 60.0,
) -> SleepReport:
    """Puts the memory of the pool to sleep: all of it, or that of some tags, which go on to live at their addresses.

    Contents are copied to pinned memory, device memory goes back to the driver and its charge to the ledger. After
    :func:`wake` tensors, arrays and buffers hold what they held, where they were. Meanwhile they must not be used: on hardware
    that is a fault of the program that ends its context. They may be dropped. Where everything sleeps, allocations raise
    :class:`Asleep`.

    The contents of the tag or the tags in ``discard``, or all with ``discard=True``, are given up. With ``keep_place`` the memory stays
    charged, so that :func:`wake` is not refused. What PyTorch has launched, the streams that the pool knows and another thread that
    wakes the pool or puts it to sleep are waited for, at most ``timeout`` seconds, or without end with ``timeout=None``;
    then memory stays awake, and :class:`StillInUse` or :class:`Asleep` is raised.

    >>> import bursar
    >>> bursar.use_driver("sim", sim_devices="1x24GiB")
    >>> with bursar.tag("weights"):
    ...     weights = bursar.Buffer("4MiB")
    >>> report = bursar.sleep("weights")
    >>> report.released, report.saved, bursar.sleep_state().state
    (4194304, 4194304, 'partly asleep')
    >>> bursar.wake("weights").restored
    4194304
    """
    patience = _synchronize(seconds(timeout))
    names = [discard] if isinstance(discard, str) else discard
    given_up = [] if isinstance(names, bool) else list(names)
    return SleepReport(*_native.sleep(list(tags), given_up, discard is True, keep_place, patience))


def wake(*tags: str, timeout: float | None = 0.0) -> WakeReport:
    """Wakes the memory of the pool: all that sleeps, or that of tags which were put to sleep by themselves.

    Where others have the memory meanwhile, it waits in the queue of the ledger, at most ``timeout`` seconds; a refusal raises
    :class:`OutOfMemory`, and what was to wake of that device sleeps on, also of several tags where there is room for one of them. But
    where tags slept by themselves before everything did, and there is room for all but these, these sleep on and the rest is awake.
    Devices wake one after the other: those before the one that is refused are awake, those after it sleep on. :func:`sleep_state` then
    says ``partly asleep``, and another call wakes what still sleeps. Ctrl-C ends the wait, as a refusal does. Another thread that wakes
    the pool or puts it to sleep is waited for in the same time. While all of the pool sleeps, no tag of it wakes by itself: that raises
    :class:`Asleep`.
    """
    return WakeReport(*_native.wake(list(tags), seconds(timeout)))


def sleep_when_asked(*devices: DeviceName) -> None:
    """Has the memory of the pool sleep and wake when another process asks for it: by ``bursar sleep PID`` and ``bursar wake PID``, and
    by ``bursar run --sleep-when-stopped``. On these devices; where none is named, on that of this worker's share, or else on device 0.

    Work belongs into :func:`awake`: memory does not fall asleep meanwhile, and whoever wants to work while it sleeps waits. What uses
    sleeping memory outside of it is a fault of the program, as with :func:`sleep`.

    >>> import bursar
    >>> bursar.use_driver("sim", sim_devices="1x24GiB")
    >>> bursar.sleep_when_asked()
    >>> with bursar.awake():
    ...     buffer = bursar.Buffer("4MiB")
    """
    _native.sleep_when_asked([device_index(device) for device in devices or (None,)])
    # Once: a function that is registered again is still called once.
    atexit.unregister(_native.end_asked)
    atexit.register(_native.end_asked)


class _Awake(_native.Work):
    """A stretch of work, for a ``with`` statement or, as a decorator, for every call of a function."""

    def __call__(self, function: _Function) -> _Function:
        return in_blocks(_Awake, function, "bursar.awake()")


def awake() -> _Awake:
    """Waits until the memory of the pool is awake, and keeps it from being put to sleep by others until the end of the block.

    What was launched in the block may still run when it ends: before the memory falls asleep, what PyTorch has launched and the streams
    that the pool knows are waited for. What other libraries launched on streams of their own must have run.

    Others are other processes: :func:`sleep` and :func:`wake` are the program's own, and wait for none of its blocks. While another
    process asks for the memory, blocks wait, but for those inside a block of the same thread. A block that waits for another thread's
    holds both up until whoever asks gives up.

    As a decorator it is a block for each call of a function. That of a coroutine lasts until the coroutine has ended, whatever it awaits;
    where it has to wait until memory is awake, the event loop waits. A generator, which runs when others ask it to, is refused with a
    :class:`TypeError`: a ``with`` statement inside of it keeps memory awake.
    """
    return _Awake()


def _synchronize(patience: float) -> float:
    """Waits for what PyTorch has launched, at most for so many seconds; returns how many are left.

    A capture does not bear that, so it is refused before.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return patience
    _native.torch_check_captures()
    if torch.cuda.is_current_stream_capturing():
        raise StreamMisuse("PyTorch's current stream is being captured into a graph: memory sleeps before that or after")
    # A device that the pool has not used may have no context yet, which asking would make.
    devices = [counts["device"] for counts in _native.pool_statistics()]
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            for device in devices:
                torch.cuda.synchronize(device)
        except BaseException as error:
            failures.append(error)

    began = time.monotonic()
    # PyTorch's wait has no end of its own, and hears no signal.
    waits = threading.Thread(target=wait, name="bursar-synchronize")
    waits.start()
    waits.join(min(patience, threading.TIMEOUT_MAX))
    if waits.is_alive():
        raise StillInUse(f"what PyTorch has launched still ran after {patience:g} s: the memory of the pool stays awake")
    if failures:
        raise failures[0]
    return max(0.0, patience - (time.monotonic() - began))


def sleep_state() -> SleepState:
    """Returns whether the pool sleeps, and how much of it."""
    return SleepState(*_native.sleep_state())
