"""The pool of this process as PyTorch's allocator.

::

    import bursar.torch

    bursar.torch.enable()

From there on every tensor on a GPU is memory of the pool, and PyTorch keeps what it has without it: the statistics and the
snapshot of ``torch.cuda``, ``torch.cuda.OutOfMemoryError``, ``record_stream``, ``empty_cache``,
``set_per_process_memory_fraction`` and ``torch.cuda.graph``.
"""

from __future__ import annotations

import importlib
import threading
from typing import Any

from . import _native
from .errors import TooLate, Unsupported

_lock = threading.Lock()
#: The allocators that PyTorch was given, which must stay.
_given: dict[str, Any] = {}

#: What PyTorch counts as a large block is longer than this.
_CLASSES = ("all", "small_pool", "large_pool")
_FIELDS = ("current", "peak", "allocated", "freed")
_PAGE = 2 << 20


def enable() -> None:
    """Makes the pool of this process PyTorch's allocator, for every device and until the process ends.

    The pool is the one that :func:`bursar.use_pool` made, or else one on its usual terms. It must be called before PyTorch
    uses a device, and raises :class:`bursar.TooLate` afterwards; calling it again does nothing.
    """
    torch = importlib.import_module("torch")
    with _lock:
        if "current" in _given:
            return
        _check_usable(torch)
        allocator = _allocator(torch)
        try:
            torch._C._cuda_changeCurrentAllocator(allocator)
        except RuntimeError as error:
            raise TooLate(
                "PyTorch has used a device with its own allocator already: call bursar.torch.enable() before that, or use "
                "bursar.torch.pool() for a part of the program"
            ) from error
        _given["current"] = allocator
        # Without it, PyTorch says so where it asks.
        _native.torch_answer_workspaces()
        _restore(torch)
        _tell_of_streams(torch)
        _tell_of_launches(torch)


def is_enabled() -> bool:
    """Returns whether the pool is PyTorch's allocator."""
    return "current" in _given


def pool() -> Any:
    """Returns a ``torch.cuda.MemPool`` on the pool of this process, for a part of a program.

    ::

        with torch.cuda.use_mem_pool(bursar.torch.pool()):
            model = Model().cuda()

    PyTorch's own allocator then caches memory of the pool, so that it counts for the pool's limit and the process's share. A
    refusal is PyTorch's own out-of-memory error.
    """
    torch = importlib.import_module("torch")
    with _lock:
        _check_usable(torch)
        if "current" in _given:
            raise TooLate("the pool is PyTorch's allocator already: there is no other to put on it")
        if "segments" not in _given:
            functions = _native.torch_functions()
            _given["segments"] = torch._C._cuda_customAllocator(functions["allocate_or_null"], functions["free"])
    return torch.cuda.MemPool(_given["segments"])


def _check_usable(torch: Any) -> None:
    if not hasattr(torch._C, "_cuda_customAllocator"):
        raise Unsupported(f"PyTorch {torch.__version__} was built without CUDA")
    if torch.cuda.get_allocator_backend() == "cudaMallocAsync":
        raise Unsupported(
            "PyTorch was told to use cudaMallocAsync, and takes no other allocator then: leave `backend:cudaMallocAsync` out of "
            "PYTORCH_ALLOC_CONF and PYTORCH_CUDA_ALLOC_CONF"
        )
    if _native.driver()[0] != "cuda":
        raise Unsupported("PyTorch needs a GPU: the devices are simulated")


def _allocator(torch: Any) -> Any:
    """Returns the allocator with every hook set that PyTorch has."""
    functions = _native.torch_functions()
    allocator = torch._C._cuda_customAllocator(functions.pop("allocate"), functions.pop("free"))
    functions.pop("allocate_or_null")
    missing = [name for name in functions if not hasattr(allocator, name)]
    if missing:
        raise Unsupported(f"PyTorch {torch.__version__} cannot be given the pool: it has no {', '.join(missing)}")
    for name, address in functions.items():
        getattr(allocator, name)(address)
    return allocator


def _restore(torch: Any) -> None:
    """Puts what PyTorch cannot ask a pluggable allocator back into its place, where it looks at each call."""
    torch._C._cuda_memoryStats = _memory_stats
    torch._C._cuda_resetPeakMemoryStats = _native.torch_reset_peaks
    torch._C._cuda_resetAccumulatedMemoryStats = _native.torch_reset_totals
    torch._C._cuda_memorySnapshot = _memory_snapshot
    torch._C._cuda_getMemoryFraction = _native.torch_fraction
    torch._C._cuda_attach_out_of_memory_observer = _native.torch_observe_refusals
    torch._C._cuda_record_memory_history = torch._C._cuda_record_memory_history_legacy = _record_memory_history
    # The same under the names that torch.accelerator uses, in those versions that have them.
    accelerator = {
        "_accelerator_isAllocatorInitialized": lambda: True,
        "_accelerator_getDeviceStats": _memory_stats,
        "_accelerator_resetPeakStats": _native.torch_reset_peaks,
        "_accelerator_resetAccumulatedStats": _native.torch_reset_totals,
    }
    for name, function in accelerator.items():
        if hasattr(torch._C, name):
            setattr(torch._C, name, function)


def _tell_of_streams(torch: Any) -> None:
    """Has the pool told of streams that others made: it uses them no longer than there is memory on them."""
    new, from_external = torch.cuda.ExternalStream.__new__, torch._C._cuda_getStreamFromExternal

    def __new__(cls: Any, stream_ptr: int, *arguments: Any, **keywords: Any) -> Any:
        _native.torch_uses_stream(int(stream_ptr))
        return new(cls, stream_ptr, *arguments, **keywords)

    def get_stream_from_external(handle: int, device: int) -> Any:
        _native.torch_uses_stream(int(handle))
        return from_external(handle, device)

    torch.cuda.ExternalStream.__new__ = __new__
    torch._C._cuda_getStreamFromExternal = get_stream_from_external


