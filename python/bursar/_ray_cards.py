"""Cards in words: what is left on each, and who has the rest."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._ledger import DeviceLedger, UnreadableLedger

#: The most holders of a card that are named.
_HOLDERS = 4


def size_text(size: int) -> str:
    """Returns a size in words.

    >>> size_text(6 << 30), size_text(1536 << 20), size_text(100)
    ('6 GiB', '1.50 GiB', '100 B')
    """
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if abs(size) >= unit:
            return f"{size // unit} {name}" if size % unit == 0 else f"{size / unit:.2f} {name}"
    return f"{size} B"


def left_of(card: DeviceLedger, kept: int = 0) -> int:
    """Returns what can still be had of a card, of which so much is kept for groups that do not have it yet."""
    return max(0, card.limit - card.held - card.set_aside - card.unmanaged - kept)


def describe_cards(
    cards: Iterable[DeviceLedger], unreadable: Iterable[UnreadableLedger] = (), kept: Mapping[str, int] | None = None
) -> list[str]:
    """Returns a line for each card, also for those whose ledger cannot be read."""
    lines = [f"  {_describe(card, (kept or {}).get(card.uuid, 0))}" for card in cards]
    return lines + [f"  a card ({each.uuid}) whose ledger cannot be read: {each.error}" for each in unreadable]


def _describe(card: DeviceLedger, kept: int) -> str:
    number = "a card" if card.device is None else f"gpu{card.device}"
    whole = f"{number} {card.name} ({card.uuid}): {size_text(left_of(card, kept))} left of {size_text(card.limit)}"
    shares = sorted(((each.held + each.set_aside, each) for each in card.processes), key=lambda share: -share[0])
    holders = [
        f"{process.name} (pid {process.pid}){' [' + ', '.join(process.labels) + ']' if process.labels else ''} "
        f"{size_text(size)}"
        for size, process in shares
        if size
    ]
    if len(holders) > _HOLDERS:
        holders[_HOLDERS:] = [f"{len(holders) - _HOLDERS} more"]
    if card.unmanaged:
        holders.append(f"programs outside the ledger {size_text(card.unmanaged)}")
    if kept:
        holders.append(f"Ray for groups {size_text(kept)}")
    return f"{whole}; held by {', '.join(holders)}" if holders else whole


def node_name(worker: list[str]) -> str:
    """Returns the name of this node, of which Ray tells its workers the address and the number."""
    told = dict(word.lstrip("-").split("=", 1) for word in worker if word.startswith("--") and "=" in word)
    number = told.get("node-id", "")[:12]
    return " ".join(part for part in (told.get("node-ip-address"), number, f"({socket.gethostname()})") if part)
