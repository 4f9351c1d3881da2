"""The pool of this process on simulated devices, and what is made of it."""

from __future__ import annotations

import copy
import ctypes
import gc
import os
import pickle
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bursar
import pytest
import standins
from bursar import _native
from conftest import PATIENCE, Card, eventually
from standins import BaseMemory, MemoryPointer, Refused, cupy_allocator, refusal


@pytest.fixture(autouse=True)
def devices() -> Iterator[None]:
    """Two simulated devices, of whose pool nothing is left from the test before."""
    gc.collect()
    bursar.use_driver("sim", sim_devices="2x8GiB")
    bursar.use_pool()
    yield
    gc.collect()


def live(device: int = 0) -> int:
    return next((counts.live for counts in bursar.statistics() if counts.device == device), 0)


def test_a_limit_refuses_with_numbers_and_holders() -> None:
    bursar.Buffer("1MiB")
    assert bursar.statistics()[0].limit is None
    bursar.use_pool(limit="1GiB")
    with bursar.tag("weights"):
        held = bursar.Buffer("600MiB")
    assert bursar.statistics()[0].limit == 1 << 30
    with pytest.raises(bursar.OutOfMemory) as raised:
        bursar.Buffer("500MiB")
    error = raised.value
    assert (error.requested, error.available, error.limit) == (500 << 20, 424 << 20, 1 << 30)
    assert error.holders == (bursar.Holder("weights", 600 << 20, 1),)
    assert "freeing `weights`" in error.explanation
    del held
    assert len(bursar.Buffer("500MiB")) == 500 << 20


def test_p4_a_refusal_by_the_ledger_names_who_has_the_memory(card: Card) -> None:
    bursar.use_pool()
    with bursar.reserve("8GiB", label="mine"), pytest.raises(bursar.OutOfMemory, match="mine.: 8 GiB set aside") as refused:
        bursar.Buffer("1GiB")
    assert [holder.bytes for holder in refused.value.holders] == [8 << 30]
    with bursar.tag("weights"):
        weights = bursar.Buffer("1GiB")
    with bursar.reserve("7GiB", label="mine"), pytest.raises(bursar.OutOfMemory) as refused:
        bursar.Buffer("1GiB")
    error = refused.value
    assert [(holder.bytes, holder.blocks) for holder in error.holders] == [(7 << 30, None), (1 << 30, 1)]
    assert [holder.name.partition(" (")[2] for holder in error.holders] == [f"pid {os.getpid()}) [mine]", ""]
    assert "[mine]: 1 GiB held, 7 GiB set aside" in error.explanation
    del weights


def test_p4_a_refusal_because_of_the_queue_says_who_waits(card: Card) -> None:
    bursar.use_pool()
    share = bursar.reserve("6GiB").wait()
    waiting = threading.Thread(target=lambda: bursar.reserve("5GiB", timeout=PATIENCE).wait().release())
    waiting.start()
    eventually(lambda: len(card.ledger().waiting) == 1, "it waits")
    with pytest.raises(bursar.OutOfMemory) as refused:
        bursar.Buffer("1MiB")
    share.release()
    waiting.join(PATIENCE)
    assert f"(pid {os.getpid()}) waits for 5 GiB" in str(refused.value)
    assert "kept for those who wait" in refused.value.explanation
    assert [holder.bytes for holder in refused.value.holders] == [6 << 30]


def test_a_pool_is_charged_to_a_reservation(card: Card) -> None:
    with bursar.reserve("2GiB") as reservation:
        bursar.use_pool(reservation=reservation)
        held = bursar.Buffer("1GiB")
        assert reservation.held == 1 << 30
        with pytest.raises(bursar.OutOfMemory):
            bursar.Buffer("1500MiB")
        del held
        bursar.trim()
        assert reservation.held == 0
        bursar.use_pool()


