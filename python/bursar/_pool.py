"""The pool of this process, on which PyTorch, CuPy and Numba can draw, and buffers of it."""

from __future__ import annotations

import atexit
import ctypes
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex, TypeVar

from . import _native
from ._blocks import in_blocks
from ._devices import DeviceName, device_index
from ._sizes import Size
from ._timeouts import seconds
from .errors import NoDevice

if TYPE_CHECKING:
    from ._native import PinnedMemory, Reservation

_Function = TypeVar("_Function", bound=Callable[..., Any])


def use_pool(
    *,
    limit: Size | None = None,
    reservation: Reservation | None = None,
    device: DeviceName | None = None,
) -> None:
    """Makes the pool of this process, which every library that is given one draws on.

    >>> import bursar
    >>> bursar.use_driver("sim", sim_devices="1x24GiB")
    >>> bursar.use_pool(limit="1GiB")
    >>> buffer = bursar.Buffer("600MiB")
    >>> bursar.Buffer("600MiB")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
      ...
    bursar.errors.OutOfMemory: over `this process's pool`: 600 MiB requested, 424 MiB of 1 GiB left...

    The pool holds at most ``limit`` of each device, what it caches included. It is charged to ``reservation``, or else to the
    share of this worker if ``bursar run`` started it, or else to this process's account with the device's ledger, where other
    processes see it. With ``device`` it is for that device alone; a reservation is always for its own, and refused for another.
    Memory is taken when it is needed, and devices are opened when they are. Once the reservation is released, the pool does not
    grow any more, and what it has goes back as it is trimmed.

    It can be made anew while nobody has memory of it; about 64 KiB of the one before stay until the process ends. Without it, the first library that needs the pool makes it, without a
    limit of its own.
    """
    if reservation is not None and not isinstance(reservation, _native.Reservation):
        raise TypeError(f"a reservation is what bursar.reserve() grants, not {type(reservation).__name__}")
    only = None if device is None else device_index(device)
    if reservation is not None and only is None:
        only = _native.index_of(reservation.uuid)
        if only is None:
            raise NoDevice(f"the reservation is of {reservation.uuid}, which is no device that this process has")
    _native.use_pool(limit, reservation, only)


@dataclass(frozen=True)
class TagStatistics:
    """What is allocated under one tag, in bytes."""

    live: int
    #: The most that was allocated at one time.
    live_peak: int
    #: The number of blocks.
    blocks: int


@dataclass(frozen=True)
class PoolStatistics:
    """The pool's memory of one device, in bytes.

    Peaks and counts are those of this process on that device: they go on where :func:`use_pool` makes the pool anew.
    """

    device: int
    #: The most that the pool may hold; None if it has no limit of its own.
    limit: int | None
    #: What the pool holds of the device.
    held: int
    #: The most that it held at one time.
    held_peak: int
    #: What it holds and nobody uses.
    cached: int
    #: The part of that which is not known to be free for every stream: work that was submitted may still use it, or a stream or a thread
    #: keeps it for what it asks for next, such as the rest of the page that its last block lies in. None of it need have been freed.
    pending: int
    #: What is allocated. What sleeps is, and is not held meanwhile.
    live: int
    #: The most that was allocated at one time.
    live_peak: int
    #: The number of blocks that are allocated.
    blocks: int
    #: The number of blocks that ever were.
    allocations: int
    #: How often a limit refused a request.
    refused: int
    #: True if the device is simulated.
    is_simulated: bool
    #: What is allocated under each name that :func:`tag` gave, and as ``untagged``.
    tags: dict[str, TagStatistics]


def statistics() -> list[PoolStatistics]:
    """Returns the counts of every device that the pool, or one that it took the place of, has been used on.

    >>> import bursar
    >>> bursar.use_driver("sim", sim_devices="1x24GiB")
    >>> bursar.use_pool()
    >>> with bursar.tag("weights"):
    ...     weights = bursar.Buffer("3MiB")
    >>> [counts] = bursar.statistics()
    >>> counts.live, counts.tags["weights"].blocks, counts.is_simulated
    (3145728, 1, True)
    """
    devices = _native.pool_statistics()
    for fields in devices:
        fields["tags"] = {name: TagStatistics(*counts) for name, counts in fields["tags"].items()}
    return [PoolStatistics(**fields) for fields in devices]


class _Tag(_native.Tag):
    """A block with a name, for a ``with`` statement or, as a decorator, for every call of a function."""

    def __call__(self, function: _Function) -> _Function:
        return in_blocks(lambda: _Tag(self.name), function, f"bursar.tag({self.name!r})")


def tag(name: str) -> _Tag:
    """Names what this thread allocates in the block, whichever library asks for it.

    >>> import bursar
    >>> bursar.use_driver("sim", sim_devices="1x24GiB")
    >>> with bursar.tag("weights"):
    ...     weights = bursar.Buffer("3MiB")

    Statistics, logs and the explanations of refusals show who holds what by these names. Other threads, such as the one that
    PyTorch computes gradients in, name their own. A name stands for a kind of memory: its text is kept for good, and the first
    4,095 of a process are told apart; memory of others is shown as that of ``(other tags)``. Blocks may overlap,
    as those of generators do: the one that was entered last and has not ended counts, wherever it ends.

    Each task of an event loop names its own buffers. Other libraries know of threads alone: what they allocate after an ``await`` in
    the block has the name that another task may have given meanwhile, or none.

    As a decorator it is a block for each call of a function. That of a coroutine lasts until the coroutine has ended; a generator, which
    runs when others ask it to, is refused with a :class:`TypeError`: a ``with`` statement inside of it names what it allocates.

    >>> @bursar.tag("batches")
    ... async def load():
    ...     return bursar.Buffer("1MiB")
    >>> import asyncio
    >>> batch = asyncio.run(load())
    >>> bursar.statistics()[0].tags["batches"].blocks
    1
    """
    if not isinstance(name, str):
        raise TypeError(f"a tag is text, not {type(name).__name__}")
    return _Tag(name)


