"""Shares that are placed together: plans over the cards of a cluster, which end in Ray's placement groups."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from . import _native
from ._fit import Plan, plan_of
from ._ledger import DeviceLedger
from ._ray_cards import size_text
from ._ray_state import ClusterState, NodeState, state
from ._share import RESOURCE
from ._sizes import Size, parse_size
from .errors import InvalidValue, OutOfMemory

_ray: Any = importlib.import_module("ray")
_groups: Any = importlib.import_module("ray.util.placement_group")
_strategies: Any = importlib.import_module("ray.util.scheduling_strategies")

#: How shares of a group are laid out: all on one card, on as few cards as they fit, or each on another.
Layout = Literal["one_card", "pack", "spread"]

_Card = tuple[NodeState, DeviceLedger]


@dataclass(frozen=True)
class GroupShare:
    """A share of a group, and the card that it was planned on."""

    bytes: int
    #: Ray's number of the node.
    node: str
    #: The UUID of the card.
    card: str


class ShareGroup:
    """Shares that Ray counts as taken together, each on the card that it was planned on."""

    def __init__(
        self,
        shares: Sequence[GroupShare],
        options: Callable[..., dict[str, Any]],
        *,
        num_cpus: float,
        resources: Mapping[str, float] | None,
    ) -> None:
        beside = {"CPU": num_cpus, **(resources or {})}
        for name, each in beside.items():
            if name.startswith(RESOURCE) or not (math.isfinite(each) and each >= 0):
                raise InvalidValue(f"a share of a group cannot have {each!r} of {name!r} beside its bytes")
        self.shares = tuple(shares)
        self._options = options
        self.cards = tuple(dict.fromkeys(share.card for share in self.shares))
        bundles = []
        for card in self.cards:
            here = [share.bytes for share in self.shares if share.card == card]
            more = {name: each * len(here) for name, each in beside.items() if each}
            bundles.append({**more, RESOURCE: sum(here), f"{RESOURCE}_{card}": sum(here)})
        #: Ray's placement group, with a bundle for each card.
        self.placement_group = _groups.placement_group(bundles, strategy="PACK")

    def __len__(self) -> int:
        return len(self.shares)

    def ready(self, timeout: float | None = None) -> bool:
        """Waits until Ray has the resources of the group, and returns whether it has."""
        return bool(self.placement_group.wait(timeout_seconds=timeout))

    def gpu(self, number: int, **options: Any) -> dict[str, Any]:
        """Returns the options of the task or actor that has a share of the group, as :func:`bursar.ray.gpu` does."""
        share = self.shares[number]
        where = _strategies.PlacementGroupSchedulingStrategy(
            placement_group=self.placement_group, placement_group_bundle_index=self.cards.index(share.card)
        )
        return self._options(share.bytes, device=share.card, scheduling_strategy=where, **options)

    def remove(self) -> None:
        """Gives back what Ray counts for the group, and ends what runs in it."""
        _groups.remove_placement_group(self.placement_group)


def laid_out(sizes: Sequence[Size], layout: Layout, found: ClusterState) -> list[GroupShare]:
    """Returns a card for each share. Raises :class:`~bursar.OutOfMemory`, with every card, if they do not fit."""
    wanted = [parse_size(size) for size in sizes]
    if not wanted or 0 in wanted:
        raise InvalidValue("a group has at least one share, and each at least a byte")
    left = [found.left_on(card) for _, card in found.cards]
    if layout == "one_card":
        enough = [(free, at) for at, free in enumerate(left) if free >= sum(wanted)]
        chosen = [min(enough)[1]] * len(wanted) if enough else None
    elif layout in ("pack", "spread"):
        chosen = _spread(wanted, found) if layout == "spread" else _pack(wanted, left)
    else:
        raise InvalidValue(f"{layout!r} is no layout: choose one_card, pack or spread")
    if chosen is None:
        told = ", ".join(size_text(size) for size in wanted)
        how = {"one_card": "on one card", "pack": "each on one card", "spread": "on a card each"}[layout]
        message = f"shares of {told} do not fit {how}; the cards of the cluster:\n{found}"
        raise OutOfMemory(message, requested=sum(wanted), available=found.left, limit=found.limit)
    cards = [found.cards[at] for at in chosen]
    return [GroupShare(size, node.node, card.uuid) for size, (node, card) in zip(wanted, cards)]


def _pack(wanted: list[int], left: list[int]) -> list[int] | None:
    """Returns a card for each share: the largest first, to one that has others already, or else to that with the most left."""
    chosen: dict[int, int] = {}
    left = list(left)
    for number in sorted(range(len(wanted)), key=lambda number: -wanted[number]):
        enough = [at for at, free in enumerate(left) if free >= wanted[number]]
        shared = [at for at in enough if at in chosen.values()]
        if not enough:
            return None
        at = min(shared, key=lambda at: left[at]) if shared else max(enough, key=lambda at: left[at])
        chosen[number] = at
        left[at] -= wanted[number]
    return [chosen[number] for number in range(len(wanted))]


def _spread(wanted: list[int], found: ClusterState) -> list[int] | None:
    """Returns a card of its own for each share, on as many nodes as there are: the largest first, to the card with the most left."""
    chosen: dict[int, int] = {}
    used = dict.fromkeys((node.node for node, _ in found.cards), 0)
    for number in sorted(range(len(wanted)), key=lambda number: -wanted[number]):
        free = [
            (used[node.node], -found.left_on(card), at)
            for at, (node, card) in enumerate(found.cards)
            if at not in chosen.values() and found.left_on(card) >= wanted[number]
        ]
        if not free:
            return None
        chosen[number] = min(free)[2]
        used[found.cards[chosen[number]][0].node] += 1
    return [chosen[number] for number in range(len(wanted))]


@dataclass(frozen=True)
class ClusterPlan:
    """How many workers fit on the cards of a cluster, where, and why. ``print(plan)`` explains it."""

    #: The plan over all cards, which are numbered in their order here.
    plan: Plan
    #: The cluster as it was looked at.
    state: ClusterState
    _options: Callable[..., dict[str, Any]]

    @property
    def cards(self) -> tuple[_Card, ...]:
        """Every card that was looked at, with its node."""
        return self.state.cards

    @property
    def workers(self) -> int:
        """How many workers fit."""
        return self.plan.workers

    @property
    def missing(self) -> int:
        """How many of those wanted do not fit."""
        return self.plan.wanted - self.plan.workers

    def __str__(self) -> str:
        lines = [str(self.plan)]
        for number, ((node, card), assigned) in enumerate(zip(self.cards, self.plan.assignments)):
            lines.append(
                f"  gpu{number} is {card.uuid} of node {node.address} {node.node[:12]}: {size_text(self.state.left_on(card))} left of "
                f"{size_text(card.limit)}, {assigned.workers} of {assigned.room} workers"
            )
        return "\n".join(lines)

    def shares(self) -> list[GroupShare]:
        """Returns the share of each worker. The first of a card has what they share besides its own."""
        shares = []
        for (node, card), assigned in zip(self.cards, self.plan.assignments):
            for number in range(assigned.workers):
                size = self.plan.per_worker + (self.plan.fixed if number == 0 else 0)
                shares.append(GroupShare(size, node.node, card.uuid))
        return shares

    def placement_group(self, *, num_cpus: float = 1, resources: Mapping[str, float] | None = None) -> ShareGroup:
        """Has Ray count the shares as taken, each with so many CPUs and other resources beside it, and returns them."""
        return ShareGroup(self.shares(), self._options, num_cpus=num_cpus, resources=resources)

    def request_missing(self) -> None:
        """Asks Ray's autoscaler for nodes on which the workers fit that are missing."""
        sdk: Any = importlib.import_module("ray.autoscaler.sdk")
        share = self.plan.per_worker + self.plan.fixed
        sdk.request_resources(bundles=[{RESOURCE: float(share)}] * self.missing)


def planned(
    per_worker: Size, fixed: Size, want: int, headroom: float | None, timeout: float, options: Callable[..., dict[str, Any]]
) -> ClusterPlan:
    """Plans workers over every card of the cluster."""
    if want < 1:
        raise InvalidValue(f"at least one worker is wanted, and not {want}")
    if parse_size(per_worker) == 0:
        raise InvalidValue("a worker of a cluster has a share, and so per_worker at least a byte")
    found = state(timeout=timeout)
    cards = [
        (found.left_on(card), card.held + card.set_aside + found.kept.get(card.uuid, 0)) for _, card in found.cards
    ]
    try:
        plan = plan_of(_native.fit_cards(per_worker, fixed, want, headroom, cards))
    except OutOfMemory as error:
        raise OutOfMemory(
            f"{error}; the cards of the cluster:\n{found}", requested=error.requested, available=found.left, limit=found.limit
        ) from None
    return ClusterPlan(plan, found, options)
