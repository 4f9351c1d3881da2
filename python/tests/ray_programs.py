"""What tasks and actors run in the tests of ``bursar.ray``. Workers of Ray import it."""

from __future__ import annotations

import importlib
import os
import threading
import time
from typing import Any

import bursar


def modules() -> tuple[Any, Any]:
    """Returns Ray and ``bursar.ray``."""
    return importlib.import_module("ray"), importlib.import_module("bursar.ray")


class Looks:
    """An actor that says what it was given before its code ran."""

    def __init__(self) -> None:
        share = bursar.share()
        assert share is not None
        self.share = share
        self.at_start = sum(card.held + card.set_aside for card in bursar.ledger().devices if card.uuid == share.uuid)
        self.buffers: list[bursar.Buffer] = []

    def look(self) -> dict[str, Any]:
        """Returns what it has."""
        seen = os.environ["CUDA_VISIBLE_DEVICES"]
        return {"pid": os.getpid(), "uuid": self.share.uuid, "bytes": self.share.bytes, "at_start": self.at_start, "seen": seen}

    def take(self, size: int) -> int:
        """Takes memory of its card, and returns how much it has."""
        self.buffers.append(bursar.Buffer(size, device=self.share.device or 0))
        return sum(buffer.nbytes for buffer in self.buffers)


def look_once() -> tuple[int, str]:
    """Returns the size of the share of a task, and its card."""
    share = bursar.share()
    assert share is not None
    return share.bytes, share.uuid


def share_of() -> int:
    """Returns the size of the share of this process, or 0."""
    share = bursar.share()
    return 0 if share is None else share.bytes


def crash() -> None:
    """Ends the worker."""
    os._exit(7)


class Leaves:
    """An actor that leaves while a thread of it runs on."""

    def leave(self) -> None:
        """Leaves."""
        threading.Thread(target=time.sleep, args=(1000,)).start()
        importlib.import_module("ray.actor").exit_actor()


class Child:
    """An actor that says what it has."""

    def share(self) -> tuple[int, str]:
        """Returns the size of its share, or 0, and a variable of its environment."""
        return share_of(), os.environ.get("BURSAR_TEST_MARK", "")


class Parent:
    """An actor with a share that makes others."""

    def make(self) -> list[Any]:
        """Returns what children have that ask for nothing, and one that asks for a share."""
        ray, shares = modules()
        own = ray.remote(num_cpus=0)(share_of)
        few = ray.remote(num_cpus=0, max_calls=1, runtime_env={"env_vars": {"BURSAR_TEST_MARK": "few"}})(share_of)
        marked = {"env_vars": {"BURSAR_TEST_MARK": "marked"}}
        kind = ray.remote(num_cpus=0)(Child)
        plain, special = kind.remote(), kind.options(runtime_env=marked).remote()
        asks = own.options(**shares.gpu("1GiB")).remote()
        refs = [own.remote(), few.remote(), own.options(runtime_env=marked).remote(), asks]
        return [*ray.get(refs), *ray.get([plain.share.remote(), special.share.remote()])]

    def plan(self) -> tuple[int, int]:
        """Returns what it reads of the cluster: what is set aside, and how many more shares fit."""
        _, shares = modules()
        found = shares.state(timeout=60)
        return sum(card.set_aside for _, card in found.cards), shares.fit("1GiB", want=3, headroom=1.0, timeout=60).workers


def take_by_itself() -> int:
    """Takes memory of the driver by itself until it is refused, and returns how many mebibytes that were."""
    import ctypes

    driver = ctypes.CDLL("libcuda.so.1")
    context, at = ctypes.c_void_p(), ctypes.c_uint64()
    assert driver.cuInit(0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxSetCurrent(context) == 0
    cards = ctypes.c_int()
    assert driver.cuDeviceGetCount(ctypes.byref(cards)) == 0 and cards.value == 1
    taken = 0
    while taken < 1000 and driver.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(1 << 20)) == 0:
        taken += 1
    return taken
