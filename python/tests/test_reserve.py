"""Reservations: waiting, giving up, and what is left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from types import FrameType
from typing import Any

import bursar
import pytest
from conftest import PATIENCE, Card, eventually

WHOLE = 8 << 30


def is_empty(card: Card) -> bool:
    """Returns whether nobody has or waits for anything."""
    ledger = card.ledger()
    return (ledger.held, ledger.set_aside, ledger.waiting) == (0, 0, ())


def test_a_reservation_lasts_as_long_as_its_block(card: Card) -> None:
    with bursar.reserve("6GiB", label="train", tenant="batch") as share:
        assert (share.bytes, share.held, share.undrawn, share.device) == (6 << 30, 0, 6 << 30, 0)
        assert (share.label, share.uuid) == ("train", bursar.devices()[0].uuid)
        ledger = card.ledger()
        assert ledger.set_aside == 6 << 30
        assert [(entry.name, entry.charged) for entry in ledger.tenants if entry.charged] == [("batch", 6 << 30)]
        assert (ledger.processes[0].pid, ledger.processes[0].labels) == (os.getpid(), ("train",))
    assert share.released and is_empty(card)
    with pytest.raises(bursar.Released):
        share.bytes  # noqa: B018


def test_a_reservation_can_be_split_and_shrunk(card: Card) -> None:
    whole = bursar.reserve(WHOLE).wait()
    part = whole.split("3GiB")
    whole.shrink("1GiB")
    assert (whole.bytes, part.bytes, card.ledger().set_aside) == (1 << 30, 3 << 30, 4 << 30)
    with pytest.raises(bursar.OutOfMemory):
        part.split(WHOLE)
    whole.release()
    whole.release()
    del part
    assert is_empty(card)


def test_a_refusal_has_its_numbers_and_who_holds_the_rest(card: Card) -> None:
    with bursar.reserve("6GiB", label="train"):
        with pytest.raises(bursar.OutOfMemory) as refused:
            bursar.reserve("3GiB", timeout=0).wait()
    error = refused.value
    assert (error.requested, error.available, error.limit) == (3 << 30, 2 << 30, WHOLE)
    assert [(holder.name.endswith(f"(pid {os.getpid()}) [train]"), holder.bytes) for holder in error.holders] == [
        (True, 6 << 30)
    ]
    assert "3 GiB requested" in error.explanation
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), vars(copy)) == (bursar.OutOfMemory, vars(error))


def test_what_can_never_fit_is_refused_at_once(card: Card) -> None:
    with pytest.raises(bursar.OutOfMemory) as refused:
        bursar.reserve(WHOLE + 1).wait()
    assert (refused.value.requested, refused.value.limit) == (WHOLE + 1, WHOLE)


@pytest.mark.parametrize("timeout", [0, 1e-9])
def test_l4_a_request_comes_before_those_who_wait_with_a_lower_priority(card: Card, timeout: float) -> None:
    async def ask_before() -> None:
        waits = asyncio.ensure_future(bursar.reserve("6GiB")._granted())
        await asyncio.sleep(0)
        for priority in (bursar.LOW, bursar.NORMAL):
            with pytest.raises(bursar.BursarError, match="out of turn"):
                bursar.reserve("1GiB", timeout=timeout, priority=priority).wait()
        bursar.reserve("1GiB", timeout=timeout, priority=bursar.HIGH).wait().release()
        waits.cancel()

    with bursar.reserve("4GiB"):
        asyncio.run(ask_before())


def test_a_request_that_is_not_granted_in_time_leaves_the_queue(card: Card) -> None:
    with bursar.reserve("6GiB"):
        with pytest.raises(bursar.Timeout) as late:
            bursar.reserve("3GiB", timeout=0.01).wait()
        assert isinstance(late.value, TimeoutError)
        assert (late.value.requested, late.value.available) == (3 << 30, 2 << 30)
        assert late.value.waited >= 0.01 and card.ledger().waiting == ()
        copy = pickle.loads(pickle.dumps(late.value))
        assert (type(copy), str(copy), copy.waited) == (bursar.Timeout, str(late.value), late.value.waited)


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf")])
def test_a_timeout_that_makes_no_sense_is_named(wrong: float) -> None:
    with pytest.raises(bursar.InvalidValue, match=repr(wrong)):
        bursar.reserve(1, timeout=wrong)


def test_a_timeout_may_be_any_number(card: Card) -> None:
    half: Any = Decimal("0.5")

    async def wait() -> int:
        return (await bursar.reserve("1MiB", timeout=half)).bytes

    assert asyncio.run(wait()) == bursar.reserve("1MiB", timeout=half).wait().bytes == 1 << 20


@pytest.mark.parametrize("wrong", ["1", b"1", [1], object(), True])
def test_a_timeout_that_is_no_number_is_named(wrong: Any) -> None:
    with pytest.raises(TypeError, match="a timeout is a number of seconds, or None, not"):
        bursar.reserve(1, timeout=wrong)


def test_a_label_is_kept_whole_or_refused(card: Card) -> None:
    with pytest.raises(bursar.InvalidValue, match="without a NUL"):
        bursar.reserve(1, label="a\0b")
    with bursar.reserve(1, label="ab") as share:
        assert share.label == "ab"


def test_y3_the_end_of_a_request_runs_nothing_that_could_lose_an_interrupt(card: Card) -> None:
    # The handlers of signals run where a function of Python begins, so none may begin when a request goes.
    def began(frame: FrameType, event: str, argument: object) -> None:
        functions.append(frame.f_code.co_name)

    functions: list[str] = []
    requests = [bursar.reserve("1GiB") for _ in range(2)]
    requests[0].wait().release()
    with requests[1]:
        pass
    sys.settrace(began)
    try:
        requests.clear()
    finally:
        sys.settrace(None)
    assert functions == []


def test_a_request_that_never_asked_changes_no_exception_that_is_on_its_way() -> None:
    def ask() -> None:
        request = bursar.reserve("1GiB")
        raise KeyError(request and "raised")

    with pytest.warns(RuntimeWarning, match=r"<bursar.reserve\(1073741824\)> was never entered"):
        with pytest.raises(KeyError, match="raised"):
            ask()
        gc.collect()


def test_a_request_asks_once_and_not_before(card: Card) -> None:
    request = bursar.reserve("6GiB")
    assert is_empty(card)
    with request:
        with pytest.raises(bursar.InvalidValue, match="asks once"):
            request.wait()
        with pytest.raises(RuntimeError, match="asks once"), request:
            pass
        assert card.ledger().set_aside == 6 << 30
    with pytest.warns(RuntimeWarning, match="never entered"):
        bursar.reserve("6GiB")
        gc.collect()


def test_the_request_of_higher_priority_is_served_first(card: Card) -> None:
    served: list[str] = []

    def ask(name: str, priority: int) -> None:
        with bursar.reserve(WHOLE, priority=priority):
            served.append(name)

    with bursar.reserve(WHOLE):
        waiting = []
        for name, priority in [("low", bursar.LOW), ("high", bursar.HIGH)]:
            waiting.append(threading.Thread(target=ask, args=(name, priority)))
            waiting[-1].start()
            eventually(lambda: len(card.ledger().waiting) == len(waiting), "it waits")
    for thread in waiting:
        thread.join(PATIENCE)
    assert served == ["high", "low"]


def test_y3_other_threads_run_while_a_request_waits(card: Card) -> None:
    granted: list[int] = []
    held = bursar.reserve(WHOLE).wait()

    def ask() -> None:
        with bursar.reserve("1GiB", timeout=PATIENCE) as share:
            granted.append(share.bytes)

    asking = threading.Thread(target=ask)
    asking.start()
    # Neither of these would ever happen if the thread that waits kept the interpreter to itself.
    eventually(lambda: len(card.ledger().waiting) == 1, "it waits")
    held.release()
    asking.join(PATIENCE)
    assert granted == [1 << 30] and is_empty(card)


INTERRUPTED = """
import bursar, os, time
try:
    with bursar.reserve("1GiB", timeout=30):
        print("granted")
