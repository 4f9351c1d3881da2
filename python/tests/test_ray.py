"""Shares of cards for tasks and actors, on a real Ray cluster of four nodes on loopback."""

from __future__ import annotations

import importlib
import importlib.util
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bursar
import pytest
from ray_cluster import Node, RayCluster

GIB = 1 << 30

#: The seconds in which bytes are back.
BACK = 5.0

#: The cards of each node; no two nodes have the same.
CARDS = ["2x8GiB", "1x16GiB", "2x4GiB", "1x24GiB"]

HAS_RAY = importlib.util.find_spec("ray") is not None

needs_ray = pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """A cluster of four nodes."""
    started = RayCluster(CARDS)
    try:
        yield started
    finally:
        started.stop()


def within(seconds: float, condition: Callable[[], bool], what: str) -> None:
    """Waits until a condition holds, which has to be so in time."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, what
        time.sleep(0.05)


def modules() -> tuple[Any, Any]:
    """Returns Ray and ``bursar.ray``."""
    return importlib.import_module("ray"), importlib.import_module("bursar.ray")


def taken(cluster: RayCluster) -> int:
    """Returns the bytes that are taken on all nodes."""
    return sum(node.taken() for node in cluster.nodes)


def parent_of(process: int) -> int:
    """Returns the parent of a process."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


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


def actor(**options: Any) -> Any:
    """Returns the actor class with options."""
    ray: Any = importlib.import_module("ray")
    made: Any = ray.remote(Looks)
    return made.options(num_cpus=0, **options)


@needs_ray
def test_c1_an_actor_has_its_bytes_on_one_card_before_its_code_runs(cluster: RayCluster) -> None:
    ray, shares = modules()
    one = actor(**shares.gpu("6GiB")).remote()
    given = ray.get(one.look.remote())
    assert given["bytes"] == 6 * GIB and given["seen"] == given["uuid"] and given["at_start"] >= 6 * GIB
    owner = [card for node in cluster.nodes for card in node.ledger() if card.uuid == given["uuid"]]
    assert [card.set_aside for card in owner] == [6 * GIB]
    ray.kill(one)
    within(BACK, lambda: taken(cluster) == 0, "the bytes of a killed actor")


@needs_ray
@pytest.mark.parametrize("way", ["ends", "killed", "worker", "holder"])
def test_c2_the_bytes_are_back_however_an_actor_ends(cluster: RayCluster, way: str) -> None:
    ray, shares = modules()
    one = actor(**shares.gpu("3GiB", label=way)).remote()
    pid = ray.get(one.look.remote())["pid"]
    assert ray.get(one.take.remote(GIB)) == GIB and taken(cluster) == 3 * GIB
    assert sum(card.held for node in cluster.nodes for card in node.ledger()) >= GIB
    if way == "ends":
        del one
    elif way == "killed":
        ray.kill(one)
    else:
        os.kill(pid if way == "worker" else parent_of(pid), signal.SIGKILL)
    within(BACK, lambda: taken(cluster) == 0, "the bytes of an actor")
    within(BACK, lambda: not Path(f"/proc/{pid}").exists(), "the worker")


def test_without_ray_bursar_is_imported_and_bursar_ray_says_what_to_install() -> None:
    program = """
import sys
sys.modules["ray"] = None
import bursar
try:
    import bursar.ray
except ImportError as error:
    print(error)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "bursar.ray needs Ray, which is not installed: pip install 'bursar[ray]'\n"), ran.stderr