def test_y6_a_reservation_is_for_its_own_device() -> None:
    with bursar.reserve("2GiB", device=1) as reservation:
        bursar.use_pool(reservation=reservation)
        assert len(bursar.Buffer("1GiB", device=1)) == 1 << 30
        assert reservation.held == 1 << 30
        bursar.use_pool()
        with pytest.raises(ValueError, match=f"the reservation is of {reservation.uuid}, and gpu0 is another device"):
            bursar.use_pool(reservation=reservation, device=0)
        assert len(bursar.Buffer("1GiB")) == 1 << 30, "the pool is the one before"
        bursar.use_driver("sim", sim_devices="1x8GiB")
        with pytest.raises(bursar.NoDevice, match="which is no device that this process has"):
            bursar.use_pool(reservation=reservation)


def set_aside(card: Card) -> tuple[int, int]:
    """What is held and what is set aside of a card, in MiB."""
    reading = card.ledger()
    return reading.held >> 20, reading.set_aside >> 20


def test_y6_a_released_reservation_goes_back_as_the_pool_that_draws_on_it_gives_it_back(card: Card) -> None:
    with bursar.reserve("4GiB") as reservation:
        bursar.use_pool(reservation=reservation)
        held = bursar.Buffer("1GiB")
        assert set_aside(card) == (1024, 3072)
    assert reservation.released
    assert set_aside(card) == (1024, 0)
    with pytest.raises(bursar.Released, match="use_pool"):
        bursar.Buffer("1GiB")
    held.copy_from(b"still there")
    del held
    assert len(bursar.Buffer("1GiB")) == 1 << 30, "what the pool has can be used"
    bursar.trim()
    assert set_aside(card) == (0, 0)
    bursar.use_pool()
    assert len(bursar.Buffer("1GiB")) == 1 << 30


def test_y6_a_pool_that_never_grew_keeps_nothing_of_a_released_reservation(card: Card) -> None:
    with bursar.reserve("4GiB") as reservation:
        bursar.use_pool(reservation=reservation)
    assert set_aside(card) == (0, 0)
    bursar.use_pool()


def test_y6_a_reservation_that_only_the_pool_has_lasts_as_long_as_the_pool(card: Card) -> None:
    bursar.use_pool(reservation=bursar.reserve("4GiB").wait())
    gc.collect()
    assert set_aside(card) == (0, 4096)
    assert len(bursar.Buffer("1GiB")) == 1 << 30
    bursar.use_pool()
    assert set_aside(card) == (0, 0)


def test_y6_a_release_while_threads_allocate_leaves_nothing(card: Card) -> None:
    for _ in range(20):
        reservation = bursar.reserve("4GiB").wait()
        bursar.use_pool(reservation=reservation)
        raised: list[type[BaseException]] = []

        def allocate() -> None:
            try:
                while True:
                    bursar.Buffer("64MiB")
                    bursar.trim()
            except bursar.Released as error:
                raised.append(type(error))

        threads = [threading.Thread(target=allocate) for _ in range(3)]
        for thread in threads:
            thread.start()
        reservation.release()
        for thread in threads:
            thread.join()
        assert raised == [bursar.Released] * 3
        bursar.trim()
        assert set_aside(card) == (0, 0)
        bursar.use_pool()


def test_y6_a_pool_that_is_refused_changes_nothing() -> None:
    bursar.use_pool(limit="1GiB")
    with pytest.raises(bursar.NoDevice):
        bursar.use_pool(device=256)
    assert len(bursar.Buffer(10)) == 10
    [counts] = bursar.statistics()
    assert counts.limit == 1 << 30


def test_a_pool_for_one_device_is_for_no_other() -> None:
    bursar.use_pool(device=1)
    assert bursar.Buffer(1, device=1).device == bursar.Buffer(1, device=bursar.devices()[1]).device == 1
    assert bursar.Buffer(1).device == 1
    with pytest.raises(bursar.InvalidValue, match="gpu1 alone"):
        bursar.Buffer(1, device=0)


