"""The allocators that are compared, each given to PyTorch before it uses a device."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

NAMES = ("default", "expandable", "rmm", "bursar")


@dataclass
class Allocator:
    """An allocator that PyTorch was given, and how to ask it."""

    name: str
    #: The most bytes that tensors had at one time, since the peaks were reset.
    peak_allocated: Callable[[], int]
    #: The most bytes that the allocator held at one time, since then.
    peak_reserved: Callable[[], int]
    reset_peaks: Callable[[], None]
    #: Gives back what nobody uses.
    empty: Callable[[], None]


def prepare(name: str) -> None:
    """Sets what has to be set before PyTorch is imported."""
    if name == "expandable":
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def use(name: str, limit: int | None) -> Allocator:
    """Gives PyTorch an allocator that holds at most ``limit`` bytes."""
    import torch

    if name == "rmm":
        return _rmm(limit)
    if name == "bursar":
        import bursar
        import bursar.torch

        bursar.use_pool(limit=limit)
        bursar.torch.enable()
    cuda = torch.cuda
    if name != "bursar" and limit is not None:
        cuda.set_per_process_memory_fraction(min(1.0, limit / cuda.get_device_properties(0).total_memory))
    return Allocator(
        name, cuda.max_memory_allocated, cuda.max_memory_reserved, cuda.reset_peak_memory_stats, cuda.empty_cache
    )


def _rmm(limit: int | None) -> Allocator:
    """RMM's pool, as its documentation gives it to PyTorch; what it holds is read from the driver."""
    import rmm  # type: ignore[import-not-found]
    import torch
    from rmm.allocators.torch import rmm_torch_allocator  # type: ignore[import-not-found]

    page = 256 << 20
    pool = rmm.mr.PoolMemoryResource(
        rmm.mr.CudaMemoryResource(), initial_pool_size=page, maximum_pool_size=None if limit is None else limit // 256 * 256
    )
    counted = rmm.mr.StatisticsResourceAdaptor(pool)
    rmm.mr.set_current_device_resource(counted)
    torch.cuda.memory.change_current_allocator(rmm_torch_allocator)

    def peak_allocated() -> int:
        counts: Any = counted.allocation_counts
        return int(counts["peak_bytes"] if isinstance(counts, dict) else counts.peak_bytes)

    def peak_reserved() -> int:
        # The pool never gives anything back, so what it has is what it had at most.
        return int(pool.pool_size())

    return Allocator("rmm", peak_allocated, peak_reserved, lambda: None, lambda: None)
