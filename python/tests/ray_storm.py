"""A storm over a Ray cluster: actors, tasks, groups and nodes come and go at random, and so do programs that Ray knows nothing of."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import bursar
from ray_cluster import RayCluster
from ray_programs import Looks, look_once, modules

#: The events and how often each happens.
EVENTS = {"make": 30, "task": 12, "kill": 10, "forget": 6, "worker": 8, "holder": 8}
EVENTS |= {"group": 6, "ungroup": 6, "outside": 5, "inside": 5, "node": 1}

#: The most actors and tasks at a time: a worker takes long to start.
MOST = 10


class Storm:
    """Events that follow from a seed, as far as a cluster lets them."""

    def __init__(self, cluster: RayCluster, seed: int) -> None:
        self.cluster, self.seed, self.random = cluster, seed, random.Random(seed)
        self.ray, self.shares = modules()
        self.actors: list[tuple[Any, Any]] = []
        self.tasks: list[Any] = []
        self.groups: list[Any] = []
        self.outside: list[ExitStack] = []
        self.counts = dict.fromkeys(EVENTS, 0)

    def run(self, seconds: float) -> None:
        """Has events happen for so long, then ends everything; no card is ever over its limit."""
        ends = time.monotonic() + seconds
        try:
            while time.monotonic() < ends:
                event = self.random.choices(list(EVENTS), list(EVENTS.values()))[0]
                if getattr(self, f"_{event}")():
                    self.counts[event] += 1
                for _ in range(self.random.randrange(1, 6)):
                    self._check()
                    time.sleep(0.02)
        finally:
            self._end()

    def _check(self) -> None:
        for card in (card for node in self.cluster.nodes for card in node.ledger()):
            assert card.held + card.set_aside <= card.limit, (self.seed, card)

    def _end(self) -> None:
        for stack in self.outside:
            stack.close()
        for group in self.groups:
            group.remove()
        for actor, _ in self.actors:
            self.ray.kill(actor)

    def _size(self) -> int:
        return self.random.randrange(64, 5 << 10) << 20

    def _options(self, **more: Any) -> dict[str, Any]:
        return {"num_cpus": 0, **self.shares.gpu(self._size(), timeout=self.random.choice((0.2, 1, 3))), **more}

    def _make(self) -> bool:
        if len(self.actors) >= MOST:
            return False
        made = self.ray.remote(Looks).options(max_restarts=self.random.choice((0, 2)), **self._options()).remote()
        self.actors.append((made, made.look.remote()))
        return True

    def _task(self) -> bool:
        self.tasks = self.ray.wait(self.tasks, num_returns=len(self.tasks), timeout=0)[1] if self.tasks else []
        if len(self.tasks) >= MOST // 2:
            return False
        self.tasks.append(self.ray.remote(look_once).options(max_retries=1, **self._options()).remote())
        return True

    def _taken(self) -> tuple[Any, Any] | None:
        return self.actors.pop(self.random.randrange(len(self.actors))) if self.actors else None

    def _kill(self) -> bool:
        taken = self._taken()
        if taken is not None:
            self.ray.kill(taken[0])
        return taken is not None

    def _forget(self) -> bool:
        return self._taken() is not None

    def _pid(self) -> int | None:
        """Returns the worker of an actor that runs, or ran."""
        ready = [ref for _, ref in self.actors if self.ray.wait([ref], timeout=0)[0]]
        try:
            return int(self.ray.get(self.random.choice(ready))["pid"]) if ready else None
        except self.ray.exceptions.RayError:
            return None

    def _worker(self) -> bool:
        return _end_process(self._pid(), b"ray::")

    def _holder(self) -> bool:
        try:
            told = Path(f"/proc/{self._pid()}/stat").read_text()
        except OSError:
            return False
        return _end_process(int(told.rpartition(")")[2].split()[1]), b"bursar._ray_worker")

    def _group(self) -> bool:
        if len(self.groups) >= 3 or len(self.actors) >= MOST:
            return False
        layout = self.random.choice(("one_card", "pack", "spread"))
        try:
            group = self.shares.placement_group([self._size() // 2 for _ in range(2)], layout=layout, num_cpus=0, timeout=60)
        except bursar.OutOfMemory:
            return False
        self.groups.append(group)
        made = self.ray.remote(Looks).options(num_cpus=0, **group.gpu(0, timeout=1)).remote()
        self.actors.append((made, made.look.remote()))
        return True

    def _ungroup(self) -> bool:
        if self.groups:
            self.groups.pop(self.random.randrange(len(self.groups))).remove()
        return bool(self.groups)

    def _outside(self) -> bool:
        if len(self.outside) >= 3:
            return False
        stack = ExitStack()
        try:
            stack.enter_context(self.random.choice(self.cluster.nodes).reserved(f"{self._size() >> 20}MiB", label="outside"))
        except bursar.OutOfMemory:
            return False
        self.outside.append(stack)
        return True

    def _inside(self) -> bool:
        if self.outside:
            self.outside.pop(self.random.randrange(len(self.outside))).close()
        return bool(self.outside)

    def _node(self) -> bool:
        node = self.random.choice(self.cluster.nodes[1:])
        os.kill(node.raylet(), signal.SIGKILL)
        self.cluster.restart(node)
        return True


def _end_process(pid: int | None, named: bytes) -> bool:
    """Kills a worker or its holder, if it is still there."""
    try:
        if pid is None or named not in Path(f"/proc/{pid}/cmdline").read_bytes():
            return False
        os.kill(pid, signal.SIGKILL)
    except (OSError, ProcessLookupError):
        return False
    return True
