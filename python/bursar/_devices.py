"""The devices of this machine, and the driver that finds them."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Literal, Union

from . import _native
from .errors import NoDevice


@dataclass(frozen=True)
class Device:
    """A GPU, or a simulated one, as it was when it was listed. Sizes are in bytes."""

    #: The number of the device.
    index: int
    uuid: str
    name: str
    #: ``"cuda"`` for hardware, ``"simulated"`` otherwise.
    kind: Literal["cuda", "simulated"]
    total: int
    #: What the driver could still hand out.
    free: int
    #: What programs hold through the device's ledger; None if the ledger cannot be read.
    held: int | None
    #: What they have set aside there and do not hold; None if the ledger cannot be read.
    set_aside: int | None
    #: What is used outside the ledger; None if the ledger cannot be read.
    unmanaged: int | None
    pci: str | None
    numa_node: int | None

    @property
    def is_simulated(self) -> bool:
        """True if the device is no hardware."""
        return self.kind == "simulated"


#: A device as callers name it: by its number, by its UUID, or as it was listed.
DeviceName = Union[int, str, Device]


def devices() -> list[Device]:
    """Returns the devices that can be used, and warns of each that cannot.

    >>> import bursar
    >>> bursar.use_driver("sim", sim_devices="2x24GiB")
    >>> [(device.index, device.kind, device.total >> 30) for device in bursar.devices()]
    [(0, 'simulated', 24), (1, 'simulated', 24)]
    """
    return [Device(**fields) for fields in _native.devices()]


def use_driver(name: Literal["auto", "cuda", "sim"], *, sim_devices: str | None = None) -> None:
    """Has later calls use this driver; what was made before stays on its own.

    Without it, the environment variable ``BURSAR_DRIVER`` chooses: ``cuda``, ``sim``, or ``auto``, the default, which is
    CUDA where it works and simulated devices otherwise, with a :class:`~bursar.SimulatedWarning`.

    ``sim_devices`` describes the simulated devices, such as ``"2x80GiB"``; with a name, as in ``"2x80GiB@shared"``, they
    are the same in every process. Without it, the environment variable ``BURSAR_SIM_DEVICES`` does.
    """
    _native.use_driver(name, sim_devices)


def device_index(device: DeviceName | None) -> int:
    """Returns the number of a device that was named by its number, by its UUID or as it was listed.

    Where none is named, that is the device of this worker's share, or else the first.
    """
    if device is None:
        return _native.default_device()
    if isinstance(device, Device):
        return device.index
    if isinstance(device, str):
        index = _native.index_of(device)
        if index is None:
            raise NoDevice(f"no device has the UUID {device!r}")
        return index
    if isinstance(device, bool):
        raise TypeError("a device is a number, a UUID or a bursar.Device, not bool")
    index = operator.index(device)
    if not 0 <= index < 1 << 32:
        raise NoDevice(f"there is no device {index}")
    return index
