"""The pool of this process that sleeps and wakes, on simulated devices."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import bursar
import pytest
from conftest import PATIENCE, Card, eventually

pytestmark = pytest.mark.usefixtures("devices")


def held() -> int:
    return bursar.statistics()[0].held


def test_z5_buffers_are_where_they_were_after_a_sleep() -> None:
    buffer = bursar.Buffer("5MiB")
    address, before = buffer.ptr, held()
    report = bursar.sleep()
    assert (held(), bursar.sleep_state().state) == (0, "asleep")
    assert report.released == before and report.saved >= 5 << 20
    with pytest.raises(bursar.Asleep, match="asleep"):
        bursar.Buffer(1)
    woken = bursar.wake()
    assert (woken.taken, woken.restored) == (report.released, report.saved)
    assert (buffer.ptr, held(), bursar.sleep_state().state) == (address, before, "awake")


def test_z5_a_device_whose_pool_was_made_while_others_slept_is_awake() -> None:
    program = """
import bursar
bursar.use_driver("sim", sim_devices="2x1GiB")
sleeping = bursar.Buffer("4MiB", device=0)
bursar.sleep()
buffer = bursar.Buffer("4MiB", device=1)
buffer.copy_from(b"bytes")
print(bursar.sleep_state().state)
bursar.sleep()
print(bursar.sleep_state().state)
bursar.wake()
print(bursar.sleep_state().state, buffer.to_bytes()[:5], len(sleeping.to_bytes()))
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
    assert said.split("\n")[:3] == ["partly asleep", "asleep", f"awake b'bytes' {4 << 20}"]


def test_z9_what_is_dropped_while_it_sleeps_is_free_when_it_wakes() -> None:
    buffer = bursar.Buffer("6MiB")
    bursar.sleep()
    del buffer
    gc.collect()
    bursar.wake()
    bursar.trim()
    assert held() == 0


def test_z9_memory_that_sleeps_is_given_to_no_other_stream() -> None:
    with bursar.tag("weights"):
        weights = bursar.Buffer("8MiB")
    cache = bursar.Buffer("4MiB")
    bursar.sleep("weights")
    uses: tuple[Callable[[bursar.Buffer], object], ...] = (
        bursar.Buffer.to_bytes,
        lambda buffer: buffer.copy_from(b"bytes"),
        lambda buffer: buffer.record_stream(1),
    )
    for use in uses:
        with pytest.raises(bursar.Asleep):
            use(weights)
        use(cache)
    bursar.wake("weights")
    for use in uses:
        use(weights)


def test_z5_a_tag_sleeps_while_others_are_used() -> None:
    with bursar.tag("weights"):
        weights = bursar.Buffer("8MiB")
    cache = bursar.Buffer("4MiB")
    report = bursar.sleep("weights", discard=["weights"])
    assert (report.released, report.saved, report.discarded) == (8 << 20, 0, 8 << 20)
    more = bursar.Buffer("2MiB")
    assert bursar.sleep_state() == bursar.SleepState("partly asleep", 8 << 20, 0)
    bursar.wake("weights")
    assert len({weights.ptr, cache.ptr, more.ptr}) == 3


def test_z8_a_place_is_kept_or_given_up(card: Card) -> None:
    bursar.use_pool()
    buffer = bursar.Buffer("64MiB")
    charged = card.ledger().held
    assert charged >= 64 << 20
    bursar.sleep(keep_place=True)
    assert card.ledger().held == charged
    bursar.wake()
    bursar.sleep()
    assert card.ledger().held < 64 << 20
    bursar.wake(timeout=5)
    assert card.ledger().held == charged
    assert buffer.ptr