def trim() -> int:
    """Gives the memory that nobody uses back, of devices and pinned, and returns how many bytes that was."""
    return _native.trim()


class Log(_native.Log):
    """A log of everything that happens to the pool's memory, which :func:`log` began."""

    def flush(self, timeout: float | None = 10.0) -> bool:
        """Writes what happened so far, and returns whether that was done in time, and nothing has failed to be written."""
        return super().flush(seconds(timeout))

    def close(self, timeout: float | None = 10.0) -> int:
        """Ends the log and returns the number of events in it."""
        return super().close(seconds(timeout))


def log(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> Log:
    """Begins to log what happens to the pool's memory, to a file that ``bursar replay`` and ``bursar convert`` read.

    Its name ends in ``.csv``, or in ``.jsonl`` or ``.json`` for a line of JSON for each event, and says what is written; with ``.gz``
    after that it is compressed. A pipe has to have a reader already. A file that another log of this process
    is being written to is refused. The log ends when it is closed; as a context
    manager, with its block, of which it has one; and with the interpreter, also where nobody kept the object. One that an exception takes from the statement
    that began it, as Ctrl-C may, ends with that. A file that cannot be opened is an :class:`OSError`, as with :func:`open`.
    """
    return Log(path)


# A compressed log has its last part only once it is closed.
atexit.register(_native.close_logs)


if TYPE_CHECKING:
    _Bytes = ctypes.Array[ctypes.c_ubyte]
else:
    _Bytes = object


class _Byte(ctypes.Union):
    """A byte of pinned memory. A memoryview has items of a union as plain bytes, which those of numbers are not to it."""

    _fields_ = [("value", ctypes.c_ubyte)]


class Pinned(_Bytes):
    """Pinned host memory with the buffer protocol, an array of bytes; :func:`pinned` makes it."""

    memory: PinnedMemory

    def __new__(cls, *_: object, **__: object) -> NoReturn:
        raise TypeError("bursar.pinned() makes pinned memory, which has no constructor")

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError("pinned memory cannot be pickled or copied: bytes(memory) is a copy of what it holds")

    def __getitem__(self, place: SupportsIndex | slice) -> Any:
        found = memoryview(self)[place]
        return found.tolist() if isinstance(found, memoryview) else found

    def __setitem__(self, place: SupportsIndex | slice, value: Any) -> None:
        if isinstance(place, slice):
            memoryview(self)[place] = _bytes_of(value)
        else:
            # A number that is no byte is refused as a bytearray refuses it.
            memoryview(self)[place] = bytes((value,))[0]

    @property
    def numa_node(self) -> int | None:
        """The NUMA node of the device that the memory is near; None if the machine has one node, or it is not known."""
        return self.memory.numa_node

    def __repr__(self) -> str:
        return f"<bursar.Pinned: {len(self)} bytes>"


@dataclass(frozen=True)
class PinnedStatistics:
    """The pinned host memory near one device, in bytes."""

    device: int
    #: What is held, in use or not.
    held: int
    #: The part of it that nobody uses: at most 1 GiB.
    cached: int


def pinned_statistics() -> list[PinnedStatistics]:
    """Returns the pinned memory of every device that :func:`pinned` was asked for memory near.

    >>> import bursar
    >>> bursar.use_driver("sim", sim_devices="1x24GiB")
    >>> memory = bursar.pinned("3MiB")
    >>> [counts] = bursar.pinned_statistics()
    >>> counts.held >> 20, counts.cached
    (3, 0)
    """
    return [PinnedStatistics(*fields) for fields in _native.pinned_statistics()]


def _bytes_of(value: Any) -> Any:
    """Returns what has bytes one behind the other as it is, and numbers as bytes."""
    try:
        return memoryview(value).cast("B")
    except TypeError:
        if isinstance(value, Iterable):
            return bytes(value)
        raise


@lru_cache(maxsize=256)
def _pinned_type(length: int) -> type[Pinned]:
    made: type[Pinned] = type("Pinned", (Pinned, _Byte * length), {"__module__": __name__})
    return made


def pinned(size: Size, *, device: DeviceName | None = None) -> Pinned:
    """Returns pinned host memory on the NUMA node of a device, for copies to and from it.

    Without ``device`` that is the one that this worker has a share of if ``bursar run`` started it, and device 0 elsewhere.

    >>> import bursar
    >>> bursar.use_driver("sim")
    >>> memory = bursar.pinned("1KiB")
    >>> view = memoryview(memory)
    >>> view[:3] = b"abc"
    >>> bytes(memory[:3]), memory[0], view.nbytes
    (b'abc', 97, 1024)

    It has the buffer protocol: ``numpy.frombuffer(memory, dtype)`` and ``torch.frombuffer(memory, dtype=...)`` use it in place,
    and keep it. When nobody has it any more, it is kept for the next request: at most 1 GiB of it for each device, which
    :func:`pinned_statistics` shows and :func:`trim` gives back. A copy without a wait (``non_blocking=True``) may still run then: the memory is
    used again after the streams that the pool knows, and PyTorch's current one, have run what they were given. Ctrl-C ends the wait for memory that is being made.
    """
    memory = _native.PinnedMemory(size, device_index(device))
    array = _pinned_type(len(memory)).from_address(memory.address)
    array.memory = memory
    return array