except KeyboardInterrupt:
    print("interrupted")
ends = time.monotonic() + 30
while len(os.listdir("/proc/self/task")) > 1 and time.monotonic() < ends:
    time.sleep(0.005)
print(len(os.listdir("/proc/self/task")), "thread", flush=True)
input()
"""


def test_y3_an_interrupt_ends_a_wait_and_leaves_nothing(card: Card) -> None:
    with bursar.reserve(WHOLE):
        child = card.python(INTERRUPTED)
        eventually(lambda: len(card.ledger().waiting) == 1, "it waits")
        child.send_signal(signal.SIGINT)
        assert child.stdout is not None
        assert [child.stdout.readline(), child.stdout.readline()] == ["interrupted\n", "1 thread\n"]
        ledger = card.ledger()
        assert ledger.waiting == () and [entry.pid for entry in ledger.processes] == [os.getpid()]
        child.communicate("\n", timeout=PATIENCE)
        assert child.returncode == 0


def test_y3_an_interrupt_at_the_end_of_a_block_leaves_nothing(card: Card) -> None:
    def interrupt(frame: FrameType, event: str, argument: object) -> None:
        raise KeyboardInterrupt

    # The handlers of signals run where a function of Python begins, and this at each such place after the body.
    for raises in (False, True):
        request = bursar.reserve("1GiB")
        shares: list[bursar.Reservation] = []
        try:
            with request as share:
                shares.append(share)
                sys.settrace(interrupt)
                if raises:
                    raise ValueError
        except (KeyboardInterrupt, ValueError):
            pass
        finally:
            sys.settrace(None)
        assert shares[0].released and is_empty(card)


def test_y3_a_coroutine_waits_beside_others(card: Card) -> None:
    async def hold_then_release() -> int:
        async with bursar.reserve(WHOLE):
            waiting = asyncio.ensure_future(ask())
            while not card.ledger().waiting:
                await asyncio.sleep(0)
        return await waiting

    async def ask() -> int:
        share = await bursar.reserve("1GiB", timeout=PATIENCE)
        return share.bytes

    assert asyncio.run(hold_then_release()) == 1 << 30
    assert is_empty(card)


CANCELLED = """
import asyncio, bursar, os, time