def test_z6_a_tag_of_a_pool_that_sleeps_as_a_whole_does_not_wake_by_itself() -> None:
    with bursar.tag("weights"):
        weights = bursar.Buffer("8MiB")
    bursar.sleep()
    with pytest.raises(bursar.Asleep, match="whole pool .*no tag.* is asleep"):
        bursar.wake("weights")
    assert bursar.wake().restored >= 8 << 20 and weights.ptr


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a"), ()])
def test_z7_a_wake_that_is_refused_wakes_none_of_its_tags(names: tuple[str, ...]) -> None:
    bursar.use_pool(limit="40MiB")
    with bursar.tag("a"):
        a = bursar.Buffer("4MiB")
    with bursar.tag("b"):
        b = bursar.Buffer("20MiB")
    bursar.sleep("a", "b")
    others = bursar.Buffer("30MiB")
    before = bursar.sleep_state(), held()
    with pytest.raises(bursar.OutOfMemory):
        bursar.wake(*names)
    assert (bursar.sleep_state(), held()) == before
    del others
    bursar.wake(*names)
    assert bursar.sleep_state().state == "awake" and a.ptr and b.ptr


@pytest.mark.parametrize("wrong", [-1, -0.001, float("nan"), float("inf")])
def test_a_timeout_that_makes_no_sense_moves_nothing(wrong: float) -> None:
    buffer = bursar.Buffer("2MiB")
    with pytest.raises(ValueError, match="a timeout is a number of seconds, 0 or more"):
        bursar.sleep(timeout=wrong)
    assert bursar.sleep_state().state == "awake"
    bursar.sleep(timeout=None)
    with pytest.raises(ValueError, match="a timeout is a number of seconds, 0 or more"):
        bursar.wake(timeout=wrong)
    assert bursar.sleep_state().state == "asleep"
    bursar.wake(timeout=None)
    assert buffer.ptr


def test_z5_a_tag_that_nothing_has_puts_nothing_to_sleep() -> None:
    buffer = bursar.Buffer("2MiB")
    report = bursar.sleep("nobody's")
    assert (report.released, report.saved, report.discarded, report.kept) == (0, 0, 0, 0)
    assert bursar.sleep_state() == bursar.SleepState("awake", 0, 0)
    assert buffer.ptr


def test_z5_a_text_to_discard_is_one_tag() -> None:
    with bursar.tag("kv-cache"):
        cache = bursar.Buffer("4MiB")
    assert bursar.sleep(discard="kv-cache").discarded == 4 << 20
    assert bursar.wake().restored < 4 << 20 and cache.ptr


def test_y6_a_pool_whose_reservation_was_released_asleep_wakes_in_its_turn(card: Card) -> None:
    reservation = bursar.reserve("1GiB").wait()
    bursar.use_pool(reservation=reservation)
    buffer = bursar.Buffer("64MiB")
    bursar.sleep()
    reservation.release()
    with bursar.reserve(card.ledger().limit), pytest.raises(bursar.OutOfMemory, match="64 MiB requested"):
        bursar.wake()
    assert bursar.sleep_state().state == "asleep"
    bursar.wake()
    assert (card.ledger().held, len(buffer.to_bytes())) == (64 << 20, 64 << 20)
    with pytest.raises(bursar.Released, match="the pool cannot grow"):
        bursar.Buffer("128MiB")
    del buffer
    bursar.trim()
    assert card.ledger().held == 0


def test_z6_a_wake_waits_for_another_that_is_under_way(card: Card) -> None:
    bursar.use_pool()
    buffer = bursar.Buffer("64MiB")
    bursar.sleep()
    others = bursar.reserve(card.ledger().limit, timeout=PATIENCE).wait()
    woken: list[bursar.WakeReport] = []
    threads = [threading.Thread(target=lambda: woken.append(bursar.wake(timeout=PATIENCE))) for _ in range(2)]
    threads[0].start()
    eventually(lambda: len(card.ledger().waiting) == 1, "the first waits in the queue")
    with pytest.raises(bursar.Asleep, match="is falling asleep or waking just now: wait until it has"):
        bursar.wake()
    threads[1].start()
    others.release()
    for thread in threads:
        thread.join()
    assert sorted(report.restored >= 64 << 20 for report in woken) == [False, True]
    assert bursar.sleep_state().state == "awake" and buffer.ptr


