"""CuPy in a share, with its own pool or with the driver's."""

import sys

import trial
from trial import GIB, MIB, check, gib, see

trial.begin()
try:
    import cupy
except ImportError:
    trial.without("cupy")

is_async = sys.argv[1] == "async"
if is_async:
    pool = cupy.cuda.MemoryAsyncPool()
    cupy.cuda.set_allocator(pool.malloc)
else:
    pool = cupy.get_default_memory_pool()

free, total = cupy.cuda.runtime.memGetInfo()
trial.is_share(total)
check(cupy.cuda.Device(0).mem_info[1] == trial.SHARE, "the device shows the share", cupy.cuda.Device(0).mem_info)
left, right = cupy.random.rand(1024, 1024), cupy.eye(1024)
check(bool(cupy.allclose(left @ right, left)), "it computes")
with cupy.cuda.Stream(non_blocking=True) as stream:
    doubled = left * 2
    stream.synchronize()
check(bool(cupy.allclose(doubled, left + left)), "on a stream of its own")

# CuPy's own pool answers a request that the driver refuses with this, and the driver's pool with the runtime's status.
REFUSALS = (cupy.cuda.memory.OutOfMemoryError, cupy.cuda.runtime.CUDARuntimeError)


def is_out_of_memory(error):
    return isinstance(error, cupy.cuda.memory.OutOfMemoryError) or getattr(error, "status", None) == 2


try:
    cupy.empty(trial.SHARE + GIB, dtype=cupy.uint8)
    check(False, "more than the share", "granted")
except REFUSALS as error:
    check(is_out_of_memory(error), "more than the share is CuPy's out of memory", f"{type(error).__name__}: {error}")

free_before = cupy.cuda.runtime.memGetInfo()[0]
pieces, piece, error_type = [], None, None
for size in (512 * MIB, 64 * MIB):
    while len(pieces) < 1000:
        try:
            piece = cupy.empty(size, dtype=cupy.uint8)
            piece.fill(1)
            pieces.append(piece)
        except REFUSALS as error:
            error_type = type(error).__name__ if is_out_of_memory(error) else f"{error}"
            check(is_out_of_memory(error), "memory runs out", f"{type(error).__name__} after {len(pieces)} pieces")
            break
cupy.cuda.Device(0).synchronize()
taken = sum(piece.nbytes for piece in pieces)
see("its error", error_type)
check(taken + (64 + 256) * MIB >= free_before, "what was free could be had", f"{gib(taken)} of {gib(free_before)}")
check(all(int(piece[-1]) == 1 for piece in pieces), "everything that was granted can be used")
trial.mark_full(taken)
del piece, pieces
cupy.cuda.Device(0).synchronize()
pool.free_all_blocks()
after = cupy.cuda.runtime.memGetInfo()[0]
check(after + 128 * MIB >= free_before, "free_all_blocks gives it back", f"{gib(after)} free, {gib(free_before)} before")
trial.mark("emptied")
check(bool(cupy.allclose(left @ right, left)), "it computes afterwards")
half = cupy.full(trial.SHARE // 2, 2, dtype=cupy.uint8)
check(int(half[-1]) == 2, "half the share in one piece afterwards")
trial.end()