def left():
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

async def cancel():
    held = await bursar.reserve("8GiB")
    for _ in range(20):
        waiting = asyncio.ensure_future(bursar.reserve("1GiB").__aenter__())
        while not bursar.ledger().devices[0].waiting:
            await asyncio.sleep(0)
        waiting.cancel()
        try:
            await waiting
        except asyncio.CancelledError:
            assert not bursar.ledger().devices[0].waiting
    held.release()

bursar.devices()
before = left()
asyncio.run(cancel())
ends = time.monotonic() + 30
while left() != before and time.monotonic() < ends:
    time.sleep(0.005)
print(left() == before)
"""


def test_y3_a_cancelled_coroutine_leaves_nothing(card: Card) -> None:
    assert card.run(CANCELLED) == "True\n"
    assert is_empty(card)


def test_y3_a_coroutine_is_refused_when_its_time_is_over(card: Card) -> None:
    async def ask(timeout: float) -> None:
        await bursar.reserve("1GiB", timeout=timeout)

    with bursar.reserve(WHOLE):
        with pytest.raises(bursar.OutOfMemory):
            asyncio.run(ask(0))
        with pytest.raises(bursar.Timeout):
            asyncio.run(ask(0.01))
        assert card.ledger().waiting == ()


DESCRIPTORS = """
import asyncio, bursar, os

def left():
    return len(os.listdir("/proc/self/fd"))

async def refuse(timeout):
    asked = [asyncio.ensure_future(bursar.reserve("1GiB", timeout=timeout).__aenter__()) for _ in range(20)]
    if timeout is None:
        while len(bursar.ledger().devices[0].waiting) < 20:
            await asyncio.sleep(0)
        for each in asked:
            each.cancel()
    ended = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(error, (bursar.OutOfMemory, bursar.Timeout, asyncio.CancelledError)) for error in ended), ended
    return ended

async def count(kept):
    kept += await refuse(None)
    before = left()
    for timeout in (None, 0, 0.01):
        kept += await refuse(timeout)
        assert left() == before, (timeout, left(), before)

held = bursar.reserve("8GiB").wait()
kept = []
before = left()
asyncio.run(count(kept))
kept += [error for error in kept if error.__traceback__ is None]
for _ in range(20):
    try:
        bursar.reserve("1GiB", timeout=0.001).wait()
    except bursar.Timeout as error:
        kept.append(error)
print(left() - before)
"""


def test_y3_no_descriptor_outlives_a_request_whose_exception_is_kept(card: Card) -> None:
    assert int(card.run(DESCRIPTORS)) <= 1, "the ledger's own"


#: Longer than anything takes that waits for nobody, and shorter than the time after which a stuck lock is an error.
SOON = 3.0


@contextmanager
def stopped_with_the_lock(card: Card) -> Iterator[None]:
    """Has a stopped process keep the lock of the card's ledger."""
    process = card.python("import bursar\nkept = bursar.reserve('1MiB').wait()\nprint('ready', flush=True)\ninput()")
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGSTOP)
    try:
        (file,) = Path(card.environment["BURSAR_LEDGER_DIR"]).glob("*.ledger")
        with file.open("r+b") as words:
            # The word of the lock: how often it was taken, and the first slot as its owner, times the factor of sealed words.
            words.seek(128)
            words.write(((1 << 38 | 1) * 227).to_bytes(8, "little"))
        yield
    finally:
        process.kill()
        process.communicate()


