"""The command, as console script and as ``python -m bursar``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import bursar
import pytest
from conftest import PATIENCE, Card, eventually

SCRIPT = [str(Path(sys.executable).with_name("bursar"))]
MODULE = [sys.executable, "-m", "bursar"]

both = pytest.mark.parametrize("command", [SCRIPT, MODULE], ids=["script", "module"])


def ended(command: list[str], *words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end."""
    return subprocess.run(
        [*command, *words], capture_output=True, text=True, check=False, cwd=folder, timeout=PATIENCE
    )


@both
def test_the_command_says_and_returns_what_the_library_does(card: Card, command: list[str]) -> None:
    with bursar.reserve("2GiB"):
        ran = ended(command, "fit", "--per-worker", "1GiB", "--want", "8", "--json")
        plan = bursar.fit("1GiB", workers=8)
    printed = json.loads(ran.stdout)
    assert ran.returncode == 0 and printed["simulated"]
    assert (printed["workers"], printed["explanation"]) == (plan.workers, plan.explanation)


@both
@pytest.mark.parametrize(
    ("words", "status"),
    [(["--version"], 0), (["no-such-command"], 2), (["fit", "--per-worker", "9GiB"], 1), (["replay", "no-such-file"], 2)],
)
def test_exit_statuses_are_the_command_s(card: Card, command: list[str], words: list[str], status: int) -> None:
    ran = ended(command, *words)
    assert (ran.returncode, "Traceback" in ran.stderr) == (status, False), ran.stderr


def test_a_reader_that_wants_no_more_is_no_failure(card: Card) -> None:
    pipe = subprocess.PIPE
    ran = subprocess.Popen([*SCRIPT, "completions", "bash"], stdout=pipe, stderr=pipe, text=True)
    assert ran.stdout is not None and ran.stderr is not None
    ran.stdout.close()
    assert (ran.stderr.read(), ran.wait(PATIENCE)) == ("", 0)


def test_output_that_is_closed_changes_no_status(card: Card) -> None:
    script = f'"{SCRIPT[0]}" run --per-worker 1GiB -- echo said >&-'
    assert subprocess.run(["sh", "-c", script], check=False, timeout=PATIENCE).returncode == 0


