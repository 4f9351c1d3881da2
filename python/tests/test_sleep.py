"""The pool of this process that sleeps and wakes, on simulated devices."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import bursar
import pytest
from conftest import Card


@pytest.fixture(autouse=True)
def devices() -> Iterator[None]:
    """A simulated device, of whose pool nothing is left from the test before."""
    gc.collect()
    bursar.use_driver("sim", sim_devices="1x8GiB")
    bursar.use_pool()
    yield
    bursar.wake()
    gc.collect()


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


def test_z9_what_is_dropped_while_it_sleeps_is_free_when_it_wakes() -> None:
    buffer = bursar.Buffer("6MiB")
    bursar.sleep()
    del buffer
    gc.collect()
    bursar.wake()
    bursar.trim()
    assert held() == 0


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