INTERRUPTED = """
import bursar
buffer = bursar.Buffer("64MiB")
buffer.copy_from(b"kept")
bursar.sleep()
print("asleep", flush=True)
input()
try:
    bursar.wake(timeout={timeout})
except KeyboardInterrupt:
    print("interrupted", bursar.sleep_state().state, flush=True)
input()
bursar.wake(timeout=60)
print(buffer.to_bytes()[:4], bursar.sleep_state().state, flush=True)
"""


@pytest.mark.parametrize("timeout", ["60", "None"])
def test_y3_an_interrupt_ends_a_wake_that_waits_and_all_sleeps_on(card: Card, timeout: str) -> None:
    child = card.python(INTERRUPTED.format(timeout=timeout))
    assert child.stdin is not None and child.stdout is not None
    assert child.stdout.readline() == "asleep\n"
    with bursar.reserve(card.ledger().limit - (1 << 20)):
        child.stdin.write("\n")
        child.stdin.flush()
        eventually(lambda: len(card.ledger().waiting) == 1, "it waits")
        began = time.monotonic()
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == "interrupted asleep\n"
        assert time.monotonic() - began < 30
        assert card.ledger().waiting == ()
    said, _ = child.communicate("\n", timeout=PATIENCE)
    assert said == "b'kept' awake\n"


@pytest.mark.parametrize("device", [-1, 1 << 40, "other"])
def test_a_device_that_is_not_there_is_not_asked(device: int | str) -> None:
    with pytest.raises(bursar.NoDevice):
        bursar.sleep_when_asked(device)


ASKED = """
import sys
import bursar

bursar.use_driver("sim", sim_devices=sys.argv[1])
buffer = bursar.Buffer("8MiB")
bursar.sleep_when_asked()
print("ready", flush=True)
for line in sys.stdin:
    with bursar.awake():
        print(bursar.sleep_state().state, flush=True)
"""


def test_z10_a_program_is_put_to_sleep_and_woken_by_the_command(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    environment = {**os.environ, "BURSAR_LEDGER_DIR": str(tmp_path)}

    def ask(what: str, pid: int) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "bursar", "--json", what, str(pid)]
        return subprocess.run(words, env=environment, text=True, capture_output=True, timeout=60)

    words = [sys.executable, "-c", ASKED, f"1x64MiB@{tmp_path.name}"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, env=environment, text=True, stdin=pipe, stdout=pipe) as program:
        assert program.stdin is not None and program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        slept = ask("sleep", program.pid)
        assert slept.returncode == 0, slept.stderr
        assert json.loads(slept.stdout)["devices"][0]["moved"] == 8 << 20
        assert ask("sleep", program.pid).returncode == 1
        # It waits until it is awake.
        program.stdin.write("go on\n")
        program.stdin.flush()
        woken = ask("wake", program.pid)
        assert woken.returncode == 0, woken.stderr
        assert program.stdout.readline() == "awake\n"
        program.stdin.close()
        assert program.wait(30) == 0


WORKING = """
import random, signal, sys, threading
import bursar

buffer = bursar.Buffer("8MiB")
bursar.sleep_when_asked()

class Interrupt(Exception):
    pass

def interrupt(number, frame):
    raise Interrupt

signal.signal(signal.SIGALRM, interrupt)
for _ in range(500):
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(10e-6, 60e-6))
        while True:
            with bursar.awake():
                pass
    except Interrupt:
        pass

@bursar.awake()
def work():
    pass

outer = bursar.awake()
with outer:
    try:
        outer.__enter__()
    except RuntimeError as error:
        print(error, flush=True)
    while True:
        other = threading.Thread(target=work)
        other.start()
        other.join(0.5)
        if other.is_alive():
            break
    # Somebody asks, and another thread waits for that.
    work()
    print("inside", flush=True)
other.join()
print(bursar.sleep_state().state, flush=True)
"""


def test_z10_work_within_work_goes_on_while_somebody_asks_and_a_signal_leaves_none_begun(card: Card) -> None:
    with card.python(WORKING) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "the block has begun already: bursar.awake() makes one for each\n"

        def ask(what: str) -> subprocess.Popen[str]:
            words = [sys.executable, "-m", "bursar", what, str(program.pid), "--timeout", str(PATIENCE)]
            return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

        asks = ask("sleep")
        assert program.stdout.readline() == "inside\n"
        _, said = asks.communicate(timeout=PATIENCE)
        assert asks.returncode == 0, said
        asks = ask("wake")
        _, said = asks.communicate(timeout=PATIENCE)
        assert asks.returncode == 0, said
        assert program.stdout.readline() == "awake\n"


