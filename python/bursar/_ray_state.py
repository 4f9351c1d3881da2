"""The cards of a cluster, read from the ledger of each node through Ray."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ._ledger import DeviceLedger, LedgerReading, RefusalEntry, UnreadableLedger, ledger
from ._ray_cards import describe_cards, left_of
from ._share import RESOURCE
from .errors import NoCluster

_ray: Any = importlib.import_module("ray")
_strategies: Any = importlib.import_module("ray.util.scheduling_strategies")

#: The environment of what only looks at cards: Ray hides them from tasks that ask for none of its own GPUs.
_LOOKING = {"env_vars": {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}}


@dataclass(frozen=True)
class NodeState:
    """A node of the cluster and its cards."""

    #: Ray's number of the node.
    node: str
    #: Its address.
    address: str
    #: Its cards as their ledgers were read; empty where they could not be.
    cards: tuple[DeviceLedger, ...]
    #: Ray's labels of the node.
    labels: dict[str, str]
    #: The reason that its cards could not be read; None where they were.
    error: str | None
    #: Its cards whose ledgers cannot be read, and why. Nothing is placed on them.
    unreadable: tuple[UnreadableLedger, ...] = ()


@dataclass(frozen=True)
class ClusterState:
    """The cards, shares, holders and refusals of a cluster. ``print(state)`` shows them."""

    nodes: tuple[NodeState, ...]
    #: The bytes of each card, by its UUID, that Ray keeps for groups in which nobody has them yet.
    kept: Mapping[str, int] = field(default_factory=dict)

    def left_on(self, card: DeviceLedger) -> int:
        """Returns the bytes of a card that can still be had."""
        return left_of(card, self.kept.get(card.uuid, 0))

    @property
    def cards(self) -> tuple[tuple[NodeState, DeviceLedger], ...]:
        """Every card that could be read, with its node."""
        return tuple((node, card) for node in self.nodes for card in node.cards)

    @property
    def refusals(self) -> tuple[tuple[NodeState, DeviceLedger, RefusalEntry], ...]:
        """The last requests that were refused, newest first."""
        every = ((node, card, refusal) for node, card in self.cards for refusal in card.refusals)
        return tuple(sorted(every, key=lambda entry: entry[2].when, reverse=True))

    @property
    def limit(self) -> int:
        """The bytes that programs may hold of all cards."""
        return sum(card.limit for _, card in self.cards)

    @property
    def left(self) -> int:
        """The bytes that can still be had, whichever card they are on."""
        return sum(self.left_on(card) for _, card in self.cards)

    def __str__(self) -> str:
        return "\n".join(line for node in self.nodes for line in _lines(node, self.kept)) or "no node of this cluster has cards that Ray knows of"


def _lines(node: NodeState, kept: Mapping[str, int]) -> list[str]:
    name = f"node {node.address} {node.node[:12]}"
    if node.error is not None:
        return [f"{name}: its cards cannot be read: {node.error}"]
    return [name, *describe_cards(node.cards, node.unreadable, kept)]


def check_connected() -> None:
    """Raises an error where this program has no cluster to ask. Ray would start one of its own for it."""
    if not _ray.is_initialized():
        raise NoCluster("this program is connected to no Ray cluster, or no longer: call ray.init(address=…) first")


def state(*, timeout: float = 10.0) -> ClusterState:
    """Returns the cards, shares, holders and refusals of the cluster, read from each node's ledgers at about one moment.

    A node that does not answer within ``timeout`` seconds is there with the reason, and never as one without cards.
    """
    return Question().answer(timeout=timeout)


class Question:
    """The question to every node of what its cards' ledgers say."""

    def __init__(self) -> None:
        check_connected()
        self._nodes = [node for node in _ray.nodes() if node["Alive"] and RESOURCE in node["Resources"]]
        self._asked = {node["NodeID"]: _ask(node["NodeID"]) for node in self._nodes}

    def answer(self, *, timeout: float) -> ClusterState:
        """Returns what they have answered after so many seconds."""
        if self._asked:
            _ray.wait(list(self._asked.values()), num_returns=len(self._asked), timeout=timeout)
        return ClusterState(tuple(_node(node, self._asked[node["NodeID"]]) for node in self._nodes), _kept_for_groups())


def _ask(node: str) -> Any:
    look = _ray.remote(num_cpus=0, max_retries=0, runtime_env=_LOOKING)(_read)
    return look.options(scheduling_strategy=_strategies.NodeAffinitySchedulingStrategy(node_id=node, soft=False)).remote()


def _read() -> LedgerReading:
    return ledger()


def _node(node: dict[str, Any], answer: Any) -> NodeState:
    cards: tuple[DeviceLedger, ...] = ()
    unreadable: tuple[UnreadableLedger, ...] = ()
    error = None
    try:
        reading: LedgerReading = _ray.get(answer, timeout=0)
        cards = tuple(card for card in reading.devices if card.device is not None)
        # Others may have left ledgers there of cards that this node never had.
        unreadable = tuple(each for each in reading.unreadable if f"{RESOURCE}_{each.uuid}" in node["Resources"])
    except _ray.exceptions.GetTimeoutError:
        error = "it does not answer"
        _ray.cancel(answer, force=True)
    except _ray.exceptions.RayError as failed:
        error = str(failed).strip().splitlines()[-1]
    return NodeState(node["NodeID"], node["NodeManagerAddress"], cards, dict(node.get("Labels", {})), error, unreadable)


def _kept_for_groups() -> dict[str, int]:
    """Returns what Ray keeps of each card, by its UUID, for groups in which nobody has it yet: all of one that waits to be made."""
    table = importlib.import_module("ray.util").placement_group_table().values()
    known, free = _ray.cluster_resources(), _ray.available_resources()
    kept: dict[str, int] = {}
    for group in table:
        wanted: dict[str, float] = {}
        for name, size in (each for bundle in group["bundles"].values() for each in bundle.items()):
            if name.startswith(f"{RESOURCE}_") and group["state"] != "REMOVED":
                wanted[name] = wanted.get(name, 0) + size
        for name, size in wanted.items():
            # Ray has a resource of this name for what the group has, and does not list what is used up.
            own = f"{name}_group_{group['placement_group_id']}"
            uuid = name[len(RESOURCE) + 1 :]
            kept[uuid] = kept.get(uuid, 0) + int(free.get(own, 0) if own in known else size)
    return kept
