"""Readings of ledgers, and ledgers that cannot be used."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import bursar
import pytest
from conftest import Card


def test_a_reading_is_plain_data(card: Card) -> None:
    with bursar.reserve("1GiB", label="train"):
        reading = bursar.ledger()
    (device,) = reading.devices
    assert (reading.folder, device.device, device.total, device.limit) == (
        card.environment["BURSAR_LEDGER_DIR"],
        0,
        8 << 30,
        8 << 30,
    )
    (process,) = device.processes
    assert (process.pid, process.set_aside) == (os.getpid(), 1 << 30)
    assert (datetime.now(timezone.utc) - process.since).total_seconds() >= 0
    assert pickle.loads(pickle.dumps(reading)) == reading


def test_a_refusal_is_told_with_its_numbers(card: Card) -> None:
    with bursar.reserve("6GiB"):
        for _ in range(2):
            with pytest.raises(bursar.OutOfMemory):
                bursar.reserve("3GiB", timeout=0, tenant="batch").wait()
        ledger = card.ledger()
    assert (sum(ledger.refused.values()), ledger.refused["limit"], ledger.processes[0].refused) == (2, 2, 2)
    newest = ledger.refusals[0]
    assert (newest.pid, newest.tenant, newest.reason) == (os.getpid(), "batch", "limit")
    assert (newest.requested, newest.available, newest.limit) == (3 << 30, 2 << 30, 8 << 30)
    assert [tenant.refused for tenant in ledger.tenants if tenant.name == "batch"] == [2]


@pytest.mark.parametrize("how", ["wait", "await", "async with"])
@pytest.mark.parametrize("others_wait", [False, True])
def test_m4_a_request_that_waited_is_refused_because_its_time_ran_out(card: Card, how: str, others_wait: bool) -> None:
    async def ask(size: str) -> None:
        request = bursar.reserve(size, timeout=0.02)
        if how == "wait":
            request.wait()
        elif how == "await":
            await request
        else:
            async with request:
                pass

    async def ask_behind(size: str) -> bursar.Timeout:
        before = asyncio.ensure_future(bursar.reserve("7GiB")._granted()) if others_wait else None
        await asyncio.sleep(0)
        with pytest.raises(bursar.Timeout) as late:
            await ask(size)
        if before is not None:
            before.cancel()
        return late.value

    with bursar.reserve("6GiB"):
        late = asyncio.run(ask_behind("1GiB" if others_wait else "3GiB"))
        ledger = card.ledger()
    assert (late.available, "out of turn" in str(late)) == (2 << 30, others_wait)
    assert {reason: count for reason, count in ledger.refused.items() if count} == {"timeout": 1}
    newest = ledger.refusals[0]
    assert (newest.reason, newest.requested, newest.available) == ("timeout", late.requested, 2 << 30)


def test_m4_a_refusal_for_those_who_wait_is_kept_with_what_was_free(card: Card) -> None:
    async def ask_behind() -> bursar.OutOfMemory:
        before = asyncio.ensure_future(bursar.reserve("7GiB")._granted())
        await asyncio.sleep(0)
        with pytest.raises(bursar.OutOfMemory) as refused:
            bursar.reserve("1GiB", timeout=0).wait()
        before.cancel()
        return refused.value

    with bursar.reserve("4GiB"):
        refused = asyncio.run(ask_behind())
        newest = card.ledger().refusals[0]
    assert (newest.reason, newest.requested, newest.available) == ("queue", 1 << 30, refused.available)
    assert refused.available == 4 << 30


def test_m4_a_request_that_what_the_pool_cached_made_room_for_was_not_refused(card: Card) -> None:
    bursar.use_pool()
    cached = bursar.Buffer("6GiB")
    with pytest.raises(bursar.OutOfMemory):
        bursar.reserve("4GiB", timeout=0).wait()
    del cached
    with bursar.reserve("4GiB", timeout=0):
        assert sum(card.ledger().refused.values()) == 1


def test_a_device_without_a_ledger_has_nothing_and_gets_none(card: Card, tmp_path: Path) -> None:
    assert (card.ledger().set_aside, card.ledger().processes) == (0, ())
    assert list(tmp_path.glob("*.ledger")) == []


def test_a_damaged_ledger_is_unreadable_and_refuses_by_its_kind(card: Card, tmp_path: Path) -> None:
    uuid = bursar.devices()[0].uuid
    file = tmp_path / f"{uuid}.ledger"
    file.write_bytes(b"not a ledger")
    file.chmod(0o600)
    reading = bursar.ledger()
    assert reading.devices == () and reading.unreadable[0].uuid == uuid
    assert bursar.devices()[0].held is None
    with pytest.raises(bursar.LedgerCorrupt) as damaged:
        bursar.reserve("1GiB", timeout=0).wait()
    assert damaged.value.file == str(file)
    copy = pickle.loads(pickle.dumps(damaged.value))
    assert (type(copy), copy.file) == (bursar.LedgerCorrupt, str(file))


def test_a_folder_that_others_may_write_to_is_refused_by_its_kind(card: Card, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(bursar.LedgerInaccessible):
        bursar.reserve("1GiB", timeout=0).wait()


@pytest.mark.parametrize(
    ("name", "wrong", "right"), [("x" * 49, "48 bytes", "NUL"), ("ä" * 25, "48 bytes", "NUL"), ("a\0b", "NUL", "48 bytes")]
)
def test_what_is_wrong_with_a_tenant_s_name_is_said(card: Card, name: str, wrong: str, right: str) -> None:
    with pytest.raises(bursar.InvalidValue, match=wrong) as refused:
        bursar.reserve("1GiB", tenant=name).wait()
    assert right not in str(refused.value) and "guarantee" not in str(refused.value)


def test_a_token_that_means_nothing_is_refused_by_its_kind(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BURSAR_RESERVATION", "bursar1:1:2:/nowhere/x.ledger")
    with pytest.raises(bursar.LedgerError):
        bursar.share()
    monkeypatch.setenv("BURSAR_RESERVATION", "nonsense")
    with pytest.raises(bursar.InvalidToken, match="nonsense"):
        bursar.share()


def test_a_token_that_is_not_utf_8_is_refused_where_one_that_means_nothing_is(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    bursar.use_pool()
    with bursar.reserve("1GiB") as share:
        given = share.delegate()
    monkeypatch.setenv("BURSAR_RESERVATION", given.token)
    monkeypatch.setenv("BURSAR_RESERVATION_SHARED", "\udcff")
    with pytest.raises(bursar.InvalidToken, match="BURSAR_RESERVATION_SHARED is no text in UTF-8"):
        bursar.share()
    monkeypatch.setenv("BURSAR_RESERVATION", "\udcff")
    asks: list[Callable[[], object]] = [bursar.share, lambda: bursar.Buffer("4GiB")]
    for ask in asks:
        with pytest.raises(bursar.InvalidToken, match="BURSAR_RESERVATION is no text in UTF-8"):
            ask()


def test_a_program_is_told_how_it_goes_on_after_its_ledger_was_cleared(card: Card) -> None:
    bursar.use_pool()
    kept = bursar.Buffer("1MiB")
    share = bursar.reserve("1GiB").wait()
    command = [sys.executable, "-m", "bursar", "ledger", "clear", "--force"]
    subprocess.run(command, env={**os.environ, **card.environment}, check=True, capture_output=True)
    asks: list[Callable[[], object]] = [lambda: bursar.Buffer("1GiB"), lambda: share.split(1)]
    for ask in asks:
        with pytest.raises(bursar.LedgerGone, match=r"reserve again, or, for the pool, .* call bursar\.use_pool\(\)") as gone:
            ask()
        assert gone.value.file is not None and gone.value.file in str(gone.value)
    del kept
    bursar.use_pool()
    anew = bursar.Buffer("1GiB")
    assert card.ledger().held >= anew.nbytes
    with bursar.reserve("1GiB", timeout=0):
        assert card.ledger().set_aside >= 1 << 30


def test_l5_a_relative_folder_of_ledgers_stays_where_it_was_first(tmp_path: Path) -> None:
    program = """
import bursar, os
os.environ["BURSAR_LEDGER_DIR"] = "ledgers"
os.chdir("one")
bursar.use_driver("sim", sim_devices="1x256MiB@relative")
kept = bursar.reserve("200MiB").wait()
os.chdir("../two")
try:
    bursar.reserve("200MiB", timeout=0).wait()
except bursar.OutOfMemory:
    print(bursar.ledger().devices[0].set_aside >> 20, os.listdir("."))
"""
    for name in ("one", "two"):
        (tmp_path / name).mkdir(mode=0o700)
    ran = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.stdout == "200 []\n", ran.stderr
