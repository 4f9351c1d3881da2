"""Cards in words: what is left on each, and who has the rest."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._ledger import DeviceLedger

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


def left_of(card: DeviceLedger) -> int:
    """Returns what can still be had of a card."""
    return max(0, card.limit - card.held - card.set_aside - card.unmanaged)


def describe_cards(cards: Iterable[DeviceLedger]) -> list[str]:
    """Returns a line for each card."""
    return [f"  {_describe(card)}" for card in cards]


def _describe(card: DeviceLedger) -> str:
    number = "a card" if card.device is None else f"gpu{card.device}"
    whole = f"{number} {card.name} ({card.uuid}): {size_text(left_of(card))} left of {size_text(card.limit)}"
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
    return f"{whole}; held by {', '.join(holders)}" if holders else whole


def node_name(worker: list[str]) -> str:
    """Returns the name of this node, of which Ray tells its workers the address and the number."""
    told = dict(word.lstrip("-").split("=", 1) for word in worker if word.startswith("--") and "=" in word)
    number = told.get("node-id", "")[:12]
    return " ".join(part for part in (told.get("node-ip-address"), number, f"({socket.gethostname()})") if part)