def test_deadlines_are_met_while_a_stopped_process_has_the_lock(card: Card) -> None:
    with stopped_with_the_lock(card):
        began = time.monotonic()
        for timeout in (0.05, 0.2):
            with pytest.raises(bursar.Timeout, match="has had the lock"):
                bursar.reserve("1MiB", timeout=timeout).wait()
        with pytest.raises(bursar.LedgerBusy):
            bursar.reserve("1MiB", timeout=0).wait()
        assert time.monotonic() - began < SOON
    assert is_empty(card)


def test_an_event_loop_runs_while_a_stopped_process_has_the_lock(card: Card) -> None:
    async def standstill() -> float:
        longest, last, waits = 0.0, time.monotonic(), asyncio.ensure_future(bursar.reserve("1MiB", timeout=0.5).__aenter__())
        while not waits.done():
            await asyncio.sleep(0.01)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        assert isinstance(waits.exception(), bursar.Timeout)
        return longest

    with stopped_with_the_lock(card):
        assert asyncio.run(standstill()) < SOON
    assert is_empty(card)


def test_a_signal_ends_a_wait_for_the_lock_of_a_stopped_process(card: Card) -> None:
    with stopped_with_the_lock(card):
        began = time.monotonic()
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            bursar.reserve("1MiB").wait()
        assert time.monotonic() - began < SOON
    assert is_empty(card)


def test_a_timeout_that_no_number_of_seconds_is_is_named(card: Card) -> None:
    for wrong in (10**400, 10**5000, -(10**400), float("inf"), float("nan"), -1):
        with pytest.raises(bursar.InvalidValue, match="a timeout is a number of seconds") as refused:
            bursar.reserve(1, timeout=wrong)
        assert len(str(refused.value)) < 200


def test_no_label_is_none(card: Card) -> None:
    with bursar.reserve(1, label=None) as share:
        assert share.label == ""
    wrong: Any
    for wrong in (5, b"bytes"):
        with pytest.raises(TypeError, match="a label is text"):
            bursar.reserve(1, label=wrong)


class Rank:
    """Something that is used as a number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __index__(self) -> int:
        return self.number


def test_a_priority_is_whatever_is_used_as_a_number(card: Card) -> None:
    with bursar.reserve("1GiB", priority=Rank(bursar.HIGH)) as share:
        assert share.bytes == 1 << 30
    with pytest.raises(bursar.InvalidValue, match="between 0 and 255, and not 256"):
        bursar.reserve("1GiB", priority=Rank(256))


def test_a_size_that_raises_when_it_is_asked_for_its_number_raises_that(card: Card) -> None:
    class Raises:
        def __index__(self) -> int:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bursar.reserve(Raises())  # type: ignore[arg-type]


def test_a_reservation_of_a_device_that_no_other_process_has_is_not_handed_on() -> None:
    bursar.use_driver("sim", sim_devices="1x8GiB")
    with bursar.reserve("2GiB", timeout=0) as share:
        with pytest.raises(bursar.InvalidValue, match="of this process alone"):
            share.delegate()
        assert not share.released and bursar.devices()[0].set_aside == 2 << 30


def test_what_was_released_is_not_entered(card: Card) -> None:
    share = bursar.reserve("1GiB").wait()
    with share:
        pass
    given = bursar.reserve("1GiB").wait()
    delegation = given.delegate()
    for released in (share, given):
        with pytest.raises(bursar.Released), released:
            pass
    delegation.release()


def test_a_reservation_has_one_block(card: Card) -> None:
    share = bursar.reserve("1GiB").wait()
    with share:
        with pytest.raises(RuntimeError, match="the block has begun already"), share:
            pass
        assert not share.released and card.ledger().set_aside == 1 << 30
    assert share.released and is_empty(card)


def test_a_request_has_one_block_in_a_coroutine(card: Card) -> None:
    async def enter() -> None:
        request = bursar.reserve("1GiB")
        async with request as share:
            with pytest.raises(RuntimeError, match="asks once"):
                async with request:
                    pass
            with pytest.raises(bursar.InvalidValue, match="asks once"):
                await request
            assert not share.released

    asyncio.run(enter())
    assert is_empty(card)


def test_a_priority_that_is_none_is_told_which_there_are(card: Card) -> None:
    wrong: Any
    for wrong in ("HIGH", None, 1.5, True):
        with pytest.raises(TypeError, match=r"between 0 and 255.*bursar\.HIGH"):
            bursar.reserve(1, priority=wrong)
    for wrong in (-1, 256):
        with pytest.raises(bursar.InvalidValue, match="between 0 and 255"):
            bursar.reserve(1, priority=wrong)