SLEEPS_ITSELF = """
import sys
import bursar

with bursar.tag("cache"):
    cache = bursar.Buffer("8MiB")
weights = bursar.Buffer("8MiB")
bursar.sleep("cache")
bursar.sleep_when_asked()
print("ready", flush=True)
for line in sys.stdin:
    print(bursar.sleep_state().state, flush=True)
"""


def test_z10_a_request_to_wake_leaves_asleep_what_the_program_itself_put_to_sleep(card: Card) -> None:
    with card.python(SLEEPS_ITSELF) as program:
        assert program.stdin is not None and program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        states = []
        for what in ["sleep", "wake", "sleep", "wake", "wake"]:
            words = [sys.executable, "-m", "bursar", what, str(program.pid)]
            asked = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
            assert asked.returncode == 0, asked.stderr
            program.stdin.write("look\n")
            program.stdin.flush()
            states.append(program.stdout.readline().strip())
        # Once nothing sleeps by request, all of it wakes.
        assert states == ["asleep", "partly asleep", "asleep", "partly asleep", "awake"]
        program.stdin.close()
        assert program.wait(PATIENCE) == 0


AWAITS = """
import asyncio, os, sys
import bursar

buffer = bursar.Buffer("8MiB")
bursar.sleep_when_asked()

@bursar.awake()
async def work():
    words = [sys.executable, "-m", "bursar", "sleep", "--timeout", "0.5", str(os.getpid())]
    asks = await asyncio.create_subprocess_exec(*words, stderr=asyncio.subprocess.PIPE)
    _, said = await asks.communicate()
    buffer.to_bytes()
    return asks.returncode, b"a stretch of work" in said

print(*asyncio.run(work()))
"""


def test_z10_work_of_a_coroutine_lasts_until_the_coroutine_has_ended(card: Card) -> None:
    assert card.run(AWAITS) == "1 True\n"


def test_z10_a_program_that_ends_was_not_put_to_sleep(card: Card) -> None:
    program = card.python(
        "import bursar, sys\nbuffer = bursar.Buffer('1MiB')\nbursar.sleep_when_asked()\nwork = bursar.awake()\nwork.__enter__()\n"
        "print('ready', flush=True)\nsys.stdin.read()"
    )
    assert program.stdout is not None and program.stdout.readline() == "ready\n"
    others = len(card.ledger().processes)
    command = [sys.executable, "-m", "bursar", "sleep", str(program.pid), "--timeout", str(PATIENCE)]
    asks = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    eventually(lambda: len(card.ledger().processes) > others or asks.poll() is not None, "nobody asks")
    program.communicate(timeout=PATIENCE)
    printed, said = asks.communicate(timeout=PATIENCE)
    assert (asks.returncode, printed) == (1, ""), said


class BusyDevice:
    """What stands in for PyTorch: work of it runs on its devices until it is told to end."""

    def __init__(self) -> None:
        self.ends, self.asked = threading.Event(), list[int]()
        self.cuda = self

    def is_initialized(self) -> bool:
        return True

    def is_current_stream_capturing(self) -> bool:
        return False

    def synchronize(self, device: int) -> None:
        self.asked.append(device)
        assert self.ends.wait(PATIENCE)


def test_z9_what_pytorch_runs_is_waited_for_no_longer_than_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer, torch = bursar.Buffer("4MiB"), BusyDevice()
    monkeypatch.setitem(sys.modules, "torch", torch)
    with pytest.raises(bursar.StillInUse, match="PyTorch"):
        bursar.sleep(timeout=0.05)
    assert (bursar.sleep_state().state, torch.asked) == ("awake", [0]), "a device that the pool has not used is not asked"
    threading.Timer(0.05, torch.ends.set).start()
    bursar.sleep(timeout=None)
    assert torch.ends.is_set() and bursar.sleep_state().state == "asleep"
    bursar.wake()
    assert len(buffer.to_bytes()) == 4 << 20


