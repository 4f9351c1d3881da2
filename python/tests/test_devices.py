"""Devices, drivers and sizes."""

from __future__ import annotations

import pickle
from typing import Any

import bursar
import pytest


def test_devices_are_listed_with_their_kind() -> None:
    bursar.use_driver("sim", sim_devices="2x24GiB")
    listed = bursar.devices()
    assert [device.index for device in listed] == [0, 1]
    assert all(device.is_simulated and device.free == device.total == 24 << 30 for device in listed)


@pytest.mark.parametrize("text", ["", "GiB", "20 Gi B", "-1", "1e9"])
def test_text_that_is_no_size_is_named(text: str) -> None:
    with pytest.raises(bursar.InvalidSize) as raised:
        bursar.parse_size(text)
    assert f'"{text}"' in str(raised.value)


def test_an_unknown_driver_is_named() -> None:
    with pytest.raises(bursar.InvalidValue, match="opencl"):
        bursar.use_driver("opencl")  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "devices"), [("", None), (" ", None), ("sim", "1x0GiB"), ("sim", "1x1000PiB")])
def test_r4_a_driver_or_devices_that_cannot_be_are_named(name: Any, devices: str | None) -> None:
    with pytest.raises(bursar.InvalidValue, match="describes no devices" if devices else "driver"):
        bursar.use_driver(name, sim_devices=devices)


def test_exceptions_are_pickled_with_their_numbers() -> None:
    holders = (bursar.Holder("weights", 12 << 30, 2),)
    error = bursar.OutOfMemory("over budget", requested=3, available=2, limit=1, holders=holders, explanation="why")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.args, vars(copy)) == (bursar.OutOfMemory, error.args, vars(error))
