"""The share of a worker that ``bursar run`` started."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _native
from .errors import InvalidValue

if TYPE_CHECKING:
    from ._native import Reservation

#: Ray's resource of all cards of a node together, in bytes. That of one card has ``_`` and its UUID behind it.
RESOURCE = "bursar_gpu_bytes"


@dataclass(frozen=True)
class Share:
    """What a worker of ``bursar run`` was given."""

    #: The memory that was set aside for this worker.
    reservation: Reservation
    #: The memory that was set aside for all workers on its device together; None if there is none.
    shared: Reservation | None
    #: The number of this worker, from 0.
    worker: int
    #: How many workers there are.
    workers: int
    #: The name of the run.
    label: str

    @property
    def bytes(self) -> int:
        """The bytes that were set aside for this worker."""
        return self.reservation.bytes

    @property
    def uuid(self) -> str:
        """The UUID of its device."""
        return self.reservation.uuid

    @property
    def device(self) -> int | None:
        """The number of its device, as this process counts; None if it does not see the device, or the share is RAM."""
        return _native.index_of(self.uuid)


_shares: dict[tuple[int, str], Share] = {}


def share() -> Share | None:
    """Returns the share of this worker, or None if neither ``bursar run`` nor Ray with a share started this process.

    >>> import bursar
    >>> bursar.share() is None
    True

    Raises :class:`~bursar.InvalidValue` in a worker of Ray that asked for a share and lost it by a ``runtime_env`` in ``.options``.
    """
    token = os.environ.get("BURSAR_RESERVATION", "")
    if not token:
        _refuse_lost_share()
        return None
    # A forked child draws on the same share by an account of its own.
    key = (os.getpid(), token)
    if key not in _shares:
        of_all = os.environ.get("BURSAR_RESERVATION_SHARED", "")
        _shares[key] = Share(
            reservation=_native.draw("BURSAR_RESERVATION", token),
            shared=_native.draw("BURSAR_RESERVATION_SHARED", of_all) if of_all else None,
            worker=int(os.environ.get("BURSAR_WORKER", "0")),
            workers=int(os.environ.get("BURSAR_WORKERS", "1")),
            label=os.environ.get("BURSAR_LABEL", ""),
        )
    return _shares[key]


def _refuse_lost_share() -> None:
    """Raises an error in a worker of Ray for which Ray counts bytes, and whose runtime environment is not that of its share."""
    ray: Any = sys.modules.get("ray")
    try:
        counted = ray.get_runtime_context().get_assigned_resources() if ray is not None and ray.is_initialized() else {}
    except (AssertionError, AttributeError):
        # A driver, or a Ray that is being imported.
        return
    if RESOURCE in counted:
        raise InvalidValue(
            "Ray counts bytes of a card for this worker, which has no share of one: a runtime_env in .options() took the place of "
            "the share's. Give it to bursar.ray.gpu(…, runtime_env=…) instead"
        )