def test_y3_ctrl_c_ends_the_command_as_it_does_others(card: Card) -> None:
    words = ["bench", "pairs", "--threads", "2", "--pairs", "1000000000000"]
    ran = subprocess.Popen([*SCRIPT, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    eventually(lambda: len(os.listdir(f"/proc/{ran.pid}/task")) > 2, "it runs")
    ran.send_signal(signal.SIGINT)
    printed, said = ran.communicate(timeout=PATIENCE)
    assert (ran.returncode, printed, said) == (-signal.SIGINT, "", "")


@both
def test_y3_ctrl_c_ends_a_run_with_its_workers(card: Card, command: list[str]) -> None:
    words = ["run", "--per-worker", "1GiB", "--want", "2", "--", "sh", "-c", "echo started; exec sleep 600"]
    ran = subprocess.Popen([*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert ran.stdout is not None
    assert sorted(ran.stdout.readline() for _ in range(2)) == ["[worker 0] started\n", "[worker 1] started\n"]
    assert card.ledger().set_aside == 2 << 30
    ran.send_signal(signal.SIGINT)
    _, said = ran.communicate(timeout=PATIENCE)
    assert ran.returncode == 128 + signal.SIGINT and "Traceback" not in said
    ledger = card.ledger()
    assert (ledger.set_aside, ledger.processes) == (0, ())


def test_a_run_does_not_depend_on_the_folder_or_the_environment_it_is_started_in(
    card: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("bursar", "signal", "pathlib"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise SystemExit('the wrong package')")
    ran = ended([*SCRIPT, "run", "--per-worker", "1GiB"], "--", "true", folder=tmp_path)
    assert ran.returncode == 0, ran.stderr


SHARE = """
import bursar
share = bursar.share()
assert share is bursar.share()
print(share.worker, share.workers, share.label, share.bytes >> 20, share.shared.bytes >> 20, share.device)
with share.reservation as drawn:
    print(drawn.undrawn >> 20, drawn.label)
"""


def test_a_worker_is_told_its_share(card: Card) -> None:
    words = ["run", "--per-worker", "300MiB", "--fixed", "100MiB", "--want", "2", "--label", "train"]
    ran = ended([*SCRIPT, *words], "--", sys.executable, "-c", SHARE)
    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.splitlines()) == [
        "[worker 0] 0 2 train 300 100 0",
        "[worker 0] 300 train",
        "[worker 1] 1 2 train 300 100 0",
        "[worker 1] 300 train",
    ]


RELEASED_SHARE = """
import bursar
share = bursar.share()
before = share.uuid, share.device
try:
    share.reservation.shrink("100MiB")
except bursar.InvalidValue as refused:
    print(refused)
share.reservation.release()
print((share.uuid, share.device) == before, share.reservation.released)
bursar.reserve("1GiB", device=share.device, timeout=0).wait()
"""


def test_a_worker_knows_its_device_after_it_gave_its_share_back(card: Card) -> None:
    ran = ended([*SCRIPT, "run", "--per-worker", "1GiB"], "--", sys.executable, "-c", RELEASED_SHARE)
    assert ran.returncode == 0, ran.stderr
    [refused, known] = ran.stdout.splitlines()
    assert "a share is not shrunk by a worker that draws on it" in refused and known.endswith("True True")


HELD_SHARE = """
import bursar
share = bursar.share()
for size in ("100MiB", "200MiB"):
    buffer = bursar.Buffer(size)
    [counts] = bursar.statistics()
    drawn = share.reservation
    print(drawn.held == counts.held >= len(buffer), drawn.held + drawn.undrawn == drawn.bytes)
"""


def test_l3_a_share_knows_what_the_pool_of_its_worker_holds(card: Card) -> None:
    ran = ended([*SCRIPT, "run", "--per-worker", "1GiB"], "--", sys.executable, "-c", HELD_SHARE)
    assert ran.returncode == 0, ran.stderr
    assert [line.endswith("True True") for line in ran.stdout.splitlines()] == [True, True], ran.stdout


NO_MORE_OF_A_SHARE = """
import bursar
share = bursar.share() if {first} else None
kept = bursar.Buffer("100MiB")
share = share or bursar.share()
share.reservation.release()
def grows():
    try:
        return len(bursar.Buffer("300MiB")) > 0
    except bursar.Released as refused:
        return "use_pool" not in str(refused)
kept.copy_from(b"still there")
print(grows(), bursar.statistics()[0].held >> 20)
del kept
print(len(bursar.Buffer("100MiB")) >> 20)
bursar.use_pool()
print(grows(), bursar.statistics()[0].held >> 20)
bursar.use_pool(reservation=bursar.reserve("1GiB", timeout=0).wait())
print(grows())
"""


@pytest.mark.parametrize("first", [True, False])
def test_y6_the_pool_of_a_worker_does_not_grow_on_a_share_that_was_released(card: Card, first: bool) -> None:
    program = NO_MORE_OF_A_SHARE.format(first=first)
    ran = ended([*SCRIPT, "run", "--per-worker", "1GiB"], "--", sys.executable, "-c", program)
    assert ran.returncode == 0, ran.stderr
    said = [line.split("] ", 1)[-1] for line in ran.stdout.splitlines()]
    assert said == ["False 100", "100", "False 0", "True"]


DEFAULT_DEVICE = """
import bursar
share = bursar.share()
buffer, drawn = bursar.Buffer("1MiB"), bursar.reserve("1MiB", timeout=0).wait()
pinned = bursar.pinned("1MiB")
found = [buffer.device, drawn.device, *(of.device for of in bursar.pinned_statistics())]
named = [bursar.Buffer("1MiB", device=other).device for other in (0, 1)]
share.reservation.release()
print(share.device, {*found, bursar.reserve("1MiB", timeout=0).wait().device} == {share.device}, named)
bursar.sleep_when_asked()
"""


def test_a_worker_uses_the_device_of_its_share_where_none_is_named(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BURSAR_SIM_DEVICES", card.environment["BURSAR_SIM_DEVICES"].replace("1x", "2x"))
    words = ["run", "--per-worker", "5GiB", "--want", "2"]
    ran = ended([*SCRIPT, *words], "--", sys.executable, "-c", DEFAULT_DEVICE)
    assert ran.returncode == 0, ran.stderr
    said = sorted(line.split("] ", 1)[1] for line in ran.stdout.splitlines())
    assert said == ["0 True [0, 1]", "1 True [0, 1]"]
