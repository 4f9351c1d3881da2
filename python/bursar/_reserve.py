"""Setting memory of a device aside before it is needed."""

from __future__ import annotations

import operator
from types import TracebackType
from typing import TYPE_CHECKING, SupportsIndex

from . import _native
from ._devices import DeviceName, device_index
from .errors import InvalidValue
from ._sizes import Size
from ._timeouts import checked_timeout

if TYPE_CHECKING:
    from collections.abc import Generator

    from ._native import Reservation

#: Priorities: a higher one is served first, and among equals the one that came first.
LOW, NORMAL, HIGH = 64, 128, 192


def reserve(
    size: Size,
    *,
    device: DeviceName | None = None,
    timeout: float | None = None,
    tenant: str = "",
    priority: SupportsIndex = NORMAL,
    label: str | None = None,
) -> ReservationRequest:
    """Returns a request to set memory of a device aside, to be entered, awaited or waited for.

    >>> import bursar
    >>> bursar.use_driver("sim")
    >>> with bursar.reserve("20GiB", device=0, timeout=60) as share:
    ...     share.bytes >> 30
    20

    In a coroutine, ``async with bursar.reserve("20GiB") as share:`` and ``share = await bursar.reserve("20GiB")`` leave the
    event loop running. Outside of a block, ``bursar.reserve("20GiB").wait()`` returns the reservation.

    Without ``device`` it is memory of the device that this worker has a share of if ``bursar run`` started it, and of device 0
    elsewhere.

    The request waits for its turn in the queue of the device's ledger, which all processes of this user share, for at most
    ``timeout`` seconds; with ``timeout=0`` it is granted or refused at once, and comes before those who wait with a lower ``priority``.
    What can never fit is refused at once.

    Raises :class:`~bursar.Timeout` if it was not granted in time, and :class:`~bursar.OutOfMemory` if it is refused.
    """
    try:
        number = None if isinstance(priority, bool) else operator.index(priority)
    except TypeError:
        number = None
    if number is None:
        names = f"bursar.LOW ({LOW}), bursar.NORMAL ({NORMAL}) and bursar.HIGH ({HIGH}) are some"
        raise TypeError(f"a priority is a number between 0 and 255, and not {priority!r}; {names}")
    if not 0 <= number <= 255:
        raise InvalidValue(f"a priority is between 0 and 255, and not {number}; the usual one is {NORMAL}")
    label = "" if label is None else label
    if not isinstance(label, str):
        raise TypeError(f"a label is text, or None, not {type(label).__name__}")
    if "\0" in label:
        raise InvalidValue(f"a label is text without a NUL, and not {label!r}")
    return ReservationRequest(_native.parse_size(size), device, checked_timeout(timeout), tenant, number, label)


class ReservationRequest(_native.ReservationBlock):
    """A request that :func:`reserve` returned. It asks for nothing until it is entered, awaited or waited for, once."""

    def __init__(
        self, size: int, device: DeviceName | None, timeout: float | None, tenant: str, priority: int, label: str
    ) -> None:
        self._size = size
        self._device = device
        self._timeout = timeout
        self._tenant = tenant
        self._priority = priority
        self._label = label

    def wait(self) -> Reservation:
        """Waits for the memory and returns the reservation, which lasts until it is released or nobody has it any more.

        Other threads run meanwhile. Ctrl-C ends the wait, and leaves nothing behind.
        """
        return self._wait()

    def __enter__(self) -> Reservation:
        return self.keep(self._wait(RuntimeError))

    def __await__(self) -> Generator[object, None, Reservation]:
        return self._granted().__await__()

    async def __aenter__(self) -> Reservation:
        return self.keep(await self._granted(RuntimeError))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _wait(self, if_used: type[Exception] = InvalidValue) -> Reservation:
        waiting = self._ask(if_used)
        return waiting.now() if self._timeout == 0 else waiting.wait(self._timeout)

    def _ask(self, if_used: type[Exception]) -> _native.Waiting:
        if not self.ask():
            raise if_used(f"{self!r} was used already: each request asks once")
        return _native.Waiting(self._size, device_index(self._device), self._tenant, self._priority, self._label)

    async def _granted(self, if_used: type[Exception] = InvalidValue) -> Reservation:
        from ._asyncio import granted

        return await granted(self._ask(if_used), self._timeout)
