"""What the layers between a program and the pool cost, each alone, in nanoseconds."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable

import allocations
import allocators

SIZE = 1024
SECONDS = 0.5


def cost(pair: Callable[[], object]) -> float:
    """Returns the best of rounds: what a layer costs where nothing disturbs it."""
    return allocations.measure(pair, SECONDS)[1]


def functions(allocate: int, free: int) -> Callable[[], None]:
    """Returns a call of two functions like those that PyTorch is given."""
    allocates = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(allocate)
    frees = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)(free)
    return lambda: frees(allocates(SIZE, 0, None), SIZE, 0, None)


def pool_alone() -> dict[str, float]:
    """Returns the cost of the pool's functions by themselves, less what calling functions like them costs."""
    from bursar import _native

    addresses = _native.torch_functions()
    nothing = ctypes.cast(ctypes.CDLL(None).labs, ctypes.c_void_p).value or 0
    pairs = cost(functions(addresses["allocate"], addresses["free"])), cost(functions(nothing, nothing))
    return {"the pool's functions": round(pairs[0] - pairs[1], 1)}


def torch_costs(name: str) -> dict[str, float]:
    allocators.prepare(name)
    import torch

    allocators.use(name, None)
    torch.zeros(1, device="cuda")
    stream, raw = torch.cuda.current_stream().cuda_stream, torch._C
    answer = {
        "an empty function": cost(lambda: None),
        "a tensor without memory": cost(lambda: torch.empty(0, dtype=torch.uint8, device="cuda")),
        "the allocator through PyTorch": cost(
            lambda: raw._cuda_cudaCachingAllocator_raw_delete(raw._cuda_cudaCachingAllocator_raw_alloc(SIZE, stream))
        ),
        "whole": cost(lambda: torch.empty(SIZE, dtype=torch.uint8, device="cuda")),
    }
    return {**answer, **pool_alone()} if name == "bursar" else answer


def cupy_costs(name: str) -> dict[str, float]:
    import cupy  # type: ignore[import-not-found]

    memory, runtime = cupy.cuda.memory, cupy.cuda.runtime
    answer = {"an empty function": cost(lambda: None), "the current device, before any use": cost(runtime.getDevice)}
    if name == "bursar":
        import bursar.cupy

        bursar.cupy.enable()
    answer["the current device, enabled"] = cost(runtime.getDevice)
    answer["whole, before a kernel"] = cost(lambda: cupy.cuda.alloc(SIZE))
    cupy.zeros(1)
    answer["the current device, after a kernel"] = cost(runtime.getDevice)
    answer["the current stream"] = cost(_current_stream())
    unowned = memory.UnownedMemory(1 << 30, SIZE, None, 0)
    answer["an object of memory"] = cost(lambda: memory.UnownedMemory(1 << 30, SIZE, None, 0))
    answer["a pointer"] = cost(lambda: memory.MemoryPointer(unowned, 0))
    allocator, pointer = cupy.cuda.get_allocator(), memory.MemoryPointer(unowned, 0)
    answer["the allocator"] = cost(lambda: allocator(SIZE))
    answer["whole"] = cost(lambda: cupy.cuda.alloc(SIZE))
    cupy.cuda.set_allocator(lambda _: pointer)
    answer["whole, of an allocator that does nothing"] = cost(lambda: cupy.cuda.alloc(SIZE))
    cupy.cuda.set_allocator(allocator)
    if name == "bursar":
        try:
            importlib.import_module("torch")
            answer.update(pool_alone())
        except ImportError:
            pass
    return answer


def _current_stream() -> Callable[[], object]:
    """Returns CuPy's function for the current stream; calling it from here costs about 100 ns more than it does."""
    from bursar.cupy import _function

    streams = importlib.import_module("cupy_backends.cuda.stream")
    address = _function(streams, "get_current_stream_ptr", b"intptr_t (void)")
    function: Callable[[], object] = ctypes.PYFUNCTYPE(ctypes.c_ssize_t)(address)
    return function


def costs(library: str, name: str) -> dict[str, float]:
    """Returns what each layer costs."""
    return torch_costs(name) if library == "torch" else cupy_costs(name)
