"""Numba in a share."""

import gc

import trial
from trial import GIB, MIB, check, gib, see

trial.begin()
try:
    import numpy
    from numba import cuda
except ImportError:
    trial.without("numba")
if not cuda.is_available():
    trial.skip("numba", "it finds no device")
    trial.end()


def information():
    """Returns what is free and all there is."""
    answer = cuda.current_context().get_memory_info()
    return int(answer[0]), int(answer[1])


def is_out_of_memory(error):
    return "OUT_OF_MEMORY" in str(error) or "[2]" in str(error) or getattr(error, "code", None) == 2 or isinstance(error, MemoryError)


free, total = information()
trial.is_share(total)
try:
    @cuda.jit
    def double(values):
        at = cuda.grid(1)
        if at < values.size:
            values[at] *= 2

    values = cuda.to_device(numpy.arange(1024, dtype=numpy.float32))
    double[8, 128](values)
    check(bool((values.copy_to_host() == 2 * numpy.arange(1024, dtype=numpy.float32)).all()), "a kernel runs")
except Exception as error:
    # Compiling needs more than the driver: the memory can be tried without.
    trial.skip("a kernel", f"{type(error).__name__}: {error}")

try:
    cuda.device_array(trial.SHARE + GIB, dtype=numpy.uint8)
    check(False, "more than the share", "granted")
except Exception as error:
    check(is_out_of_memory(error), "more than the share is refused", f"{type(error).__name__}: {error}")

free_before = information()[0]
pieces, last = [], None
for size in (512 * MIB, 64 * MIB):
    while len(pieces) < 1000:
        try:
            pieces.append(cuda.device_array(size, dtype=numpy.uint8))
        except Exception as error:
            last = type(error).__name__
            check(is_out_of_memory(error), "memory runs out", f"{type(error).__name__} after {len(pieces)} pieces")
            break
taken = sum(piece.nbytes for piece in pieces)
see("its error", last)
check(taken + 128 * MIB >= free_before, "what was free could be had", f"{gib(taken)} of {gib(free_before)}")
trial.mark_full(taken)
del pieces
gc.collect()
# What was freed is given back in its own time, unless it is asked for.
for owner in (getattr(cuda.current_context(), "memory_manager", None), cuda.current_context()):
    if hasattr(owner, "deallocations"):
        owner.deallocations.clear()
        break
after = information()[0]
check(after + 128 * MIB >= free_before, "it is given back", f"{gib(after)} free, {gib(free_before)} before")
half = cuda.to_device(numpy.full(1 << 20, 3, dtype=numpy.uint8))
check(int(half.copy_to_host()[-1]) == 3, "it works afterwards")
trial.end()
