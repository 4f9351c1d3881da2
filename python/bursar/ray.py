"""Bytes of GPUs as a resource that Ray places by and Bursar enforces.

::

    ray start --head --resources "$(bursar ray-resources)" --labels "$(bursar ray-resources --labels)"

::

    import bursar.ray, ray

    @ray.remote(**bursar.ray.gpu("6GiB"))
    class Model: ...

Ray places such an actor on a node that has the bytes. There they are set aside on one card, in that card's ledger, before the
actor's process starts; it sees that card alone and cannot take more of it than its share. They are back when it ends.
"""

from __future__ import annotations

import importlib
import json
import math
import shlex
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

try:
    _ray: Any = importlib.import_module("ray")
except ImportError as error:
    raise ImportError("bursar.ray needs Ray, which is not installed: pip install 'bursar[ray]'", name="ray") from error

from . import _ray_worker
from ._ledger import ledger
from ._ray_cards import size_text
from ._ray_groups import ClusterPlan, GroupShare, Layout, ShareGroup, laid_out, planned
from ._ray_page import ClusterPage, page, serve
from ._ray_state import ClusterState, NodeState, Question, state
from ._share import RESOURCE
from ._sizes import Size, parse_size
from .errors import InvalidSize, InvalidValue, OutOfMemory, Timeout

__all__ = [
    "ClusterPage",
    "ClusterPlan",
    "ClusterState",
    "GroupShare",
    "NodeState",
    "RESOURCE",
    "ShareGroup",
    "fit",
    "get",
    "gpu",
    "labels",
    "page",
    "placement_group",
    "ready",
    "resources",
    "serve",
    "state",
]

#: The longest that a share can be waited for, in seconds: Ray gives a worker 60 to start.
LONGEST_WAIT = 50.0

#: The seconds in which nodes answer what is left on their cards.
_ANSWER = 8.0

_LARGEST = "bursar-largest-card-gib"

#: Cards with less are told apart by how large they are, in GiB: the selector of a share names every size that is too small.
_LARGEST_KNOWN = 1024

#: The largest share: Ray counts resources in ten-thousandths, in 63 bits.
_LARGEST_SHARE = 1 << 49


def resources() -> dict[str, int]:
    """Returns the bytes of this node's cards as Ray's resources: what programs may hold of all, and of each by its UUID.

    The command ``bursar ray-resources`` prints the same, for ``ray start --resources``.
    """
    cards = [card for card in ledger().devices if card.device is not None]
    each = {f"{RESOURCE}_{card.uuid}": card.limit for card in cards}
    return {RESOURCE: sum(each.values()), **each} if each else {}


def labels() -> dict[str, str]:
    """Returns the labels of this node: how many cards it has, and how large the largest is, which no sum of bytes says.

    The command ``bursar ray-resources --labels`` prints the same, for ``ray start --labels``.
    """
    cards = [card for card in ledger().devices if card.device is not None]
    if not cards:
        return {}
    largest = max(cards, key=lambda card: card.limit)
    name = "".join(letter if letter.isascii() and (letter.isalnum() or letter == ".") else "-" for letter in largest.name)
    return {
        "bursar-cards": str(len(cards)),
        _LARGEST: str(largest.limit >> 30),
        "bursar-card-type": name[:63].strip("-."),
    }


def gpu(
    size: Size,
    *,
    timeout: float = 30.0,
    label: str = "ray",
    device: str | None = None,
    enforce: bool = True,
    runtime_env: dict[str, Any] | None = None,
    resources: dict[str, float] | None = None,
    scheduling_strategy: Any = "SPREAD",
) -> dict[str, Any]:
    """Returns the options of a task or actor that has ``size`` bytes of one card for itself.

    >>> import bursar.ray
    >>> bursar.ray.gpu("6GiB")["resources"]
    {'bursar_gpu_bytes': 6442450944}

    They are for ``@ray.remote(**bursar.ray.gpu("6GiB"))`` and for ``.options(**bursar.ray.gpu("6GiB"))``. Options of your own
    stand beside them; ``resources``, ``runtime_env`` and ``scheduling_strategy``, which these have, are given here. The strategy is
    ``"SPREAD"`` unless another is given, because then a share that was refused on one node is tried on another; None leaves it out.

    Ray chooses the node by its resources. On the node the share is set aside on one card, ``device`` if a UUID is given, in that card's
    ledger, for which it waits at most ``timeout`` seconds. Then the worker starts: it sees the card alone, and what it takes
    beyond its share is refused, whichever library it uses, unless ``enforce`` is false. A share that is not to be had in time is
    the end of the worker, with an error that names node, cards and holders; Ray retries a task (``max_retries``) and restarts
    an actor (``max_restarts``). What programs outside Ray use of a card is not given out.

    The worker process ends with its actor, or soon after its task, and the bytes are back then.
    """
    wanted = parse_size(size)
    if wanted == 0:
        raise InvalidSize("a share of 0 bytes is no share")
    if wanted > _LARGEST_SHARE:
        raise InvalidSize(f"a share of {size_text(wanted)} is more than Ray can count: at most {size_text(_LARGEST_SHARE)}")
    if not 0 <= timeout <= LONGEST_WAIT or not math.isfinite(timeout):
        raise InvalidValue(f"a share can be waited for 0 to {LONGEST_WAIT:g} seconds, in which Ray expects a worker, and not {timeout!r}")
    if not isinstance(label, str) or not label.isprintable():
        raise InvalidValue(f"a label is text that can be printed, and not {label!r}")
    share = {"bytes": wanted, "timeout": timeout, "label": label, "device": device, "enforce": enforce}
    needed: dict[str, float] = {**(resources or {}), RESOURCE: wanted}
    if device is not None:
        needed[f"{RESOURCE}_{device}"] = wanted
    options: dict[str, Any] = {"resources": needed, "runtime_env": _environment(share, runtime_env or {})}
    if scheduling_strategy is not None:
        options["scheduling_strategy"] = scheduling_strategy
    smaller = ",".join(str(size) for size in range(min(wanted >> 30, _LARGEST_KNOWN)))
    if smaller:
        options["label_selector"] = {_LARGEST: f"!in({smaller})"}
    return options


