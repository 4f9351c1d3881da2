"""Forks, spawned processes and the ends of interpreters."""

from __future__ import annotations

import os

import bursar
import pytest
from conftest import PATIENCE, Card, eventually

WHOLE = 8 << 30

FORKED = """
import bursar, os, sys
share = bursar.reserve("6GiB").wait()
request = bursar.reserve("1GiB")
child = os.fork()
if child == 0:
    uses = [lambda: share.bytes, share.release, lambda: share.split(1), request.wait, bursar.devices, bursar.ledger]
    for number, use in enumerate(uses):
        try:
            use()
        except bursar.Forked as error:
            assert str(os.getppid()) in str(error), error
        else:
            os._exit(10 + number)
    assert str(os.getppid()) in repr(share)
    del share, request
    END
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
request.wait()
print(status, bursar.ledger().devices[0].set_aside >> 30)
"""


@pytest.mark.parametrize("end", ["sys.exit(0)", "os._exit(0)"])
def test_y3_a_forked_child_has_nothing_of_its_parent_s(card: Card, end: str) -> None:
    assert card.run(FORKED.replace("END", end)) == "0 6\n"


LEAVING = """
import bursar, os, sys
for block in (bursar.reserve("1MiB"), bursar.log(os.environ["BURSAR_LEDGER_DIR"] + "/run.csv")):
    try:
        with block:
            if os.fork() == 0:
                sys.exit(7)
            print(os.WEXITSTATUS(os.wait()[1]))
            if os.fork() == 0:
                raise KeyError("the real problem")
            print(os.WEXITSTATUS(os.wait()[1]))
    except KeyError:
        os._exit(8)
"""


def test_y3_a_forked_child_leaves_a_block_of_its_parent_s_by_its_own_exception(card: Card) -> None:
    assert card.run(LEAVING).split() == ["7", "8"] * 2


SPAWNED = """
import bursar, multiprocessing

def work(size):
    with bursar.reserve(size, label="worker") as share:
        return share.bytes >> 30, bursar.ledger().devices[0].set_aside >> 30

if __name__ == "__main__":
    with bursar.reserve("2GiB"):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.apply(work, ("4GiB",)))
"""


def test_y3_spawned_processes_share_the_ledger(card: Card, tmp_path: os.PathLike[str]) -> None:
    program = os.path.join(tmp_path, "spawned.py")
    with open(program, "w") as file:
        file.write(SPAWNED)
    assert card.run(f"import runpy; runpy.run_path({program!r}, run_name='__main__')") == "(4, 6)\n"


OPENED_BY_THE_CHILD = """
import bursar, os
child = os.fork()
if child == 0:
    with bursar.reserve("6GiB") as share:
        os._exit(share.bytes >> 30)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_y3_a_child_of_a_process_that_opened_nothing_opens_for_itself(card: Card) -> None:
    assert card.run(OPENED_BY_THE_CHILD) == "6\n"


@pytest.mark.parametrize("end", ["", "sys.exit(0)", "os._exit(0)", "asyncio.run(forget())"])
def test_y3_an_interpreter_that_ends_returns_everything(card: Card, end: str) -> None:
    program = f"""
import asyncio, bursar, os, sys, threading
share = bursar.reserve("6GiB").wait()
cycle = [share]
cycle.append(cycle)
threading.Thread(target=bursar.reserve("4GiB").wait, daemon=True).start()
while not bursar.ledger().devices[0].waiting:
    pass

async def forget():
    asyncio.ensure_future(bursar.reserve("4GiB").__aenter__())
    while len(bursar.ledger().devices[0].waiting) < 2:
        await asyncio.sleep(0)

{end}
"""
    card.run(program)
    ledger = card.ledger()
    assert (ledger.held, ledger.set_aside, ledger.waiting, ledger.processes) == (0, 0, (), ())


def test_y3_a_process_that_is_killed_returns_everything(card: Card) -> None:
    child = card.python("import bursar; share = bursar.reserve('6GiB').wait(); input()")
    eventually(lambda: card.ledger().set_aside == 6 << 30, "it reserves")
    child.kill()
    child.communicate(timeout=PATIENCE)
    with bursar.reserve(WHOLE):
        pass
