"""A Ray cluster on loopback whose nodes have simulated cards and ledgers of their own."""

from __future__ import annotations

import importlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bursar

#: The time in which nodes start and end.
PATIENCE = 120.0

BIN = Path(sys.executable).parent


@dataclass
class Node:
    """A node: the processes that ``ray start`` started, and the cards that they see."""

    folder: Path
    devices: str
    environment: dict[str, str]
    #: An address of loopback. Ray puts that of another interface in the place of 127.0.0.1.
    address: str
    process: subprocess.Popen[bytes] | None = field(default=None)

    def ledger(self) -> tuple[bursar.DeviceLedger, ...]:
        """Reads the ledgers of the node's cards, as a program on that node would."""
        with self.seen():
            return bursar.ledger().devices

    @contextmanager
    def seen(self) -> Iterator[None]:
        """Has this process see the node's cards."""
        before = os.environ.get("BURSAR_LEDGER_DIR")
        os.environ["BURSAR_LEDGER_DIR"] = str(self.folder)
        try:
            bursar.use_driver("sim", sim_devices=self.devices)
            yield
        finally:
            if before is None:
                del os.environ["BURSAR_LEDGER_DIR"]
            else:
                os.environ["BURSAR_LEDGER_DIR"] = before

    @contextmanager
    def reserved(self, size: str, *, device: int = 0, label: str) -> Iterator[None]:
        """Sets memory of the node aside for this process, which Ray knows nothing of."""
        with self.seen(), bursar.reserve(size, device=device, timeout=0, label=label):
            yield

    def taken(self) -> int:
        """Returns the bytes that are held or set aside on all cards of the node."""
        return sum(card.held + card.set_aside for card in self.ledger())

    def start(self, *words: str) -> None:
        """Starts the node with the words of ``ray start``."""
        bursar_ = [str(BIN / "bursar"), "ray-resources"]
        told = [subprocess.check_output([*bursar_, *more], env=self.environment, text=True).strip() for more in ([], ["--labels"])]
        command = [str(BIN / "ray"), "start", "--block", f"--node-ip-address={self.address}", "--num-cpus=4", "--num-gpus=0"]
        command += ["--object-store-memory=80000000", "--disable-usage-stats", f"--resources={told[0]}", f"--labels={told[1]}", *words]
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, start_new_session=True)

    def raylet(self) -> int:
        """Returns the process number of the node's raylet."""
        assert self.process is not None
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                text = status.read_text()
            except OSError:
                continue
            name, rest = text.partition("(")[2].rpartition(")")[::2]
            if name == "raylet" and int(rest.split()[1]) == self.process.pid:
                return int(status.parent.name)
        raise AssertionError(f"no raylet of {self.process.pid}")

    def stop(self) -> None:
        """Ends the processes of the node."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(PATIENCE / 4)
        except subprocess.TimeoutExpired:
            pass
        # What is left of the session that the node was started in is the node's.
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(PATIENCE)


class RayCluster:
    """Nodes with cards of different sizes, the first of which is the head."""

    def __init__(self, cards: list[str], cuda: Mapping[int, str]) -> None:
        # The paths of sockets are short.
        self.folder = Path(tempfile.mkdtemp(prefix="bray-"))
        common = {name: value for name, value in os.environ.items() if not name.startswith(("BURSAR_", "RAY_"))}
        common |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16), "RAY_worker_niceness": "0"}
        common |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(Path(__file__).parent)}
        # The head looks often whether nodes are there, and so one that was killed is soon known to be dead.
        common |= {"RAY_health_check_initial_delay_ms": "1000", "RAY_health_check_period_ms": "300"}
        self.variables = {name: value for name, value in common.items() if name.startswith("RAY_")}
        self.nodes = []
        for number, card in enumerate(cards):
            folder = self.folder / f"n{number}"
            folder.mkdir(mode=0o700)
            devices = f"{card}@ray-{os.getpid()}-{self.folder.name}-{number}"
            own = {"BURSAR_DRIVER": "sim", "BURSAR_LEDGER_DIR": str(folder), "BURSAR_SIM_DEVICES": devices}
            if number in cuda:
                for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
                    (folder / name).symlink_to(cuda[number])
                own |= {"BURSAR_DRIVER": "cuda", "LD_LIBRARY_PATH": str(folder)}
            self.nodes.append(Node(folder, devices, {**common, **own}, f"127.0.0.{number + 2}"))
        self.address = f"{self.nodes[0].address}:{_free_port()}"
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        # Ray reads its variables when it is imported.
        os.environ.update(self.variables)
        head, *others = self.nodes
        head.start("--head", f"--port={self.address.split(':')[1]}", "--include-dashboard=false", f"--temp-dir={self.folder / 's'}")
        self._wait_for(lambda: _listens(self.address), "the head")
        self.connect()
        # Nodes of one machine that start at once may choose the same port.
        for number, node in enumerate(others, start=2):
            self._join(node, number)

    def connect(self) -> None:
        """Connects this process to the cluster."""
        self._wait_for(lambda: _connects(self.address, self.nodes[0].address), "the raylet of the head")

    def _join(self, node: Node, alive: int) -> None:
        """Starts a node, with which so many are alive."""
        ray: Any = importlib.import_module("ray")
        node.start(f"--address={self.address}")
        self._wait_for(lambda: sum(bool(node["Alive"]) for node in ray.nodes()) == alive, f"node {alive}")

    def restart(self, node: Node) -> None:
        """Starts a node again whose raylet was killed."""
        node.stop()
        ray: Any = importlib.import_module("ray")
        self._wait_for(lambda: sum(bool(node["Alive"]) for node in ray.nodes()) < len(self.nodes), "the death of a node")
        self._join(node, len(self.nodes))

    def _wait_for(self, condition: Callable[[], bool], what: str) -> None:
        ends = time.monotonic() + PATIENCE
        while not condition():
            logs = [(node.folder / "log").read_text() for node in self.nodes if (node.folder / "log").exists()]
            assert time.monotonic() < ends, f"{what} did not start: {logs}"
            time.sleep(0.1)

    def stop(self) -> None:
        """Ends every node."""
        importlib.import_module("ray").shutdown()
        for node in reversed(self.nodes):
            node.stop()
        for name in self.variables:
            os.environ.pop(name, None)
        shutil.rmtree(self.folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.2", 0))
        return int(free.getsockname()[1])


def _connects(address: str, host: str) -> bool:
    ray: Any = importlib.import_module("ray")
    try:
        ray.init(address=address, _node_ip_address=host, log_to_driver=False)
    except ConnectionError:
        # Its raylet is not there yet.
        return False
    return True


def _listens(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as attempt:
        return attempt.connect_ex((host, int(port))) == 0