def _tell_of_launches(torch: Any) -> None:
    """Has the pool told which streams graphs are launched on: memory of a graph goes back after all that these were given.

    A graph is neither captured nor launched while everything sleeps: PyTorch then writes memory of the pool itself.
    """
    graph, stream_of = torch.cuda.CUDAGraph, torch._C._cuda_getCurrentRawStream
    begin, launch, launches = graph.capture_begin, graph.replay, _native.torch_launches

    def capture_begin(self: Any, *arguments: Any, **keywords: Any) -> None:
        """Begin capturing CUDA work on the current stream."""
        device = torch.cuda.current_device()
        _native.torch_check_awake(device)
        begin(self, *arguments, **keywords)
        # It is launched on this device, whichever is current.
        self._bursar_device = device

    def replay(self: Any) -> None:
        """Replay the CUDA work captured by this graph."""
        device = getattr(self, "_bursar_device", 0)
        stream = stream_of(device)
        is_to_be_told = launches(device, stream)
        launch(self)
        if is_to_be_told:
            _native.torch_launched_of(device, stream, self.pool())

    graph.capture_begin, graph.replay = capture_begin, replay


def _record_memory_history(enabled: Any = None, *_: Any, **__: Any) -> None:
    """Refuses, with what there is instead: the pool is not told where in a program a request comes from."""
    if enabled:
        raise Unsupported(
            "the pool keeps no history of stack traces for PyTorch: bursar.log(path) writes every allocation and free to a file "
            "that `bursar replay` reads, with bursar.tag(name) to tell them apart, and torch.cuda.memory._snapshot() shows what "
            "is allocated"
        )


def _stat(numbers: list[int] | None = None) -> dict[str, int]:
    return dict(zip(_FIELDS, numbers or (0, 0, 0, 0)))


def _stats(each: list[list[int]]) -> dict[str, dict[str, int]]:
    return {name: _stat(numbers) for name, numbers in zip(_CLASSES, each)}


def _memory_stats(device: int) -> dict[str, Any]:
    """Returns what ``torch.cuda.memory_stats_as_nested_dict`` returns without the pool."""
    counts = _native.torch_counts(device)
    none = [[0, 0, 0, 0]] * 3
    granted: list[list[int]] = counts.get("granted", none)
    blocks: list[list[int]] = counts.get("blocks", none)
    reserved: list[int] = counts.get("reserved", none[0])
    cached = reserved[0] - granted[0][0]
    segments = [int(reserved[0] > 0), int(reserved[1] > 0), int(reserved[2] > 0), int(reserved[2] > 0 and not reserved[0])]
    return {
        "num_alloc_retries": 0,
        "num_ooms": counts.get("refusals", 0),
        "max_split_size": -1,
        "num_sync_all_streams": 0,
        "num_device_alloc": counts.get("frames_made", 0),
        "num_device_free": counts.get("frames_released", 0),
        "num_oom_rejections": 0,
        "allocation": _stats(blocks),
        "segment": _stats([segments, none[0], segments]),
        "active": _stats(blocks),
        "inactive_split": _stats(none),
        "allocated_bytes": _stats(granted),
        "reserved_bytes": _stats([reserved, none[0], reserved]),
        "active_bytes": _stats(granted),
        "inactive_split_bytes": _stats([[cached, cached, cached, 0], none[0], [cached, cached, cached, 0]]),
        "requested_bytes": _stats(counts.get("requested", none)),
        "oversize_allocations": _stat(),
        "oversize_segments": _stat(),
    }


def _memory_snapshot(mempool_id: Any = None, *_: Any) -> dict[str, Any]:
    """Returns what ``torch.cuda.memory._snapshot`` returns without the pool: segments, and the blocks in them.

    A segment is a stretch of mapped memory; a pool that moves its frames together has one or a few.
    """
    segments: list[dict[str, Any]] = []
    devices = range(_native.device_count())
    for device in devices:
        blocks = _native.torch_blocks(device)
        for begin, length in _native.torch_ranges(device):
            inside = [block for block in blocks if begin <= block[0] < begin + length]
            segments.append(_segment(device, begin, length, inside))
    if mempool_id is not None and tuple(mempool_id[:2]) != (0, 0):
        segments = [segment for segment in segments if segment["segment_pool_id"] == tuple(mempool_id[:2])]
    return {
        "segments": segments,
        "device_traces": [[] for _ in devices],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": True},
        "external_annotations": [],
        "host_segments": [],
        "host_traces": [],
    }


def _segment(device: int, begin: int, length: int, inside: list[tuple[int, int, int, int, int]]) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = []
    at = begin

    def leave_gap(until: int) -> None:
        if until > at:
            blocks.append({"address": at, "size": until - at, "requested_size": 0, "state": "inactive", "frames": []})

    for address, granted, requested, _, _ in inside:
        leave_gap(address)
        state = {"address": address, "size": granted, "requested_size": requested, "state": "active_allocated"}
        blocks.append({**state, "frames": []})
        at = address + granted
    leave_gap(begin + length)
    allocated = sum(granted for _, granted, _, _, _ in inside)
    return {
        "device": device,
        "address": begin,
        "total_size": length,
        "allocated_size": allocated,
        "active_size": allocated,
        "requested_size": sum(requested for _, _, requested, _, _ in inside),
        "stream": inside[0][3] if inside else 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": True,
        "frames": [],
        "blocks": blocks,
    }
