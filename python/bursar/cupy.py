"""The pool of this process as CuPy's allocator.

::

    import bursar.cupy

    bursar.cupy.enable()
"""

from __future__ import annotations

import ctypes
import importlib
import os
import threading
from typing import Any

from . import _native
from .errors import OutOfMemory, Unsupported

_lock = threading.Lock()
_given: dict[str, Any] = {}


def enable() -> None:
    """Makes the pool of this process CuPy's allocator, for every device and thread. Calling it again does nothing.

    Arrays that exist stay where they are, and what CuPy's own pool keeps for later is given back. A refusal is
    ``cupy.cuda.memory.OutOfMemoryError``, with the :class:`bursar.OutOfMemory` that explains it as its cause.

    A stream that CuPy made may be destroyed at any time. One of another library (``cupy.cuda.ExternalStream``) has to stay until
    the arrays that were made on it are gone.
    """
    cupy = importlib.import_module("cupy")
    streams = importlib.import_module("cupy_backends.cuda.stream")
    with _lock:
        if "malloc" in _given:
            return
        if _native.driver()[0] != "cuda":
            raise Unsupported("CuPy needs a GPU: the devices are simulated")
        if cupy.cuda.runtime.is_hip:
            raise Unsupported("this build of CuPy is for AMD's devices")
        if os.environ.get("CUPY_CUDA_PER_THREAD_DEFAULT_STREAM", "0") not in ("", "0"):
            raise Unsupported("the per-thread default stream is another on each thread: memory cannot be ordered on it")
        # Where no context is current on a thread, each question for the current device takes the runtime long.
        cupy.cuda.runtime.setDevice(cupy.cuda.runtime.getDevice())
        _given["malloc"] = _allocator(cupy, streams)
        _tell_of_ends(cupy.cuda.Stream)
        _tell_of_streams(cupy.cuda.ExternalStream)
        cupy.cuda.set_allocator(_given["malloc"])
        cupy.get_default_memory_pool().free_all_blocks()


def is_enabled() -> bool:
    """Returns whether the pool was made CuPy's allocator."""
    return "malloc" in _given


def _function(module: Any, name: str, signature: bytes) -> int:
    """Returns the address of a function that CuPy's modules offer each other."""
    capsule = module.__pyx_capi__[name]
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    if get_name(capsule) != signature:
        raise Unsupported(f"this version of CuPy has another function {name}: {get_name(capsule)!r}")
    return int(get_pointer(capsule, signature))


def _allocator(cupy: Any, streams: Any) -> Any:
    """Returns the function that CuPy is given."""
    memory, devices = cupy.cuda.memory, importlib.import_module("cupy.cuda.device")
    try:
        device = _function(devices, "get_device_id", b"int (int __pyx_skip_dispatch)")
        knows_device = "get_stream_ptr" in streams.__pyx_capi__
        if knows_device:
            stream = _function(streams, "get_stream_ptr", b"intptr_t (int)")
        else:
            stream = _function(streams, "get_current_stream_ptr", b"intptr_t (void)")
        return _native.cupy_allocator(
            memory.BaseMemory, memory.MemoryPointer, device, stream, knows_device, _refusal(memory.OutOfMemoryError)
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise Unsupported(f"CuPy {cupy.__version__} cannot be given the pool: {error}") from error


def _refusal(refused: Any) -> Any:
    """Returns what makes CuPy's own exception of one of ours, where it is for want of memory."""

    def make(error: BaseException) -> BaseException:
        if not isinstance(error, OutOfMemory):
            return error
        used = (error.limit or 0) - error.available
        made: BaseException = refused(error.requested, used, error.limit or 0)
        made.__cause__ = error
        return made

    return make


def _tell_of_ends(stream_class: Any) -> None:
    """Has the pool told before CuPy destroys a stream."""
    destroy = stream_class.__del__

    def __del__(self: Any) -> None:
        handle = getattr(self, "ptr", 0)
        if handle > 2:
            _native.stream_ends(handle)
        destroy(self)

    stream_class.__del__ = __del__


def _tell_of_streams(stream_class: Any) -> None:
    """Has the pool told of streams that others made: it uses them no longer than there is memory on them."""
    initialise = stream_class.__init__

    def __init__(self: Any, handle: int, *arguments: Any, **keywords: Any) -> None:
        initialise(self, handle, *arguments, **keywords)
        _native.cupy_uses_stream(self.ptr)

    stream_class.__init__ = __init__
