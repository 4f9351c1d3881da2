"""The pool of this process as Numba's memory manager.

::

    import bursar.numba

    bursar.numba.enable()
"""

from __future__ import annotations

import importlib
import threading
from typing import Any

from . import _native
from .errors import TooLate, Unsupported

_lock = threading.Lock()
_given: dict[str, Any] = {}


def enable() -> None:
    """Makes the pool of this process Numba's memory manager, for every device. Calling it again does nothing.

    Numba names no stream when it allocates: an array may be used on the default stream and on every stream that Numba makes as
    soon as it is there, and its memory is used again only after all that these were given before it was freed. It must be
    called before Numba uses a device. Memory cannot be handed to other processes (``get_ipc_handle``).
    """
    cuda = importlib.import_module("numba.cuda")
    with _lock:
        if "manager" in _given:
            return
        if _native.driver()[0] != "cuda":
            raise Unsupported("Numba needs a GPU: the devices are simulated")
        driver = importlib.import_module("numba.cuda.cudadrv.driver")
        if getattr(driver, "_memory_manager", None) is not None:
            raise TooLate("Numba has used a device with another memory manager already: call bursar.numba.enable() before that")
        _given["manager"] = _manager(cuda)
        cuda.set_memory_manager(_given["manager"])


def is_enabled() -> bool:
    """Returns whether the pool is Numba's memory manager."""
    return "manager" in _given


def _manager(cuda: Any) -> Any:
    class BursarManager(cuda.HostOnlyCUDAMemoryManager):  # type: ignore[misc]
        """Numba's manager of device memory, on the pool of this process."""

        def memalloc(self, size: int) -> Any:
            device = int(self.context.device.id)
            address = _native.allocate_anywhere(size, device) if size else 0
            release = _free(address, device) if size else None
            return cuda.MemoryPointer(self.context, _pointer(cuda, address), size, finalizer=release)

        def get_memory_info(self) -> Any:
            return cuda.MemoryInfo(*_native.memory_info(int(self.context.device.id)))

        def get_ipc_handle(self, memory: Any) -> Any:
            raise Unsupported("memory of the pool cannot be handed to other processes")

        def initialize(self) -> None:
            """Does nothing: the pool opens a device when it is first asked for memory."""

        @property
        def interface_version(self) -> int:
            return 1

    return BursarManager


def _free(address: int, device: int) -> Any:
    def free() -> None:
        _native.free_anywhere(address, device)

    return free


def _pointer(cuda: Any, address: int) -> Any:
    """Returns an address as Numba's driver has them."""
    driver = importlib.import_module("numba.cuda.cudadrv.driver")
    if getattr(driver, "USE_NV_BINDING", True):
        binding = getattr(driver, "binding", None)
        return binding.CUdeviceptr(address) if binding is not None else address
    return importlib.import_module("ctypes").c_uint64(address)