def test_a_device_is_named_by_its_number_by_its_uuid_or_as_it_was_listed() -> None:
    second = bursar.devices()[1]
    assert [bursar.Buffer(1, device=name).device for name in (1, second.uuid, second)] == [1, 1, 1]
    with pytest.raises(bursar.NoDevice, match="no device has the UUID 'other'"):
        bursar.Buffer(1, device="other")
    assert bursar.Buffer(1, device=None).device == 0
    wrong: Any
    for wrong in (1.5, [1]):
        with pytest.raises(TypeError):
            bursar.Buffer(1, device=wrong)


def test_the_pool_is_not_replaced_while_somebody_has_memory_of_it() -> None:
    held = bursar.Buffer(1)
    with pytest.raises(bursar.InvalidValue, match="1 block of it"):
        bursar.use_pool(limit="1GiB")
    del held
    bursar.use_pool(limit="1GiB")


@pytest.mark.parametrize("seed", range(8))
def test_statistics_are_those_of_a_model(seed: int) -> None:
    numbers, current, peak = random.Random(seed), 0, 0
    kept: list[bursar.Buffer] = []
    for step in range(300):
        if kept and numbers.random() < 0.45:
            gone = kept.pop(numbers.randrange(len(kept)))
            current -= -(-len(gone) // 256) * 256
            del gone
        else:
            size = numbers.randrange(1, 3 << 20)
            kept.append(bursar.Buffer(size))
            current += -(-size // 256) * 256
            peak = max(peak, current)
        counts = bursar.statistics()[0]
        assert (counts.live, counts.live_peak, counts.blocks) == (current, peak, len(kept)), f"seed {seed}, step {step}"
        assert counts.held == counts.live + counts.cached <= counts.held_peak


@pytest.mark.parametrize("seed", range(4))
def test_what_is_held_is_counted_through_growth_trims_and_refusals(seed: int) -> None:
    bursar.use_pool(limit="512MiB")
    numbers, peak = random.Random(seed), 0
    kept: list[bursar.Buffer] = []
    for step in range(400):
        if kept and numbers.random() < 0.5:
            kept.pop(numbers.randrange(len(kept)))
        else:
            try:
                kept.append(bursar.Buffer(numbers.choice([300, 70_000, 3 << 20, 30 << 20, 150 << 20])))
            except bursar.OutOfMemory:
                del kept[::2]
        if numbers.random() < 0.02:
            bursar.trim()
        counts = bursar.statistics()
        if counts:
            peak = max(peak, counts[0].held)
            reserved = _native.torch_counts(0)["reserved"]
            assert reserved[0] == counts[0].held, f"seed {seed}, step {step}"
            assert reserved[2] - reserved[3] == reserved[0]
            assert peak <= reserved[1] <= 512 << 20


def test_a_pool_that_is_replaced_gives_its_addresses_back() -> None:
    bursar.use_driver("sim", sim_devices="1x8GiB")
    for step in range(600):
        bursar.use_pool(limit=(1 + step % 7) << 30)
        assert bursar.Buffer(10).nbytes == 10


def test_a_trim_gives_back_what_nobody_uses() -> None:
    bursar.trim()
    held = bursar.Buffer("100MiB")
    del held
    [counts] = bursar.statistics()
    assert (counts.live, counts.cached) == (0, counts.held)
    assert bursar.trim() == counts.held
    assert bursar.statistics()[0].held == 0


def test_y5_memory_of_a_simulated_device_is_offered_to_no_library() -> None:
    buffer = bursar.Buffer(1)
    assert buffer.is_simulated and "simulated" in repr(buffer)
    assert not hasattr(buffer, "__cuda_array_interface__")
    assert buffer.__dlpack_device__() == (12, 0)
    with pytest.raises(BufferError, match="simulated"):
        buffer.__dlpack__()


@pytest.mark.parametrize("size", [0, "0B"])
def test_a_buffer_of_nothing_is_refused(size: Any) -> None:
    with pytest.raises(bursar.InvalidSize):
        bursar.Buffer(size)


def test_something_that_is_no_stream_is_named() -> None:
    with pytest.raises(TypeError, match="not list"):
        bursar.Buffer(1, stream=[])


def test_y5_pinned_memory_lives_as_long_as_whoever_holds_it() -> None:
    memory = bursar.pinned("64KiB")
    view = memoryview(memory).cast("B")
    view[:] = bytes(range(256)) * 256
    del memory
    gc.collect()
    others = [bursar.pinned("64KiB") for _ in range(8)]
    for other in others:
        memoryview(other).cast("B")[:] = bytes(64 << 10)
    assert view == bytes(range(256)) * 256
    assert len(others) == 8


def test_pinned_memory_is_bytes_as_a_bytearray_has_them() -> None:
    memory, like = bursar.pinned(16), bytearray(16)
    view = memoryview(memory)
    assert (view.format, view.itemsize, view.shape, view.readonly) == ("B", 1, (16,), False)
    targets: list[Any] = [memory, like]
    for target in targets:
        target[0], target[-1], target[2:5], target[5:7] = 255, 7, b"abc", [1, 2]
        for value in (256, 300, -1):
            with pytest.raises(ValueError, match=r"range\(0, 256\)"):
                target[1] = value
            with pytest.raises(ValueError, match=r"range\(0, 256\)"):
                target[1:3] = [0, value]
        for wrong in (1.5, "x", None):
            with pytest.raises(TypeError):
                target[1] = wrong
        for place in (16, -17):
            with pytest.raises(IndexError):
                target[place] = 0
            with pytest.raises(IndexError):
                target[place]
    assert bytes(memory) == bytes(like) and view[0] == memory[0] == 255 and list(memory) == list(like)
    assert memory[2:7] == list(b"abc\x01\x02") and memory[::-1] == list(like[::-1]) and 98 in memory
    for length in (b"", b"abcd"):
        with pytest.raises(ValueError):
            memory[:3] = length
    with pytest.raises(TypeError):
        targets[0][:3] = 3
    assert bytes(memory) == bytes(like)


def test_pinned_memory_is_used_again() -> None:
    memory = bursar.pinned(5000)
    address = ctypes.addressof(memory)
    assert (len(memory), repr(memory)) == (5000, "<bursar.Pinned: 5000 bytes>")
    del memory
    gc.collect()
    assert ctypes.addressof(bursar.pinned(5000)) == address


def test_pinned_memory_that_is_kept_is_bounded_where_copies_may_run(card: Card) -> None:
    program = """
import bursar
used = bursar.Buffer(100)
dropped = [bursar.pinned("256MiB") for _ in range(6)]
del dropped
for _ in range(2):
    [counts] = bursar.pinned_statistics()
    print(counts.cached == counts.held <= 1 << 30)
"""
    assert card.run(program) == "True\n" * 2


def test_pinned_memory_that_is_kept_is_bounded_shown_and_given_back() -> None:
    bursar.use_driver("sim", sim_devices="1x8GiB")
    bound, sizes = 1 << 30, [(1 + step % 60) * (3 << 20) + 4096 * step for step in range(40)]
    for size in sizes:
        memory = bursar.pinned(size)
        [counts] = bursar.pinned_statistics()
        assert counts.device == 0 and counts.held >= size + counts.cached
        del memory
        gc.collect()
        assert bursar.pinned_statistics()[0].cached <= bound, "of all sizes together"
    [counts] = bursar.pinned_statistics()
    assert sum(sizes) > 2 * bound and counts.cached > 0
    assert bursar.trim() >= counts.cached
    assert bursar.pinned_statistics() == [bursar.PinnedStatistics(device=0, held=0, cached=0)]


PINNED_INTERRUPTED = """
import bursar, os, signal, threading, time
bursar.use_driver("sim", sim_devices="1x8GiB")
bursar.pinned(4096)
# Such memory is touched page by page, which takes long enough to be interrupted again and again.
for step in range(3):
    began = threading.Event()
    def interrupt():
        began.wait()
        time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGINT)
    thread = threading.Thread(target=interrupt)
    thread.start()
    made = False
    try:
        began.set()
        bursar.pinned("2GiB")
        made = True
        while True:
            time.sleep(1)
    except KeyboardInterrupt:
        print("interrupted", made)
    thread.join()
ends = time.monotonic() + 60
while bursar.trim() or bursar.pinned_statistics()[0].held:
    assert time.monotonic() < ends, bursar.pinned_statistics()
    time.sleep(0.01)
print("nothing is left")
"""


def test_y3_an_interrupt_ends_the_wait_for_pinned_memory(card: Card) -> None:
    printed = card.run(PINNED_INTERRUPTED).splitlines()
    assert printed[-1] == "nothing is left"
    assert "interrupted False" in printed[:-1], "2 GiB are not made each time within 5 ms"


def test_numpy_sees_pinned_memory() -> None:
    numpy = pytest.importorskip("numpy")
    memory = bursar.pinned(4000)
    numbers = numpy.frombuffer(memory, dtype=numpy.float32)
    numbers[:] = 1.5
    assert numbers.ctypes.data == ctypes.addressof(memory) and numbers.sum() == 1500


class Number:
    """A number that is no ``int``, like those of NumPy."""

    def __index__(self) -> int:
        return 1000


@pytest.mark.parametrize("has_device", [True, False])
@pytest.mark.parametrize("classes", ["those of CuPy", "those that stand in for them"])
def test_cupys_allocator_makes_its_pointers_and_raises_its_errors(has_device: bool, classes: str) -> None:
    memory: Any = pytest.importorskip("cupy.cuda.memory") if classes == "those of CuPy" else standins
    bursar.use_pool(limit="1GiB")
    malloc = cupy_allocator(has_device, memory)
    kept = [malloc(300 << 20) for _ in range(3)]
    assert len({pointer.ptr for pointer in kept}) == 3
    assert [(pointer.mem.size, pointer.mem.device_id) for pointer in kept] == [(300 << 20, 0)] * 3
    with pytest.raises(Refused) as raised:
        malloc(300 << 20)
    cause = raised.value.__cause__
    assert isinstance(cause, bursar.OutOfMemory) and (cause.requested, cause.limit) == (300 << 20, 1 << 30)
    assert live() == 900 << 20
    kept.pop()
    assert live() == 600 << 20
    left = [pointer.mem for pointer in kept]
    kept.clear()
    assert live() == 600 << 20, "the memory is of whoever has it"
    left.clear()
    assert live() == 0
    assert malloc(0).ptr == 0 and malloc(Number()).mem.size == 1000
    for size, error in ((-1, OverflowError), (1 << 80, OverflowError), ("1", TypeError), (1.5, TypeError)):
        with pytest.raises(error):
            malloc(size)
    assert live() == 0


def test_cupys_class_of_memory_has_no_objects_but_those_of_the_pool() -> None:
    pointer = cupy_allocator()(100)
    with pytest.raises(TypeError):
        type(pointer.mem)()
    with pytest.raises(TypeError):
        BaseMemory.__new__(type(pointer.mem))

    class Unlike:
        """Its objects have dictionaries, which would have to be given back, too."""

        ptr = size = device_id = property()

    with pytest.raises(TypeError, match="layout"):
        _native.cupy_allocator(Unlike, MemoryPointer, 1, 1, True, refusal)


def test_memory_for_any_stream_is_freed_by_its_address() -> None:
    address = _native.allocate_anywhere(5000, 1)
    assert live(1) == 5120
    _native.free_anywhere(address, 0)
    assert live(1) == 5120, "it is of another device"
    _native.free_anywhere(address, 1)
    _native.free_anywhere(address, 1)
    assert live(1) == 0
    free, total = _native.memory_info(1)
    assert free <= total == 8 << 30


def test_y3_a_forked_child_leaves_the_pool_to_its_parent(card: Card) -> None:
    said = card.run(
        "import bursar, gc, os\n"
        "held = bursar.Buffer(1000)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try: bursar.Buffer(1)\n"
        "    except bursar.Forked: pass\n"
        "    else: os._exit(1)\n"
        "    del held; gc.collect(); os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "print(held.to_bytes()[:4], bursar.statistics()[0].blocks)"
    )
    assert said.strip().endswith(" 1")


FORKED = """
import bursar, os, signal, sys
held = bursar.Buffer(1000)
log = bursar.log(os.environ["BURSAR_LEDGER_DIR"] + "/log.csv")
calls = {
    "flush": lambda: log.flush(timeout=None),
    "close": lambda: log.close(timeout=None),
    "to_bytes": held.to_bytes,
    "copy_from": lambda: held.copy_from(b"bytes"),
    "record_stream": lambda: held.record_stream(1),
    "trim": bursar.trim,
    "statistics": bursar.statistics,
}
child = os.fork()
if child == 0:
    signal.alarm(30)
    for name, call in calls.items():
        try:
            call()
            print(name, "did it", flush=True)
        except bursar.Forked:
            pass
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""


def test_y3_a_forked_child_is_told_so_by_all_that_uses_the_pool(card: Card) -> None:
    assert card.run(FORKED) == "0\n"


def test_y3_an_interpreter_ends_with_memory_alive_and_leaves_no_charge(card: Card, tmp_path: Path) -> None:
    log = repr(str(tmp_path / "log.csv"))
    card.run(f"import bursar\nheld = bursar.Buffer('1GiB')\npinned = bursar.pinned(100)\nlog = bursar.log({log})")
    assert card.ledger().held == 0


@pytest.mark.parametrize("module", ["torch", "cupy", "numba"])
def test_libraries_are_not_given_simulated_memory(module: str) -> None:
    pytest.importorskip(module)
    import importlib

    plug = importlib.import_module(f"bursar.{module}")
    with pytest.raises(bursar.Unsupported):
        plug.enable()
    assert not plug.is_enabled()


def test_the_per_thread_default_stream_is_refused() -> None:
    buffer = bursar.Buffer(10)
    with pytest.raises(bursar.BursarError, match="per-thread default stream"):
        buffer.record_stream(2)


@pytest.mark.parametrize("device", [-1, 1 << 70])
def test_a_number_that_no_device_can_have_is_named(device: int) -> None:
    with pytest.raises(bursar.NoDevice, match=f"no device {device}"):
        bursar.Buffer(10, device=device)


@pytest.mark.parametrize("size", [0, (1 << 63) - 1, 1 << 63])
def test_pinned_memory_of_no_size_is_refused_as_such(size: int) -> None:
    with pytest.raises(bursar.InvalidSize, match=f"{size} bytes"):
        bursar.pinned(size)


@pytest.mark.parametrize("size", [(1 << 62) + 1, 1 << 63, (1 << 64) - 1])
def test_r4_a_size_that_no_device_has_is_refused_as_such(size: int) -> None:
    with pytest.raises(bursar.InvalidSize, match=f"{size} bytes"):
        bursar.Buffer(size)


def test_a_pool_on_what_is_no_reservation_says_what_one_is() -> None:
    wrong: Any = 5
    with pytest.raises(TypeError, match="not int"):
        bursar.use_pool(reservation=wrong)


def test_a_pool_that_is_replaced_while_threads_allocate_refuses_nobody_and_keeps_nothing(card: Card) -> None:
    failed: list[BaseException] = []
    ends = threading.Event()

    def allocate() -> None:
        try:
            while not ends.is_set():
                bursar.Buffer("1MiB")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=allocate) for _ in range(2)]
    for thread in threads:
        thread.start()
    replaced = 0
    while replaced < 100 and not failed:
        try:
            bursar.use_pool()
            replaced += 1
        except bursar.InvalidValue:
            pass
    ends.set()
    for thread in threads:
        thread.join()
    assert not failed
    bursar.use_pool()
    assert card.ledger().held == 0


def test_a_stream_that_the_driver_refuses_changes_nothing(card: Card) -> None:
    bursar.use_pool()
    kept = bursar.Buffer("1MiB")
    with pytest.raises(bursar.DriverError):
        bursar.Buffer("1MiB", stream=12345)
    with pytest.raises(bursar.DriverError):
        kept.record_stream(777)
    assert bursar.Buffer("1MiB").nbytes == 1 << 20
    bursar.sleep()
    bursar.wake()


def test_no_more_was_ever_live_than_was_held() -> None:
    bursar.use_driver("sim", sim_devices="1x8GiB")
    for megabytes in (100, 1, 30):
        bursar.use_pool(limit="1GiB")
        buffer = bursar.Buffer(megabytes << 20)
        [counts] = bursar.statistics()
        assert counts.live <= counts.held <= counts.held_peak and counts.live_peak <= counts.held_peak, counts
        del buffer
        bursar.trim()
        _native.torch_reset_peaks(0)
        [counts] = bursar.statistics()
        assert counts.held == 0 and counts.live_peak <= counts.held_peak, counts


@pytest.mark.parametrize("raw", [-1, -2, 1 << 64, 10**30])
def test_a_number_that_is_no_stream_is_told_what_one_is(raw: int) -> None:
    with pytest.raises(bursar.InvalidValue, match="a number from 0 to"):
        bursar.Buffer(1, stream=raw)


def test_buffers_and_pinned_memory_are_not_copied_by_accident() -> None:
    for memory in (bursar.Buffer(64), bursar.pinned(64)):
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="cannot be pickled or copied"):
                attempt(memory)


def test_pinned_memory_has_no_constructor() -> None:
    for made in (bursar.Pinned, type(bursar.pinned(64))):
        with pytest.raises(TypeError, match=r"bursar.pinned\(\) makes"):
            made()
    assert len(bursar.pinned(64)) == 64


def test_the_counts_of_a_device_outlive_its_pool() -> None:
    bursar.Buffer("4GiB")
    [before] = bursar.statistics()
    bursar.use_pool(limit="64MiB")
    [between] = bursar.statistics()
    assert (between.limit, between.held, between.live, between.blocks) == (64 << 20, 0, 0, 0)
    assert (between.held_peak, between.live_peak, between.allocations) == (before.held_peak, before.live_peak, before.allocations)
    kept = bursar.Buffer(1)
    [after] = bursar.statistics()
    assert (after.held_peak, after.live_peak, after.allocations) == (before.held_peak, before.live_peak, before.allocations + 1)
    assert after.cached == after.pending == after.held - after.live, "the rest of the page is its stream's"
    del kept


def test_only_devices_that_were_used_are_counted_and_those_of_another_driver_are_not() -> None:
    bursar.use_driver("sim", sim_devices="3x8GiB")
    bursar.use_pool()
    assert bursar.statistics() == []
    kept = [bursar.Buffer(1, device=2), bursar.Buffer(1, device=1)]
    assert [counts.device for counts in bursar.statistics()] == [1, 2]
    kept.clear()
    bursar.use_pool(device=0, limit="1GiB")
    assert [(counts.device, counts.limit, counts.allocations) for counts in bursar.statistics()] == [
        (0, 1 << 30, 0),
        (1, None, 1),
        (2, None, 1),
    ]
    bursar.use_driver("sim", sim_devices="3x8GiB")
    bursar.use_pool()
    assert bursar.statistics() == []
