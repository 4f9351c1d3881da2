"""A training program that shares a card: waits for its memory, and says why if it does not get it."""

from __future__ import annotations

import asyncio
import sys

import bursar


def choose_workers() -> int:
    """Returns how many workers fit, and says why."""
    plan = bursar.fit("6GiB", fixed="2GiB", workers=4)
    print(plan.explanation)
    return plan.workers


def train(share: bursar.Reservation) -> None:
    """Stands for the work."""
    print(f"training in {share.bytes >> 30} GiB of gpu{share.device}")


async def serve() -> int:
    """Reserves without holding the event loop up."""
    async with bursar.reserve("1GiB", timeout=10, priority=bursar.HIGH) as share:
        return share.bytes


def main() -> int:
    """Runs the example and returns its exit status."""
    for device in bursar.devices():
        print(f"gpu{device.index}: {device.name}, {device.free >> 30} of {device.total >> 30} GiB free ({device.kind})")
    choose_workers()
    try:
        with bursar.reserve("20GiB", device=0, timeout=60, label="train") as share:
            train(share)
            served: int = asyncio.run(serve())
    except bursar.Timeout as late:
        print(f"{late.available} of {late.requested} bytes were left after {late.waited:.0f} s", file=sys.stderr)
        return 1
    except bursar.OutOfMemory as refused:
        print(refused.explanation, *(holder.name for holder in refused.holders), sep="\n", file=sys.stderr)
        return 1
    print(f"served in {served >> 30} GiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
