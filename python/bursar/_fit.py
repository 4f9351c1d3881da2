"""How many workers fit."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from . import _native
from ._devices import DeviceName, device_index
from ._sizes import Size
from .errors import InvalidValue, NoDevice


@dataclass(frozen=True)
class Assignment:
    """A device, or the machine's memory, and the workers that go there. Sizes are in bytes."""

    #: The number of the device; None for the machine's memory, and where no device was asked.
    device: int | None
    uuid: str | None
    available: int
    #: What programs have there already.
    charged: int
    #: The part of what is available that may be used.
    budget: int
    #: How many workers would fit here.
    room: int
    #: How many go here.
    workers: int


@dataclass(frozen=True)
class OneMore:
    """The changes each of which would, by itself, make one more worker fit."""

    #: The device that lacks the least.
    device: int | None
    #: The least that would have to be available there.
    available: int | None
    #: The most that each worker may need.
    per_worker: int | None
    #: The most that may be shared.
    fixed: int | None
    #: The least fraction that would have to be usable.
    headroom: float | None


@dataclass(frozen=True)
class Plan:
    """How many workers fit, where, and why. ``print(plan)`` explains it."""

    label: str
    memory: Literal["ram", "vram"]
    #: ``"cuda"`` or ``"simulated"``; None if no device was asked.
    kind: Literal["cuda", "simulated"] | None
    #: How many workers to start: at least one.
    workers: int
    #: How many were wanted.
    wanted: int
    #: The part that is too large, if not even one worker fits.
    overflow: Literal["shared", "worker"] | None
    available: int
    #: What programs have already.
    charged: int
    #: The fraction of the memory that may be used, by these workers and by programs before them.
    headroom: float
    #: The part of what is available that may be used.
    budget: int
    fixed: int
    per_worker: int
    assignments: tuple[Assignment, ...]
    explanation: str
    #: What would make one more worker fit, in words.
    advice: str | None
    #: What will happen because not even one worker fits.
    warning: str | None
    #: What would make one more worker fit, in numbers; None if as many fit as are wanted.
    one_more: OneMore | None

    @property
    def reduced(self) -> bool:
        """True if fewer workers fit than were wanted."""
        return self.workers < self.wanted

    def __str__(self) -> str:
        return "\n".join(text for text in (self.explanation, self.warning, self.advice) if text)


def fit(
    per_worker: Size = 0,
    *,
    fixed: Size = 0,
    workers: int = 1,
    headroom: float | None = None,
    available: Size | None = None,
    devices: Iterable[DeviceName] | None = None,
    memory: Literal["ram", "vram"] = "vram",
    label: str = "stage",
    allow_overflow: bool = False,
) -> Plan:
    """Returns how many of ``workers`` fit, each of which needs ``per_worker`` beside ``fixed`` that they share.

    >>> import bursar
    >>> plan = bursar.fit("6GiB", fixed="10GiB", workers=8, available="64GiB")
    >>> plan.workers, plan.budget >> 30
    (5, 44)
    >>> print(plan.explanation)
    5 of 8 workers fit into VRAM. Of 64 GiB available 44.80 GiB may be used; 10 GiB are shared and a worker needs 6 GiB.

    The arithmetic is that of the command ``bursar fit``. Nothing is reserved: :func:`~bursar.reserve` does that, and
    ``bursar run`` for workers that it starts.

    ``headroom`` is the fraction of the memory that may be used, 0.7 unless it is given, rounded down to millionths, of
    which it is at least one. ``available`` says what there is, whatever the machine says. ``devices`` are those that may be used; by default all of them.

    Raises :class:`~bursar.OutOfMemory` if not even one worker fits into VRAM, unless ``allow_overflow`` is true; in RAM,
    which swaps, it warns. Raises :class:`~bursar.NoDevice` where there is no GPU to ask: simulated devices are asked only
    if they were chosen by name.
    """
    if isinstance(workers, bool) or not hasattr(workers, "__index__"):
        raise TypeError(f"workers is an int, not {type(workers).__name__}")
    if workers < 1:
        raise InvalidValue(f"at least one worker is wanted, and not {workers}")
    if workers >= 1 << 64:
        raise InvalidValue(f"{workers} workers are more than can be counted: at most {(1 << 64) - 1}")
    indices = None if devices is None else [device_index(device) for device in devices]
    if indices == []:
        raise NoDevice("devices names none: name one at least, or leave it out to use all")
    fields = _native.fit(memory, per_worker, fixed, workers, headroom, available, indices, label, allow_overflow)
    plan = plan_of(fields)
    if plan.warning is not None:
        warnings.warn(plan.warning, RuntimeWarning, stacklevel=2)
    return plan


def plan_of(fields: dict[str, Any]) -> Plan:
    """Returns the plan with these fields."""
    one_more = fields.pop("one_more")
    assignments = tuple(Assignment(**assignment) for assignment in fields.pop("assignments"))
    return Plan(one_more=None if one_more is None else OneMore(**one_more), assignments=assignments, **fields)
