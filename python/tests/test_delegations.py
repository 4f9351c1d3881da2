"""Memory that is handed on to processes, which end in every way."""

from __future__ import annotations

import gc
import random
import signal

import bursar
import pytest
from conftest import PATIENCE, Card, eventually

GIB = 1 << 30

#: Draws on what was handed on, and ends as it is told.
DRAWS = """
import bursar, os, sys
share = bursar.share()
buffer = bursar.Buffer("{mebibytes}MiB")
print(share.bytes, flush=True)
end = sys.stdin.readline().strip()
if end == "release":
    del buffer
    share.reservation.release()
elif end == "fork" and os.fork() == 0:
    os._exit(0)
elif end == "ask for too much":
    try:
        bursar.Buffer(share.bytes)
    except bursar.OutOfMemory as refused:
        print(refused.limit, flush=True)
"""

ENDS = ["end", "kill", "stop and kill", "release", "fork", "ask for too much"]


def taken(card: Card) -> int:
    return sum(process.held + process.set_aside for process in card.ledger().processes)


@pytest.mark.parametrize("seed", range(4))
def test_y3_what_was_handed_on_is_whole_however_those_who_draw_on_it_end(
    card: Card, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    numbers = random.Random(seed)
    delegation = bursar.reserve("2GiB", timeout=0).wait().delegate()
    with monkeypatch.context() as drawing:
        drawing.setenv("BURSAR_RESERVATION", delegation.token)
        workers = [card.python(DRAWS.format(mebibytes=numbers.choice([100, 300, 500]))) for _ in range(3)]
    for worker in workers:
        assert worker.stdout and worker.stdout.readline() == f"{2 * GIB}\n", worker.stderr and worker.stderr.read()
    assert taken(card) == 2 * GIB
    is_giver_first = numbers.random() < 0.5
    if is_giver_first:
        delegation.release()
        assert taken(card) <= 2 * GIB
    for worker in workers:
        end = numbers.choice(ENDS)
        if end.endswith("kill"):
            if end.startswith("stop"):
                worker.send_signal(signal.SIGSTOP)
            worker.kill()
        said, _ = worker.communicate(None if end.endswith("kill") else end + "\n", timeout=PATIENCE)
        assert said == (f"{2 * GIB}\n" if end == "ask for too much" else ""), end
    if not is_giver_first:
        eventually(lambda: delegation.held == 0, "all was given back to it")
        assert taken(card) == 2 * GIB
        delegation.release()
    del delegation
    gc.collect()
    eventually(lambda: taken(card) == 0, "all is back")
    bursar.reserve("8GiB", timeout=0).wait().release()
