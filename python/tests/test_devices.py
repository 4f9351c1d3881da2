"""Devices, drivers and sizes."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bursar
import pytest


def test_devices_are_listed_with_their_kind() -> None:
    bursar.use_driver("sim", sim_devices="2x24GiB")
    listed = bursar.devices()
    assert [device.index for device in listed] == [0, 1]
    assert all(device.is_simulated and device.free == device.total == 24 << 30 for device in listed)


@pytest.mark.parametrize("text", ["", "GiB", "20 Gi B", "-1", "1e9", "0.0001KiB"])
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


@pytest.mark.parametrize(
    ("variable", "text"), [("BURSAR_DRIVER", b"opencl"), ("BURSAR_DRIVER", b"\xffsim"), ("BURSAR_SIM_DEVICES", b"1x8GiB@\xff")]
)
def test_a_driver_or_devices_that_a_variable_does_not_name_are_refused(variable: str, text: bytes) -> None:
    program = "import bursar\ntry: bursar.devices()\nexcept bursar.InvalidValue as error: print(error)"
    environment = {**os.environb, b"BURSAR_DRIVER": b"sim", variable.encode(): text}
    said = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    assert text.decode(errors="replace") in said and (variable in said or "describes no devices" in said)


def test_true_is_no_number_of_a_device() -> None:
    bursar.use_driver("sim", sim_devices="2x8GiB")
    calls: list[Callable[[Any], object]] = [
        lambda device: bursar.Buffer(5, device=device),
        lambda device: bursar.reserve(5, device=device).wait(),
        lambda device: bursar.use_pool(device=device),
        lambda device: bursar.fit(5, devices=[device]),
        lambda device: bursar.pinned(5, device=device),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="a device is a number, a UUID or a bursar.Device, not bool"):
            call(True)


def test_named_devices_say_which_folder_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("BURSAR_LEDGER_DIR", str(file))
    bursar.use_driver("sim", sim_devices="1x8GiB@unusable")
    with pytest.raises(bursar.NoDevice, match=f"{file}: .*set BURSAR_LEDGER_DIR to a folder of yours"):
        bursar.devices()