def test_y3_an_interrupt_ends_the_wait_for_what_pytorch_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = BusyDevice()
    buffer = bursar.Buffer("4MiB")
    monkeypatch.setitem(sys.modules, "torch", torch)

    def interrupt() -> None:
        eventually(lambda: bool(torch.asked), "asked")
        os.kill(os.getpid(), signal.SIGINT)

    interrupts = threading.Thread(target=interrupt)
    interrupts.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            bursar.sleep(timeout=None)
    finally:
        torch.ends.set()
        interrupts.join()
    assert bursar.sleep_state().state == "awake" and len(buffer.to_bytes()) == 4 << 20


def test_z6_threads_that_sleep_and_wake_at_once_wait_for_each_other() -> None:
    buffers = [bursar.Buffer("2MiB") for _ in range(16)]
    failures = list[BaseException]()

    def turn() -> None:
        try:
            for _ in range(30):
                bursar.sleep(timeout=PATIENCE)
                bursar.wake(timeout=PATIENCE)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=turn) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    bursar.wake()
    assert all(len(buffer.to_bytes()) == 2 << 20 for buffer in buffers)


def test_y6_memory_that_slept_when_its_reservation_was_released_wakes(card: Card) -> None:
    program = """
import bursar
with bursar.reserve("1GiB", label="stage") as stage:
    bursar.use_pool(reservation=stage)
    with bursar.tag("weights"):
        weights = bursar.Buffer("16MiB")
    awake = bursar.Buffer("32MiB")
    weights.copy_from(b"weights")
    bursar.sleep("weights")
counts = lambda: bursar.ledger().devices[0].held >> 20
print(counts())
try:
    bursar.Buffer("64MiB")
except bursar.Released as error:
    print("it does not grow")
print(bursar.wake("weights").restored >> 20, weights.to_bytes()[:7], counts())
bursar.sleep(keep_place=True)
print(counts(), bursar.wake().restored >> 20)
bursar.sleep()
print(counts(), bursar.wake().restored >> 20, weights.to_bytes()[:7], counts())
del weights, awake
bursar.trim()
bursar.use_pool()
print(counts())
"""
    expected = "32 / it does not grow / 16 b'weights' 48 / 48 48 / 0 48 b'weights' 48 / 0"
    assert card.run(program).strip().split("\n") == expected.split(" / ")


def test_z8_whoever_is_refused_a_place_is_told_who_has_it(card: Card) -> None:
    bursar.use_pool()
    asleep = bursar.Buffer("5GiB")
    bursar.sleep(discard=True)
    another = card.python('import bursar\nwith bursar.reserve("4GiB", label="another"):\n    print(flush=True)\n    input()')
    assert another.stdout is not None and another.stdout.readline() == "\n"
    refusals = []
    for move in (bursar.wake, lambda: bursar.sleep(keep_place=True)):
        with pytest.raises(bursar.OutOfMemory) as refused:
            move()
        refusals.append(refused.value)
    another.communicate("\n", timeout=PATIENCE)
    bursar.wake()
    for refusal in refusals:
        assert any("[another]" in holder.name for holder in refusal.holders), refusal.holders
        assert "[another]: 4 GiB set aside" in refusal.explanation
    assert len(asleep) == 5 << 30


def test_z7_where_a_device_is_refused_those_before_it_are_awake_and_the_others_can_wake_later() -> None:
    bursar.use_driver("sim", sim_devices="3x1GiB")
    bursar.use_pool()
    buffers = [bursar.Buffer("400MiB", device=device) for device in range(3)]
    bursar.sleep()
    with bursar.reserve("900MiB", device=1):
        with pytest.raises(bursar.OutOfMemory):
            bursar.wake()
        assert bursar.sleep_state().state == "partly asleep"
        buffers[0].copy_from(b"awake")
        for asleep in buffers[1:]:
            with pytest.raises(bursar.Asleep):
                asleep.copy_from(b"asleep")
    bursar.wake()
    assert bursar.sleep_state().state == "awake"
