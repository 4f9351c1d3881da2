"""Who holds what of each device."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from . import _native
from .errors import Holder


@dataclass(frozen=True)
class UsageEntry:
    """What a process uses of what it holds, as it last said, in bytes."""

    #: The bytes of blocks that it uses.
    live: int
    #: What its pools hold and nobody uses.
    cached: int
    #: The most that it held at a time.
    peak: int
    #: The tags that hold most, the largest first.
    holders: tuple[Holder, ...]


@dataclass(frozen=True)
class ProcessEntry:
    """What one process has of a device, in bytes."""

    pid: int
    name: str
    #: The labels of what it has set aside or draws on.
    labels: tuple[str, ...]
    held: int
    set_aside: int
    #: When it opened the ledger.
    since: datetime
    #: What it uses; None where it says nothing.
    usage: UsageEntry | None
    #: How many of its requests were refused.
    refused: int
    #: The seconds that its requests waited.
    waited: float


@dataclass(frozen=True)
class TenantEntry:
    """What one tenant may have and has of a device, in bytes."""

    #: The name; empty for those who named none.
    name: str
    #: What it may always have.
    guarantee: int
    #: What it may have at most.
    ceiling: int
    #: What it has.
    charged: int
    #: How many requests for it were refused.
    refused: int
    #: The seconds that requests for it waited.
    waited: float


@dataclass(frozen=True)
class WaitingEntry:
    """A request that waits."""

    pid: int
    name: str
    tenant: str
    bytes: int
    priority: int
    since: datetime


@dataclass(frozen=True)
class RefusalEntry:
    """A request that was refused."""

    pid: int
    name: str
    tenant: str
    #: Why it was refused, such as ``"limit"`` or ``"unmanaged"``.
    reason: str
    requested: int
    available: int
    limit: int
    when: datetime


@dataclass(frozen=True)
class DeviceLedger:
    """The ledger of one device, or of the machine's memory, at one moment. Sizes are in bytes."""

    #: The number of the device; None if the driver does not have it.
    device: int | None
    uuid: str
    name: str
    total: int
    #: What all may have together.
    limit: int
    held: int
    #: What was set aside and is not held.
    set_aside: int
    #: What is used outside the ledger.
    unmanaged: int
    processes: tuple[ProcessEntry, ...]
    tenants: tuple[TenantEntry, ...]
    #: The requests that wait, in the order of service.
    waiting: tuple[WaitingEntry, ...]
    #: How many requests were refused since the ledger was made, by reason.
    refused: dict[str, int]
    #: The last of them, newest first.
    refusals: tuple[RefusalEntry, ...]


@dataclass(frozen=True)
class UnreadableLedger:
    """A ledger that cannot be read, and why."""

    uuid: str
    error: str


@dataclass(frozen=True)
class LedgerReading:
    """The ledgers of the driver's devices, and others in the folder."""

    #: The folder of the ledger files.
    folder: str
    devices: tuple[DeviceLedger, ...]
    unreadable: tuple[UnreadableLedger, ...]


def ledger() -> LedgerReading:
    """Returns who holds what of each device, without changing anything.

    >>> import bursar
    >>> bursar.use_driver("sim")
    >>> with bursar.reserve("20GiB", label="train"):
    ...     first = bursar.ledger().devices[0]
    >>> first.set_aside >> 30, first.processes[0].labels
    (20, ('train',))
    """
    fields = _native.ledger()
    return LedgerReading(
        folder=fields["folder"],
        devices=tuple(_device(device) for device in fields["devices"]),
        unreadable=tuple(UnreadableLedger(**unreadable) for unreadable in fields["unreadable"]),
    )


def _device(fields: dict[str, Any]) -> DeviceLedger:
    processes = tuple(_process(process) for process in fields.pop("processes"))
    tenants = tuple(TenantEntry(**tenant) for tenant in fields.pop("tenants"))
    waiting = tuple(_waiting(waiting) for waiting in fields.pop("waiting"))
    refusals = tuple(_refusal(refusal) for refusal in fields.pop("refusals"))
    return DeviceLedger(processes=processes, tenants=tenants, waiting=waiting, refusals=refusals, **fields)


def _process(fields: dict[str, Any]) -> ProcessEntry:
    labels, since = tuple(fields.pop("labels")), _moment(fields.pop("since"))
    usage = fields.pop("usage")
    return ProcessEntry(labels=labels, since=since, usage=None if usage is None else _usage(usage), **fields)


def _usage(fields: dict[str, Any]) -> UsageEntry:
    holders = tuple(Holder(name, live) for name, live in fields.pop("holders"))
    return UsageEntry(holders=holders, **fields)


def _refusal(fields: dict[str, Any]) -> RefusalEntry:
    when = _moment(fields.pop("when"))
    return RefusalEntry(when=when, **fields)


def _waiting(fields: dict[str, Any]) -> WaitingEntry:
    since = _moment(fields.pop("since"))
    return WaitingEntry(since=since, **fields)


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)