def placement_group(
    sizes: Sequence[Size],
    *,
    layout: Layout = "pack",
    num_cpus: float = 1,
    resources: Mapping[str, float] | None = None,
    timeout: float = 10.0,
) -> ShareGroup:
    """Plans shares on the cards of the cluster as they are now, and has Ray count them as taken.

    ``layout`` is ``"one_card"``, ``"pack"`` for as few cards as they fit, or ``"spread"`` for a card each, on as many nodes as
    there are. ``group.gpu(0)`` returns the options for the first share. Raises :class:`~bursar.OutOfMemory` if they do not fit.

    Each share has ``num_cpus`` and ``resources`` beside it in the group: as much as its task or actor asks for, or more.
    """
    shares = laid_out(sizes, layout, state(timeout=timeout))
    return ShareGroup(shares, gpu, num_cpus=num_cpus, resources=resources)


def fit(
    per_worker: Size, *, fixed: Size = 0, want: int = 1, headroom: float | None = None, timeout: float = 10.0
) -> ClusterPlan:
    """Returns how many of ``want`` workers fit on the cards of the cluster as they are now, and where: the plan of ``bursar fit``.

    Each worker has ``per_worker`` of one card, and each card that has workers ``fixed`` once, which is added to the share of the
    first worker there. ``headroom`` is the fraction of a card that may be used, 0.7 unless it is given. The plan
    explains itself, ends in ``plan.placement_group()``, and asks Ray's autoscaler for what is missing by ``plan.request_missing()``.

    Raises :class:`~bursar.OutOfMemory`, with every card, if not even one fits.
    """
    return planned(per_worker, fixed, want, headroom, timeout, gpu)


def get(refs: Any, *, timeout: float | None = None) -> Any:
    """Returns what ``ray.get`` does, with an error that names every card where a share was not to be had.

    Raises :class:`~bursar.OutOfMemory` where a worker was refused its share, and :class:`~bursar.Timeout` where nothing came
    within ``timeout`` seconds; Ray alone waits without end for what no node has, because one that has it may still join.
    """
    try:
        if timeout is None:
            return _ray.get(refs)
        many = refs if isinstance(refs, list) else [refs]
        ends = time.monotonic() + timeout
        # Nodes are asked in time to answer by the end of it.
        _ray.wait(many, num_returns=len(many), timeout=max(0.0, timeout - _ANSWER))
        late = len(_ray.wait(many, num_returns=len(many), timeout=0)[0]) < len(many)
        asked = Question() if late else None
        try:
            return _ray.get(refs, timeout=max(0.0, ends - time.monotonic()))
        except _ray.exceptions.GetTimeoutError:
            found = asked.answer(timeout=0) if asked is not None else state()
            raise Timeout(f"nothing came within {timeout:g} s; the cards of the cluster:\n{found}", waited=timeout) from None
    except (_ray.exceptions.ActorDiedError, _ray.exceptions.WorkerCrashedError) as died:
        refused = _refusal(died)
        if refused is None:
            raise
        raise refused from died


def ready(*actors: Any, timeout: float | None = None) -> None:
    """Waits until actors run, each with its share; raises what :func:`get` does."""
    get([actor.__ray_ready__.remote() for actor in actors], timeout=timeout)


def _refusal(died: Exception) -> OutOfMemory | None:
    """Returns the refusal of a share for which a worker died; None if it died for another reason."""
    _, found, told = str(died).partition("bursar.errors.OutOfMemory: ")
    if found:
        return OutOfMemory(told.partition("\n\n")[0].strip())
    if not isinstance(died, _ray.exceptions.WorkerCrashedError):
        return None
    # Ray does not say of what the worker of a task died. Refusals of other programs and other jobs are none of its own.
    name = _ray_worker.holder_name(_ray.get_runtime_context().get_job_id())
    cluster, now = state(), datetime.now(timezone.utc)
    recent = [
        entry for entry in cluster.refusals if entry[2].name == name and (now - entry[2].when).total_seconds() < LONGEST_WAIT
    ]
    if not recent:
        return None
    node, card, refusal = recent[0]
    return OutOfMemory(
        f"the worker died, and the last share that was refused is of {size_text(refusal.requested)} on node {node.address} "
        f"{node.node[:12]}, of which {card.uuid} had {size_text(refusal.available)} left; the cards of the cluster:\n{cluster}",
        requested=refusal.requested,
        available=refusal.available,
        limit=refusal.limit,
    )


def _environment(share: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Returns a runtime environment whose workers have the share."""
    for name in ("py_executable", "conda", "pip", "uv", "image_uri", "container"):
        if name in given:
            raise InvalidValue(f"{name!r} and a share both say which program Ray starts as a worker: install what it needs on the nodes")
    # Ray lets a shell start it.
    command = f"{_ray_worker.interpreter()} -m {_ray_worker.__name__} {shlex.quote(json.dumps(share, sort_keys=True))}"
    return {**given, "py_executable": command}
