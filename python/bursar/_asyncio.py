"""Waiting for a reservation on an event loop. Imported by the first coroutine that waits."""

from __future__ import annotations

import asyncio
import time

from . import _native


async def granted(waiting: _native.Waiting, timeout: float | None) -> _native.Reservation:
    """Returns the reservation when it is granted. However this ends, the queue is left."""
    try:
        if timeout == 0:
            return waiting.now()
        ends = None if timeout is None else time.monotonic() + timeout
        while True:
            reservation = waiting.poll()
            if reservation is not None:
                return reservation
            left = None if ends is None else ends - time.monotonic()
            if left is not None and left <= 0:
                return waiting.give_up()
            await _readable(waiting.fileno(), waiting.pause(left))
    finally:
        waiting.close()


async def _readable(descriptor: int, longest: float | None) -> None:
    """Waits until a descriptor can be read, at most so many seconds."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        await asyncio.wait_for(readable.wait(), longest)
    except asyncio.TimeoutError:
        pass
    finally:
        loop.remove_reader(descriptor)
